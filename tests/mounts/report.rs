//! `belady report`, and the report at the end of a run.
//!
//! Goal: a job whose truth is known gets the right verdict, from a mount and without one, and nothing is said that
//! is not known. Method: a trainer with forked workers, made as PyTorch makes them, whose work and steps are
//! sleeps. Each of them is many times as long as the others, so that a busy machine changes no verdict.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::fixture::{Fixture, said, wait_until};
use crate::mounted::{Mounted, Slowpfs, where_all_may_mount};

const SIZE: usize = 9000;

/// Words: the directory, workers, batches, seconds of work for a batch, the same for the batch of number 6, seconds
/// of a step. Each batch is two files. A worker gets two batches ahead of the trainer, and the trainer takes them
/// in their order.
const TRAINER: &str = r#"
import os, select, sys, time
top, workers, batches = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
work, late, step = map(float, sys.argv[4:7])
names = sorted(os.listdir(top))

def wait(fd):
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    poll.poll()

def make(tasks, results):
    while True:
        wait(tasks)
        line = os.read(tasks, 4)
        if not line:
            os._exit(0)
        batch = int(line)
        for i in range(2):
            with open(os.path.join(top, names[(2 * batch + i) % len(names)]), "rb") as f:
                f.read()
        time.sleep(late if batch == 6 else work)
        os.write(results, b"b" * 100)

pipes = []
for _ in range(workers):
    tasks, results = os.pipe(), os.pipe()
    if os.fork() == 0:
        for fd in [tasks[1], results[0]] + [fd for pipe in pipes for fd in pipe]:
            os.close(fd)
        make(tasks[0], results[1])
    os.close(tasks[0])
    os.close(results[1])
    pipes.append((tasks[1], results[0]))
give = lambda batch: batch < batches and os.write(pipes[batch % workers][0], b"%4d" % batch)
for batch in range(2 * workers):
    give(batch)
for batch in range(batches):
    wait(pipes[batch % workers][1])
    os.read(pipes[batch % workers][1], 100)
    give(batch + 2 * workers)
    time.sleep(step)
for tasks, _ in pipes:
    os.close(tasks)
for _ in range(workers):
    os.wait()
"#;

fn trainer(top: &Path, words: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", TRAINER]).arg(top).args(words.split(' ')).stdin(Stdio::null());
    command
}

fn epochs(report: &Value) -> &Vec<Value> {
    report["epochs"].as_array().unwrap()
}

/// The report of a run without a mount, and what was said.
fn report_of(fixture: &Fixture, job: &Command) -> (Value, String) {
    let to = fixture.path("report.json");
    let mut run = fixture.belady();
    run.args(["run", "--no-mount", "--report"]).arg(&to);
    run.arg("--html").arg(fixture.path("report.html")).arg("--").arg(job.get_program());
    let output = run.args(job.get_args()).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let page = fs::read_to_string(fixture.path("report.html")).unwrap();
    assert!(page.contains("Why is my training slow?") && page.ends_with("</html>\n"));
    let mut reports: Value = serde_json::from_slice(&fs::read(to).unwrap()).unwrap();
    (reports[0].take(), said(&output))
}

/// The same of a trainer: its only epoch of workers.
fn unmounted(fixture: &Fixture, words: &str) -> (Value, String) {
    let (report, said) = report_of(fixture, &trainer(&fixture.path("source/d"), words));
    (only_epoch(&report), said)
}

fn only_epoch(reports: &Value) -> Value {
    let found = epochs(reports);
    let workers: Vec<&Value> = found.iter().filter(|epoch| epoch["kind"] == "workers").collect();
    assert_eq!(workers.len(), 1, "{reports}");
    workers[0].clone()
}

