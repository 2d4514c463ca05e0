//! Checks the rules of ARCHITECTURE.md by reading the source: which room imports which, which room uses which
//! crate, and what pure rooms may name.

#![expect(clippy::unwrap_used, reason = "what cannot be read fails the test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Rooms from the bottom up. A room imports only from rooms of earlier lines; rooms of one line do not import
/// each other.
const LAYERS: [&[&str]; 17] = [
    &["ids", "error", "paths", "privileges", "process", "stall", "state_directory", "sync"],
    &["order", "buffer", "derive", "disk", "input", "page_size", "tls", "track"],
    &["config", "sandbox"],
    &["cluster", "learn", "limiter", "profiler"],
    &["plan"],
    &["sim", "doctor", "peers", "source"],
    &["store", "whatif"],
    &["catalog"],
    &["cache"],
    &["fs", "learning"],
    &["rehearsal"],
    &["fuse"],
    &["engine"],
    &["control"],
    &["mount"],
    &["run"],
    &["cli"],
];

/// Rooms of values and decisions only.
const PURE: [&str; 15] = [
    "ids", "error", "order", "buffer", "derive", "config", "track", "cluster", "learn", "limiter",
    "plan", "sim", "stall", "whatif", "doctor",
];

/// What a pure room never names.
const IMPURE: [&str; 15] = [
    "std::fs",
    "std::thread",
    "std::net",
    "std::process",
    "std::env",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "crate::sync::",
    "Instant::now",
    "SystemTime::now",
    "tokio::",
    "nix::",
    "fuser::",
    "async fn",
    "rand::rng()",
];

/// Crates that only some rooms may use.
const HOMES: [(&str, &[&str]); 23] = [
    ("fuser::", &["fuse"]),
    ("clap::", &["cli"]),
    ("indicatif::", &["cli"]),
    ("fast_image_resize::", &["derive"]),
    ("glob::", &["derive", "engine"]),
    ("hdf5_pure::", &["order"]),
    ("image::codecs::", &["derive"]),
    ("jpeg_encoder::", &["derive"]),
    ("object_store::", &["source"]),
    ("polars_arrow_format::", &["order"]),
    ("redis::", &["peers", "source"]),
    ("rustls::", &["peers", "source", "tls"]),
    ("scylla::", &["source"]),
    ("seccompiler::", &["sandbox"]),
    ("tokio_rustls::", &["peers"]),
    ("tokio::", &["control", "mount", "peers", "source"]),
    ("tar::", &["source"]),
    ("toml::", &["config"]),
    ("url::", &["source"]),
    ("zip::", &["source"]),
    ("zune_jpeg::", &["derive"]),
    ("lru::", &["fuse", "plan", "rehearsal", "source"]),
    ("crc32c::", &["catalog", "disk", "learning", "peers", "rehearsal", "store"]),
];

/// A wing is a feature of its own. Of the engine, only the files that compose it name a wing. The planner's
/// thread knows only its observers.
const WINGS: [(&str, &[&str]); 2] = [
    (
        "learning",
        &[
            "engine/mod.rs",
            "engine/orders.rs",
            "engine/record.rs",
            "engine/status.rs",
            "engine/files.rs",
        ],
    ),
    (
        "rehearsal",
        &["engine/mod.rs", "engine/orders.rs", "engine/serving.rs", "engine/view_orders.rs"],
    ),
];

/// Rooms in which the kernel may be notified or waited for. Their locks are counted.
const COUNTED: [&str; 11] = [
    "disk",
    "source",
    "store",
    "catalog",
    "cache",
    "fs",
    "learning",
    "profiler",
    "rehearsal",
    "fuse",
    "engine",
];

/// The file that uses a lock that is not counted.
const UNCOUNTED: &str = "fuse/self_access.rs";

/// Files that print. They escape control characters in what people read.
const PRINTS: [&str; 4] =
    ["cli/apart.rs", "cli/terminal.rs", "cli/order/output.rs", "cli/mount.rs"];

