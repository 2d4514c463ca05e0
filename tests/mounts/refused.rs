//! Impossible requests are refused, with the reason and an exit code, and leave nothing behind.
//!
//! Goal: a person or a job script knows from the answer what to do. Method: mistakes one by one. After each,
//! the exit code, the message, the mounts and the notes are checked.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::libc;

use crate::fixture::{Fixture, check_many, content, program, said};
use crate::mounted::{Mounted, in_namespace, mounts_at};

/// A mount with these options must end with this exit code, say this, and leave nothing.
#[track_caller]
pub(crate) fn mount_refused(fixture: &Fixture, options: &[&str], code: i32, why: &[&str]) {
    let (source, mount) = (fixture.path("source"), fixture.path("mount"));
    let paths = ["mount", source.to_str().unwrap(), mount.to_str().unwrap()];
    let said = fixture.run(code, &[&paths[..], options].concat());
    for words in why {
        assert!(said.contains(words), "{words:?} in {said}");
    }
    assert_eq!(mounts_at(&mount), 0);
    assert_eq!(fixture.daemons(), Vec::<i32>::new());
}

/// Bad orders, each with what must be said about it.
fn bad_orders(fixture: &Fixture) -> Vec<(String, Vec<&'static str>)> {
    let file = |name: &str, text: &str| {
        fs::write(fixture.path(name), text).unwrap();
        fixture.path(name).to_str().unwrap().to_owned()
    };
    vec![
        (file("a", "d/0000\nd/0001\nd/none\n"), vec!["line 3", "unknown path 'd/none'"]),
        (file("b", "# unique\nd/0000\nd/0001\nd/0000\n"), vec!["line 4"]),
        (file("c", "# count 3\nd/0000\nd/0001\n"), vec!["line"]),
        (file("e", "0\n1\n7\n"), vec!["line 3", "index 7 is out of range"]),
        (file("f", "d/0000\t90\t100\n"), vec!["line 1", "reach beyond"]),
        (file("g", "# nothing\n"), vec!["the order is empty"]),
        ("/no/such/file".into(), vec!["cannot read /no/such/file"]),
        ("torch-distributed:sead=1".into(), vec!["sead", "seed"]),
        ("torch-distributed:seed=1,count=6".into(), vec!["5 samples", "count says 6"]),
    ]
}

#[test]
fn bad_orders_at_mount() {
    let fixture = Fixture::new();
    fixture.write_many("d", 5, 100);
    for (order, why) in bad_orders(&fixture) {
        mount_refused(&fixture, &["--order", &order], 3, &why);
    }
}

#[test]
fn bad_orders_on_a_running_mount() {
    let fixture = Fixture::new();
    fixture.write_many("d", 5, 100);
    let mounted = Mounted::new(&fixture, &["--order", "sequential"]);
    let point = mounted.point.to_str().unwrap().to_owned();
    for (order, why) in bad_orders(&fixture) {
        let said = fixture.run(3, &["order", "set", &point, &order]);
        assert!(why.iter().all(|words| said.contains(words)), "{why:?} in {said}");
    }
    // The earlier order is still in force, and the status shows the last refusal.
    let order = &mounted.status()["orders"][0];
    assert!(order["order"].as_str().unwrap().contains("sequential"), "{order}");
    assert!(order["refused"].as_str().unwrap().contains("count says 6"), "{order}");
    check_many(&mounted.path(""), "d", 5, 100);
    mounted.umount();
}

