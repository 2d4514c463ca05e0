//! The paths by which trainers name samples, and warnings about settings and offers without effect.

use super::*;

/// A file of many blocks is offered as soon as a part of it is read.
#[test]
fn an_unreadable_file_is_offered_at_its_next_read() {
    let fixture = Fixture::new();
    let bytes = content(5, 2_500_000);
    fixture.write("d/large", &bytes);
    let slow = Slowpfs::new(&fixture, &[]);
    let cache = fixture.path("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--set", "rehearsal.old.size=30"];
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    slow.ctl(&["fault", "eio", "d/*"]);
    fails(fs::read(mounted.path("d/large")), Errno::EIO as i32);
    wait_until("the offer has come to nothing", || {
        mounted.count("/failed") > 0 && mounted.count("/fetching") == 0 && {
            let stats = stats(&fixture);
            (&stats["waiting"], &stats["offered"]) == (&0.into(), &0.into())
        }
    });
    slow.ctl(&["fault", "clear"]);
    wait_until("it is offered when it is read again", || {
        assert!(fs::read(mounted.path("d/large")).unwrap() == bytes);
        stats(&fixture)["offered"] == 1
    });
    mounted.umount();
}

/// Trainers name samples by the paths that their loaders have.
#[test]
fn samples_are_known_by_absolute_paths() {
    let fixture = fixture();
    let mounted = mount(&fixture, &["rehearsal.old.size=500", "rehearsal.old.policy=max-loss"]);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let (point, source) = (mounted.path("train/a/1.jpg"), fixture.source("train/a/2.jpg"));
    let (point, source) = (point.to_str().unwrap(), source.to_str().unwrap());
    let lines = format!("{point} 0.5\n{source} 1.5\n/elsewhere/train/a/3.jpg 2\n");
    let (code, text) = rehearse(&fixture, "score", &["old"], &lines);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("2 taken") && text.contains("/elsewhere/train/a/3.jpg: is no file"));
    let scores = mounted.path("rehearsal/old/scores");
    let mut file = fs::OpenOptions::new().write(true).open(scores).unwrap();
    file.write_all(format!("{} 2.5\n", mounted.path("train/a/4.jpg").display()).as_bytes())
        .unwrap();
    drop(file);
    wait_until("it is taken", || stats(&fixture)["scored"] == 3);
    let (code, text) = rehearse(&fixture, "show", &["old", point, "--json"], "");
    assert_eq!(code, Some(0), "{text}");
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&shown["path"], &shown["score"]), (&"train/a/1.jpg".into(), &0.5.into()));
    let offered = format!("{}\n", mounted.path("train/b/1.jpg").display());
    assert_eq!(rehearse(&fixture, "offer", &["old"], &offered).0, Some(0));
    wait_for_offers(&fixture, FILES + 1);
    mounted.umount();
}

#[test]
fn settings_that_do_not_fit_the_dataset_are_named() {
    let fixture = fixture();
    let mounted = mount(&fixture, &["rehearsal.old.classes=other/{class}/*.jpg"]);
    let (code, text) = rehearse(&fixture, "stats", &[], "");
    assert_eq!(code, Some(0), "{text}");
    let words = "warning: classes: `other/{class}/*.jpg` fits no file below root `train`";
    assert!(text.contains(words), "{text}");
    let (code, text) = rehearse(&fixture, "offer", &["old"], "train/a/1.jpg\n");
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("train/a/1.jpg: is of no class by `other/{class}/*.jpg`"), "{text}");
    mounted.umount();
    let mounted = mount(&fixture, &[]);
    assert_eq!(stats(&fixture)["doubts"], Value::Array(Vec::new()));
    mounted.umount();
}

/// The size of all samples is known when the dataset is.
#[test]
fn a_buffer_of_more_than_the_disk_is_named() {
    let fixture = fixture();
    (0..FILES).for_each(|n| fixture.write(&format!("train/d/{n}.jpg"), &content(n, 64 << 10)));
    let doubts = |samples: &str, nvme: &str| {
        let cache = fixture.path("cache");
        let size = format!("rehearsal.old.size={samples}");
        let more = ["--set", "rehearsal.latent-only.latent=8"];
        let options = [
            "--cache-dir",
            cache.to_str().unwrap(),
            "--disk",
            nvme,
            "--set",
            &size,
            more[0],
            more[1],
        ];
        let mounted = Mounted::new(&fixture, &options);
        let (code, text) = rehearse(&fixture, "stats", &[], "");
        assert_eq!(code, Some(0), "{text}");
        let told = stats(&fixture)["doubts"].as_array().unwrap().len();
        let log = mounted.log();
        mounted.umount();
        (told, text, log)
    };
    // 200 files of 16 KiB on average.
    let (told, text, log) = doubts("1000000", "1MiB");
    assert_eq!(told, 1, "{text}");
    for words in ["size: with 1000000 samples of 1", "come to 3", "make it 6", "make room for more"]
    {
        assert!(text.contains(words) && log.contains(words), "{words}: {text}");
    }
    assert_eq!(doubts("1000000", "8MiB").0, 0, "all of the dataset fits");
    assert_eq!(doubts("40", "1MiB").0, 0);
}

#[test]
fn views_are_listed_where_that_is_asked_for() {
    let fixture = fixture();
    let mounted = mount(&fixture, &["mount.list-rehearsal=true"]);
    let entries = fs::read_dir(mounted.path("")).unwrap().map(|entry| entry.unwrap());
    let mut listed: Vec<_> = entries
        .map(|entry| {
            (entry.file_name().into_string().unwrap(), entry.file_type().unwrap().is_dir())
        })
        .collect();
    listed.sort();
    assert_eq!(listed, ["rehearsal", "train", "val"].map(|name| (name.to_owned(), true)));
    assert!(mounted.path("rehearsal/old/slots").is_dir());
    mounted.umount();
}

/// Both buffers show the same files under the same names: the path says which buffer it is of.
#[test]
fn scores_of_another_buffer_are_refused() {
    let fixture = fixture();
    let mounted = mount(&fixture, &["rehearsal.new.size=30", "rehearsal.new.root=train"]);
    read_class(&mounted, "train/a");
    wait_for_offers(&fixture, FILES);
    let names = |buffer: &str| {
        let class = mounted.path(format!("rehearsal/{buffer}/epoch-0/a"));
        let entries = fs::read_dir(&class).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| path.to_str().unwrap().to_owned()).min().unwrap()
    };
    let (old, new) = (names("old"), names("new"));
    let lines = format!("{new} 0.5\n{old} 1.5\n");
    let (code, text) = rehearse(&fixture, "score", &["old"], &lines);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("1 taken"), "{text}");
    assert!(text.contains(&format!("{new}: is of the rehearsal buffer `new`")), "{text}");
    let (code, text) = rehearse(&fixture, "show", &["old", &new], "");
    assert!(code == Some(2) && text.contains("is of the rehearsal buffer `new`"), "{text}");
    assert_eq!(rehearse(&fixture, "show", &["new", &new], "").0, Some(0));
    mounted.umount();
}