#[test]
fn a_job_is_judged_without_a_mount() {
    let fixture = Fixture::new();
    fixture.write_many("d", 40, SIZE);
    let (slow_steps, said) = unmounted(&fixture, "2 12 0.15 0.15 0.6");
    assert_eq!(slow_steps["bottleneck"], "gpu", "{said}");
    assert_eq!(slow_steps["workers"], 2, "{said}");
    assert!((3..=14).contains(&slow_steps["batches"].as_u64().unwrap()), "{said}");
    assert!(slow_steps["seconds"].as_f64().unwrap() >= 7.2, "{said}");
    assert!(slow_steps["trainer_wait"].as_f64().unwrap() < 0.5, "{said}");
    assert!(said.contains("GPU-bound") && said.contains("no work"), "{said}");

    let (slow_work, said) = unmounted(&fixture, "2 12 0.4 0.4 0.01");
    assert_eq!(slow_work["bottleneck"], "processor", "{said}");
    let elsewhere = slow_work["parts"]["elsewhere"].as_f64().unwrap();
    assert!(elsewhere > 0.5 && said.contains("neither for a file nor"), "{said}");
    // More of the model is checked where time is virtual.
    let model = &slow_work["model"];
    assert!(model["preparation_s"].as_f64().unwrap() > 0.3, "{model}");
}

/// The trainer starts another program, and asks for the exit codes of its workers long after they have ended.
#[test]
fn a_helper_is_no_worker_and_an_epoch_ends_with_its_workers() {
    const LATE: f64 = 6.0;
    let fixture = Fixture::new();
    fixture.write_many("d", 40, SIZE);
    let helper = "import subprocess\nhelper = subprocess.Popen(['sleep', '600'])\n";
    let asks = "for _ in range(workers):\n    os.wait()";
    let late = TRAINER.replace(asks, &format!("time.sleep({LATE})\nhelper.kill()\n{asks}"));
    let script = format!("{helper}{late}");
    let mut job = Command::new("python3");
    job.args(["-c", &script]).arg(fixture.path("source/d")).args("2 12 0.1 0.1 0.3".split(' '));
    let began = std::time::Instant::now();
    let (report, said) = report_of(&fixture, &job);
    let epoch = only_epoch(&report);
    assert_eq!((&epoch["workers"], &epoch["is_over"]), (&2.into(), &true.into()), "{said}");
    let after = began.elapsed().as_secs_f64() - epoch["seconds"].as_f64().unwrap();
    assert!(after > LATE / 2.0, "the epoch ended {after} s before the job: {said}");
}

/// Workers that Python does not fork from the trainer itself.
const STARTED: &str = r#"
import multiprocessing, os, sys, time

def make(top, tasks, results):
    names = sorted(os.listdir(top))
    for batch in iter(tasks.recv, None):
        for i in range(2):
            with open(os.path.join(top, names[(2 * batch + i) % len(names)]), "rb") as f:
                f.read()
        time.sleep(.15)
        results.send(b"b" * 100)

if __name__ == "__main__":
    context, pipes, batches = multiprocessing.get_context(sys.argv[2]), [], 12
    for _ in range(2):
        (theirs, tasks), (results, ours) = context.Pipe(False), context.Pipe(False)
        worker = context.Process(target=make, args=(sys.argv[1], theirs, ours))
        worker.start()
        pipes.append((tasks, results, worker))
    for batch in range(4):
        pipes[batch % 2][0].send(batch)
    for batch in range(batches):
        tasks, results, _ = pipes[batch % 2]
        results.recv()
        if batch + 4 < batches:
            tasks.send(batch + 4)
        time.sleep(.6)
    for tasks, _, worker in pipes:
        tasks.send(None)
        worker.join()
"#;

#[test]
fn workers_are_found_however_they_were_started() {
    let fixture = Fixture::new();
    fixture.write_many("d", 40, SIZE);
    fs::write(fixture.path("job.py"), STARTED).unwrap();
    for method in ["spawn", "forkserver"] {
        let mut job = Command::new("python3");
        job.arg(fixture.path("job.py")).arg(fixture.path("source/d")).arg(method);
        let (report, said) = report_of(&fixture, &job);
        let epoch = only_epoch(&report);
        assert_eq!(epoch["workers"], 2, "{method}: {said}");
        assert_eq!(epoch["bottleneck"], "gpu", "{method}: {said}");
    }
}

