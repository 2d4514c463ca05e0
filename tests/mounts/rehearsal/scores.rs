//! The file that takes scores.
//!
//! Goal: a trainer's scores arrive, in whatever pieces they are written, under paths in the dataset or in a
//! view. A line that cannot be taken fails the close, is named, and costs nothing else.

use super::*;

fn scores(fixture: &Fixture) -> BTreeMap<String, f64> {
    let (_, listed) = rehearse(fixture, "ls", &["old", "--json"], "");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let members = listed.as_array().unwrap().iter();
    let scored = members.filter_map(|member| {
        Some((member["path"].as_str()?.to_owned(), member["score"].as_f64()?))
    });
    scored.collect()
}

#[test]
fn scores_are_taken_from_a_file() {
    let fixture = fixture();
    let mounted = mount(&fixture, &["rehearsal.old.policy=max-loss"]);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let view = mounted.path("rehearsal/old");
    let held = epoch(&view, 0)["a"].clone();
    let file = view.join("scores");
    let append = || fs::OpenOptions::new().append(true).open(&file).unwrap();
    // Pieces that end anywhere, and a last line without an end. Between them other processes are started,
    // each of which closes its copy of the descriptor.
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
    assert_eq!(scores(&fixture), all);
    // From a shell, by a path of a view.
    let shown = view.join("epoch-0/a").join(&held[0]);
    let script = format!("echo '{} 99.5' > {}", shown.display(), file.display());
    assert!(std::process::Command::new("sh").args(["-c", &script]).status().unwrap().success());
    let first = format!("train/a/{}", held[0]);
    wait_until("it is there", || scores(&fixture)[&first] == 99.5);
    // Wrong lines among right ones.
    let mut writer = append();
    writeln!(writer, "train/a/{} nan\ntrain/b/x.jpg 1\nx\n{first} 7", held[1]).unwrap();
    let fd = std::os::fd::IntoRawFd::into_raw_fd(writer);
    let closed = nix::unistd::close(fd);
    assert_eq!(closed, Err(Errno::EINVAL));
    wait_until("the last one is there", || scores(&fixture)[&first] == 7.0);
    let stats = stats(&fixture);
    assert_eq!((&stats["scored"], &stats["refused"]), (&32.into(), &3.into()));
    let (_, known) = rehearse(&fixture, "show", &["old", shown.to_str().unwrap(), "--json"], "");
    let known: Value = serde_json::from_str(&known).unwrap();
    let expected = (&first.as_str().into(), &"a".into(), &7.0.into());
    assert_eq!((&known["path"], &known["class"], &known["score"]), expected);
    assert_eq!(rehearse(&fixture, "show", &["old", "train/a/x"], "").0, Some(2));
    let why = stats["why"].to_string();
    for words in ["not a finite number", "train/b/x.jpg: is no file of", "`path score`"] {
        assert!(why.contains(words), "{words}: {why}");
    }
    assert!(fs::read(&file).is_err(), "there is nothing to read");
    assert!(fs::write(view.join("new"), b"x").is_err());
    assert!(fs::remove_file(&file).is_err());
    // A line that does not end is refused at some length.
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

/// A trainer cannot know which samples are held at this moment, nor how a path is written here.
#[test]
fn scores_of_what_is_not_held_are_passed_over() {
    let fixture = fixture();
    let mounted = mount(&fixture, &["rehearsal.old.policy=ring"]);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let view = mounted.path("rehearsal/old");
    let frozen = epoch(&view, 0)["a"].clone();
    read_class(&mounted, "train/b");
    wait_for_offers(&fixture, 2 * FILES);
    let mut lines: String = (0..FILES).map(|n| format!("train/b/{n}.jpg {n}\n")).collect();
    lines += &format!("{} 1\n", view.join("epoch-0/a").join(&frozen[0]).display());
    lines += "train/c/1.jpg 3\ntrain//b/39.jpg 99\n./train/b/38.jpg 98\n";
    let mut writer = fs::OpenOptions::new().append(true).open(view.join("scores")).unwrap();
    writer.write_all(lines.as_bytes()).unwrap();
    assert_eq!(nix::unistd::close(std::os::fd::IntoRawFd::into_raw_fd(writer)), Ok(()));
    let told = stats(&fixture);
    let counts = ["scored", "passed", "refused"].map(|key| told[key].as_u64().unwrap());
    assert_eq!(counts, [32, 12, 0]);
    let scores = scores(&fixture);
    assert_eq!((scores["train/b/39.jpg"], scores["train/b/38.jpg"]), (99.0, 98.0));
    let (code, text) = rehearse(&fixture, "score", &["old"], "train/a/1.jpg 1\ntrain/b/30.jpg 2\n");
    assert!(code == Some(0) && text.contains("1 taken, 1 of samples that are not held"), "{text}");
    mounted.umount();
}

/// However a path is written, it stands for one sample.
#[test]
fn a_sample_is_offered_once_however_its_path_is_written() {
    let fixture = fixture();
    fs::hard_link(fixture.source("train/b/2.jpg"), fixture.source("train/c/of-b.jpg")).unwrap();
    let mounted = mount(&fixture, &[]);
    assert_eq!(rehearse(&fixture, "offer", &["old"], "train//b/1.jpg\n").0, Some(0));
    wait_for_offers(&fixture, 1);
    assert_eq!(rehearse(&fixture, "offer", &["old"], "train/b/2.jpg\n").0, Some(0));
    wait_for_offers(&fixture, 2);
    let again = "train/b/1.jpg\n./train/b/1.jpg\ntrain/./b//1.jpg\ntrain/c/of-b.jpg\n";
    let (code, text) = rehearse(&fixture, "offer", &["old"], again);
    assert!(code == Some(2) && text.contains("4 not taken"), "{text}");
    fs::read(mounted.path("train/b/1.jpg")).unwrap();
    fs::read(mounted.path("train/b/3.jpg")).unwrap();
    wait_for_offers(&fixture, 3);
    let (_, listed) = rehearse(&fixture, "ls", &["old"], "");
    assert_eq!(listed.matches("train/b/1.jpg").count(), 1, "{listed}");
    assert_eq!(listed.lines().count(), 1 + 3, "{listed}");
    assert!(listed.starts_with("class "), "{listed}");
    mounted.umount();
}

#[test]
fn features_are_taken_where_the_policy_goes_by_them() {
    let fixture = fixture();
    fixture.write("train/a/with a 7", &content(1, 700));
    let mounted = mount(&fixture, &["rehearsal.old.policy=herding"]);
    read_class(&mounted, "train/a");
    fs::read(mounted.path("train/a/with a 7")).unwrap();
    wait_for_offers(&fixture, FILES + 1);
    let sleep = ["old", "--budget", "5", "--policy", "herding"];
    let (code, text) = rehearse(&fixture, "sleep", &sleep, "");
    assert!(code == Some(2) && text.contains("\"herding\" would be chance"), "{text}");
    // By the names that the samples have in the dataset or in a view.
    let view = mounted.path("rehearsal/old/epoch-0");
    let shown = epoch_names(&view.join("a"));
    let mut lines: String = (0..FILES).map(|n| format!("train//a/{n}.jpg 1 {n}\n")).collect();
    lines +=
        &format!("train/a/with a 7 1 -5\n{} 1 0.5\n", view.join("a").join(&shown[0]).display());
    let (code, text) = rehearse(&fixture, "score", &["old", "--features"], &lines);
    assert!(code == Some(0), "{text}");
    assert!(text.contains("31 taken, 11 of samples that are not held"), "{text}");
    assert_eq!(scores(&fixture).len(), 30);
    assert_eq!(rehearse(&fixture, "sleep", &sleep, "").0, Some(0));
    let wrong = "train/a/x 1 2\ntrain/a/1.jpg\ntrain/a/1.jpg 1 x\n";
    let (code, text) = rehearse(&fixture, "score", &["old", "--features"], wrong);
    assert!(code == Some(2) && text.contains("3 not taken"), "{text}");
    mounted.umount();
    let mounted = mount(&fixture, &["rehearsal.old.policy=max-loss"]);
    let (code, text) = rehearse(&fixture, "score", &["old", "--features"], &lines);
    assert!(code == Some(2) && text.contains("\"max-loss\""), "{text}");
    mounted.umount();
}

fn epoch_names(class: &Path) -> Vec<String> {
    let entries = fs::read_dir(class).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_buffer_can_be_copied() {
    let fixture = fixture();
    let mounted = mount(&fixture, &[]);
    ["a", "b"].into_iter().for_each(|class| read_class(&mounted, &format!("train/{class}")));
    wait_for_offers(&fixture, 2 * FILES);
    let copies = fixture.path("copies");
    let directory = copies.to_str().unwrap();
    let (code, text) = rehearse(&fixture, "export", &["old", directory], "");
    assert_eq!((code, text.trim()), (Some(0), "30 samples"));
    let held = epoch(&mounted.path("rehearsal/old"), 0);
    for (class, files) in &held {
        assert_eq!(fs::read_dir(copies.join(class)).unwrap().count(), files.len());
        for file in files {
            let copy = fs::read(copies.join(class).join(file)).unwrap();
            assert!(copy == fs::read(fixture.source(format!("train/{class}/{file}"))).unwrap());
        }
    }
    let (code, text) = rehearse(&fixture, "export", &["old", directory], "");
    assert!(code == Some(2) && text.contains("cannot export"), "{text}");
    assert_eq!(rehearse(&fixture, "export", &["new", directory], "").0, Some(2));
    mounted.umount();
}

/// A damaged sample is named and given up, and the others are copied.
#[test]
fn a_damaged_sample_keeps_no_other_from_being_copied() {
    let fixture = fixture();
    let mounted = mount(&fixture, &[]);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let held = epoch(&mounted.path("rehearsal/old"), 0)["a"].clone();
    damage(&fixture, &held[3]);
    let copies = fixture.path("copies");
    let (code, text) = rehearse(&fixture, "export", &["old", copies.to_str().unwrap()], "");
    assert!(code != Some(0) && text.contains("29 samples"), "{text}");
    assert!(text.contains(&format!("1 not copied:\n  train/a/{}: ", held[3])), "{text}");
    let mut expected = held.clone();
    expected.remove(3);
    let mut copied = epoch_names(&copies.join("a"));
    expected.sort();
    copied.sort();
    assert_eq!(copied, expected);
    wait_until("it is given up", || stats(&fixture)["samples"] == 29);
    let again = fixture.path("again");
    let (code, text) = rehearse(&fixture, "export", &["old", again.to_str().unwrap()], "");
    assert!(code == Some(0) && text.contains("29 samples"), "{text}");
    mounted.umount();
}
