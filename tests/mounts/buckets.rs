//! Buckets of object stores that are mounted.
//!
//! Goal: a loader of files reads objects and cannot tell, and no server gives it bytes of another version. Method: a
//! server of S3 over HTTP, whose buckets have the same files as a directory beside the mount.

use std::path::Path;
use std::process::Command;
use std::thread;

use nix::libc;
use nix::sys::signal::Signal;

use crate::archives::{COMPARE, pack, python, read_until_new};
use crate::fixture::{Fixture, content, said, wait_until};
use crate::mounted::Mounted;
use crate::object_server::{GoogleServer, ObjectServer};
use crate::programs::signal;

const CLASSES: u64 = 3;
const FILES: u64 = 90;

const PUT: &str = r#"
import sys, boto3
boto3.client("s3").put_object(Bucket=sys.argv[1], Key=sys.argv[2], Body=sys.argv[3].encode())
"#;

const DELETE: &str = r#"
import sys, boto3
boto3.client("s3").delete_object(Bucket=sys.argv[1], Key=sys.argv[2])
"#;

/// The size of an image. Some have more than a block.
fn size(nth: u64) -> usize {
    if nth % 30 == 7 { (1 << 20) + 99 } else { 1000 + 777 * nth as usize }
}

/// Images in a directory for each class.
fn make(fixture: &Fixture) {
    for nth in 0..FILES {
        fixture.write(&format!("class{}/{nth}.jpg", nth % CLASSES), &content(nth, size(nth)));
    }
}

/// `belady` with these words, which knows the server.
fn belady(fixture: &Fixture, server: &ObjectServer, words: &[&str]) -> Command {
    let mut command = fixture.belady();
    command.args(words).envs(server.variables());
    command
}

/// Mounts a URL.
#[track_caller]
fn mount(fixture: &Fixture, server: &ObjectServer, url: &str, options: &[&str]) -> Mounted {
    let point = fixture.path("mount");
    let words = [&["mount", url, point.to_str().unwrap()], options].concat();
    Mounted::by(fixture, &mut belady(fixture, server, &words), &point)
}

#[test]
fn a_loader_of_images_reads_a_bucket_as_a_directory() {
    let (fixture, server) = (Fixture::new(), ObjectServer::start());
    make(&fixture);
    server.fill("images", &fixture.source(""));
    server.requests();
    let order = "torch-random:seed=7,index=imagefolder";
    let immutable = "source.consistency=immutable";
    let options = ["--ram", "64MiB", "--order", order, "--set", immutable];
    let mounted = mount(&fixture, &server, "s3://images", &options);
    wait_until("all files are fetched", || {
        mounted.count("/source_times/operations/read/count") >= FILES
            && mounted.count("/fetching") == 0
    });
    let (source, shown) = (fixture.source(""), mounted.path(""));
    assert_eq!(python(COMPARE, &[&source, &shown]).trim(), FILES.to_string());
    let status = mounted.status();
    assert_eq!((&status["cold"], &status["source"]), (&0.into(), &"s3://images".into()));
    // Everything comes with the listings: one for each directory, and that of the top which says that it is there.
    let requests = server.requests();
    let is_list = |line: &&String| line.contains("list-type=2");
    assert!(!requests.iter().any(|line| line.contains("HEAD /")), "{requests:?}");
    let lists = requests.iter().filter(is_list);
    let (classes, tops): (Vec<_>, Vec<_>) = lists.partition(|line| line.contains("prefix="));
    assert_eq!(classes.len() as u64, CLASSES, "{requests:?}");
    // On a busy machine the listing of the top may be old when the scan begins.
    assert!(tops.len() <= 2, "{requests:?}");
    let checked = belady(&fixture, &server, &["order", "check", order, "s3://images"]).output();
    let checked = said(&checked.unwrap());
    assert!(checked.contains("90 files in the dataset, 90 samples"), "{checked}");
    mounted.umount();
}

