//! The input pipelines of TensorFlow, as in its tutorials, over a mount.
//!
//! Goal: their reads are predicted, whether their order is told or learned. Method: the real library, which
//! `scripts/test` installs, a small picture for each file, and one epoch for each line of a job's input.
//! Several threads read images, so that opens overtake each other.

use std::path::PathBuf;
use std::process::Command;

use crate::fixture::{Fixture, wait_until};
use crate::learn::learn_and_check;
use crate::loader::{LEARN, Loader};
use crate::mounted::Mounted;
use crate::programs::Program;

const FILES: u64 = 3000;

/// `image_dataset_from_directory`, or files that are listed, shuffled and read.
const PIPELINES: &str = r#"
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

top, kind, files = sys.argv[1], sys.argv[2], int(sys.argv[3])
if kind == "seeded":
    tf.keras.utils.set_random_seed(42)
    dataset = tf.keras.utils.image_dataset_from_directory(top, image_size=(8, 8), verbose=False)
elif kind == "keras":
    dataset = tf.keras.utils.image_dataset_from_directory(top, seed=123, image_size=(8, 8), verbose=False)
else:
    dataset = tf.data.Dataset.list_files(os.path.join(top, "*", "*.png"), shuffle=False)
    dataset = dataset.shuffle(files, seed=42).map(tf.io.read_file, num_parallel_calls=tf.data.AUTOTUNE).batch(32)
print(os.getpid(), flush=True)
for epoch, _ in enumerate(sys.stdin):
    read = 0
    for batch in dataset.prefetch(tf.data.AUTOTUNE):
        read += len(batch) if kind == "files" else len(batch[1])
    print(epoch, read, flush=True)
"#;

/// A picture of one white pixel.
const PICTURE: &[u8] = &[
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52,
    0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0x3a, 0x7e, 0x9b,
    0x55, 0x00, 0x00, 0x00, 0x0a, 0x49, 0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0xf8, 0x0f, 0x00, 0x01,
    0x01, 0x01, 0x00, 0xb1, 0x38, 0xf6, 0x14, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae,
    0x42, 0x60, 0x82,
];

/// The Python that has TensorFlow.
fn python() -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../tensorflow/bin/python");
    assert!(path.exists(), "{} is missing: scripts/test installs TensorFlow", path.display());
    path
}

fn start(mounted: &Mounted, kind: &str) -> Loader {
    let mut command = Command::new(python());
    let arguments =
        [mounted.path("").to_str().unwrap(), kind, &FILES.to_string()].map(str::to_owned);
    Loader::over(Program::start(command.arg("-c").arg(PIPELINES).args(arguments)))
}

fn write_files(fixture: &Fixture) {
    for number in 0..FILES {
        fixture.write(&format!("class{}/{number:04}.png", number % 3), PICTURE);
    }
}

/// Reads three epochs in an order that is told.
#[track_caller]
fn check_received(kind: &str, order: &str) {
    let fixture = Fixture::new();
    write_files(&fixture);
    let mounted = Mounted::new(&fixture, &["--ram", "6MiB", "--order", order]);
    let mut loader = start(&mounted, kind);
    let predicted = || mounted.count("/orders/0/opens_predicted");
    // An open may be missed while its file becomes tracked again. On a busy machine, many opens of an epoch
    // may be.
    wait_until("an epoch foreseen", || {
        let before = predicted();
        (0..3).for_each(|_| loader.read_an_epoch());
        predicted() >= before + 2 * FILES
    });
    assert_eq!(mounted.status()["orders"][0]["following"], true);
    loader.program.finish();
    mounted.umount();
}

/// Has the mount find out an order that was not told.
#[track_caller]
fn check_found_out(kind: &str, belief: &str) {
    let fixture = Fixture::new();
    write_files(&fixture);
    let mounted = Mounted::new(&fixture, &LEARN);
    let mut loader = start(&mounted, kind);
    learn_and_check(&mounted, &mut loader, belief);
    loader.program.finish();
    mounted.umount();
}

#[test]
fn images_from_a_directory_are_received() {
    check_received("keras", "keras:seed=123");
}

#[test]
fn a_shuffled_list_of_files_is_received() {
    check_received("files", "tf-shuffle:seed=42");
}

#[test]
fn images_from_a_directory_are_found_out() {
    check_found_out("keras", "learnt: keras seed 123 ");
}

#[test]
fn images_of_a_script_that_seeds_everything_are_found_out() {
    check_found_out("seeded", "learnt: keras graph_seed 42 ");
}

#[test]
fn a_shuffled_list_of_files_is_found_out() {
    check_found_out("files", "learnt: tf-shuffle seed 42 ");
}