/// PyTorch's loader with the thread that pins memory. Pinning itself needs a GPU, so it is left out.
const PINNED: &str = r#"
import os, sys, time, torch
import torch.utils.data._utils.pin_memory as pinning
torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 0
torch.cuda.set_device, pinning.pin_memory = lambda device: None, lambda data, device=None: data
top, work, step = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])

class Files(torch.utils.data.Dataset):
    names = sorted(os.listdir(top))

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        time.sleep(work / 2)
        with open(os.path.join(top, self.names[i]), "rb") as f:
            return len(f.read())

for _ in torch.utils.data.DataLoader(Files(), batch_size=2, num_workers=2, pin_memory=True):
    time.sleep(step)
"#;

#[test]
fn a_trainer_is_seen_waiting_for_the_thread_that_pins_memory() {
    let fixture = Fixture::new();
    fixture.write_many("d", 24, SIZE);
    let waits = |work: &str, step: &str, verdict: &str| {
        let mut job = Command::new("/usr/bin/python3");
        job.args(["-c", PINNED]).arg(fixture.path("source/d")).args([work, step]);
        let (report, said) = report_of(&fixture, &job);
        let epoch = only_epoch(&report);
        assert_eq!(epoch["bottleneck"], verdict, "{said}");
        epoch["trainer_wait"].as_f64().unwrap_or_else(|| panic!("{said}"))
    };
    let (slow_steps, slow_work) = (waits("0.1", "0.6", "gpu"), waits("0.8", "0.01", "processor"));
    assert!(slow_steps < 0.4 && slow_work > 0.6, "{slow_steps} {slow_work}");
}

/// A trainer with one loader for training and another one for validation, epoch by epoch.
const VALIDATED: &str = r#"
import os, sys, time, torch

class Files(torch.utils.data.Dataset):
    def __init__(self, names, work):
        self.names, self.work = names, work

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        time.sleep(self.work)
        with open(os.path.join(sys.argv[1], self.names[i]), "rb") as f:
            return len(f.read())

names = sorted(os.listdir(sys.argv[1]))
training = torch.utils.data.DataLoader(Files(names[:20], .02), batch_size=2, shuffle=True, num_workers=2)
validation = torch.utils.data.DataLoader(Files(names[20:], .5), batch_size=2, num_workers=3)
for epoch in range(2):
    for _ in training:
        time.sleep(.4)
    for _ in validation:
        pass
"#;

#[test]
fn training_and_validation_of_one_job_have_their_own_epochs() {
    let fixture = Fixture::new();
    fixture.write_many("d", 40, SIZE);
    let mut job = Command::new("/usr/bin/python3");
    job.args(["-c", VALIDATED]).arg(fixture.path("source/d"));
    let (report, said) = report_of(&fixture, &job);
    let told = epochs(&report).iter().map(|epoch| (&epoch["workers"], &epoch["bottleneck"]));
    let (training, validation) = ((&2.into(), &"gpu".into()), (&3.into(), &"processor".into()));
    let expected = [training, validation, training, validation];
    assert_eq!(told.collect::<Vec<_>>(), expected, "{said}");
}

/// 60 batches of two files are three epochs of 40 files. The workers stay.
#[test]
fn workers_that_stay_have_an_epoch_whenever_their_order_begins_again() {
    let fixture = Fixture::new();
    fixture.write_many("d", 40, SIZE);
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--order", "sequential"]);
    let mut job = trainer(&mounted.path("d"), "2 60 0.01 0.01 0.2").spawn().unwrap();
    assert!(job.wait().unwrap().success());
    let at = mounted.point.to_str().unwrap();
    let report =
        || -> Value { serde_json::from_str(&fixture.run(0, &["report", at, "--json"])).unwrap() };
    let is_over = |told: &Value| epochs(told).iter().all(|epoch| epoch["is_over"] == true);
    wait_until("its end is seen", || is_over(&report()) && !epochs(&report()).is_empty());
    let told = report();
    let found = epochs(&told);
    let seconds: Vec<f64> = found.iter().map(|epoch| epoch["seconds"].as_f64().unwrap()).collect();
    assert!(found.len() == 3 && seconds.iter().all(|seconds| *seconds >= 2.0), "{told}");
    for (epoch, number) in found.iter().zip(1..) {
        assert_eq!((&epoch["number"], &epoch["workers"]), (&number.into(), &2.into()), "{told}");
        assert_eq!((&epoch["bottleneck"], &epoch["is_whole"]), (&"gpu".into(), &true.into()));
        assert!((5..=30).contains(&epoch["batches"].as_u64().unwrap()), "{told}");
        assert!(epoch["trainer_wait"].as_f64().is_some_and(|waits| waits < 0.5), "{told}");
    }
    mounted.umount();
}

