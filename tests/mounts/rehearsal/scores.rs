//! The file that takes scores.
//!
//! Goal: what a trainer says of samples arrives, in whatever pieces it is written, under the path in
//! the dataset or in a view; what cannot be taken fails the close, is named, and costs nothing else.

use super::*;

fn scores(ground: &Ground) -> BTreeMap<String, f64> {
    let (_, listed) = rehearse(ground, "ls", &["old", "--json"], "");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let members = listed.as_array().unwrap().iter();
    let scored = members.filter_map(|member| {
        Some((member["path"].as_str()?.to_owned(), member["score"].as_f64()?))
    });
    scored.collect()
}

#[test]
fn scores_are_taken_from_a_file() {
    let ground = ground();
    let mounted = mount(&ground, &["rehearsal.old.policy=max-loss"]);
    read_class(&mounted, "train/a");
    wait_for_offers(&ground, FILES);
    let view = mounted.path("rehearsal/old");
    let held = epoch(&view, 0)["a"].clone();
    let file = view.join("scores");
    let append = || fs::OpenOptions::new().append(true).open(&file).unwrap();
    // Pieces that end anywhere, the last line without an end; other processes are begun between
    // them, each of which closes a copy of the descriptor.
    let lines: String =
        held.iter().zip(0..).map(|(name, n)| format!("train/a/{name} {n}\n")).collect();
    let mut writer = append();
    for piece in lines.trim_end().as_bytes().chunks(7) {
        writer.write_all(piece).unwrap();
    }
    assert!(std::process::Command::new("true").status().unwrap().success());
    writer.write_all(b".25").unwrap();
    drop(writer);
    let expected = |name: &String, n: usize| (format!("train/a/{name}"), n as f64);
    let mut all: BTreeMap<_, _> = held.iter().zip(0..).map(|(name, n)| expected(name, n)).collect();
    all.insert(format!("train/a/{}", held[29]), 29.25);
    assert_eq!(scores(&ground), all);
    // By the paths of a view, from a shell.
    let shown = view.join("epoch-0/a").join(&held[0]);
    let script = format!("echo '{} 99.5' > {}", shown.display(), file.display());
    assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
    let first = format!("train/a/{}", held[0]);
    wait_until("it is there", || scores(&ground)[&first] == 99.5);
    // What cannot be taken, among what can.
    let mut writer = append();
    writeln!(writer, "train/a/{} nan\ntrain/b/1.jpg 1\nx\n{first} 7", held[1]).unwrap();
    let fd = std::os::fd::IntoRawFd::into_raw_fd(writer);
    let closed = nix::unistd::close(fd);
    assert_eq!(closed, Err(Errno::EINVAL));
    wait_until("the last one is there", || scores(&ground)[&first] == 7.0);
    let stats = stats(&ground);
    assert_eq!((&stats["scored"], &stats["refused"]), (&32.into(), &3.into()));
    let (_, known) = rehearse(&ground, "show", &["old", shown.to_str().unwrap(), "--json"], "");
    let known: Value = serde_json::from_str(&known).unwrap();
    let expected = (&first.as_str().into(), &"a".into(), &7.0.into());
    assert_eq!((&known["path"], &known["class"], &known["score"]), expected);
    assert_eq!(rehearse(&ground, "show", &["old", "train/a/x"], "").0, Some(2));
    let why = stats["why"].to_string();
    for words in ["not a finite number", "train/b/1.jpg: is not in the buffer", "`path score`"] {
        assert!(why.contains(words), "{words}: {why}");
    }
    assert!(fs::read(&file).is_err(), "there is nothing to read");
    assert!(fs::write(view.join("new"), b"x").is_err());
    assert!(fs::remove_file(&file).is_err());
    // A line without an end is not waited for for good.
    let mut endless = append();
    let piece = vec![b'x'; 1 << 20];
    let refused = (0..100).find_map(|_| endless.write_all(&piece).err());
    assert_eq!(refused.unwrap().raw_os_error(), Some(Errno::EFBIG as i32));
    let closed = nix::unistd::close(std::os::fd::IntoRawFd::into_raw_fd(endless));
    assert_eq!(closed, Err(Errno::EFBIG));
    let open = fs::OpenOptions::new().write(true).open(shown);
    assert_eq!(open.unwrap_err().raw_os_error(), Some(Errno::EROFS as i32));
    mounted.umount();
}

#[test]
fn a_buffer_can_be_copied() {
    let ground = ground();
    let mounted = mount(&ground, &[]);
    ["a", "b"].into_iter().for_each(|class| read_class(&mounted, &format!("train/{class}")));
    wait_for_offers(&ground, 2 * FILES);
    let copies = ground.path("copies");
    let directory = copies.to_str().unwrap();
    let (code, text) = rehearse(&ground, "export", &["old", directory], "");
    assert_eq!((code, text.trim()), (Some(0), "30 samples"));
    let held = epoch(&mounted.path("rehearsal/old"), 0);
    for (class, files) in &held {
        assert_eq!(fs::read_dir(copies.join(class)).unwrap().count(), files.len());
        for file in files {
            let copy = fs::read(copies.join(class).join(file)).unwrap();
            assert!(copy == fs::read(ground.source(format!("train/{class}/{file}"))).unwrap());
        }
    }
    let (code, text) = rehearse(&ground, "export", &["old", directory], "");
    assert!(code == Some(2) && text.contains("cannot export"), "{text}");
    assert_eq!(rehearse(&ground, "export", &["new", directory], "").0, Some(2));
    mounted.umount();
}
