//! How many reads of the source are under way at once.
//!
//! Goal: belady never has more reads of the source under way than it may, and says how long they take. Method: a
//! slow filesystem with a latency counts the requests that are under way.

use crate::fixture::{Fixture, check_many, wait_until};
use crate::mounted::{Mounted, Slowpfs};

const FILES: u64 = 40;

/// A mount that fetches all files ahead, one request after the other for each file. Returns the most requests that
/// were under way at once.
fn most_in_flight(inflight: u64, manners: &str) -> u64 {
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, 10_000);
    let slow = Slowpfs::new(&fixture, &["--read-ms", "20", "--open-ms", "20"]);
    let sets = [
        format!("prefetch.inflight={inflight}"),
        format!("prefetch.manners={manners}"),
        "prefetch.start=first-open".to_owned(),
        "source.consistency=immutable".to_owned(),
    ];
    let mut options = vec!["--ram", "64MiB", "--order", "sequential:index=path"];
    sets.iter().for_each(|set| options.extend(["--set", set]));
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    slow.ctl(&["reset"]);
    check_many(&mounted.path(""), "d", 1, 10_000);
    wait_until("all files are fetched", || {
        mounted.count("/source_times/operations/read/count") == FILES
    });
    let most = slow.count("in_flight_max");
    let status = mounted.status();
    let times = &status["source_times"];
    assert!(times["limit"].as_u64().unwrap() <= inflight, "{times}");
    // An open and a read.
    let half = times["operations"]["read"]["p50_us"].as_u64().unwrap();
    assert!(half >= 39_000, "{times}");
    check_many(&mounted.path(""), "d", FILES, 10_000);
    mounted.umount();
    most
}

#[test]
fn reads_ahead_keep_to_the_number_that_is_set_whatever_the_manners() {
    for manners in ["off", "polite", "fair"] {
        // The read of the first file is on demand.
        assert!(most_in_flight(3, manners) <= 4, "{manners}");
    }
}
