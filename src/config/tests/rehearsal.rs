//! `[rehearsal.NAME]`: buffers as they are written and resolved.

use super::*;
use crate::buffer::{Capacity, Classes, Policy};

const DIR: &str = "cache.dir=/var/cache/belady";

#[test]
fn a_buffer_is_what_files_and_flags_say_of_it() {
    let file = "[cache]\ndir = \"/c\"\n[rehearsal.old]\nsize = 10\nseed = 4\n[rehearsal.a]\nsize = \"1GiB\"\n";
    let (config, origins) = Layers::new()
        .file("a.toml", file)
        .set("rehearsal.old.size=500")
        .set("rehearsal.old.root=./train/")
        .set("rehearsal.a.offer-rate=0.5")
        .build()
        .unwrap();
    let origin = |key| origins.of(key).to_string();
    assert_eq!(origin("rehearsal.old.size"), "flag --set");
    assert_eq!(origin("rehearsal.old.seed"), "file a.toml:5");
    assert_eq!(origin("rehearsal.old.policy"), "default");
    let buffers = resolve(&config, &HOST).unwrap().rehearsal;
    let [a, old] = &buffers[..] else { panic!("{buffers:?}") };
    assert_eq!((a.name.as_str(), a.rules.capacity), ("a", Capacity::Bytes(GIB)));
    assert_eq!((a.offer_rate, a.root.to_str()), (0.5, Some("")));
    assert_eq!((old.name.as_str(), old.rules.capacity), ("old", Capacity::Samples(500)));
    assert_eq!((old.rules.seed, old.rules.policy), (4, Policy::ClassBalanced));
    assert_eq!((old.root.to_str(), &old.classes), (Some("train"), &Classes::Directory));
}

#[test]
fn what_is_shown_of_a_buffer_can_be_set_again() {
    let config = set(&[
        DIR,
        "rehearsal.x.size=0B",
        "rehearsal.y.size=3",
        "rehearsal.y.policy=min-replay",
        "rehearsal.y.classes=/etc/labels",
        "rehearsal.z-1.classes=a/{class}/*",
    ]);
    let config = config.unwrap();
    let shown = render_show(&config, &Origins::default(), false);
    let (again, _) = Layers::new().file("shown", &shown).build().unwrap();
    assert_eq!(again, config, "{shown}");
}

#[test]
fn the_example_of_the_file_of_defaults_is_a_buffer() {
    let text = default_toml();
    let example = text.split_once("# [rehearsal.old]\n").unwrap().1;
    let example = example.split_once("\n\n").unwrap().0;
    let lines = example.lines().filter_map(|line| line.strip_prefix("# "));
    let buffer: String = lines.map(|line| format!("{line}\n")).collect();
    let text = format!("cache.dir = \"/c\"\n[rehearsal.old]\n{buffer}");
    let (config, _) = Layers::new().file("f", &text).build().unwrap();
    let set = set(&["cache.dir=/c", "rehearsal.old.size=5000"]).unwrap();
    assert_eq!(config, set, "{text}");
}

#[test]
fn a_buffer_of_codes_alone_needs_no_size() {
    let only = settings(&[DIR, "rehearsal.a.latent=1568"]).unwrap().rehearsal.remove(0);
    assert_eq!((only.latent, only.rules.capacity.limit(), only.offer_rate), (1568, 0, 0.0));
    let both = settings(&[DIR, "rehearsal.a.latent=8", "rehearsal.a.size=3"]).unwrap();
    let both = &both.rehearsal[0];
    assert_eq!((both.latent, both.rules.capacity.limit(), both.offer_rate), (8, 3, 1.0));
    let error = settings(&[DIR, "rehearsal.a.latent=1048577"]).unwrap_err();
    assert_eq!(error.message(), "rehearsal.a.latent 1048577 is not from 0 to 1048576");
    let none = settings(&[DIR, "rehearsal.a.latent=0"]).unwrap_err();
    assert_eq!(none.message(), "rehearsal.a has no size");
}

