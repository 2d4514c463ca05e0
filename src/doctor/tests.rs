use super::*;
use crate::error::ErrorKind;

fn source(magic: u32) -> SourceFindings {
    SourceFindings::Directory(directory(magic))
}

fn directory(magic: u32) -> DirectoryFindings {
    DirectoryFindings {
        path: "/data".into(),
        filesystem: Filesystem::of_magic(magic),
        writable: true,
        direct: Some(true),
        read: Some(1 << 30),
        write: Some(1 << 29),
    }
}

/// A machine that has everything.
fn best() -> Findings {
    Findings {
        root: false,
        device: Ok(()),
        fusermount: Some(Fusermount {
            path: "/usr/bin/fusermount3".into(),
            version: "3.14.0".into(),
            setuid: true,
        }),
        user_allow_other: true,
        mount: Ok(Kernel {
            abi: (7, 45),
            readdirplus: true,
            parallel_dirops: true,
            max_pages: true,
            no_open: true,
            store: Ok(()),
            expire: Ok(()),
            passthrough: Ok(()),
        }),
        namespace: Ok(()),
        commands: Ok(()),
        openat2: Ok(()),
        cachestat: Ok(()),
        can_abort: true,
        halt_poll_ns: Some(200_000),
        reclaim: None,
        system: System {
            release: "6.18.44".into(),
            build: "#1 SMP".into(),
            can_be_io_flusher: true,
            drops_names: Some(0),
            timeouts: [0, 0],
        },
        open_files: 1 << 20,
        processes: u64::MAX,
        memory: MemoryFindings {
            limit: 64 << 30,
            available: 60 << 30,
            budget: 16 << 30,
            because: "a quarter".into(),
        },
        runtime: Ok("/run/belady".into()),
        source: Some(Ok(source(0x0bd0_0bd0))),
        cache: Some(Ok(directory(0x5846_5342))),
        cluster: Some(ClusterFindings {
            program: Ok("/usr/bin/redis-server 7.0.15".into()),
            trial: Some(Ok(TrialFindings { met_ms: 2345.0, read_us: 123.4 })),
            addresses: vec!["10.0.0.1 (ib0)".into()],
        }),
    }
}

#[test]
fn a_machine_may_be_a_node_of_a_cluster() {
    let rows = |harm: fn(&mut ClusterFindings)| {
        let mut findings = best();
        findings.cluster.iter_mut().for_each(harm);
        let rows = judge(&findings).into_iter().filter(|row| row.check.starts_with("cluster"));
        rows.map(|row| (row.check, row.result, row.found)).collect::<Vec<_>>()
    };
    let well = rows(|_| ());
    assert!(well.len() == 3 && well.iter().all(|row| row.1 == Verdict::Ok), "{well:?}");
    assert!(well[1].2.contains("in 2.3 s; 110 kB come from the other one in 123 us"), "{well:?}");
    let none = rows(|found| {
        *found =
            ClusterFindings { program: Err("none".into()), trial: None, addresses: Vec::new() };
    });
    let verdicts: Vec<_> = none.iter().map(|row| (row.0, row.1)).collect();
    let (server, addresses) = ("cluster server", "cluster addresses");
    assert_eq!(verdicts, [(server, Verdict::Missing), (addresses, Verdict::Note)]);
    let failed = rows(|found| found.trial = Some(Err("they do not meet".into())));
    assert_eq!((failed[1].1, &*failed[1].2), (Verdict::Missing, "they do not meet"));
    let unasked = Findings { cluster: None, ..best() };
    assert!(judge(&unasked).iter().all(|row| !row.check.starts_with("cluster")));
}

#[test]
fn who_cannot_end_a_connection_is_told_what_a_kill_may_do() {
    assert_eq!(verdict(&best(), "killed daemons"), Verdict::Ok);
    let findings = Findings { can_abort: false, ..best() };
    assert_eq!(verdict(&findings, "killed daemons"), Verdict::Note);
    let row = judge(&findings).into_iter().find(|row| row.check == "killed daemons").unwrap();
    assert!(row.fix.unwrap().contains("fusectl"));
}

/// The verdict on one check. A row has a fix exactly if it is not well.
fn verdict(findings: &Findings, check: &str) -> Verdict {
    let rows = judge(findings);
    for row in &rows {
        assert!(row.result != Verdict::Ok || row.fix.is_none(), "{row:?}");
        assert!(row.result != Verdict::Missing || row.fix.is_some(), "{row:?}");
    }
    rows.iter().find(|row| row.check == check).unwrap_or_else(|| panic!("{check}?")).result
}

#[test]
fn nothing_is_amiss_on_the_best_machine() {
    let rows = judge(&best());
    assert!(rows.iter().all(|row| row.result == Verdict::Ok), "{rows:#?}");
    assert_eq!(missing(&rows), None);
}

type Harm = fn(&mut Findings);

