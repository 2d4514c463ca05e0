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

use crate::ground::{Ground, check_many, content, program, said};
use crate::mounted::{Mounted, in_namespace, mounts_at};

/// A mount with these options must end with this exit code, say this, and leave nothing.
#[track_caller]
pub(crate) fn mount_refused(ground: &Ground, options: &[&str], code: i32, why: &[&str]) {
    let (source, mount) = (ground.path("source"), ground.path("mount"));
    let paths = ["mount", source.to_str().unwrap(), mount.to_str().unwrap()];
    let said = ground.ends(code, &[&paths[..], options].concat());
    for words in why {
        assert!(said.contains(words), "{words:?} in {said}");
    }
    assert_eq!(mounts_at(&mount), 0);
    assert_eq!(ground.daemons(), Vec::<i32>::new());
}

/// Bad orders, each with what must be said about it.
fn bad_orders(ground: &Ground) -> Vec<(String, Vec<&'static str>)> {
    let file = |name: &str, text: &str| {
        fs::write(ground.path(name), text).unwrap();
        ground.path(name).to_str().unwrap().to_owned()
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
    let ground = Ground::new();
    ground.plant_many("d", 5, 100);
    for (order, why) in bad_orders(&ground) {
        mount_refused(&ground, &["--order", &order], 3, &why);
    }
}

#[test]
fn bad_orders_on_a_running_mount() {
    let ground = Ground::new();
    ground.plant_many("d", 5, 100);
    let mounted = Mounted::new(&ground, &["--order", "sequential"]);
    let point = mounted.point.to_str().unwrap().to_owned();
    for (order, why) in bad_orders(&ground) {
        let said = ground.ends(3, &["order", "set", &point, &order]);
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
    let ground = Ground::new();
    ground.plant_many("d", 5, 100);
    nix::unistd::mkfifo(&ground.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::create_dir(ground.path("folder")).unwrap();
    fs::File::create(ground.path("long")).unwrap().set_len(1 << 40).unwrap();
    let at = |name: &str| ground.path(name).to_str().unwrap().to_owned();
    let wrong = [
        ("/dev/zero".to_owned(), "it is a device"),
        (at("pipe"), "it is a pipe"),
        (at("folder"), "it is a directory"),
        (at("long"), "it has more than"),
    ];
    for (file, why) in &wrong {
        mount_refused(&ground, &["--order", file], 3, &[file, why]);
    }
    let mounted = Mounted::new(&ground, &[]);
    let point = mounted.point.to_str().unwrap().to_owned();
    for (file, why) in &wrong {
        for order in [file.clone(), format!("sequential:index=manifest:{file}")] {
            let said = ground.ends(3, &["order", "set", &point, &order]);
            assert!(said.contains(why) && said.contains("hint: "), "{said}");
        }
    }
    mounted.umount();
}

#[test]
fn settings_that_cannot_be() {
    let ground = Ground::new();
    ground.plant("file", b"x");
    mount_refused(&ground, &["--ram", "much"], 3, &["much"]);
    mount_refused(&ground, &["--set", "cache.rum=1GiB"], 3, &["cache.rum"]);
    mount_refused(&ground, &["--disk", "1GiB"], 3, &["cache.dir is empty"]);
    let inside = ground.source("cache");
    let inside = inside.to_str().unwrap();
    mount_refused(&ground, &["--cache-dir", inside], 3, &["overlaps the source"]);
    // By a bind mount of a part of the source, and the other way round.
    fs::create_dir(ground.source("part")).unwrap();
    let part = Bound::new(&ground.source("part"), ground.path("part"));
    let inside = part.0.join("cache");
    mount_refused(&ground, &["--cache-dir", inside.to_str().unwrap()], 3, &["overlaps the source"]);
    fs::create_dir_all(ground.path("around/inside")).unwrap();
    let source = Bound::new(&ground.path("around/inside"), ground.path("bound"));
    let [mount, around] = ["mount", "around"].map(|name| ground.path(name));
    let [from, at, cache] = [&source.0, &mount, &around].map(|path| path.to_str().unwrap());
    let said = ground.ends(3, &["mount", from, at, "--cache-dir", cache]);
    assert!(said.contains("overlaps the source"), "{said}");
    mount_refused(&ground, &["-o", "rw"], 2, &["read-only"]);
    mount_refused(&ground, &["--no-such-flag"], 2, &["--no-such-flag"]);
}

#[test]
fn a_further_mount_point_in_the_cache_directory() {
    let ground = Ground::new();
    ground.plant("file", b"x");
    let cache = ground.path("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let mounted = Mounted::new(&ground, &options);
    let empty = cache.join("empty");
    fs::create_dir(&empty).unwrap();
    let source = ground.path("source");
    let [source, inside] = [&source, &empty].map(|path| path.to_str().unwrap());
    let said = ground.ends(3, &["mount", source, inside]);
    assert!(said.contains("overlaps the mount point"), "{said}");
    assert_eq!(mounts_at(&empty), 0);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"x");
    mounted.umount();
}

#[test]
fn sources_and_mount_points_that_cannot_be() {
    let ground = Ground::new();
    ground.plant("file", b"x");
    let (source, mount) = (ground.path("source"), ground.path("mount"));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let refused = |code, source: &Path, mount: &Path, why: &str| {
        let said = ground.ends(code, &["mount", &text(source), &text(mount)]);
        assert!(said.contains(why), "{said}");
        assert_eq!(ground.daemons(), Vec::<i32>::new());
    };
    refused(4, Path::new("/no/such/source"), &mount, "/no/such/source");
    refused(4, &source.join("file"), &mount, "must be a directory");
    refused(6, &source, &ground.path("none"), "does not exist");
    refused(6, &source, &source.join("file"), "not a directory");
    refuse_inside(&ground, &refused);
    fs::write(mount.join("hidden"), "x").unwrap();
    refused(6, &source, &mount, "is not empty");
    ground.ends(6, &["umount", &text(&mount)]);
    ground.ends(6, &["status", &text(&mount)]);
}

/// A mount point inside the source: by its own path, by a link, and by bind mounts of the source and of a
/// part of it.
#[track_caller]
fn refuse_inside(ground: &Ground, refused: &dyn Fn(i32, &Path, &Path, &str)) {
    let source = ground.path("source");
    fs::create_dir_all(source.join("a b/empty")).unwrap();
    symlink(source.join("a b/empty"), ground.path("leads-inside")).unwrap();
    let _whole = Bound::new(&source, ground.path("whole"));
    let _part = Bound::new(&source.join("a b"), ground.path("part"));
    for inside in ["source/a b/empty", "leads-inside", "whole/a b/empty", "part/empty"] {
        refused(6, &source, &ground.path(inside), "is inside the source");
    }
    // A directory beside the source, although its path begins like the source's.
    fs::create_dir(ground.path("source2")).unwrap();
    let mounted = Mounted::at(ground, &source, &ground.path("source2"), &[]);
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
    let ground = Ground::new();
    ground.plant("file", b"x");
    fs::create_dir(ground.path("real")).unwrap();
    symlink(ground.path("real"), ground.path("link")).unwrap();
    let link = ground.path("link");
    mount_refused(&ground, &["--cache-dir", link.to_str().unwrap()], 5, &["link"]);
    ground.plant("../plain", b"x");
    let below = ground.path("plain/cache");
    mount_refused(&ground, &["--cache-dir", below.to_str().unwrap()], 5, &["cache.dir"]);
    assert_eq!(fs::read_dir(ground.path("real")).unwrap().count(), 0);
    // Root may write everywhere, except to a read-only filesystem.
    let readonly = Tmpfs::new(&ground, "readonly", "ro,size=64M");
    mount_refused(&ground, &["--cache-dir", readonly.0.to_str().unwrap()], 5, &["cannot be"]);
}

#[test]
fn cache_disks_without_space() {
    let ground = Ground::new();
    ground.plant("file", b"x");
    let full = Tmpfs::new(&ground, "full", "size=1M");
    while fs::write(full.0.join("others"), vec![0; 2 << 20]).is_ok() {}
    let cache = full.0.join("cache");
    let cache = cache.to_str().unwrap();
    for size in [&[][..], &["--disk", "64MiB"]] {
        let mounted = Mounted::new(&ground, &[&["--cache-dir", cache], size].concat());
        assert!(mounted.status()["decisions"].to_string().contains("no disk tier"));
        assert_eq!(fs::read(mounted.path("file")).unwrap(), b"x");
        mounted.umount();
    }
    // The store that was begun there is completed when there is space.
    let mut larger = Command::new("mount");
    assert!(larger.args(["-o", "remount,size=64M"]).arg(&full.0).status().unwrap().success());
    let mounted = Mounted::new(&ground, &["--cache-dir", cache, "--disk", "16MiB"]);
    assert_eq!(mounted.status()["disk_state"], "normal");
    mounted.umount();
    let tag = fs::read_to_string(full.0.join("cache/belady-store-v3/CACHEDIR.TAG")).unwrap();
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55\n"), "{tag:?}");
    let listed = ground.ends(0, &["cache", "ls", cache]);
    assert!(listed.contains(ground.path("source").to_str().unwrap()), "{listed}");
    // A store that is larger than the space is made smaller, as a running mount would make it.
    let small = Tmpfs::new(&ground, "small", "size=32M,mode=700");
    let cache = small.0.join("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let mounted = Mounted::new(&ground, &options);
    assert!(mounted.status()["decisions"].to_string().contains("cache.disk shrunk from 64 MiB"));
    assert_eq!(mounted.count("/disk/configured"), 64 << 20);
    assert!(mounted.count("/disk/budget") < 32 << 20);
    mounted.umount();
    let crowded = Tmpfs::new(&ground, "crowded", "size=64M,nr_inodes=2");
    fs::write(crowded.0.join("others"), "").unwrap_or_default();
    let cache = crowded.0.join("cache");
    let options = ["--cache-dir", cache.to_str().unwrap(), "--disk", "16MiB"];
    let mounted = Mounted::new(&ground, &options);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"x");
    assert!(mounted.status()["disk_state"].as_str().unwrap().starts_with("down"));
    mounted.umount();
}

/// Mounts without a device, in a mount namespace of the test's own.
const WITHOUT_FUSE: &str = r#"
mount -t tmpfs -o mode=755 none "$GROUND/dev"
mknod -m 666 "$GROUND/dev/null" c 1 3
mount --bind "$GROUND/dev" /dev
exec "$BELADY" mount "$GROUND/source" "$GROUND/mount"
"#;

#[test]
fn a_machine_without_fuse() {
    let ground = Ground::new();
    ground.plant("file", b"x");
    fs::create_dir(ground.path("dev")).unwrap();
    let mut command = in_namespace(&ground, WITHOUT_FUSE);
    command.env("BELADY", program("belady"));
    let output = command.env("XDG_RUNTIME_DIR", ground.path("run")).output().unwrap();
    let said = crate::ground::said(&output);
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("/dev/fuse is missing") && said.contains("modprobe fuse"), "{said}");
    assert_eq!((mounts_at(&ground.path("mount")), ground.daemons()), (0, Vec::new()));
}

/// A small filesystem in memory.
pub(crate) struct Tmpfs(pub(crate) std::path::PathBuf);

impl Tmpfs {
    pub(crate) fn new(ground: &Ground, name: &str, options: &str) -> Self {
        let path = ground.path(name);
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
    let ground = Ground::new();
    let mounted = Mounted::new(&ground, &[]);
    assert_eq!(fs::read_dir(&mounted.point).unwrap().count(), 0);
    mounted.umount();
    ground.plant("empty", b"");
    let mounted = Mounted::new(&ground, &["--order", "sequential"]);
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
    let ground = Ground::new();
    ground.plant("train/a/deep/file", b"x");
    let cache = ground.path("cache");
    let cache = ["--cache-dir", cache.to_str().unwrap(), "--disk", "64MiB"];
    let others = [&["-o", "allow_other"][..], &cache].concat();
    let refused = |what: &str| {
        mount_refused(&ground, &others, 6, &["allow-other is refused", what, "force-allow-other"]);
    };
    let mounts = |options: &[&str]| {
        let mounted = Mounted::new(&ground, options);
        assert_eq!(fs::read(mounted.path("train/a/deep/file")).unwrap(), b"x");
        mounted.umount();
    };
    fs::set_permissions(ground.path(""), fs::Permissions::from_mode(0o700)).unwrap();
    refused("not searchable by all");
    fs::set_permissions(ground.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    // The next mounts open its saved catalog.
    mounts(&others);
    for path in ["train/a/deep", "train/a", "train", ""] {
        let found = fs::metadata(ground.source(path)).unwrap().permissions();
        set_list(&ground.source(path));
        refused(format!("source/{path}").trim_end_matches('/'));
        refused("access control list");
        // For the owner alone, nothing has to be checked.
        mounts(&cache);
        mounts(&[&others[..], &["--set", "mount.force-allow-other=true"]].concat());
        let path = CString::new(ground.source(path).as_os_str().as_bytes()).unwrap();
        // SAFETY: path and name end in a NUL.
        let removed =
            unsafe { libc::removexattr(path.as_ptr(), c"system.posix_acl_access".as_ptr()) };
        assert_eq!(removed, 0);
        fs::set_permissions(std::ffi::OsStr::from_bytes(path.as_bytes()), found).unwrap();
    }
    let point = ground.path("mount");
    let mut command = ground.belady();
    let output = command.arg("mount").args([&ground.path("source"), &point]).args(&others).output();
    let said = said(&output.unwrap());
    assert!(said.contains("access control lists that are set from now on are not seen"), "{said}");
    ground.ends(0, &["umount", point.to_str().unwrap()]);
}

/// If another user has made the directory in which mounts are noted, belady neither believes the notes there
/// nor asks the socket there.
#[test]
fn a_runtime_directory_of_somebody_else() {
    let ground = Ground::new();
    ground.plant_many("d", 2, 100);
    let (source, runtime) = (ground.path("source"), ground.path("run/belady"));
    let found = fs::metadata(&source).unwrap();
    let entry = runtime.join("0123456789abcdef");
    let elsewhere = ground.path("elsewhere");
    // The socket of the noted mount. Its directory is named after the mount.
    let noted = serde_json::json!({
        "pid": i32::MAX, "source": source, "identity": [found.dev(), found.ino()],
        "mountpoint": elsewhere,
    });
    fs::create_dir_all(&entry).unwrap();
    fs::write(entry.join("mount.json"), noted.to_string()).unwrap();
    let (point, hash) = (ground.path("mount"), |path: &Path| {
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
            let said = ground.ends(6, words);
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
    Mounted::new(&ground, &[]).umount();
}
