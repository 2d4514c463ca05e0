use super::*;
use crate::order::samplers::{Distributed, Random};
use crate::order::{Entry, Sample};

fn parse(text: &str) -> OrderSpec {
    text.parse().unwrap()
}

fn error(text: &str) -> String {
    text.parse::<OrderSpec>().unwrap_err().to_string()
}

fn listing() -> Listing<'static> {
    let paths = ["train/b/1.jpg", "train/a/2.jpg", "train/a/x.txt", "val/a/3.jpg", "train/a/4.JPG"];
    let entry = |(row, path): (usize, &'static str)| Entry {
        path: path.as_bytes(),
        file: FileId(row as u32),
        size: 9,
    };
    Listing::new(paths.into_iter().enumerate().map(entry).collect())
}

#[test]
fn all_keys_of_all_samplers() {
    let spec = parse(
        "torch-distributed:seed=3,epoch=2,world=4,rank=1,drop_last=true,shuffle=false,\
         set_epoch=false,index=imagefolder,root=train,ext=.jpg,.png,count=5000",
    );
    let sampler = Distributed {
        seed: 3,
        epoch: 2,
        world: 4,
        rank: 1,
        drop_last: true,
        shuffle: false,
        set_epoch: false,
    };
    assert_eq!(spec.sequence, SequenceSpec::Sampler(Sampler::TorchDistributed(sampler)));
    assert_eq!(spec.index, IndexSpec::Sorted(Sorting::ImageFolder));
    assert_eq!(spec.filter.ext, [".jpg", ".png"]);
    assert_eq!((spec.filter.root.as_str(), spec.count), ("train", Some(5000)));
    let random = Random { epoch: 1, persistent_workers: true, ..Random::new(u64::MAX) };
    let spec =
        parse("torch-random:seed=18446744073709551615,epoch=1,persistent_workers=true,index=path");
    assert_eq!(spec.sequence, SequenceSpec::Sampler(Sampler::TorchRandom(random)));
    assert_eq!(parse("sequential").sequence, SequenceSpec::Sampler(Sampler::SEQUENTIAL));
}

#[test]
fn order_files_are_named_or_recognised() {
    let path = |text| match parse(text).sequence {
        SequenceSpec::File(path) => path.display().to_string(),
        SequenceSpec::Sampler(sampler) => panic!("{text} is {sampler}"),
    };
    assert_eq!(path("file:order"), "order");
    assert_eq!(path("file:a:b,count=3"), "a:b");
    assert_eq!(path("orders/run:7,index=imagefolder"), "orders/run:7");
    assert_eq!(path("order.txt"), "order.txt");
}

#[test]
fn the_string_form_reads_back() {
    for text in [
        "torch-distributed:seed=0",
        "torch-distributed:seed=7,epoch=3,world=2,drop_last=true,index=imagefolder",
        "torch-distributed:seed=7,shuffle=false,set_epoch=false",
        "torch-random:seed=42,epoch=2,persistent_workers=true,ext=.jpg,.png,count=10",
        "sequential",
        "sequential:index=manifest:lists/a.txt,root=train",
        "sequential:index=manifest:lists/a.csv,column=file,root=train",
        "sequential:index=walk,count=10,split=random_split:1:0.8+0.2:0/shuffle:3/slice:0:5",
        "sequential:split=train_test_split:1:300:test/train_test_split:1:0.5:train",
        "torch-default:seed=1,position=9,stride=6,epoch=2,replacement=true",
        "torch-weighted:seed=0,weights=a/w.txt",
        "torch-weighted:seed=1,weights=w.npy,num_samples=9,replacement=false,position=0,gap=0,count=10",
        "python-random:seed='a b',epochs=fresh,sample=4",
        "tf-shuffle:graph_seed=7,buffer=10",
        "keras:seed=3,validation_split=0.25,subset=validation",
        "keras:seed=3,index=path",
        "dlio:seed=123,epoch=2,sampler=index",
        "torch-random:seed=7,index=npy,root=a.npy,count=3",
        "file:orders/a.txt",
        "file:orders/a.txt,index=imagefolder,count=0",
        "torch-distributed:seed=7,drop_last=true,split=slice:0:5,whole_batches=64",
        "file:orders/a.txt,whole_batches=64",
    ] {
        assert_eq!(parse(text).to_string(), text);
        let json = serde_json::to_string(&parse(text)).unwrap();
        assert_eq!(json, format!("\"{text}\""));
        assert_eq!(serde_json::from_str::<OrderSpec>(&json).unwrap(), parse(text));
    }
    assert!(serde_json::from_str::<OrderSpec>("\"nothing\"").is_err());
}

