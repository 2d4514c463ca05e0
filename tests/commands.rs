//! Commands that mount nothing, as people and scripts run them.
//!
//! Goal: what a command prints follows from its flags, its environment and its file, in this order of
//! precedence, and its exit code says what is wrong. Method: the real binary in a directory of the test's
//! own, without any other environment.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

struct Fixture(TempDir);

impl Fixture {
    fn new() -> Self {
        Fixture(TempDir::new().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn run(&self, words: &[&str], env: &[(&str, &str)]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_belady"));
        command.env_clear().env("XDG_RUNTIME_DIR", self.path()).current_dir(self.path());
        command.args(words).envs(env.iter().copied()).output().unwrap()
    }

    /// Runs a command that must succeed, and returns its output.
    #[track_caller]
    fn prints(&self, words: &[&str], env: &[(&str, &str)]) -> String {
        let output = self.run(words, env);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command that must fail with this exit code and say why.
    #[track_caller]
    fn fails(&self, words: &[&str], code: i32, why: &[&str]) {
        let output = self.run(words, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        why.iter().for_each(|why| assert!(said.contains(why), "{why:?} in {said}"));
    }

    #[track_caller]
    fn simulates(&self, words: &[&str]) -> Vec<Value> {
        let words = [&["simulate", "--json"], words].concat();
        serde_json::from_str(&self.prints(&words, &[])).unwrap()
    }
}

/// The line of a key in the output of `config show`.
#[track_caller]
fn line<'a>(shown: &'a str, key: &str) -> &'a str {
    let found = shown.lines().find(|line| line.trim_start().starts_with(&format!("{key} ")));
    found.unwrap_or_else(|| panic!("{key} in {shown}"))
}

#[test]
fn flags_go_before_the_environment_before_the_file_before_defaults() {
    let fixture = Fixture::new();
    fixture.write("a.toml", "[cache]\nram = \"1GiB\"\n[source]\nrevalidate = \"7s\"\n");
    fixture.write("b.toml", "[cache]\nram = \"2GiB\"\n");
    let show = |words: &[&str], env: &[(&str, &str)]| {
        let shown = fixture.prints(&[&["config", "show", "--origin"], words].concat(), env);
        line(&shown, "cache.ram").to_owned()
    };
    let has = |line: String, value: &str, origin: &str| {
        assert!(line.contains(value) && line.contains(origin), "{line}");
    };
    let variable = ("BELADY_CACHE_RAM", "3GiB");
    has(show(&[], &[]), "auto", "default");
    has(show(&["--config", "a.toml"], &[]), "1GiB", "a.toml");
    has(show(&[], &[("BELADY_CONFIG", "b.toml")]), "2GiB", "b.toml");
    has(show(&["--config", "a.toml"], &[("BELADY_CONFIG", "b.toml")]), "1GiB", "a.toml");
    has(show(&["-o", "ro,config=b.toml"], &[]), "2GiB", "b.toml");
    has(show(&["--config", "a.toml"], &[variable]), "3GiB", "BELADY_CACHE_RAM");
    for (flags, origin) in [
        (&["--ram", "4GiB"][..], "--ram"),
        (&["--set", "cache.ram=4GiB"], "--set"),
        (&["-o", "noatime,ram=4GiB"], "-o"),
    ] {
        has(show(&[&["--config", "a.toml"], flags].concat(), &[variable]), "4GiB", origin);
    }
    // Without origins, the output is a settings file.
    let shown = fixture.prints(&["config", "show", "--config", "a.toml", "--ram", "4GiB"], &[]);
    fixture.write("shown.toml", &shown);
    assert_eq!(fixture.prints(&["config", "show", "--config", "shown.toml"], &[]), shown);
    assert!(
        line(&shown, "source.revalidate").contains("7s")
            && line(&shown, "cache.ram").contains("4GiB")
    );
}

#[test]
fn options_as_in_fstab_are_settings() {
    let fixture = Fixture::new();
    let options = "defaults,ro,_netdev,nofail,x-systemd.automount,allow_other,ram=1GiB,disk=2GiB,\
                   cache_dir=/local/belady,source.revalidate=9s,dirsync";
    let shown = fixture.prints(&["config", "show", "-o", options], &[]);
    for (key, value) in [
        ("mount.allow-other", "true"),
        ("cache.ram", "1GiB"),
        ("cache.disk", "2GiB"),
        ("cache.dir", "/local/belady"),
        ("source.revalidate", "9s"),
        ("mount.options", "[\"dirsync\"]"),
    ] {
        assert!(line(&shown, key).contains(value), "{key} in {shown}");
    }
    // The option's first name.
    for words in [["-o", "nvme=3GiB"], ["--nvme", "3GiB"], ["--disk", "3GiB"]] {
        let shown = fixture.prints(&[&["config", "show"][..], &words].concat(), &[]);
        assert!(line(&shown, "cache.disk").contains("3GiB"), "{words:?}");
    }
    fixture.fails(&["config", "show", "-o", "rw"], 2, &["read-only"]);
    fixture.fails(&["config", "show", "-o", "ram=much"], 3, &["much", "-o"]);
}

#[test]
fn settings_files_are_checked() {
    let fixture = Fixture::new();
    fixture.write(
        "good.toml",
        "[cache]\nram = \"64MiB\"\n[[stream]]\nname = \"a\"\norder = \"sequential\"\n",
    );
    let said = fixture.prints(&["config", "check", "good.toml"], &[]);
    assert!(said.starts_with("good.toml: ok"), "{said}");
    let default = fixture.prints(&["config", "show", "--default"], &[]);
    fixture.write("default.toml", &default);
    fixture.prints(&["config", "check", "default.toml"], &[]);
    for (text, why) in [
        ("[cache]\nrum = \"1GiB\"\n", &["rum", "ram"][..]),
        ("[cache]\nram = \"1 parsec\"\n", &["cache.ram"]),
        ("[cache\n", &["bad.toml"]),
        ("[[stream]]\nname = \"a\"\norder = \"keras:sed=1\"\n", &["sed", "seed"]),
        ("[mount]\nthreads = 0\n", &["mount.threads"]),
    ] {
        fixture.write("bad.toml", text);
        fixture.fails(&["config", "check", "bad.toml"], 3, why);
    }
    fixture.fails(&["config", "check", "none.toml"], 3, &["cannot read none.toml"]);
    fixture.fails(&["config", "check"], 2, &["FILE"]);
}

#[test]
fn a_simulation_is_that_of_its_seed() {
    let fixture = Fixture::new();
    let some = ["--samples", "500", "--cache", "50%,30MB", "--epochs", "3"];
    let run = |more: &[&str]| fixture.simulates(&[&some[..], more].concat());
    let rows = run(&["--seed", "3"]);
    assert_eq!(rows.len(), 2 * 4, "each size with each policy");
    assert_eq!(run(&["--seed", "3"]), rows);
    assert_ne!(run(&["--seed", "4"]), rows);
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&number("hits")), "{row}");
        assert!(number("stall_s") >= 0.0 && number("epoch_s") > 0.0, "{row}");
        let read = number("source_reads") / 500.0;
        assert!((number("hits") + read - 1.0).abs() < 0.01, "{row}");
    }
    let table = fixture.prints(&[&["simulate"], &some[..]].concat(), &[]);
    assert!(table.contains("epochs 2 to 3") && table.contains("minio"), "{table}");
    fixture.fails(&["simulate", "--cache", "auto"], 2, &["--cache auto"]);
    fixture.fails(&["simulate", "--policy", "clairvoyant"], 2, &["belady"]);
}