/// If a directory is named, the error says what is wrong with it.
#[test]
fn a_buffer_without_a_disk_says_why() {
    let of = |sets: &[&str], free| {
        let host = Host { cache_free: Some((free, 1000 * GIB)), ..HOST };
        let config = set(&[sets, &["rehearsal.a.size=3"]].concat()).unwrap();
        resolve(&config, &host).unwrap_err().message().to_owned()
    };
    let needs = |why: &str| format!("rehearsal.a needs a cache disk, and {why}");
    assert_eq!(of(&[], 500 * GIB), needs("cache.dir is empty"));
    assert_eq!(of(&[DIR, "cache.disk=0"], 500 * GIB), needs("cache.disk is 0"));
    let full = "cache.dir \"/c\" has no room: free 1 GiB less min-free 2 GiB holds no block";
    assert_eq!(of(&["cache.dir=/c", "cache.min-free=2GiB"], GIB), needs(full));
}

#[test]
fn buffers_share_the_disk() {
    let two = [DIR, "cache.disk=10GiB", "rehearsal.a.size=6GiB", "rehearsal.b.size=6GiB"];
    assert_eq!(settings(&two[..3]).unwrap().rehearsal.len(), 1);
    let error = settings(&two).unwrap_err();
    let words = "rehearsal.b.size: buffers of 12 GiB do not fit cache.disk 10 GiB";
    assert_eq!(error.message(), words);
    let lasting = |held, free, given: &[&str]| {
        let (cache_free, buffers_held) = (Some((free, 100 * GIB)), held);
        resolve(&set(given).unwrap(), &Host { cache_free, buffers_held, ..HOST })
    };
    let one = [DIR, "rehearsal.a.size=40GiB", "cache.min-free=5%"];
    assert!(lasting(0, 40 * GIB, &one).is_err());
    for (held, free) in [(0, 45 * GIB), (60 * GIB, 40 * GIB), (40 * GIB, 0)] {
        let disk = lasting(held, free, &one).unwrap().cache.disk.unwrap();
        let left = free.saturating_sub(5 * GIB);
        assert_eq!((disk.bytes, disk.buffers_bytes), (left, left + held), "what it holds has room");
    }
    let written = |size| [&one[..], &[size]].concat();
    let disk = lasting(60 * GIB, 20 * GIB, &written("cache.disk=41GiB")).unwrap().cache.disk;
    assert_eq!(disk.map(|disk| (disk.bytes, disk.buffers_bytes)), Some((15 * GIB, 41 * GIB)));
    assert!(lasting(60 * GIB, 20 * GIB, &written("cache.disk=39GiB")).is_err());
    let huge = format!("rehearsal.c.size={}", u64::MAX);
    let sizes = [DIR, "rehearsal.a.size=16383PiB", "rehearsal.b.size=16383PiB", &huge];
    assert!(settings(&sizes).is_err());
}

#[test]
fn what_cannot_be_a_buffer_is_named() {
    let env = Layers::new().env([("BELADY_REHEARSAL_SIZE", "3")]);
    assert!(refused(env).contains("buffers cannot be set by variables"));
    for (text, words) in [
        ("rehearsal=3", "`rehearsal` is a section, not a key"),
        ("rehearsal.old=3", "unknown key `rehearsal.old`"),
        ("rehearsal.old.size=-3", "\"-3\" is not the size of a buffer"),
        ("rehearsal.old.seed=-1", "expected a whole number"),
        ("rehearsal.old.offer-rate=often", "expected a number"),
        ("rehearsal.old.size.x=3", "unknown key"),
    ] {
        let said = refused(Layers::new().set(text));
        assert!(said.contains(words), "{text}: {said}");
    }
    let nan = settings(&[DIR, "rehearsal.a.size=3", "rehearsal.a.offer-rate=nan"]).unwrap_err();
    assert_eq!(nan.message(), "rehearsal.a.offer-rate NaN is not from 0 to 1");
}
