//! Orders by the names of samplers: a mount takes every order of docs/orders.md, and follows a job that
//! shuffles with another library than torch.

use std::fs;

use crate::fixture::{Fixture, wait_until};
use crate::mounted::Mounted;
use crate::programs::Program;

const FILES: u64 = 300;

/// Reads a list that numpy shuffles before every epoch, one epoch for each line of its input.
const NUMPY: &str = r#"
import os, sys
import numpy as np

root = sys.argv[1]
paths = sorted(os.path.join(root, "d", name) for name in os.listdir(os.path.join(root, "d")))
np.random.seed(7)
for epoch, _ in enumerate(sys.stdin):
    np.random.shuffle(paths)
    for path in paths:
        with open(path, "rb") as file:
            file.read()
    print(epoch, len(paths), flush=True)
"#;

/// The orders in the table of samplers.
fn told() -> Vec<&'static str> {
    let page = include_str!("../../docs/orders.md");
    let section = page.split("\n## ").find(|section| section.starts_with("Samplers"));
    let section = section.map(|section| section.split("\n### ").next().unwrap_or_default());
    let rows =
        section.unwrap().lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let orders: Vec<_> = rows.map(|(order, _)| order).filter(|order| *order != "FILE").collect();
    assert!(orders.len() > 15, "{orders:?}");
    orders
}

#[test]
fn every_order_of_the_documents_is_received() {
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, 10);
    for number in 0..FILES {
        fixture.write(&format!("d/{number:04}.jpg"), b"an image");
    }
    let mounted = Mounted::new(&fixture, &[]);
    let point = mounted.point.to_str().unwrap();
    let source = fixture.path("source");
    let file = fixture.path("order.txt");
    let weights = fixture.path("weights.txt");
    fs::write(&weights, "0.5\n3\n".repeat(FILES as usize)).unwrap();
    for order in told() {
        let order = order.replace("weights.txt", weights.to_str().unwrap());
        let order = order.as_str();
        let said = fixture.run(0, &["order", "set", point, order]);
        let name = order.split(':').next().unwrap();
        assert!(said.contains(name), "{said}");
        let (source, file) = (source.to_str().unwrap(), file.to_str().unwrap());
        fixture.run(0, &["order", "show", order, source, "--epochs", "2", "--output", file]);
        // The written order can be given to a mount, too.
        assert!(fs::read_to_string(file).unwrap().contains("# epoch 1\n"), "{order}");
        fixture.run(0, &["order", "check", file, source]);
    }
    let help = fixture.run(0, &["order", "show", "--help"]);
    assert!(help.contains("python-random:seed=N,") && help.contains("batch_size=32"), "{help}");
    mounted.umount();
}

#[test]
fn a_list_that_numpy_shuffles_is_predicted() {
    let fixture = Fixture::new();
    fixture.write_many("d", FILES, 3000);
    let order = "numpy-random-state:seed=7,epochs=again";
    let mounted = Mounted::new(&fixture, &["--ram", "64MiB", "--order", order]);
    let mut job = Program::python(NUMPY, &[mounted.path("").to_str().unwrap()]);
    for epoch in 0..3 {
        job.tell("");
        assert_eq!(job.line(), format!("{epoch} {FILES}"));
    }
    job.finish();
    // A few opens are missed if opens are no requests.
    let predicted = || mounted.count("/orders/0/opens_predicted");
    wait_until("all reads seen", || predicted() + 3 * FILES / 10 >= 3 * FILES);
    assert_eq!(mounted.status()["orders"][0]["following"], true);
    mounted.umount();
}