#[test]
fn nodes_of_a_cluster_are_simulated() {
    let fixture = Fixture::new();
    let some = ["--nodes", "8", "--samples", "4096", "--held", "0.5,1"];
    let rows = fixture.simulates(&some);
    assert_eq!(rows.len(), 2 * 5, "each size with each placing");
    assert_eq!(fixture.simulates(&some), rows);
    let share = |row: &Value, key: &str| row[key].as_f64().unwrap();
    for row in &rows {
        let sum: f64 = ["local", "remote", "source"].iter().map(|key| share(row, key)).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{row}");
    }
    let of = |placing: &str| {
        let all = rows.iter().filter(|row| row["placing"] == placing && row["held"] == 1.0);
        let [row] = all.collect::<Vec<_>>()[..] else { panic!("{rows:?}") };
        (share(row, "local"), share(row, "source"))
    };
    let (next, alone) = (of("next-reader"), of("alone"));
    assert!(next.0 > 0.97 && next.1 < 0.01 && alone.1 > 0.8, "{next:?} {alone:?}");
    let table = fixture.prints(&[&["simulate", "--groups", "2"], &some[..]].concat(), &[]);
    assert!(table.contains("8 nodes; epochs 2 to 4") && table.contains("most-read"), "{table}");
    let plans = fixture.simulates(&[&some[..], &["--plan"]].concat());
    let again = fixture.simulates(&[&some[..], &["--plan"]].concat());
    let digests =
        |plans: &[Value]| plans.iter().map(|plan| plan["digest"].clone()).collect::<Vec<_>>();
    assert!(plans.len() == 2 && plans[0]["digest"] != plans[1]["digest"], "{plans:?}");
    assert_eq!(digests(&plans), digests(&again));
    let text = fixture.prints(&[&["simulate", "--plan"], &some[..]].concat(), &[]);
    assert!(text.contains("4096 samples, 8 nodes that hold 0.5 times the data: each plans for"));
    fixture.fails(&["simulate", "--nodes", "8", "--jobs", "2"], 2, &["--jobs"]);
    fixture.fails(&["simulate", "--held", "1"], 2, &["--nodes"]);
    fixture.fails(&["simulate", "--held", "1", "--cache", "50%"], 2, &["--cache"]);
    fixture.fails(&["simulate", "--nodes", "8", "--held=-1"], 2, &["--held"]);
    fixture.fails(&["simulate", "--nodes", "8", "--capacities", "0"], 2, &["--capacities"]);
}