fn source_files() -> Vec<(String, PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut queue = vec![root.clone()];
    while let Some(directory) = queue.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let relative = path.strip_prefix(&root).unwrap().to_path_buf();
            if relative.starts_with("bin") {
                continue;
            }
            if path.is_dir() {
                queue.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let first = relative.components().next().unwrap().as_os_str();
                let room = Path::new(first).file_stem().unwrap().to_str().unwrap().to_string();
                found.push((room, relative, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(found.len() > 40, "only {} files found", found.len());
    found
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs")))
}

/// The code of a file: without comments and without its unit tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let keep = |line: &&str| !line.trim_start().starts_with("//");
    text.lines().filter(keep).collect::<Vec<_>>().join("\n")
}

/// Every room is on a layer, and every `crate::room` points down.
#[test]
fn imports_point_down() {
    let layer: BTreeMap<&str, usize> = LAYERS
        .iter()
        .enumerate()
        .flat_map(|(level, rooms)| rooms.iter().map(move |room| (*room, level)))
        .collect();
    for (room, path, text) in source_files() {
        if matches!(room.as_str(), "lib" | "main") {
            continue;
        }
        let own = *layer.get(room.as_str()).unwrap_or_else(|| panic!("{room} is on no layer"));
        for (at, _) in code(&text).match_indices("crate::") {
            let rest = &code(&text)[at + "crate::".len()..];
            let used: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            if used == room {
                continue;
            }
            let level = layer.get(used.as_str());
            let level = *level.unwrap_or_else(|| panic!("{}: crate::{used}?", path.display()));
            assert!(level < own, "{}: {room} may not import {used}", path.display());
        }
    }
}

#[test]
fn wings_are_named_where_an_engine_is_composed() {
    for (_, path, text) in source_files() {
        let name = path.to_str().unwrap();
        for (wing, places) in WINGS {
            let named =
                name.starts_with("engine/") && code(&text).contains(&format!("crate::{wing}::"));
            assert!(!named || places.contains(&name), "{name} names {wing}");
        }
    }
}

/// Rehearsal is a wing: the rooms that decide about orders, fetches and places do not know its buffers.
#[test]
fn the_planner_and_the_learner_know_no_buffer() {
    for (room, path, text) in source_files() {
        let knows = code(&text).contains("crate::buffer");
        assert!(!knows || !["plan", "learn", "sim"].contains(&room.as_str()), "{}", path.display());
    }
}

#[test]
fn pure_rooms_do_nothing_but_think() {
    for (room, path, text) in source_files() {
        if !PURE.contains(&room.as_str()) || is_test(&path) {
            continue;
        }
        for word in IMPURE {
            assert!(!code(&text).contains(word), "{} names {word}", path.display());
        }
    }
}

#[test]
fn a_crate_has_one_home() {
    for (room, path, text) in source_files() {
        for (name, homes) in HOMES {
            let used = code(&text).contains(name) && !is_test(&path);
            assert!(!used || homes.contains(&room.as_str()), "{} uses {name}", path.display());
        }
    }
}

/// A request thread must not wait, and an answer must not panic.
#[test]
fn nothing_blocks_or_panics_where_it_must_not() {
    for (room, path, text) in source_files() {
        if is_test(&path) {
            continue;
        }
        let code = code(&text);
        let blocking = code.contains("block_on") && room != "mount";
        assert!(!blocking, "{} waits for a task", path.display());
        for word in [".unwrap()", "todo!(", "unimplemented!(", "dbg!(", "unbounded_channel"] {
            assert!(!code.contains(word), "{} has {word}", path.display());
        }
    }
}

/// A lock of `std` does not tell who holds it.
#[test]
fn locks_are_counted_where_the_kernel_is_notified() {
    for (room, path, text) in source_files() {
        let exempt = path == Path::new(UNCOUNTED) || is_test(&path);
        if !COUNTED.contains(&room.as_str()) || exempt {
            continue;
        }
        let code = code(&text);
        for (at, _) in code.match_indices("std::sync::") {
            let used = code[at..].split(';').next().unwrap();
            for lock in ["Mutex", "RwLock", "Condvar"] {
                assert!(!used.contains(lock), "{}: {lock} of std", path.display());
            }
        }
    }
}

/// A file's name may hold sequences that a terminal obeys.
#[test]
fn what_is_printed_is_escaped_in_one_place() {
    for (_, path, text) in source_files() {
        let code = code(&text);
        let may = PRINTS.iter().any(|allowed| path == Path::new(allowed));
        for (word, never) in
            [("print!(", true), ("println!(", true), ("io::stdout", false), ("io::stderr", false)]
        {
            let prints = code.contains(word) && !is_test(&path);
            assert!(!prints || may && !never, "{} prints by {word}", path.display());
        }
    }
}

/// `ARCHITECTURE.md` names every room.
#[test]
fn the_map_is_complete() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let map = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    for room in LAYERS.iter().flat_map(|rooms| rooms.iter()) {
        assert!(map.contains(&format!("`{room}")), "ARCHITECTURE.md does not name {room}");
    }
}
