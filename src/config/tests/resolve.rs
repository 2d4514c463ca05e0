//! Choices that belady makes, and relations that must hold.

use std::time::Duration;

use super::*;

#[test]
fn auto_ram_takes_the_lesser_share() {
    let config = Config::default();
    let settings = resolve(&config, &HOST).unwrap();
    assert_eq!(settings.cache.ram_bytes, 16 * GIB);
    assert!(
        settings
            .decisions
            .contains(&"cache.ram auto: 16 GiB = 25% of the memory limit 64 GiB".to_owned()),
        "{:?}",
        settings.decisions
    );
    let busy = Host { memory_available: 10 * GIB, ..HOST };
    let settings = resolve(&config, &busy).unwrap();
    assert_eq!(settings.cache.ram_bytes, 5 * GIB);
    let none = Host { memory_available: 0, ..HOST };
    assert_eq!(resolve(&config, &none).unwrap().cache.ram_bytes, 0);
}

#[test]
fn ram_that_does_not_fit_is_shrunk_and_said_so() {
    let settings = settings(&["cache.ram=1TiB"]).unwrap();
    assert_eq!(settings.cache.ram_bytes, 56 * GIB);
    let said = "cache.ram shrunk from 1 TiB to 56 GiB, which fits the memory limit 64 GiB";
    assert!(settings.decisions.iter().any(|line| line == said), "{:?}", settings.decisions);
    assert_eq!(self::settings(&["cache.ram=1"]).unwrap().cache.ram_bytes, 1);
}

#[test]
fn the_disk_tier_leaves_what_must_stay_free() {
    assert_eq!(settings(&[]).unwrap().cache.disk, None);
    let disk = |given: &[&str]| settings(given).map(|settings| settings.cache.disk);
    let bytes = |given: &[&str]| disk(given).unwrap().map(|disk| disk.bytes);
    assert_eq!(bytes(&["cache.dir=/c"]), Some(450 * GIB));
    assert_eq!(bytes(&["cache.dir=/c", "cache.disk=50%"]), Some(250 * GIB));
    assert_eq!(bytes(&["cache.dir=/c", "cache.disk=100%"]), Some(450 * GIB));
    assert_eq!(bytes(&["cache.dir=/c", "cache.disk=0"]), None);
    assert_eq!(bytes(&["cache.dir=/c", "cache.min-free=60%"]), None);
    assert_eq!(bytes(&["cache.dir=/c", "cache.min-free=auto"]), Some(450 * GIB));
    let shrunk = settings(&["cache.dir=/c", "cache.disk=451GiB"]).unwrap();
    let said = "cache.disk shrunk from 451 GiB to 450 GiB, which fits: free 500 GiB less min-free \
                50 GiB";
    assert!(shrunk.decisions.iter().any(|line| line == said), "{:?}", shrunk.decisions);
    let sizes = shrunk.cache.disk.map(|disk| (disk.bytes, disk.configured_bytes));
    assert_eq!(sizes, Some((450 * GIB, 451 * GIB)));
    assert!(disk(&["cache.disk=80%"]).is_err());
    assert!(disk(&["cache.dir=/c", "cache.large-file=1MiB"]).is_err());
    let large = disk(&["cache.dir=/c", "cache.large-file=2MiB"]).unwrap().unwrap().large_file_bytes;
    assert_eq!(large, 2 << 20);
    let config = set(&["cache.dir=/c"]).unwrap();
    let error = resolve(&config, &Host { cache_free: None, ..HOST }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cache);
    // If others have filled the disk, an existing store has to give its space back.
    let config = set(&["cache.dir=/c", "cache.disk=8GiB"]).unwrap();
    let tier = |cache_held| {
        let host = Host { cache_free: Some((GIB, 1000 * GIB)), cache_held, ..HOST };
        resolve(&config, &host).unwrap().cache.disk
    };
    assert_eq!(tier(0), None);
    assert_eq!(tier(GIB).map(|disk| (disk.bytes, disk.configured_bytes)), Some((0, 8 * GIB)));
}

#[test]
fn learning_takes_an_eighth_of_the_processors() {
    let learn = |given: &[&str]| settings(given).unwrap().learn;
    let (threads, time) = ((HOST.cores / 8).max(1), Duration::from_secs(3600));
    assert_eq!(learn(&[]), Some(LearnSettings { crack: true, threads, nice: 19, time }));
    let time = Duration::from_secs(90);
    let set = ["order.learn=no-crack", "order.learn-threads=3", "order.learn-nice=0"];
    let set = [&set[..], &["order.learn-time=90s"]].concat();
    assert_eq!(learn(&set), Some(LearnSettings { crack: false, threads: 3, nice: 0, time }));
    assert_eq!(learn(&["order.learn-time=0s"]).unwrap().time, Duration::MAX);
    assert_eq!(learn(&["order.learn=off"]), None);
}

#[test]
fn relations_between_keys_are_checked() {
    for given in [
        &["cache.ram=1GiB", "prefetch.window=1025MiB"],
        &["prefetch.window=4096"][..],
        &["prefetch.inflight=0"],
        &["order.learn-threads=257"],
        &["order.learn-nice=20"],
        &["mount.threads=65"],
        &["source.scan-threads=0"],
        &["mount.force-allow-other=true"],
        &["mount.control="],
        &["mount.control=here"],
        &["mount.options=allow_other"],
        &["mount.options=[\"a,b\"]"],
        &["log.file=belady.log"],
        &["log.level=belady=lots"],
        &["stream=[{order=\"x\"}]"],
        &["stream=[{name=\"a b\", order=\"x\"}]"],
    ] {
        let error = settings(given).expect_err(&format!("{given:?}"));
        assert_eq!(error.kind(), ErrorKind::Config, "{given:?}");
    }
    let window = settings(&["prefetch.window=10%"]).unwrap().prefetch.window_bytes;
    assert_eq!(window, Some(16 * GIB / 10));
    assert_eq!(settings(&[]).unwrap().prefetch.window_bytes, None);
}

#[test]
fn manners_are_polite_at_a_filesystem_unless_they_are_set() {
    let at_both = |given: &[&str]| {
        let manners = settings(given).unwrap().prefetch.manners;
        [true, false].map(|is_filesystem| manners.at(is_filesystem))
    };
    assert_eq!(at_both(&[]), [Manners::Polite, Manners::Fair]);
    for set in [Manners::Polite, Manners::Fair, Manners::Off] {
        let given = format!("prefetch.manners={set:?}").to_lowercase();
        assert_eq!(at_both(&[&given]), [set; 2]);
    }
}