#[test]
fn an_epoch_of_the_steady_state_is_not_the_cold_one() {
    let fixture = Fixture::new();
    let rows = fixture.simulates(&["--samples", "500", "--cache", "100%", "--policy", "belady"]);
    // Everything is in RAM. Each of the two workers thinks for a millisecond a sample.
    assert_eq!((&rows[0]["hits"], &rows[0]["source_reads"]), (&1.0.into(), &0.0.into()));
    let epoch = rows[0]["epoch_s"].as_f64().unwrap();
    assert!((0.25..0.30).contains(&epoch), "{epoch}");
}

#[test]
fn a_disk_below_the_cache_is_simulated() {
    let fixture = Fixture::new();
    let some = ["--samples", "500", "--cache", "10%", "--policy", "belady"];
    let run = |more: &[&str]| fixture.simulates(&[&some[..], more].concat()).remove(0);
    let (without, with) = (run(&[]), run(&["--disk", "60%"]));
    let hits = |row: &Value| row["hits"].as_f64().unwrap();
    assert!(hits(&without) < 0.2 && hits(&with) > 0.6, "{without} {with}");
    // At 8450 us and 200 MB/s the source takes 9 ms for a sample.
    assert_eq!(run(&["--disk", "60%", "--disk-us", "9500"]), without);
    assert!(hits(&run(&["--disk", "60%", "--disk-us", "8000"])) > 0.6);
    fixture.fails(&["simulate", "--disk", "auto"], 2, &["--disk auto"]);
    fixture.fails(&["simulate", "--disk-us", "1"], 2, &["--disk"]);
}

#[test]
fn rehearsed_samples_cost_the_source_reads_too() {
    let fixture = Fixture::new();
    let workload = ["--workload", "rehearsal", "--samples", "700", "--epochs", "6"];
    let rows = fixture.simulates(&[&workload[..], &["--cache", "1%", "--policy", "none"]].concat());
    // The workload draws an eighth more than the new samples. Hardly any of them is in RAM.
    let reads = rows[0]["source_reads"].as_f64().unwrap();
    assert!(reads > 700.0 * 1.1, "{reads}");
    assert!(rows[0]["hits"].as_f64().unwrap() < 0.05, "{}", rows[0]);
}