/// An endless file, or a pipe without a writer, makes neither the mount nor the daemon wait.
#[test]
fn orders_without_end() {
    let fixture = Fixture::new();
    fixture.write_many("d", 5, 100);
    nix::unistd::mkfifo(&fixture.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::create_dir(fixture.path("folder")).unwrap();
    fs::File::create(fixture.path("long")).unwrap().set_len(1 << 40).unwrap();
    let at = |name: &str| fixture.path(name).to_str().unwrap().to_owned();
    let wrong = [
        ("/dev/zero".to_owned(), "it is a device"),
        (at("pipe"), "it is a pipe"),
        (at("folder"), "it is a directory"),
        (at("long"), "it has more than"),
    ];
    for (file, why) in &wrong {
        mount_refused(&fixture, &["--order", file], 3, &[file, why]);
    }
    let mounted = Mounted::new(&fixture, &[]);
    let point = mounted.point.to_str().unwrap().to_owned();
    for (file, why) in &wrong {
        for order in [file.clone(), format!("sequential:index=manifest:{file}")] {
            let said = fixture.run(3, &["order", "set", &point, &order]);
            assert!(said.contains(why) && said.contains("hint: "), "{said}");
        }
    }
    mounted.umount();
}

#[test]
fn settings_that_cannot_be() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    mount_refused(&fixture, &["--ram", "much"], 3, &["much"]);
    mount_refused(&fixture, &["--set", "cache.rum=1GiB"], 3, &["cache.rum"]);
    mount_refused(&fixture, &["--disk", "1GiB"], 3, &["cache.dir is empty"]);
    let inside = fixture.source("cache");
    let inside = inside.to_str().unwrap();
    mount_refused(&fixture, &["--cache-dir", inside], 3, &["overlaps the source"]);
    // By a bind mount of a part of the source, and the other way round.
    fs::create_dir(fixture.source("part")).unwrap();
    let part = Bound::new(&fixture.source("part"), fixture.path("part"));
    let inside = part.0.join("cache");
    let options = ["--cache-dir", inside.to_str().unwrap()];
    mount_refused(&fixture, &options, 3, &["overlaps the source"]);
    fs::create_dir_all(fixture.path("around/inside")).unwrap();
    let source = Bound::new(&fixture.path("around/inside"), fixture.path("bound"));
    let [mount, around] = ["mount", "around"].map(|name| fixture.path(name));
    let [from, at, cache] = [&source.0, &mount, &around].map(|path| path.to_str().unwrap());
    let said = fixture.run(3, &["mount", from, at, "--cache-dir", cache]);
    assert!(said.contains("overlaps the source"), "{said}");
    mount_refused(&fixture, &["-o", "rw"], 2, &["read-only"]);
    mount_refused(&fixture, &["--no-such-flag"], 2, &["--no-such-flag"]);
}

#[test]
fn a_further_mount_point_in_the_cache_directory() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    let cache = fixture.path("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let mounted = Mounted::new(&fixture, &options);
    let empty = cache.join("empty");
    fs::create_dir(&empty).unwrap();
    let source = fixture.path("source");
    let [source, inside] = [&source, &empty].map(|path| path.to_str().unwrap());
    let said = fixture.run(3, &["mount", source, inside]);
    assert!(said.contains("overlaps the mount point"), "{said}");
    assert_eq!(mounts_at(&empty), 0);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"x");
    mounted.umount();
}

