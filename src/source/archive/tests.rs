use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use ::zip::CompressionMethod;

use super::*;
use crate::config::Manners;
use crate::source::keyed::KeyedSource;
use crate::source::stub::StubSource;
use crate::source::tests::conformance::{Files, check, read, some_files, wait_until};
use crate::source::{PosixSource, ReadError};

const PATIENCE: Duration = Duration::from_secs(180);

fn open(directory: &Path, only: Option<&str>) -> UserResult<KeyedSource<Archives>> {
    let source = Arc::new(PosixSource::open(directory, 8)?);
    let limiter = Limiter::of_metadata(128, Manners::Fair);
    let archives = Archives::new(source, only.map(OsString::from), limiter);
    KeyedSource::open(archives, &AtomicU64::new(0))
}

fn write_tar(to: &Path, files: &Files) {
    let mut archive = ::tar::Builder::new(std::fs::File::create(to).unwrap());
    for (path, bytes) in files {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1_000_000);
        archive.append_data(&mut header, path, bytes.as_slice()).unwrap();
    }
    archive.finish().unwrap();
}

fn write_zip(to: &Path, files: &Files, method: ::zip::CompressionMethod) {
    let mut archive = ::zip::ZipWriter::new(std::fs::File::create(to).unwrap());
    let options = ::zip::write::SimpleFileOptions::default().compression_method(method);
    for (path, bytes) in files {
        archive.start_file(path.to_str().unwrap(), options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap();
}

fn files(all: &[(&str, &[u8])]) -> Files {
    all.iter().map(|(path, bytes)| (path.into(), bytes.to_vec())).collect()
}

#[test]
fn a_tar_file_conforms() {
    let directory = tempfile::tempdir().unwrap();
    write_tar(&directory.path().join("all.tar"), &some_files());
    check(&open(directory.path(), None).unwrap(), &some_files());
    check(&open(directory.path(), Some("all.tar")).unwrap(), &some_files());
}

#[test]
fn a_zip_file_conforms() {
    let directory = tempfile::tempdir().unwrap();
    write_zip(&directory.path().join("all.ZIP"), &some_files(), CompressionMethod::Stored);
    check(&open(directory.path(), None).unwrap(), &some_files());
}

#[test]
fn many_archives_are_one_tree_beside_other_files() {
    let directory = tempfile::tempdir().unwrap();
    let at = |path: &str| directory.path().join(path);
    std::fs::create_dir_all(at("val")).unwrap();
    let mut all = Files::new();
    for (nth, (path, bytes)) in some_files().into_iter().enumerate() {
        let part = Files::from([(path.clone(), bytes.clone())]);
        match nth % 3 {
            0 => write_tar(&at(&format!("{nth}.tar")), &part),
            1 => write_zip(&at(&format!("{nth}.zip")), &part, CompressionMethod::Stored),
            _ => write_tar(&at(&format!("val/{nth}.tar")), &part),
        }
        all.insert(if nth % 3 == 2 { Path::new("val").join(path) } else { path }, bytes);
    }
    std::fs::write(at("labels.csv"), b"a,b\n").unwrap();
    all.insert("labels.csv".into(), b"a,b\n".to_vec());
    check(&open(directory.path(), None).unwrap(), &all);
}

/// Members that lie one behind the other come with one read if they are asked for at once.
#[test]
fn members_side_by_side_are_read_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let all: Files = (0..50).map(|nth| (format!("{nth:02}.jpg").into(), vec![nth; 5000])).collect();
    write_tar(&directory.path().join("a.tar"), &all);
    let (reads, posix) = (Arc::new(AtomicU64::new(0)), PosixSource::open(directory.path(), 8));
    let (top, seen) = (directory.path().to_owned(), Arc::clone(&reads));
    let is_gone = Arc::new(AtomicBool::new(false));
    let fails = Arc::clone(&is_gone);
    let read = move |request: ReadRequest| {
        seen.fetch_add(1, Ordering::Relaxed);
        if fails.load(Ordering::Relaxed) {
            return (request.deliver)(Err(ReadError::Source(Errno::EIO)));
        }
        let mut bytes = vec![0; request.length];
        let file = std::fs::File::open(top.join(&*request.path)).unwrap();
        file.read_exact_at(&mut bytes, request.offset).unwrap();
        (request.deliver)(Ok(bytes));
    };
    let source = Arc::new(StubSource::new(posix.unwrap(), read));
    let archives = Archives::new(source, None, Limiter::of_metadata(128, Manners::Fair));
    let source = KeyedSource::open(archives, &AtomicU64::new(0)).unwrap();
    let names: Vec<OsString> = all.keys().map(|path| path.clone().into()).collect();
    let behind = source.lie_behind(Path::new(""), &names).unwrap();
    assert_eq!((behind.len(), behind.iter().filter(|it| **it).count()), (50, 49));
    assert!(!behind[0]);
    let backwards: Vec<OsString> = names.iter().rev().cloned().collect();
    assert_eq!(source.lie_behind(Path::new(""), &backwards), Some(vec![false; 50]));
    let (send, answers) = std::sync::mpsc::channel();
    let before = reads.load(Ordering::Relaxed);
    let request = |nth: u8| {
        let (path, send) = (PathBuf::from(format!("{nth:02}.jpg")), send.clone());
        ReadRequest {
            fingerprint: source.stat(&path).unwrap().fingerprint(),
            path: path.as_path().into(),
            is_sized: true,
            exact: true,
            offset: 0,
            length: 5000,
            urgency: crate::source::Urgency::Prefetch,
            deliver: Box::new(move |read| send.send((nth, read)).unwrap()),
        }
    };
    // One is left out.
    source.read((10..20).chain(21..30).map(request).collect());
    for _ in 0..19 {
        let (nth, read) = answers.recv_timeout(PATIENCE).unwrap();
        assert_eq!(read.unwrap(), vec![nth; 5000]);
    }
    assert_eq!(reads.load(Ordering::Relaxed) - before, 2);
    is_gone.store(true, Ordering::Relaxed);
    source.read((0..30).map(request).collect());
    for _ in 0..30 {
        let (_, read) = answers.recv_timeout(PATIENCE).unwrap();
        assert_eq!(read.unwrap_err(), ReadError::Source(Errno::EIO));
    }
    assert_eq!(reads.load(Ordering::Relaxed) - before, 3);
}

/// So many archives are read at once as the source serves best, and one more for each read that is held up.
#[test]
fn many_archives_are_read_at_once() {
    const AT_ONCE: u64 = 7;
    let directory = tempfile::tempdir().unwrap();
    let mut all = Files::new();
    for nth in 0..40 {
        let part = files(&[(&format!("{nth}.jpg"), b"bytes")]);
        write_tar(&directory.path().join(format!("{nth}.tar")), &part);
        all.extend(part);
    }
    let (now, most) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let (top, seen) = (directory.path().to_owned(), Arc::clone(&most));
    let read = move |request: ReadRequest| {
        let begun = now.fetch_add(1, Ordering::Relaxed) + 1;
        seen.fetch_max(begun, Ordering::Relaxed);
        wait_until(|| seen.load(Ordering::Relaxed) >= AT_ONCE);
        let mut bytes = vec![0; request.length];
        let file = std::fs::File::open(top.join(&*request.path)).unwrap();
        file.read_exact_at(&mut bytes, request.offset).unwrap();
        now.fetch_sub(1, Ordering::Relaxed);
        (request.deliver)(Ok(bytes));
    };
    let posix = PosixSource::open(directory.path(), 8).unwrap();
    let source = Arc::new(StubSource::new(posix, read));
    let limiter = Limiter::of_metadata(AT_ONCE as u32, Manners::Off);
    let archives = Archives::new(source, None, limiter);
    check(&KeyedSource::open(archives, &AtomicU64::new(0)).unwrap(), &all);
    let most = most.load(Ordering::Relaxed);
    assert!((AT_ONCE..=2 * AT_ONCE).contains(&most), "{most}");
}

#[test]
fn members_have_their_own_times_and_the_rights_of_their_archive() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("a.tar");
    write_tar(&archive, &files(&[("x", b"1")]));
    std::fs::set_permissions(&archive, std::fs::Permissions::from_mode(0o640)).unwrap();
    let stat = open(directory.path(), None).unwrap().stat(Path::new("x")).unwrap();
    assert_eq!((stat.mode, stat.mtime_ns), (0o440, 1_000_000_000_000_000));
}