#[test]
fn a_loader_of_images_reads_a_bucket_of_google() {
    let fixture = Fixture::new();
    make(&fixture);
    std::fs::create_dir(fixture.path("buckets")).unwrap();
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(fixture.source("")).arg(fixture.path("buckets/images"));
    assert!(copy.status().unwrap().success());
    let server = GoogleServer::start(&fixture.path("buckets"));
    let (account, point) = (fixture.path("account"), fixture.path("mount"));
    server.write_account(&account);
    let mut command = fixture.belady();
    command.arg("mount").arg("gs://images").arg(&point).args(["--ram", "64MiB"]);
    let mounted = Mounted::by(&fixture, command.env("GOOGLE_SERVICE_ACCOUNT", &account), &point);
    let (source, shown) = (fixture.source(""), mounted.path(""));
    assert_eq!(python(COMPARE, &[&source, &shown]).trim(), FILES.to_string());
    mounted.umount();
    let mut missing = fixture.belady();
    let words = ["mount", "gs://nothing", point.to_str().unwrap()];
    let output = missing.args(words).env("GOOGLE_SERVICE_ACCOUNT", &account).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("cannot list the source gs://nothing"), "{}", said(&output));
    let mut unreachable = fixture.belady();
    server.write_account_elsewhere(&account);
    let words = ["mount", "gs://images", point.to_str().unwrap()];
    let output = unreachable.args(words).env("GOOGLE_SERVICE_ACCOUNT", &account).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("does the store run?"), "{}", said(&output));
}

#[test]
fn a_bucket_that_is_mounted_again_is_known() {
    let (fixture, server) = (Fixture::new(), ObjectServer::start());
    make(&fixture);
    server.fill("images", &fixture.source(""));
    let cache = fixture.path("cache");
    let immutable = "source.consistency=immutable";
    let options = ["--ram", "16MiB", "--cache-dir", cache.to_str().unwrap(), "--set", immutable];
    let mounted = mount(&fixture, &server, "s3://images/class1/", &options);
    let read = |mounted: &Mounted| {
        for nth in (1..FILES).step_by(CLASSES as usize) {
            let bytes = std::fs::read(mounted.path(format!("{nth}.jpg"))).unwrap();
            assert!(bytes == std::fs::read(fixture.source(format!("class1/{nth}.jpg"))).unwrap());
        }
    };
    read(&mounted);
    let pages = |nth: u64| (size(nth) as u64).div_ceil(4096) * 4096;
    let all = (1..FILES).step_by(CLASSES as usize).map(pages).sum::<u64>();
    wait_until("all objects are stored", || mounted.count("/disk/stored") == all);
    mounted.umount();
    server.requests();
    let mounted = mount(&fixture, &server, "s3a://images/class1", &options);
    wait_until("the catalog is checked", || mounted.status()["catalog"] == "checked");
    read(&mounted);
    let requests = server.requests();
    let gets = requests.iter().filter(|line| line.contains(".jpg"));
    assert_eq!(gets.count(), 0, "all objects are in the cache directory: {requests:?}");
    let lists = requests.iter().filter(|line| line.contains("list-type=2"));
    // By who mounts, and by the check of the catalog. On a busy machine a listing may be old before that.
    assert!(lists.count() <= 3, "{requests:?}");
    mounted.umount();
}

/// One node lists a bucket, and gives what it knows to another one.
#[test]
fn the_catalog_of_a_bucket_is_exported_and_imported() {
    let (fixture, server) = (Fixture::new(), ObjectServer::start());
    make(&fixture);
    server.fill("images", &fixture.source(""));
    let (file, cache) = (fixture.path("images.catalog"), fixture.path("cache"));
    let (file, cache) = (file.to_str().unwrap(), cache.to_str().unwrap());
    let run = |words: &[&str]| {
        let output = belady(&fixture, &server, words).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    };
    let told = run(&["catalog", "export", "s3://images", file]);
    assert!(told.contains(&FILES.to_string()), "{told}");
    run(&["catalog", "import", file, "s3://images", "--cache-dir", cache]);
    let options = ["--ram", "64MiB", "--cache-dir", cache];
    let mounted = mount(&fixture, &server, "s3://images", &options);
    let (source, shown) = (fixture.source(""), mounted.path(""));
    assert_eq!(python(COMPARE, &[&source, &shown]).trim(), FILES.to_string());
    wait_until("the catalog is checked", || mounted.status()["catalog"] == "checked");
    mounted.umount();
}