#[test]
fn sources_and_mount_points_that_cannot_be() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    let (source, mount) = (fixture.path("source"), fixture.path("mount"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let refused = |code, source: &Path, mount: &Path, why: &str| {
        let said = fixture.run(code, &["mount", &text(source), &text(mount)]);
        assert!(said.contains(why), "{said}");
        assert_eq!(fixture.daemons(), Vec::<i32>::new());
    };
    refused(4, Path::new("/no/such/source"), &mount, "/no/such/source");
    refused(4, &source.join("file"), &mount, "must be a directory");
    refused(6, &source, &fixture.path("none"), "does not exist");
    refused(6, &source, &source.join("file"), "not a directory");
    refuse_inside(&fixture, &refused);
    fs::write(mount.join("hidden"), "x").unwrap();
    refused(6, &source, &mount, "is not empty");
    fixture.run(6, &["umount", &text(&mount)]);
    fixture.run(6, &["status", &text(&mount)]);
}

/// A mount point inside the source: by its own path, by a link, and by bind mounts of the source and of a
/// part of it.
#[track_caller]
fn refuse_inside(fixture: &Fixture, refused: &dyn Fn(i32, &Path, &Path, &str)) {
    let source = fixture.path("source");
    fs::create_dir_all(source.join("a b/empty")).unwrap();
    symlink(source.join("a b/empty"), fixture.path("leads-inside")).unwrap();
    let _whole = Bound::new(&source, fixture.path("whole"));
    let _part = Bound::new(&source.join("a b"), fixture.path("part"));
    for inside in ["source/a b/empty", "leads-inside", "whole/a b/empty", "part/empty"] {
        refused(6, &source, &fixture.path(inside), "is inside the source");
    }
    // A directory beside the source, although its path begins like the source's.
    fs::create_dir(fixture.path("source2")).unwrap();
    let mounted = Mounted::at(fixture, &source, &fixture.path("source2"), &[]);
    mounted.umount();
}

/// A directory that is bound to another place.
struct Bound(PathBuf);

impl Bound {
    fn new(directory: &Path, place: PathBuf) -> Self {
        fs::create_dir(&place).unwrap();
        let flags = nix::mount::MsFlags::MS_BIND;
        nix::mount::mount(Some(directory), &place, None::<&str>, flags, None::<&str>).unwrap();
        Bound(place)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn cache_directories_that_cannot_be() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fs::create_dir(fixture.path("real")).unwrap();
    symlink(fixture.path("real"), fixture.path("link")).unwrap();
    let link = fixture.path("link");
    mount_refused(&fixture, &["--cache-dir", link.to_str().unwrap()], 5, &["link"]);
    fixture.write("../plain", b"x");
    let below = fixture.path("plain/cache");
    mount_refused(&fixture, &["--cache-dir", below.to_str().unwrap()], 5, &["cache.dir"]);
    assert_eq!(fs::read_dir(fixture.path("real")).unwrap().count(), 0);
    // Root may write everywhere, except to a read-only filesystem.
    let readonly = Tmpfs::new(&fixture, "readonly", "ro,size=64M");
    mount_refused(&fixture, &["--cache-dir", readonly.0.to_str().unwrap()], 5, &["cannot be"]);
}

#[test]
fn cache_disks_without_space() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    let full = Tmpfs::new(&fixture, "full", "size=1M");
    while fs::write(full.0.join("others"), vec![0; 2 << 20]).is_ok() {}
    let cache = full.0.join("cache");
    let cache = cache.to_str().unwrap();
    for size in [&[][..], &["--disk", "64MiB"]] {
        let mounted = Mounted::new(&fixture, &[&["--cache-dir", cache], size].concat());
        assert!(mounted.status()["decisions"].to_string().contains("no disk tier"));
        assert_eq!(fs::read(mounted.path("file")).unwrap(), b"x");
        mounted.umount();
    }
    // The store that was begun there is completed when there is space.
    let mut larger = Command::new("mount");
    assert!(larger.args(["-o", "remount,size=64M"]).arg(&full.0).status().unwrap().success());
    let mounted = Mounted::new(&fixture, &["--cache-dir", cache, "--disk", "16MiB"]);
    assert_eq!(mounted.status()["disk_state"], "normal");
    mounted.umount();
    let tag = fs::read_to_string(full.0.join("cache/belady-store-v3/CACHEDIR.TAG")).unwrap();
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"), "{tag:?}");
    let listed = fixture.run(0, &["cache", "ls", cache]);
    assert!(listed.contains(fixture.path("source").to_str().unwrap()), "{listed}");
    // A store that is larger than the space is made smaller, as a running mount would make it.
    let small = Tmpfs::new(&fixture, "small", "size=32M,mode=700");
    let cache = small.0.join("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let mounted = Mounted::new(&fixture, &options);
    assert!(mounted.status()["decisions"].to_string().contains("cache.disk shrunk from 64 MiB"));
    assert_eq!(mounted.count("/disk/configured"), 64 << 20);
    assert!(mounted.count("/disk/budget") < 32 << 20);
    mounted.umount();
    let crowded = Tmpfs::new(&fixture, "crowded", "size=64M,nr_inodes=2");
    fs::write(crowded.0.join("others"), "").unwrap_or_default();
    let cache = crowded.0.join("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "16MiB"];
    let mounted = Mounted::new(&fixture, &options);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"x");
    assert!(mounted.status()["disk_state"].as_str().unwrap().starts_with("down"));
    mounted.umount();
}

/// Mounts without a device, in a mount namespace of the test's own.
const WITHOUT_FUSE: &str = r#"
mount -t tmpfs -o mode=755 none "$TEST_DIR/dev"
mknod -m 666 "$TEST_DIR/dev/null" c 1 3
mount --bind "$TEST_DIR/dev" /dev
exec "$BELADY" mount "$TEST_DIR/source" "$TEST_DIR/mount"
"#;

#[test]
fn a_machine_without_fuse() {
    let fixture = Fixture::new();
    fixture.write("file", b"x");
    fs::create_dir(fixture.path("dev")).unwrap();
    let mut command = in_namespace(&fixture, WITHOUT_FUSE);
    command.env("BELADY", program("belady"));
    let output = command.env("XDG_RUNTIME_DIR", fixture.path("run")).output().unwrap();
    let said = crate::fixture::said(&output);
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("/dev/fuse is missing") && said.contains("modprobe fuse"), "{said}");
    assert_eq!((mounts_at(&fixture.path("mount")), fixture.daemons()), (0, Vec::new()));
}

/// A small filesystem in memory.
pub(crate) struct Tmpfs(pub(crate) std::path::PathBuf);

impl Tmpfs {
    pub(crate) fn new(fixture: &Fixture, name: &str, options: &str) -> Self {
        let path = fixture.path(name);
        fs::create_dir(&path).unwrap();
        let mut mount = Command::new("mount");
        let status =
            mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(&path).status().unwrap();
        assert!(status.success());
        Tmpfs(path)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_source_that_is_empty_or_nearly_is_no_mistake() {
    let fixture = Fixture::new();
    let mounted = Mounted::new(&fixture, &[]);
    assert_eq!(fs::read_dir(&mounted.point).unwrap().count(), 0);
    mounted.umount();
    fixture.write("empty", b"");
    let mounted = Mounted::new(&fixture, &["--order", "sequential"]);
    assert_eq!(fs::read(mounted.path("empty")).unwrap(), content(0, 0));
    mounted.umount();
}

/// Sets an access control list that lets another user in, as setfacl(1) writes it.
fn set_list(path: &Path) {
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let nobody = u32::MAX;
    let entries = [
        entry(1, 7, nobody),
        entry(2, 5, 4321),
        entry(4, 5, nobody),
        entry(16, 5, nobody),
        entry(32, 0, nobody),
    ];
    let list = [&2u32.to_le_bytes()[..], &entries.concat()].concat();
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let name = c"system.posix_acl_access".as_ptr();
    // SAFETY: path and name end in a NUL, and the list is as long as said.
    let result =
        unsafe { libc::setxattr(path.as_ptr(), name, list.as_ptr().cast(), list.len(), 0) };
    assert_eq!(result, 0, "this filesystem has no access control lists");
}

#[test]
fn a_mount_for_others_that_would_give_something_away() {
    let fixture = Fixture::new();
    fixture.write("train/a/deep/file", b"x");
    let cache = fixture.path("cache");
    let cache = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let others = [&["-o", "allow_other"][..], &cache].concat();
    let refused = |what: &str| {
        mount_refused(&fixture, &others, 6, &["allow-other is refused", what, "force-allow-other"]);
    };
    let mounts = |options: &[&str]| {
        let mounted = Mounted::new(&fixture, options);
        assert_eq!(fs::read(mounted.path("train/a/deep/file")).unwrap(), b"x");
        mounted.umount();
    };
    fs::set_permissions(fixture.path(""), fs::Permissions::from_mode(0o700)).unwrap();
    refused("not searchable by all");
    fs::set_permissions(fixture.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    // The next mounts open its saved catalog.
    mounts(&others);
    for path in ["train/a/deep", "train/a", "train", ""] {
        let found = fs::metadata(fixture.source(path)).unwrap().permissions();
        set_list(&fixture.source(path));
        refused(format!("source/{path}").trim_end_matches('/'));
        refused("access control list");
        // For the owner alone, nothing has to be checked.
        mounts(&cache);
        mounts(&[&others[..], &["--set", "mount.force-allow-other=true"]].concat());
        let path = CString::new(fixture.source(path).as_os_str().as_bytes()).unwrap();
        // SAFETY: path and name end in a NUL.
        let removed =
            unsafe { libc::removexattr(path.as_ptr(), c"system.posix_acl_access".as_ptr()) };
        assert_eq!(removed, 0);
        fs::set_permissions(std::ffi::OsStr::from_bytes(path.as_bytes()), found).unwrap();
    }
    let point = fixture.path("mount");
    let mut command = fixture.belady();
    let output =
        command.arg("mount").args([&fixture.path("source"), &point]).args(&others).output();
    let said = said(&output.unwrap());
    assert!(said.contains("access control lists that are set from now on are not seen"), "{said}");
    fixture.run(0, &["umount", point.to_str().unwrap()]);
}

/// If another user has made the directory in which mounts are noted, belady neither believes the notes there
/// nor asks the socket there.
#[test]
fn a_runtime_directory_of_somebody_else() {
    let fixture = Fixture::new();
    fixture.write_many("d", 2, 100);
    let (source, runtime) = (fixture.path("source"), fixture.path("run/belady"));
    let found = fs::metadata(&source).unwrap();
    let entry = runtime.join("0123456789abcdef");
    let elsewhere = fixture.path("elsewhere");
    // The socket of the noted mount. Its directory is named after the mount.
    let noted = serde_json::json!({
        "pid": i32::MAX, "source": source, "identity": [found.dev(), found.ino()],
        "mountpoint": elsewhere,
    });
    fs::create_dir_all(&entry).unwrap();
    fs::write(entry.join("mount.json"), noted.to_string()).unwrap();
    let (point, hash) = (fixture.path("mount"), |path: &Path| {
        path.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        })
    });
    let sockets: Vec<UnixListener> = [&elsewhere, &point]
        .into_iter()
        .map(|path| {
            let directory = runtime.join(format!("{:016x}", hash(path)));
            fs::create_dir_all(&directory).unwrap();
            let socket = UnixListener::bind(directory.join("socket")).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        })
        .collect();
    let [source, point] = [&source, &point].map(|path| path.to_str().unwrap());
    let mut all = vec![vec!["mount", source, point], vec!["mount", "-f", source, point]];
    all.extend([vec!["status"], vec!["status", point], vec!["umount", point]]);
    all.push(vec!["warmup", point]);
    let is_refused = |why: [&str; 2]| {
        for words in &all {
            let said = fixture.run(6, words);
            assert!(why.iter().all(|why| said.contains(why)), "{why:?} in {said}");
        }
        for socket in &sockets {
            let asked = socket.accept().map(|_| ()).map_err(|error| error.kind());
            assert_eq!(asked, Err(std::io::ErrorKind::WouldBlock));
        }
    };
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&runtime, Some(65534), Some(65534)).unwrap();
        is_refused(["is not a directory of yours", "hint: set XDG_RUNTIME_DIR"]);
        std::os::unix::fs::chown(&runtime, Some(0), Some(0)).unwrap();
    }
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o777)).unwrap();
    is_refused(["others can write to it", "chmod go-w"]);
    fs::remove_dir_all(&runtime).unwrap();
    Mounted::new(&fixture, &[]).umount();
}