#[test]
fn mistakes_are_named() {
    for (text, message) in [
        ("torch-distributd:seed=1", "did you mean 'torch-distributed'?"),
        ("torch-radnom:root=a/b", "did you mean 'torch-random'?"),
        ("sequental", "did you mean 'sequential'?"),
        ("mine", "known are sequential, torch-distributed, torch-random"),
        ("sequential:seed=1", "sequential has no key 'seed'"),
        (
            "torch-random:sede=1,seed=2",
            "torch-random has no key 'sede'\n  hint: did you mean 'seed'",
        ),
        ("torch-random", "seed= is missing"),
        ("torch-weighted:seed=1", "weights= is missing\n  hint: write what the script gives"),
        ("torch-weighted:seed=1,weights=", "the file of weights has no name"),
        ("torch-weighted:seed=1,weights=w,num_samples=0", "num_samples=0: must be at least 1"),
        ("tf-shuffle:buffer=3", "a seed is missing"),
        ("tf-shuffle:seed=1,buffer=0", "buffer=0: must be at least 1"),
        ("torch-default:seed=1,stride=0", "stride=0: must be at least 1"),
        ("numpy-random-state:seed=4294967296", "refuses 2^32 and more"),
        ("numpy-generator:seed='a'", "the seed of this sampler is a number"),
        ("python-random:seed=a", "a text in quotes"),
        ("python-random:seed='a',epochs=reseed", "cannot count up"),
        ("python-random:seed=1,epochs=agan", "did you mean 'again'?"),
        ("python-random:seed=1,sample=2,epochs=again", "needs a shuffle"),
        ("keras:seed=1,validation_split=1.5", "is not a fraction"),
        ("dali:shuffle_after_epoch=true,random_shuffle=true", "DALI refuses"),
        ("dali:rank=1", "rank 1 is not in a world of 1"),
        ("dlio:seed=1,epoch=0", "epoch=0: must be at least 1"),
        ("accelerate:seed=1,world=3,batch_size=4,split_batches=true", "cannot be split among 3"),
        ("sequential:split=random_splt:1:2:3", "did you mean 'random_split'?"),
        ("sequential:split=slice:5:5", "slice:5:5 is empty"),
        ("sequential:split=slice:5", "is not of a known form\n  hint: random_split:SEED"),
        ("sequential:column=1", "column= is of a manifest"),
        ("sequential:whole_batches=0", "whole_batches=0: must be at least 1"),
        ("torch-random:seed=1,drop_last=true", "is whole_batches= with its batch size"),
        ("torch-random:seed=-1", "seed=-1: invalid digit"),
        ("torch-distributed:world=2,rank=2", "rank 2 is not in a world of 2"),
        ("torch-distributed:world=0", "rank 0 is not in a world of 0"),
        ("torch-distributed:shuffle=1", "shuffle=1 is neither true nor false"),
        ("torch-distributed:seed=1,seed=2", "'seed' is given twice"),
        ("torch-distributed,seed=1", "keys follow 'torch-distributed' after a colon"),
        ("sequential:path", "'path' is not of the form key=value"),
        ("sequential:index=imagefoldr", "did you mean 'imagefolder'?"),
        ("sequential:index=manifest", "write index=manifest:FILE"),
        ("sequential:ext=.jpg,,", "holds an empty ending"),
        ("a/b,c.txt", "'c.txt' is not of the form key=value"),
        ("file:", "a file has no name"),
    ] {
        assert!(error(text).starts_with(&format!("order '{text}': ")), "{}", error(text));
        assert!(error(text).contains(message), "{text} gives {}", error(text));
    }
}

#[test]
fn samplers_resolve_over_their_index() {
    let spec = parse("sequential:index=imagefolder,root=train,count=3");
    let order = spec.resolve(&listing(), &[]).unwrap();
    assert_eq!(*order.epoch(0), [1, 4, 0]);
    assert_eq!(order.samples().get(1), Sample::whole(FileId(1)));
    assert_eq!(order.describe(), "sequential over 3 files in imagefolder order");
    assert!(spec.resolve(&listing(), &[b""]).is_err(), "a file that is not needed");
}