#[test]
fn a_path_that_comes_twice_in_a_tar_file_is_the_later_one() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("a.tar");
    let mut builder = ::tar::Builder::new(std::fs::File::create(&archive).unwrap());
    for bytes in [b"old", b"new"] {
        let mut header = ::tar::Header::new_ustar();
        header.set_size(3);
        builder.append_data(&mut header, "./x", bytes.as_slice()).unwrap();
    }
    builder.finish().unwrap();
    assert_eq!(read(&open(directory.path(), None).unwrap(), Path::new("x")).unwrap(), b"new");
}

#[test]
fn an_archive_that_changes_changes_its_members() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("a.tar");
    write_tar(&archive, &files(&[("x", b"old"), ("y", b"same")]));
    let source = open(directory.path(), None).unwrap();
    let before = source.stat(Path::new("x")).unwrap();
    let other = directory.path().join("new");
    write_tar(&other, &files(&[("x", b"newer"), ("z", b"z")]));
    std::fs::rename(&other, &archive).unwrap();
    let stale = crate::source::tests::conformance::read_version(
        &source,
        Path::new("x"),
        before.fingerprint(),
        0,
        3,
    );
    assert_eq!(stale.unwrap_err(), ReadError::Changed);
    // The version of an archive is believed for a moment.
    wait_until(|| source.stat(Path::new("x")).unwrap().fingerprint() != before.fingerprint());
    check(&source, &files(&[("x", b"newer"), ("z", b"z")]));
    std::fs::remove_file(&archive).unwrap();
    write_tar(&directory.path().join("b.tar"), &files(&[("only", b"1")]));
    wait_until(|| source.stat(Path::new("x")) == Err(Errno::ENOENT));
    check(&source, &files(&[("only", b"1")]));
}