#[test]
fn an_order_is_simulated() {
    let fixture = Fixture::new();
    let none = ["--cache", "50%", "--policy", "minio", "--epochs", "3"];
    let distributed = "torch-distributed:seed=1,world=2,rank=1,index=imagefolder";
    let two = ["--order", distributed, "--order", "torch-random:seed=2", "--samples", "400"];
    let rows = fixture.simulates(&[&none[..], &two].concat());
    // One job reads half of the samples, the other all of them.
    let (hits, reads) = (&rows[0]["hits"], rows[0]["source_reads"].as_f64().unwrap());
    assert!((hits.as_f64().unwrap() + reads / 600.0 - 1.0).abs() < 1e-9, "{}", rows[0]);

    // Over a dataset: files of several blocks, and parts of them.
    for number in 0..20 {
        fixture.write(&format!("data/{number:02}.bin"), &"x".repeat(3 << 20));
    }
    let ranges: String =
        (0..20).map(|number| format!("{number:02}.bin\t{}\t1000\n", 1 << 20)).collect();
    fixture.write("order", &ranges);
    let data = ["--policy", "none", "--dataset", "data", "--no-prefetch", "--cache", "0"];
    for (order, blocks) in [("file:order", 20.0), ("sequential", 60.0)] {
        let rows = fixture.simulates(&[&data[..], &["--order", order]].concat());
        assert_eq!(rows[0]["source_reads"], blocks, "{order}");
        assert_eq!(rows[0]["hits"], 0.0, "{order}");
    }
    // The weights say which files a sampler draws, and how often: here every third one, 24 in all.
    let weights: String =
        (0..20).map(|number| if number % 3 == 0 { "2.5\n" } else { "0\n" }).collect();
    fixture.write("weights", &weights);
    let weighted = "torch-weighted:seed=5,weights=weights,num_samples=24";
    let listed = fixture.prints(&["order", "show", weighted, "data"], &[]);
    let read: Vec<&str> = listed.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(read.len(), 24, "{listed}");
    let third = |name: &&str| name[..2].parse::<u32>().unwrap() % 3 == 0;
    assert!(read.iter().all(third), "{listed}");
    let rows = fixture.simulates(&[&data[..], &["--order", weighted]].concat());
    assert_eq!(rows[0]["source_reads"], 72.0, "{}", rows[0]);
    fixture.write("weights", "1\n");
    let why = ["1 weights and 20 samples", "hint: "];
    fixture.fails(&["order", "check", weighted, "data"], 3, &why);

    fixture.fails(&["simulate", "--order", "file:none"], 3, &["cannot read none"]);
    fixture.fails(&["simulate", "--dataset", "data"], 2, &["--order"]);
}

#[test]
fn errors_of_files_say_what_to_do() {
    let fixture = Fixture::new();
    fixture.write("source/file", "bytes");
    fixture.write("bad", "no catalog");
    fixture.fails(&["cache", "ls", "typo"], 5, &["typo", "hint: is it what --cache-dir"]);
    fixture.fails(&["cache", "ls", "bad"], 5, &["hint: "]);
    let import = |file, source| ["catalog", "import", file, source, "--cache-dir", "cache"];
    fixture.fails(&import("none", "source"), 5, &["none", "hint: is the path right?"]);
    fixture.fails(&import("bad", "source"), 5, &["hint: `belady catalog export`"]);
    fixture.fails(&import("bad", "none"), 4, &["hint: is the parallel filesystem mounted"]);
}

/// An endless device, a directory, and a sparse file of a terabyte: each command says what is wrong with
/// each, and needs no memory for it.
#[test]
fn a_file_without_end_is_refused() {
    let fixture = Fixture::new();
    fixture.write("data/a/1.jpg", "x");
    fs::create_dir(fixture.path().join("folder")).unwrap();
    fs::File::create(fixture.path().join("long")).unwrap().set_len(1 << 40).unwrap();
    let wrong = [("/dev/zero", "a device"), ("./folder", "a directory"), ("./long", "more than")];
    for (name, why) in wrong {
        let manifest = format!("sequential:index=manifest:{name}");
        let weights = format!("torch-weighted:seed=1,weights={name}");
        let commands: [(&[&str], i32); 8] = [
            (&["config", "check", name], 3),
            (&["config", "show", "--config", name], 3),
            (&["order", "check", name, "data"], 3),
            (&["order", "check", &manifest, "data"], 3),
            (&["order", "check", &weights, "data"], 3),
            (&["order", "cut", name], 3),
            (&["order", "merge", "--by", "ranks", name], 3),
            (&["warmup", ".", "--files-from", name], 2),
        ];
        for (words, code) in commands {
            let file = name.trim_start_matches("./");
            fixture.fails(words, code, &[file, why, "hint: "]);
        }
    }
}

