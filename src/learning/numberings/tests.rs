//! Layouts of datasets, and loaders over them.

use super::*;
use crate::ids::FileId;
use crate::learn::{Decision, Learner, Observation, Settings};
use crate::order::SampleTable;
use crate::order::samplers::torch::Distributed;

fn of(paths: &[String]) -> Vec<Numbering> {
    let rows = (0..).zip(paths);
    let entries =
        rows.map(|(row, path)| Entry { path: path.as_bytes(), file: FileId(row), size: 1 });
    numberings(&Listing::new(entries.collect()))
}

fn names(paths: &[&str]) -> Vec<String> {
    let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    let numberings = of(&paths);
    numberings.into_iter().map(|numbering| numbering.name).collect()
}

#[test]
fn the_same_numbering_is_taken_once() {
    assert_eq!(names(&["1", "2"]), ["path"]);
    assert_eq!(names(&["a/1", "a/2"]), ["path below a"]);
    assert_eq!(names(&[]), Vec::<String>::new());
}

#[test]
fn top_directories_are_datasets_too() {
    let found = names(&["train/a/1.jpg", "train/b/2.jpg", "train/a/x.txt", "val/a/3.jpg"]);
    assert!(found.contains(&"imagefolder below train".to_owned()), "{found:?}");
    assert!(found.contains(&"path below train".to_owned()), "{found:?}");
    assert!(found.contains(&"path".to_owned()), "{found:?}");
}

#[test]
fn kinds_of_files_are_datasets_too() {
    let found = names(&["a.wav", "a.json", "b.wav", "b.json", "c.wav", "list"]);
    let expected = ["path", "path of .wav .json", "path of .wav", "path of .json"];
    assert_eq!(found[..2], expected[..2], "{found:?}");
    assert!(expected.iter().all(|name| found.iter().any(|found| found == name)), "{found:?}");
}

#[test]
fn numberings_are_bounded() {
    let path = |at: usize| format!("{}/{}/{}/x-{at}.{}", at % 2, at % 7, at % 61, at % 3);
    let paths: Vec<String> = (0..20_000).map(path).collect();
    let numberings = of(&paths);
    let samples: usize = numberings.iter().map(|numbering| numbering.samples.len()).sum();
    assert!(samples <= COPIES_MAX * paths.len());
    let roots: std::collections::BTreeSet<&str> =
        numberings.iter().filter_map(|known| known.name.split(" below ").nth(1)).collect();
    assert!(roots.len() <= ROOTS_MAX && roots.contains("0/3"), "{roots:?}");
}

/// Has a loader read the files that `is_read` of those with these paths, shuffled by a small seed;
/// gives the words for the order that is then believed.
fn learnt(paths: &[String], is_read: impl Fn(&str) -> bool) -> String {
    let mut read: Vec<u32> = (0..).zip(paths).filter(|(_, p)| is_read(p)).map(|(f, _)| f).collect();
    read.sort_by_key(|file| &paths[*file as usize]);
    learnt_of(paths, &read)
}

/// The same of these files in this order.
fn learnt_of(paths: &[String], read: &[u32]) -> String {
    let mut learner = Learner::new(Settings::default(), of(paths), SampleTable::Files);
    let sampler = Distributed { seed: 3, ..Distributed::default() };
    let epoch = sampler.epoch(read.len() as u32, 0);
    let mut out = Vec::new();
    for at in 0..400 {
        // Two workers, each with batches of 16.
        let (round, worker) = (at / 2, at % 2);
        let place = round / 16 * 32 + worker * 16 + round % 16;
        let (sample, task) = (read[epoch[place] as usize], 10 + worker as u32);
        let open = Observation::Opened {
            at_ms: at as u64,
            task,
            process: task.into(),
            group: 1,
            sample,
            exact: true,
        };
        learner.apply(open, &mut out);
        while let Some(decision) = out.pop() {
            match decision {
                Decision::SearchWanted { id, search, .. } => {
                    let findings = search.run(0..8);
                    learner.apply(Observation::Found { search: id, findings }, &mut out);
                    learner.apply(Observation::Searched { search: id }, &mut out);
                }
                Decision::Committed(known) => {
                    let left = epoch.iter().map(|position| read[*position as usize]);
                    let believed = known.order.epoch(0);
                    assert!(left.collect::<Vec<u32>>().ends_with(&believed[believed.len() / 2..]));
                    return known.order.describe().to_owned();
                }
                _ => {}
            }
        }
    }
    panic!("no order is found");
}

/// A dataset of images in classes.
fn images(root: &str, classes: usize, each: usize, ending: &str) -> Vec<String> {
    let name = |at: usize| format!("{root}/n{:03}/{:05}{ending}", at % classes, at * 7919 % 10_007);
    (0..classes * each).map(name).collect()
}

#[test]
fn imagenet_as_it_is_unpacked_is_found() {
    let mut paths = images("ILSVRC/Annotations/CLS-LOC/train", 20, 40, ".xml");
    paths.extend(images("ILSVRC/Data/CLS-LOC/train", 20, 100, ".JPEG"));
    paths.extend((0..100).map(|at| format!("ILSVRC/Data/CLS-LOC/val/{at:05}.JPEG")));
    paths.extend((0..150).map(|at| format!("ILSVRC/Data/CLS-LOC/test/{at:05}.JPEG")));
    paths.extend((0..3).map(|at| format!("ILSVRC/ImageSets/CLS-LOC/{at}.txt")));
    paths.push("LOC_synset_mapping.txt".to_owned());
    let order = learnt(&paths, |path| path.starts_with("ILSVRC/Data/CLS-LOC/train"));
    assert!(order.contains("over 2000 samples in imagefolder below ILSVRC/Data/"), "{order}");
}

#[test]
fn hidden_files_are_left_out_as_loaders_do() {
    let mut paths = images("train", 20, 100, ".jpg");
    paths.extend((0..30).map(|at| format!("train/n{at:03}/.{at}.jpg")));
    let order = learnt(&paths, |path| !path.contains("/."));
    assert!(order.contains(" without hidden files below train"), "{order}");
}

#[test]
fn a_dataset_beside_others_is_found() {
    let mut paths = images("imagenet/train", 20, 100, ".jpg");
    paths.extend(images("imagenet/val", 20, 5, ".jpg"));
    paths.extend(images("more/speech", 30, 200, ".flac"));
    (0..12).for_each(|at| paths.extend(images(&format!("small{at}"), 3, 60, ".png")));
    let order = learnt(&paths, |path| path.starts_with("imagenet/train"));
    assert!(order.contains("imagefolder below imagenet/train"), "{order}");
}

#[test]
fn a_list_beside_the_files_is_none_of_them() {
    for ending in [".wav", ".npy", ".pt"] {
        let mut paths = images("clips", 5, 300, ending);
        paths.extend(["clips/metadata.csv".to_owned(), "README.md".to_owned()]);
        let order = learnt(&paths, |path| path.ends_with(ending));
        assert!(
            order.contains(&format!("over 1500 samples in imagefolder of {ending}")),
            "{order}"
        );
    }
    // And beside files of several kinds.
    let mut paths = images("", 5, 200, ".jpg");
    paths.extend(images("", 5, 100, ".png"));
    paths.iter_mut().for_each(|path| _ = path.remove(0));
    paths.push("metadata.csv".to_owned());
    let order = learnt(&paths, |path| !path.ends_with(".csv"));
    assert!(order.contains("over 1500 samples"), "{order}");
}