/// What was listed before is not taken for what is there now.
#[test]
fn archives_that_become_no_tree_are_an_error_until_they_are_one_again() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = ["a.tar", "b.tar"].map(|name| directory.path().join(name));
    write_tar(&first, &files(&[("x", b"1")]));
    let source = open(directory.path(), None).unwrap();
    write_tar(&second, &files(&[("x", b"2")]));
    wait_until(|| source.stat(Path::new("")) == Err(Errno::EIO));
    assert_eq!(read(&source, Path::new("x")).unwrap(), b"1");
    std::fs::remove_file(&second).unwrap();
    check(&source, &files(&[("x", b"1")]));
}

#[test]
fn what_cannot_be_shown_is_refused_with_its_reason() {
    let refused = |make: &dyn Fn(&Path)| {
        let directory = tempfile::tempdir().unwrap();
        make(directory.path());
        let error = open(directory.path(), None).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Source);
        error.to_string()
    };
    let none = refused(&|at| std::fs::write(at.join("a.jpg"), b"").unwrap());
    assert!(none.contains("no .tar and no .zip"), "{none}");
    let compressed = refused(&|at| {
        let mut bytes = vec![0x1f, 0x8b, 8, 0];
        bytes.resize(2000, 7);
        std::fs::write(at.join("a.tar"), bytes).unwrap();
    });
    assert!(compressed.contains("a.tar") && compressed.contains("ompressed"), "{compressed}");
    let cut = refused(&|at| {
        write_tar(&at.join("a.tar"), &files(&[("x", &[1; 5000])]));
        std::fs::File::options().write(true).open(at.join("a.tar")).unwrap().set_len(3000).unwrap();
    });
    assert!(cut.contains("a.tar"), "{cut}");
    let no_zip = refused(&|at| std::fs::write(at.join("a.zip"), b"no zip").unwrap());
    assert!(no_zip.contains("a.zip"), "{no_zip}");
    let twice = refused(&|at| {
        write_tar(&at.join("a.tar"), &files(&[("x", b"1")]));
        write_tar(&at.join("b.tar"), &files(&[("x", b"2")]));
    });
    assert!(twice.contains("two files are x"), "{twice}");
    let outside = refused(&|at| {
        let mut header = ::tar::Header::new_old();
        header.as_old_mut().name[..4].copy_from_slice(b"../x");
        header.set_size(0);
        header.set_cksum();
        let mut builder = ::tar::Builder::new(std::fs::File::create(at.join("a.tar")).unwrap());
        builder.append(&header, std::io::empty()).unwrap();
        builder.finish().unwrap();
    });
    assert!(outside.contains("leads out of the tree"), "{outside}");
}