#[test]
fn objects_change_under_their_readers() {
    let (fixture, server) = (Fixture::new(), ObjectServer::start());
    make(&fixture);
    server.fill("images", &fixture.source(""));
    let options = ["--ram", "64MiB", "--set", "source.revalidate=1s"];
    let mounted = mount(&fixture, &server, "s3://images", &options);
    let first = mounted.path("class0/0.jpg");
    assert_eq!(std::fs::read(&first).unwrap(), content(0, 1000));
    server.python(PUT, &["images", "class0/0.jpg", "new"]);
    read_until_new(&first, &content(0, 1000), b"new");
    server.python(PUT, &["images", "class0/added.jpg", "added"]);
    wait_until("a new object is shown", || {
        let names = std::fs::read_dir(mounted.path("class0")).unwrap();
        names.filter_map(Result::ok).any(|entry| entry.file_name() == "added.jpg")
    });
    assert_eq!(std::fs::read(mounted.path("class0/added.jpg")).unwrap(), b"added");
    server.python(DELETE, &["images", "class1/1.jpg"]);
    wait_until("an object that is gone is not shown", || {
        let gone = std::fs::metadata(mounted.path("class1/1.jpg"));
        gone.is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
    });
    mounted.umount();
}

#[test]
fn archives_in_a_bucket_are_shown_as_files() {
    let (fixture, server) = (Fixture::new(), ObjectServer::start());
    make(&fixture);
    let shards = fixture.path("shards");
    std::fs::create_dir(&shards).unwrap();
    let source = fixture.source("");
    for class in 0..CLASSES {
        pack(&source, &format!("class{class}"), &shards.join(format!("{class}.tar")));
    }
    server.fill("shards", &shards);
    let mounted = mount(&fixture, &server, "s3://shards", &["--as", "files", "--ram", "64MiB"]);
    assert_eq!(python(COMPARE, &[&source, &mounted.path("")]).trim(), FILES.to_string());
    mounted.umount();
    let told = |words: &[&str]| {
        let output = belady(&fixture, &server, words).output().unwrap();
        (output.status.code(), said(&output))
    };
    let point = fixture.path("mount");
    let missing = told(&["mount", "--as", "files", "s3://shards/9.tar", point.to_str().unwrap()]);
    assert!(missing.0 == Some(4) && missing.1.contains("cannot read 9.tar"), "{missing:?}");
    let found = told(&["doctor", "--as", "files", "--source", "s3://shards/1.tar"]);
    assert!(found.0 == Some(0) && found.1.contains(" ms a request"), "{found:?}");
    let mounted = mount(&fixture, &server, "s3://shards/1.tar", &["--as", "files"]);
    let names = |path: &Path| std::fs::read_dir(path).unwrap().count();
    assert_eq!(names(&mounted.path("")), 1);
    assert_eq!(names(&mounted.path("class1")), names(&source.join("class1")));
    assert_eq!(std::fs::read(mounted.path("class1/1.jpg")).unwrap(), content(1, 1777));
    mounted.umount();
}

#[test]
fn a_server_that_stops_for_a_while_is_waited_for() {
    let (fixture, server) = (Fixture::new(), ObjectServer::start());
    make(&fixture);
    server.fill("images", &fixture.source(""));
    let options = ["--ram", "64MiB", "--set", "log.level=debug", "--set", "prefetch.enabled=false"];
    let mounted = mount(&fixture, &server, "s3://images", &options);
    signal(server.pid(), Signal::SIGSTOP);
    let path = mounted.path("class2/2.jpg");
    let reader = thread::spawn(move || std::fs::read(path));
    wait_until("the request is made again", || mounted.log().contains("the store is asked again"));
    signal(server.pid(), Signal::SIGCONT);
    assert_eq!(reader.join().unwrap().unwrap(), content(2, 1000 + 777 * 2));
    mounted.umount();
}