#[test]
fn what_belady_cannot_do_without_is_missing() {
    let none = || Err("none".to_owned());
    let cases: [(&str, ErrorKind, Harm); 7] = [
        ("/dev/fuse", ErrorKind::Mount, |f| f.device = Err("no such file".into())),
        ("mounting", ErrorKind::Mount, |f| f.mount = Err("not permitted".into())),
        ("openat2", ErrorKind::Mount, |f| f.openat2 = Err("not implemented".into())),
        ("control sockets", ErrorKind::Mount, |f| f.runtime = Err("not yours".into())),
        ("source", ErrorKind::Source, |f| {
            f.source = Some(Err(Error::new(ErrorKind::Source, "no such directory")));
        }),
        ("cache directory", ErrorKind::Cache, |f| f.cache = Some(Err("read-only".into()))),
        ("push into page cache", ErrorKind::Mount, |f| {
            if let Ok(kernel) = &mut f.mount {
                kernel.store = Err("invalid argument".into());
            }
        }),
    ];
    for (check, kind, harm) in cases {
        let mut findings = best();
        harm(&mut findings);
        assert_eq!(verdict(&findings, check), Verdict::Missing, "{check}");
        assert_eq!(missing(&judge(&findings)), Some(kind), "{check}");
    }
    let all: Findings =
        Findings { mount: none().map(|()| unreachable!()), device: none(), ..best() };
    assert!(judge(&all).iter().all(|row| row.check != "passthrough"), "what was not seen");
}

#[test]
fn a_store_has_no_row_about_mounting_over_it() {
    let bucket = |answer_ms: Option<f64>| {
        let (name, read) = ("s3://images".into(), answer_ms.map(|_| 5_000_000));
        let found = SourceFindings::Store(StoreFindings { name, answer_ms, read, advice: None });
        judge(&Findings { source: Some(Ok(found)), ..best() })
    };
    let rows = bucket(Some(12.34));
    let source = rows.iter().find(|row| row.check == "source").unwrap();
    assert!(
        source.found.contains("s3://images, read at 4.8 MiB/s by one reader, 12.3 ms a request")
    );
    assert!(rows.iter().all(|row| row.check != "mount over the source"));
    let empty = bucket(None);
    assert!(empty.iter().any(|row| row.found == "s3://images: no file found"));
}

#[test]
fn what_only_makes_it_better_is_a_note() {
    let cases: [(&str, Harm); 19] = [
        ("commands", |f| f.commands = Err("no user namespaces".into())),
        ("source", |f| {
            let (name, answer_ms, read) = ("cassandra://a/b".into(), Some(1.0), Some(1 << 20));
            let advice = Some("give the roles more replicas".into());
            let found = StoreFindings { name, answer_ms, read, advice };
            f.source = Some(Ok(SourceFindings::Store(found)));
        }),
        ("mounts for other users", |f| f.user_allow_other = false),
        ("cachestat", |f| f.cachestat = Err("not implemented".into())),
        ("idle processors", |f| f.halt_poll_ns = Some(0)),
        ("proactive reclaim", |f| f.reclaim = Some("echo off > state".into())),
        ("readahead deadlock", |f| f.system.release = "6.18.2".into()),
        ("readahead deadlock", |f| f.system.release = "6.8.0-45-generic".into()),
        ("expired names", |f| f.system.drops_names = Some(60)),
        ("request timeouts", |f| f.system.timeouts = [0, 600]),
        ("open files", |f| f.open_files = 256),
        ("threads", |f| f.processes = 100),
        ("memory", |f| f.memory.budget = 1 << 20),
        ("source", |f| f.source = Some(Ok(source(0xef53)))),
        ("mount over the source", |f| {
            let found = DirectoryFindings { writable: false, ..directory(0x6969) };
            f.source = Some(Ok(SourceFindings::Directory(found)));
        }),
        ("cache directory", |f| f.cache = Some(Ok(directory(0x6969)))),
        ("cache directory", |f| {
            f.cache = Some(Ok(DirectoryFindings { direct: Some(false), ..directory(0x0102_1994) }));
        }),
        ("cache disk", |f| {
            f.cache = Some(Ok(DirectoryFindings { read: Some(1), ..directory(0xef53) }))
        }),
        ("fusermount3", |f| f.fusermount = None),
    ];
    for (check, harm) in cases {
        let mut findings = best();
        harm(&mut findings);
        assert_eq!(verdict(&findings, check), Verdict::Note, "{check}");
        assert_eq!(missing(&judge(&findings)), None, "{check}");
    }
}

#[test]
fn an_old_kernel_will_do() {
    let mut findings = best();
    findings.mount = findings.mount.map(|kernel| Kernel {
        abi: (7, 31),
        no_open: false,
        expire: Err("not offered".into()),
        passthrough: Err("not offered".into()),
        ..kernel
    });
    for check in ["FUSE protocol", "expiry of names", "passthrough"] {
        assert_eq!(verdict(&findings, check), Verdict::Note, "{check}");
    }
    assert_eq!(missing(&judge(&findings)), None);
}

#[test]
fn root_needs_no_help_to_mount_and_users_do() {
    let without = |root, setuid| {
        let mut findings = Findings { root, mount: Err("not permitted".into()), ..best() };
        findings.fusermount = findings.fusermount.map(|found| Fusermount { setuid, ..found });
        verdict(&findings, "fusermount3")
    };
    assert_eq!(without(true, false), Verdict::Note);
    assert_eq!(without(false, false), Verdict::Missing);
    assert_eq!(without(false, true), Verdict::Ok);
}

#[test]
fn filesystems_are_known_by_their_magic() {
    let of = |magic| Filesystem::of_magic(magic);
    assert_eq!(of(0x0bd0_0bd0), Filesystem { name: "lustre", network: Some(true) });
    assert_eq!(of(0xef53), Filesystem { name: "ext4", network: Some(false) });
    assert_eq!(of(0x6573_5546), Filesystem { name: "fuse", network: None });
    assert_eq!(of(1).network, None);
}