#[test]
fn whole_batches_are_cut_off_any_order() {
    let read = |spec: &str, contents: &[&[u8]]| {
        let order = parse(spec).resolve(&listing(), contents).unwrap();
        order.epoch(0).to_vec()
    };
    assert_eq!(read("sequential:whole_batches=2", &[]).len(), 4);
    assert_eq!(read("sequential:split=slice:0:3,whole_batches=2", &[]).len(), 2);
    assert_eq!(read("file:o,whole_batches=2", &[b"1\n0\n2\n"]).len(), 2);
    let none = parse("sequential:whole_batches=6").resolve(&listing(), &[]).unwrap_err();
    assert!(none.message().contains("no whole batch"), "{none}");
}

#[test]
fn files_are_given_in_the_order_they_are_needed() {
    let spec = parse("file:o.txt,index=manifest:m.txt");
    let needed = [("o.txt", FilePurpose::Order), ("m.txt", FilePurpose::Manifest)];
    assert_eq!(spec.files_needed(), needed.map(|(path, kind)| (Path::new(path), kind)));
    let manifest = b"val/a/3.jpg\ntrain/b/1.jpg\n";
    let order = spec.resolve(&listing(), &[b"1\n0\n", manifest]).unwrap();
    assert_eq!(*order.epoch(0), [0, 3]);
    assert_eq!(order.describe(), "order file o.txt: 1 epoch of 2 samples");
    let error = spec.resolve(&listing(), &[b"1\n0\n", b"nothing"]).unwrap_err();
    assert!(error.message().starts_with("order file o.txt: manifest m.txt: line 1: unknown"));
}

#[test]
fn weights_are_those_of_the_samples_that_are_drawn_from() {
    let spec = parse("torch-weighted:seed=1,weights=w.txt,num_samples=50,index=manifest:m.txt");
    let needed = [("w.txt", FilePurpose::Weights), ("m.txt", FilePurpose::Manifest)];
    assert_eq!(spec.files_needed(), needed.map(|(path, kind)| (Path::new(path), kind)));
    let manifest: &[u8] = b"val/a/3.jpg\ntrain/b/1.jpg\ntrain/a/2.jpg\n";
    let order = spec.resolve(&listing(), &[b"1\n0\n1e-300\n", manifest]).unwrap();
    assert_eq!((&*order.epoch(0), order.epoch_len(7)), ([3; 50].as_slice(), 50));
    assert!(!order.is_permutation());
    let words = "torch-weighted seed 1 weights w.txt num_samples 50 over 3 files in manifest order";
    assert_eq!(order.describe(), words);
    // Each sample of the part has a weight. No other sample has one.
    let part = parse("torch-weighted:seed=1,weights=w.txt,replacement=false,split=slice:1:4");
    let mut all = part.resolve(&listing(), &[b"1\n2\n3\n"]).unwrap().epoch(0).to_vec();
    all.sort_unstable();
    assert_eq!(all.len(), 3);
    all.dedup();
    assert_eq!(all.len(), 3);
    for (text, why) in [
        (&b"1\n2\n3\n4\n5\n"[..], "weights w.txt: there are 5 weights and 3 samples"),
        (b"1\n2\nx\n", "weights w.txt: line 3: 'x' is no number"),
        (b"1\n2\n0\n", "num_samples=3 without replacement, and 2 weights are above 0"),
    ] {
        let error = part.resolve(&listing(), &[text]).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("hint: "), "{error}");
    }
}

#[test]
fn files_of_an_order_may_be_named_anew() {
    for (text, anew) in [
        ("file:o,index=manifest:m", "file:/o,index=manifest:/m"),
        ("torch-weighted:seed=1,weights=w", "torch-weighted:seed=1,weights=/w"),
        ("sequential", "sequential"),
    ] {
        let mut spec = parse(text);
        for file in spec.file_paths_mut() {
            *file = Path::new("/").join(&file);
        }
        assert_eq!(spec.to_string(), anew);
    }
}

#[test]
fn another_count_is_refused_with_both_numbers() {
    for (spec, numbers, cause) in [
        ("sequential:count=5001", "has 5 samples and count says 5,001", "root= or ext="),
        ("sequential:count=4", "has 5 samples and count says 4", "root=train"),
        ("sequential:index=imagefolder,count=9", "has 4 samples and count says 9", "not images"),
    ] {
        let error = parse(spec).resolve(&listing(), &[]).unwrap_err().to_string();
        assert!(error.contains(numbers) && error.contains(cause), "{error}");
    }
    let listed = parse("file:o,count=2").resolve(&listing(), &[b"1"]).unwrap_err();
    assert_eq!(listed.message(), "order file o: line 1: epoch 0 ends with 1 samples; count says 2");
}