/// Two jobs at one mount.
#[test]
fn loaders_that_read_at_the_same_time_are_told_apart() {
    let fixture = Fixture::new();
    fixture.write_many("d", 40, SIZE);
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB"]);
    let job = |words| trainer(&mounted.path("d"), words).spawn().unwrap();
    let mut jobs = [job("2 12 0.1 0.1 0.6"), job("3 20 1.2 1.2 0.01")];
    for job in &mut jobs {
        assert!(job.wait().unwrap().success());
    }
    let at = mounted.point.to_str().unwrap();
    let report =
        || -> Value { serde_json::from_str(&fixture.run(0, &["report", at, "--json"])).unwrap() };
    let ended = |told: &Value| epochs(told).iter().filter(|it| it["is_over"] == true).count();
    wait_until("their ends are seen", || ended(&report()) >= 2);
    let told = report();
    for (job, (workers, verdict)) in jobs.iter().zip([(2, "gpu"), (3, "processor")]) {
        let of_it = |epoch: &&Value| epoch["trainer"] == job.id() && epoch["kind"] == "workers";
        let [epoch] = epochs(&told).iter().filter(of_it).collect::<Vec<_>>()[..] else {
            panic!("{told}")
        };
        assert_eq!(epoch["workers"], workers, "{told}");
        assert_eq!(epoch["bottleneck"], verdict, "{told}");
    }
    mounted.umount();
}

/// A job of which the kernel tells other users nothing: as it is if another user has started it.
const UNSEEN: &str = r#"
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -e -c '
  belady() { "$TEST_DIR/belady" "$@"; }
  belady run --no-mount -- python3 -c "$JOB" "$TEST_DIR/source/d" 2 12 0.1 0.1 0.3
  belady mount "$TEST_DIR/source" "$TEST_DIR/theirs/mount" --ram 64MiB
  python3 -c "$JOB" "$TEST_DIR/theirs/mount/d" 2 12 0.1 0.1 0.3
  belady report "$TEST_DIR/theirs/mount"
  belady umount "$TEST_DIR/theirs/mount"
'
"#;

