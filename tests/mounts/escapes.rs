//! Names that a terminal would obey.
//!
//! Goal: whatever files are called, no command and no log sends their control characters to a terminal.
//! Method: source, mount point and files have names with escape sequences. All output for people is searched
//! for them. Output for programs stays exact.

use std::fs;

use serde_json::Value;

use crate::fixture::{Fixture, content};
use crate::mounted::Mounted;

/// Makes the text after it red, and rings the bell.
const NAME: &str = "\x1b[31mred\x07";

#[track_caller]
fn check(said: &str, what: &str) {
    assert!(!said.contains(['\x1b', '\x07']), "{what}: {said:?}");
}

#[test]
fn names_are_shown_and_not_obeyed() {
    let fixture = Fixture::new();
    let (source, point) = (fixture.path(&format!("{NAME} source")), fixture.path(NAME));
    fs::create_dir_all(source.join(NAME)).unwrap();
    fs::create_dir(&point).unwrap();
    let sample = format!("{NAME}/{NAME}.jpg");
    fs::write(source.join(&sample), content(1, 5000)).unwrap();
    let cache = fixture.path(&format!("{NAME} cache"));
    let cache = cache.to_str().unwrap();
    let order = "sequential:index=path";
    let options = ["--cache-dir", cache, "--disk", "16MiB", "--order", order];
    let mounted = Mounted::at(&fixture, &source, &point, &options);
    assert!(fs::read(mounted.path(&sample)).unwrap() == content(1, 5000));
    // An unknown path is refused, and the log says so.
    let _ = fs::write(mounted.path(".belady/order"), format!("{NAME}/none\n"));
    let (list, at) = (fixture.path("list"), point.to_str().unwrap());
    fs::write(&list, format!("{sample}\n{NAME}\n")).unwrap();
    let list = list.to_str().unwrap();
    let missing = format!("{at}/none");
    let commands: [(i32, &[&str]); 8] = [
        (0, &["status"]),
        (0, &["status", at]),
        (0, &["order", "status", at]),
        (3, &["order", "set", at, &missing]),
        (0, &["warmup", at, "--files-from", list]),
        (0, &["cache", "ls", cache]),
        (8, &["mount", source.to_str().unwrap(), at]),
        (6, &["status", &missing]),
    ];
    for (code, words) in commands {
        let said = fixture.run(code, words);
        check(&said, &words.join(" "));
        assert!(!said.is_empty());
    }
    assert!(fixture.run(0, &["status", at]).contains("\\x1b[31mred\\x07"));
    let status: Value = serde_json::from_str(&fixture.run(0, &["status", at, "--json"])).unwrap();
    assert_eq!(status["source"], source.to_str().unwrap());
    let shown = fixture.run(0, &["order", "show", order, source.to_str().unwrap()]);
    assert!(shown.contains(&sample), "an order file is exact: {shown:?}");
    check(&mounted.log(), "the log");
    assert!(mounted.log().contains("\\x1b[31mred\\x07"), "{}", mounted.log());
    mounted.umount();
}