/// Names of files are escaped, unless they are data for another program.
#[test]
fn control_characters_of_names_do_not_reach_the_terminal() {
    let fixture = Fixture::new();
    let name = "\x1b[31mred\x07";
    fixture.write(&format!("{name}/a\u{9b}/1.jpg"), "x");
    fixture.write("empty", "# nothing\n");
    let (dataset, missing) = (name, format!("{name}/none"));
    let raw = ['\x1b', '\x07', '\u{9b}'];
    let commands: [&[&str]; 9] = [
        &["order", "check", "sequential:index=path", dataset],
        &["order", "check", "sequential:index=path", &missing],
        &["order", "check", &missing, dataset],
        &["order", "cut", &missing],
        &["catalog", "export", dataset, &missing],
        &["mount", &missing, "."],
        &["config", "check", &missing],
        &["umount", name],
        &["status", name, "--no-such-option-\x1b"],
    ];
    for words in commands {
        let output = fixture.run(words, &[]);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(!said.is_empty() && !said.contains(raw), "{words:?}: {said:?}");
    }
    fixture.fails(&["order", "check", &missing, dataset], 3, &["\\x1b[31mred\\x07/none"]);
    let shown = fixture.prints(&["order", "show", "sequential:index=path", dataset], &[]);
    assert!(shown.contains("a\u{9b}/1.jpg"), "{shown:?}");
    let file = fixture.path().join("saved");
    let words = ["catalog", "export", dataset, file.to_str().unwrap(), "--json"];
    serde_json::from_str::<Value>(&fixture.prints(&words, &[])).unwrap();
}

/// If a directory of the dataset cannot be read, the error names it and says why and what to do.
#[test]
fn a_directory_that_cannot_be_read_is_named() {
    let fixture = Fixture::new();
    fixture.write("data/train/a/1.jpg", "x");
    fixture.write("data/train/b/2.jpg", "x");
    let set = |path: &str, mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(fixture.path().join(path), mode).unwrap();
    };
    set("", 0o755);
    // The build directory may be closed to others. If this process wrote a copy, it could not be run.
    let program = fixture.path().join("belady");
    let built = env!("CARGO_BIN_EXE_belady");
    assert!(Command::new("cp").arg(built).arg(&program).status().unwrap().success());
    let said = |order: &str, code: i32| {
        let mut command = Command::new(&program);
        command.current_dir(fixture.path()).args(["order", "check", order, "data"]);
        if nix::unistd::geteuid().is_root() {
            command.uid(65534).gid(65534);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{order}: {said}");
        said
    };
    said("sequential:index=path,root=train", 0);
    set("data/train/b", 0);
    said("sequential:index=path,root=train/a", 0);
    set("data/train/a", 0);
    let text = said("sequential:index=path,root=train", 3);
    let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words} in {text}"));
    assert!(at("data/train/a (and 1 other") < at("none of the 0 files"), "the cause first: {text}");
    assert!(at("Permission denied") < at("chmod"));
    set("data/train", 0);
    let text = said("sequential:index=path", 3);
    assert!(text.contains("data/train cannot be read: Permission denied"), "{text}");
    ["data/train", "data/train/a", "data/train/b"].into_iter().for_each(|path| set(path, 0o755));
}