#[test]
fn a_job_that_this_user_may_not_look_at_is_told_with_what_to_do() {
    let fixture = Fixture::new();
    fixture.write_many("d", 40, SIZE);
    for name in ["theirs", "theirs/mount", "theirs/run"] {
        fs::create_dir(fixture.path(name)).unwrap();
        std::os::unix::fs::chown(fixture.path(name), Some(65534), Some(65534)).unwrap();
    }
    fixture.copy_belady();
    let hide = "import ctypes\nctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE\n";
    let mut command = where_all_may_mount(&fixture, UNSEEN);
    command.env("JOB", format!("{hide}{TRAINER}"));
    command.env("XDG_RUNTIME_DIR", fixture.path("theirs/run"));
    command.env("XDG_STATE_HOME", fixture.path("theirs/run"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    // Once of each.
    for words in [", 2 workers: ", "may not read /proc/PID/io", "or as root"] {
        assert!(said.matches(words).count() >= 2, "{words}: {said}");
    }
    assert!(!said.contains("-bound"), "a verdict would be a guess: {said}");
}

/// Threads of one process read. What they prepare and what the process trains is not told apart.
#[test]
fn threads_that_read_get_no_verdict() {
    let fixture = Fixture::new();
    fixture.write_many("d", 8, 200_000);
    let script = "import os, sys, threading, time\ntop = sys.argv[1]\n\
                  def read():\n    for _ in range(40):\n        for name in os.listdir(top):\n            \
                  open(os.path.join(top, name), 'rb').read()\n        time.sleep(.2)\n\
                  all = [threading.Thread(target=read) for _ in range(3)]\n\
                  for one in all: one.start()\nfor one in all: one.join()\n";
    let mut job = Command::new("python3");
    job.args(["-c", script]).arg(fixture.path("source/d"));
    let (report, said) = report_of(&fixture, &job);
    let [epoch] = epochs(&report).as_slice() else { panic!("{said}") };
    assert_eq!((&epoch["kind"], epoch["workers"].as_u64()), (&"threads".into(), Some(3)), "{said}");
    assert!(epoch["bottleneck"].is_null() && said.contains("there is no verdict"), "{said}");
    assert!(epoch["parts"]["elsewhere"].as_f64().unwrap() > 0.3, "{said}");
}

/// The page is XML, and its drawings of the epoch are there.
#[track_caller]
fn check_page(page: &Path) {
    let parse = "import sys, xml.dom.minidom as x; print(len(x.parse(sys.argv[1]).getElementsByTagName('svg')))";
    let parsed = Command::new("python3").args(["-c", parse]).arg(page).output().unwrap();
    let drawings = String::from_utf8_lossy(&parsed.stdout).trim().parse::<u32>();
    assert!(drawings.is_ok_and(|count| count >= 3), "{}", said(&parsed));
    let text = fs::read_to_string(page).unwrap();
    for title in ["What each worker did", "waited, by cause", "fetch-bound"] {
        assert!(text.contains(title), "{title}: {text}");
    }
}

/// The work of one batch holds up all that come after it. A mean says nothing of that.
#[test]
fn a_loader_that_is_late_at_random_gets_no_promise() {
    let fixture = Fixture::new();
    fixture.write_many("d", 40, SIZE);
    let (epoch, said) = unmounted(&fixture, "4 12 0.01 4 0.01");
    assert!(epoch["gains"].is_null() && epoch["cap_s"].is_null(), "{said}");
    assert!(said.contains("makes no prediction"), "{said}");
}

#[test]
fn readers_of_a_mount_are_judged_while_they_read_and_afterwards() {
    let fixture = Fixture::new();
    fixture.write_many("d", 40, SIZE);
    let slow = Slowpfs::new(&fixture, &["--read-ms", "200"]);
    let options = ["--ram", "64MiB", "--set", "prefetch.enabled=false"];
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    let at = mounted.point.to_str().unwrap().to_owned();
    let at = at.as_str();
    let report =
        || -> Value { serde_json::from_str(&fixture.run(0, &["report", at, "--json"])).unwrap() };
    assert!(epochs(&report()).is_empty());
    assert!(fixture.run(0, &["report", at]).contains("no loader was seen"));

    let mut job = trainer(&mounted.path("d"), "2 20 0.01 0.01 0.01").spawn().unwrap();
    wait_until("the job is seen", || !epochs(&report()).is_empty());
    assert!(job.wait().unwrap().success());
    wait_until("its end is seen", || epochs(&report())[0]["is_over"] == true);
    let told = report();
    let epoch = &epochs(&told)[0];
    assert_eq!(
        (&epoch["bottleneck"], &epoch["is_over"]),
        (&"fetch".into(), &true.into()),
        "{told}"
    );
    let cold = epoch["mount"]["causes"]["cold"].as_f64().unwrap();
    assert!(cold >= 7.0 && epoch["parts"]["fetch"].as_f64().unwrap() > 0.5, "{told}");
    assert_eq!(epoch["trainer"], job.id());
    // The last batches may be handed over between the last look and the end.
    assert!((3..=22).contains(&epoch["batches"].as_u64().unwrap()), "{told}");
    let text = fixture.run(0, &["report", at, "--epochs", "1"]);
    assert!(text.contains("fetch-bound") && text.contains("waited meanwhile: cold"), "{text}");
    fixture.run(6, &["report", "--last", at]);
    let page = fixture.path("report.html");
    fixture.run(0, &["report", at, "--html", page.to_str().unwrap()]);
    check_page(&page);
    fixture.run(2, &["report", at, "--html", fixture.path("no/such/page").to_str().unwrap()]);
    let lines = fixture.run(0, &["top", at, "--plain", "--count", "2", "--interval", "0.1"]);
    let [first, second] = lines.lines().collect::<Vec<_>>()[..] else { panic!("{lines}") };
    for words in ["fetch-bound: trainer waits for data", " | waits: ", "under way of", " ahead of "]
    {
        assert!(first.contains(words), "{words}: {first}");
    }
    assert!(first.contains("since the mount") && second.contains("Z now"), "{lines}");
    assert!(second.contains("readers: 0 opens/s") && !second.contains(" | waits: "), "{second}");
    assert_eq!(fixture.run(0, &["top", "--count", "1"]).lines().count(), 1, "it is no terminal");
    mounted.umount();

    fixture.run(6, &["report", at]);
    fixture.run(6, &["top", at]);
    fixture.run(6, &["top"]);
    let last: Value =
        serde_json::from_str(&fixture.run(0, &["report", "--last", "--json"])).unwrap();
    assert_eq!(epochs(&last)[0]["bottleneck"], "fetch", "{last}");
    assert_eq!(last["mountpoints"][0], at);
    let of_it = fixture.run(0, &["report", "--last", at, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&of_it).unwrap(), last);
    let none = fixture.run(0, &["report"]);
    assert!(none.contains("nothing is mounted"), "{none}");
}

#[test]
fn a_run_ends_with_its_report() {
    let fixture = Fixture::new();
    fixture.write_many("d", 40, SIZE);
    let source = fixture.path("source");
    let job = trainer(&source.join("d"), "2 12 0.1 0.1 0.4");
    let mut run = fixture.belady();
    run.arg("run").arg(&source).args(["--ram", "64MiB", "--", "python3"]);
    let output = run.args(job.get_args()).output().unwrap();
    let said = said(&output);
    assert!(output.status.success() && said.contains(", 2 workers: "), "{said}");
    assert!(said.contains("GPU-bound"), "{said}");
}

#[test]
fn one_process_that_reads_is_told_of_itself() {
    let fixture = Fixture::new();
    // It is a fork of the shell at first, and is known to be another program after a second or two.
    fixture.write_many("d", 300, 60_000);
    let slow = Slowpfs::new(&fixture, &["--read-ms", "10"]);
    let to = fixture.path("report.json");
    let mut run = fixture.belady();
    run.args(["run", "--no-mount", "--report"]).arg(&to).args(["--", "sh", "-c"]);
    let output = run.args(["cat \"$1\"/d/* >/dev/null", "sh"]).arg(&slow.point).output().unwrap();
    let said = said(&output);
    assert!(output.status.success() && said.contains("which reads itself"), "{said}");
    let reports: Value = serde_json::from_slice(&fs::read(to).unwrap()).unwrap();
    assert_eq!(epochs(&reports[0]).len(), 1, "{reports}");
    assert_eq!(epochs(&reports[0])[0]["bottleneck"], "fetch", "{reports}");
}

/// A command of belady on a terminal that `script` makes. All that it shows goes to this file as well. The number
/// of its process is in the file `pid`.
fn on_terminal(fixture: &Fixture, words: &str, shown: &Path) -> Command {
    let belady = fixture.belady();
    // The shell becomes belady.
    let script = format!(
        "stty cols 100 rows 30; echo $$ >'{}'; exec '{}' {words}",
        fixture.path("pid").display(),
        belady.get_program().to_str().unwrap()
    );
    let mut terminal = Command::new("script");
    terminal.args(["-qefc", &script]).arg(shown).stdin(Stdio::null()).env("TERM", "xterm");
    for (name, value) in belady.get_envs() {
        value.map(|value| terminal.env(name, value));
    }
    terminal
}

#[test]
fn the_live_view_takes_a_terminal_and_gives_it_back() {
    let fixture = Fixture::new();
    fixture.write_many("d", 3, SIZE);
    let mounted = Mounted::new(&fixture, &[]);
    let at = mounted.point.to_str().unwrap();
    let words = format!("top '{at}' --count 2 --interval 0.1");
    let output = on_terminal(&fixture, &words, Path::new("/dev/null")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let (opened, rest) = text.split_once("\x1b[?1049h").expect("the other screen is used");
    let (drawn, left) = rest.split_once("\x1b[?1049l").expect("the terminal is given back");
    // Between words the cursor is moved.
    for word in ["loader", "opens/s;", "readers", "leave"] {
        assert!(drawn.contains(word), "{word}: {text}");
    }
    assert!(!opened.contains("opens/s") && !left.contains("opens/s"), "{text}");
}

#[test]
fn a_live_view_that_is_ended_by_a_signal_gives_the_terminal_back() {
    let fixture = Fixture::new();
    fixture.write_many("d", 3, SIZE);
    let mounted = Mounted::new(&fixture, &[]);
    let at = mounted.point.to_str().unwrap();
    let words = format!("top '{at}' --interval 600");
    let mut terminal = on_terminal(&fixture, &words, &fixture.path("shown"));
    terminal.stdout(Stdio::null());
    let mut terminal = terminal.spawn().unwrap();
    let shown = || {
        String::from_utf8_lossy(&fs::read(fixture.path("shown")).unwrap_or_default()).into_owned()
    };
    wait_until("the view is drawn", || shown().contains("leave"));
    let view: i32 = fs::read_to_string(fixture.path("pid")).unwrap().trim().parse().unwrap();
    kill(Pid::from_raw(view), Signal::SIGTERM).unwrap();
    let ended = terminal.wait().unwrap();
    assert!(ended.success() && shown().contains("\x1b[?1049l"), "{}", shown());
}

/// A job that waits for the source all the time, for longer than the test takes.
#[test]
fn a_trace_has_reads_and_waits_and_opens_and_workers() {
    let fixture = Fixture::new();
    fixture.write_many("d", 2000, 100);
    let slow = Slowpfs::new(&fixture, &["--read-ms", "200"]);
    let options = ["--ram", "64MiB", "--set", "prefetch.enabled=false"];
    let mounted = Mounted::at(&fixture, &slow.point, &fixture.path("mount"), &options);
    let at = mounted.point.to_str().unwrap().to_owned();
    let job = Job(trainer(&mounted.path("d"), "2 1000 0.01 0.01 0.01").spawn().unwrap());
    let file = fixture.path("trace.json");
    let words = ["trace", &at, "--seconds", "1", "-o", file.to_str().unwrap()];
    let has_all = || {
        fixture.run(0, &words);
        let value: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let events = value["traceEvents"].as_array().unwrap();
        let has = |key: &str, name: &str| events.iter().any(|event| event[key] == name);
        // In this mode a file may be opened without a request.
        let has_opens = has("cat", "open") || has("cat", "sighting");
        let kinds = ["source", "wait", "worker"];
        has_opens && kinds.iter().all(|kind| has("cat", kind)) && has("name", "cold")
    };
    wait_until("a trace has all", has_all);
    fixture.run(2, &["trace", &at, "-o", fixture.path("no/such/trace").to_str().unwrap()]);
    // A trace that nobody waits for any more ends with the next one. A file that is there stays until it is whole.
    let mut long = fixture.belady();
    long.args(["trace", &at, "--seconds", "600", "-o"]).arg(fixture.path("long.json"));
    let mut long = long.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(long.stderr.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("for 600 s"), "{said}");
    long.kill().unwrap();
    long.wait().unwrap();
    fixture.run(0, &words);
    drop(job);
    assert!(!fixture.path("long.json").exists());
    drop(mounted);
    fixture.run(6, &words);
    assert!(fs::read_to_string(&file).unwrap().ends_with("}\n"), "the earlier trace is there");
}

/// A job that is killed with the test.
struct Job(Child);

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