#[test]
fn buckets_that_cannot_be_mounted_are_refused() {
    let (fixture, server) = (Fixture::new(), ObjectServer::start());
    fixture.write("a.jpg", b"1");
    server.fill("images", &fixture.source(""));
    server.python(PUT, &["images", "bad//name.jpg", "1"]);
    let point = fixture.path("mount");
    let point = point.to_str().unwrap();
    #[track_caller]
    fn refused(command: &mut Command) -> String {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(4), "{}", said(&output));
        said(&output)
    }
    let at = |url: &str| refused(&mut belady(&fixture, &server, &["mount", url, point]));
    let missing = at("s3://nothing");
    assert!(missing.contains("cannot list the source s3://nothing: NoSuchBucket"), "{missing}");
    let empty = at("s3://images/nothing");
    assert!(empty.contains("there is nothing below s3://images/nothing"), "{empty}");
    let name = at("s3://images/bad");
    assert!(name.contains("give it another key"), "{name}");
    assert!(missing.contains("is the name of the bucket right?"), "{missing}");
    for url in
        ["ftp://images", "s3://key:word@images", "s3://images?x=word", "s3://", "s3://images:1"]
    {
        let said = at(url);
        assert!(said.contains("cannot use") && !said.contains("word"), "{said}");
    }
    let mut elsewhere = belady(&fixture, &server, &["mount", "s3://images", point]);
    let unreachable = refused(elsewhere.env("AWS_ENDPOINT_URL", "http://127.0.0.1:9"));
    assert!(unreachable.contains("does the store run"), "{unreachable}");
    let mut nowhere = belady(&fixture, &server, &["mount", "s3://images", point]);
    let nowhere = refused(nowhere.env("AWS_ENDPOINT_URL", "127.0.0.1:9"));
    assert!(nowhere.contains("https://HOST:PORT"), "{nowhere}");
    // The rest of the bucket can be read.
    let mounted = mount(&fixture, &server, "s3://images", &[]);
    assert_eq!(std::fs::read(mounted.path("a.jpg")).unwrap(), b"1");
    let bad = std::fs::read_dir(mounted.path("bad"));
    let bad = bad.and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
    assert_eq!(bad.unwrap_err().raw_os_error(), Some(libc::EPERM));
    mounted.umount();
    let mut others = belady(&fixture, &server, &["mount", "s3://images", point]);
    let output = others.args(["-o", "allow_other"]).output().unwrap();
    assert_eq!(output.status.code(), Some(6));
    assert!(said(&output).contains("your rights, which others may lack"), "{}", said(&output));
}

#[test]
fn a_wrong_key_is_said_by_the_server_and_a_file_has_the_right_one() {
    let fixture = Fixture::new();
    fixture.write("a.jpg", b"1");
    let server = ObjectServer::start();
    server.fill("images", &fixture.source(""));
    let keys = fixture.path("keys");
    server.python(MAKE_USER, &[keys.to_str().unwrap(), server.variables()[0].1]);
    let point = fixture.path("mount");
    let words = ["mount", "s3://images", point.to_str().unwrap()];
    let output = belady(&fixture, &server, &words).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    assert!(said(&output).contains("InvalidAccessKeyId: "), "{}", said(&output));
    assert!(said(&output).contains("they need s3:ListBucket"), "{}", said(&output));
    let file = format!("source.credentials={}", keys.display());
    let mounted = mount(&fixture, &server, "s3://images", &["--set", &file]);
    assert_eq!(std::fs::read(mounted.path("a.jpg")).unwrap(), b"1");
    let (status, log) = (mounted.status().to_string(), mounted.log());
    let keys = std::fs::read_to_string(Path::new(&keys)).unwrap();
    let secrets = keys.lines().filter_map(|line| line.split_once(" = "));
    for (name, secret) in secrets {
        assert!(!status.contains(secret) && !log.contains(secret), "{name} is told");
    }
    mounted.umount();
}

/// Makes a user with rights, writes its keys to a file, and has the server check keys from then on.
const MAKE_USER: &str = r#"
import json, os, sys, urllib.request
import boto3
iam = boto3.client("iam")
iam.create_user(UserName="reader")
allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:ListBucket", "s3:GetObject"], "Resource": "*"}]}
iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=json.dumps(allowed))
key = iam.create_access_key(UserName="reader")["AccessKey"]
with open(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
    file.write(f"[default]\naws_access_key_id = {key['AccessKeyId']}\naws_secret_access_key = {key['SecretAccessKey']}\n")
urllib.request.urlopen(urllib.request.Request(sys.argv[2] + "/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"}))
"#;