/// An endless pipe is refused at the first byte or line that must be wrong, or at the limit, in memory that
/// does not grow with it.
#[test]
fn a_pipe_without_end_is_refused() {
    let fixture = Fixture::new();
    fixture.write("data/a/1.jpg", "x");
    let program = env!("CARGO_BIN_EXE_belady");
    let pipe = |from: &str, words: &str| {
        let script = format!("ulimit -v 4000000; {from} | {program} {words}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(fixture.path()).env_clear();
        command.env("PATH", "/usr/bin:/bin").output().unwrap()
    };
    let zeros = "cat /dev/zero";
    let line = "tr '\\0' x < /dev/zero";
    for (from, words, code, why) in [
        (zeros, "order check sequential:index=manifest:/dev/stdin data", 3, "NUL byte"),
        (zeros, "warmup . --files-from -", 2, "NUL byte"),
        (zeros, "warmup . --files-from /dev/stdin", 2, "NUL byte"),
        (zeros, "rehearse score . old", 2, "NUL byte"),
        (line, "order check /dev/stdin data", 3, "line 1 has more than 65536 bytes"),
        (line, "order cut /dev/stdin", 3, "line 1 has more than 65536 bytes"),
        (line, "warmup . --files-from -", 2, "line 1 has more than 65536 bytes"),
        (zeros, "config check /dev/stdin", 3, "it is a pipe"),
    ] {
        let output = pipe(from, words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words}: {said}");
        assert!(said.contains(why) && said.contains("hint: "), "{words}: {said}");
    }
    // A correct order is read from a pipe.
    let output = pipe("echo a/1.jpg", "order check /dev/stdin data");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A report of 3,000 samples, of which each is waited for 8 ms.
const REPORT: &str = r#"{"source": "/s", "mountpoints": ["/m"], "has_strangers": false, "cpu_s": 0.1,
"setup": {"files": 3000, "bytes": 330000000, "ram_bytes": 4194304, "reads_at_once": 16, "seconds_per_byte": 4.5e-9},
"epochs": [{"trainer": 7, "program": "python3", "number": 1, "kind": "workers", "is_over": true,
"is_whole": true, "seconds": 18.5, "workers": 2,
"read_bytes": 330000000, "batches": 47, "mount": {"source_reads": 3000, "source_s": 23.4},
"bottleneck": "fetch", "gains": {"fetch": 0.66}, "model": {"workers": 2, "batches": 47, "preparation_s": 0.256,
"fetch_s": 0.512, "step_s": 0.1, "seconds": 18.5}}]}"#;

#[test]
fn a_report_is_simulated_again() {
    let fixture = Fixture::new();
    fixture.write("report.json", REPORT);
    fixture.write("reports.json", &format!("[{REPORT}]"));
    let words = ["simulate", "--from", "report.json"];
    let usual = fixture.prints(&words, &[]);
    for what in [
        "nothing changes: a later epoch takes ",
        "4 workers: ",
        "0.5 times the latency: ",
        "RAM for 100 % of",
    ] {
        assert!(usual.contains(what), "{usual}");
    }
    let one =
        ["simulate", "--from", "reports.json", "--json", "--what-if", "workers=4,latency=0.5"];
    let told: Value = serde_json::from_str(&fixture.prints(&one, &[])).unwrap();
    let what_if = &told[0]["epochs"][0]["what_if"];
    assert_eq!(what_if.as_array().unwrap().len(), 1, "{what_if}");
    // 12 rounds of four batches, of 256 ms to prepare and half of 512 ms to fetch.
    let seconds = what_if[0]["seconds"].as_f64().unwrap();
    assert!((5.9..7.0).contains(&seconds), "{what_if}");
}

#[test]
fn a_change_that_is_none_and_a_report_that_is_none_are_refused() {
    let fixture = Fixture::new();
    fixture.write("report.json", REPORT);
    fixture.write("wrong.json", "{}");
    let hint = ["latency=0.5"];
    fixture.fails(&["report", "--what-if", "ram"], 2, &hint);
    fixture.fails(&["simulate", "--from", "report.json", "--what-if", "workers=0"], 2, &hint);
    fixture.fails(&["simulate", "--from", "wrong.json"], 2, &["belady run --report"]);
    fixture.fails(&["simulate", "--from", "nothing.json"], 2, &["nothing.json"]);
    fixture.fails(&["report", "--epochs", "0"], 2, &["--epochs"]);
    fixture.fails(&["run", "--no-mount"], 2, &["COMMAND"]);
}