/// An archive that is being written has no members yet. Those of the others stay.
#[test]
fn a_broken_archive_that_comes_later_is_left_out_until_it_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let [first, second] = ["a.tar", "b.tar"].map(|name| directory.path().join(name));
    write_tar(&first, &files(&[("x", b"1")]));
    let source = open(directory.path(), None).unwrap();
    write_tar(&second, &files(&[("y", &[2; 2000]), ("z", &[3; 2000])]));
    let whole = std::fs::read(&second).unwrap();
    // It ends between its members.
    std::fs::write(&second, &whole[..512 + 2048]).unwrap();
    wait_until(|| source.stat(Path::new("y")) == Err(Errno::ENOENT));
    check(&source, &files(&[("x", b"1")]));
    std::fs::write(&second, &whole).unwrap();
    wait_until(|| source.stat(Path::new("z")).is_ok());
    check(&source, &files(&[("x", b"1"), ("y", &[2; 2000]), ("z", &[3; 2000])]));
}

#[test]
fn rights_of_directories_are_those_of_the_source() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let closed = directory.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    write_tar(&closed.join("a.tar"), &files(&[("in/x", b"1")]));
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    let source = open(directory.path(), None).unwrap();
    let modes = || ["closed", "closed/in"].map(|path| source.stat(Path::new(path)).unwrap());
    let before = modes();
    assert_eq!(before.map(|stat| stat.mode), [0o500; 2]);
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o755)).unwrap();
    wait_until(|| modes().map(|stat| stat.mode) == [0o555; 2]);
    let is_new = |nth: usize| modes()[nth].fingerprint() != before[nth].fingerprint();
    assert!(is_new(0) && is_new(1), "so that the change is noticed");
}

/// As if both were extracted.
#[test]
fn a_link_over_a_file_takes_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("a.tar");
    let mut builder = ::tar::Builder::new(std::fs::File::create(&archive).unwrap());
    for (path, bytes) in [("x", b"1"), ("y", b"2"), ("z", b"3")] {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(1);
        builder.append_data(&mut header, path, bytes.as_slice()).unwrap();
    }
    let mut header = ::tar::Header::new_gnu();
    header.set_entry_type(::tar::EntryType::Symlink);
    header.set_size(0);
    builder.append_link(&mut header, "x", "y").unwrap();
    builder.finish().unwrap();
    check(&open(directory.path(), None).unwrap(), &files(&[("y", b"2"), ("z", b"3")]));
}

/// Any bytes are an archive or an error, and never a panic.
#[test]
fn archives_with_flipped_bits_are_read_or_refused() {
    use rand::{RngExt, SeedableRng};
    let mut random = rand::rngs::ChaCha8Rng::seed_from_u64(5);
    let directory = tempfile::tempdir().unwrap();
    let whole = files(&[("a/x", b"1"), ("a/y", &[2; 3000]), ("z", b"")]);
    let [tar, zip] = ["a.tar", "a.zip"].map(|name| directory.path().join(name));
    for format in [&tar, &zip] {
        match format == &tar {
            true => write_tar(format, &whole),
            false => write_zip(format, &whole, CompressionMethod::Stored),
        }
        let bytes = std::fs::read(format).unwrap();
        for _ in 0..300 {
            let mut broken = bytes.clone();
            for _ in 0..random.random_range(1..6) {
                let at = random.random_range(0..broken.len());
                broken[at] ^= 1 << random.random_range(0..8);
            }
            if format == &tar {
                mend_checksums(&mut broken);
            }
            std::fs::write(format, &broken).unwrap();
            if let Ok(source) = open(directory.path(), None) {
                let mut names = Vec::new();
                source
                    .list_in_parts(Path::new(""), &mut |part| names.extend_from_slice(part))
                    .unwrap();
            }
        }
        std::fs::remove_file(format).unwrap();
    }
}

/// Makes the checksum of each block that looks like a header right, so that its other fields are read.
fn mend_checksums(bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
        block[148..156].copy_from_slice(b"        ");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
}
