//! Makes snapshots: the files that views show of a buffer.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;

use super::joint::{Draft, Joined, Listed};
use super::journaled::JournaledBuffer;
use crate::buffer::{ClassId, EpochDraws, SampleId, replay_count};
use crate::catalog::Catalog;
use crate::rehearsal::views::{Content, FILES_MAX, KeptSample, Snapshot, SnapshotFile};
use crate::source::Kind;

/// Digits of an index in a name: a sleep set has fewer than 10⁸ samples.
const INDEX_DIGITS: usize = 8;

#[derive(Default)]
struct SnapshotBuilder {
    classes: BTreeMap<String, BTreeMap<String, Content>>,
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

impl SnapshotBuilder {
    /// Adds a file. While there is one of its name, `~` and `suffix` are added before the extension.
    fn add(&mut self, class: &str, name: &str, suffix: usize, content: Content) {
        let files = match self.classes.get_mut(class) {
            Some(files) => files,
            None => self.classes.entry(class.to_owned()).or_default(),
        };
        let mut name = name.to_owned();
        while files.contains_key(&name) {
            let (stem, extension) = name.split_at(name.rfind('.').unwrap_or(name.len()));
            name = format!("{stem}~{suffix}{extension}");
        }
        files.insert(name, content);
    }

    /// Adds draw `k` of a mix.
    fn add_replay(&mut self, class: &str, k: usize, sample: Arc<KeptSample>) {
        let name = format!("replay-{k:07}-{}", name_of(&sample.source));
        self.add(class, &name, k, Content::Sample(sample));
    }

    fn build(self) -> Snapshot {
        let listed = |files: BTreeMap<String, Content>| {
            files.into_iter().map(|(name, content)| SnapshotFile { name, content }).collect()
        };
        let classes = self.classes.into_iter();
        let classes = classes.map(|(class, files)| (class, listed(files))).collect();
        Snapshot { classes, bindings: None }
    }
}

/// All written samples of a buffer.
pub(super) fn all(buffer: &JournaledBuffer) -> Snapshot {
    each(buffer, JournaledBuffer::written_sample)
}

/// All held samples of a stream, written or not.
pub(super) fn stream(buffer: &mut JournaledBuffer, epoch: u64) -> Snapshot {
    let bindings = buffer.bindings(epoch);
    let set = bindings.as_ref().map(|bindings| bindings.set().iter().copied().collect());
    let is_of = |set: &HashSet<u32>, id: SampleId| set.contains(&id.0);
    let snapshot = each(buffer, |buffer, id| {
        buffer.held_sample(id).filter(|_| set.as_ref().is_none_or(|set| is_of(set, id)))
    });
    Snapshot { bindings, ..snapshot }
}

fn each(
    buffer: &JournaledBuffer,
    of: impl Fn(&JournaledBuffer, SampleId) -> Option<Arc<KeptSample>>,
) -> Snapshot {
    let mut builder = SnapshotBuilder::default();
    for member in buffer.buffer().members() {
        let Some(sample) = of(buffer, member.sample) else { continue };
        let name = name_of(&sample.source).to_owned();
        let suffix = member.sample.0 as usize;
        builder.add(buffer.class_name(member.class), &name, suffix, Content::Sample(sample));
    }
    builder.build()
}

/// Samples in an order. Their names begin with their indices in it.
pub(super) fn in_order(
    buffer: &JournaledBuffer,
    samples: &[(ClassId, Arc<KeptSample>)],
) -> Snapshot {
    // There may be millions, and they are sorted by name already.
    let mut classes = BTreeMap::<ClassId, Vec<SnapshotFile>>::new();
    for (index, (class, sample)) in samples.iter().enumerate() {
        let name = format!("{index:0INDEX_DIGITS$}-{}", name_of(&sample.source));
        let content = Content::Sample(Arc::clone(sample));
        classes.entry(*class).or_default().push(SnapshotFile { name, content });
    }
    let named = |(class, files)| (buffer.class_name(class).to_owned(), files);
    let mut classes: Vec<(String, Vec<SnapshotFile>)> = classes.into_iter().map(named).collect();
    classes.sort_by(|(a, _), (b, _)| a.cmp(b));
    Snapshot { classes, bindings: None }
}

struct PathSet<'a>(HashSet<&'a Path>);

impl PathSet<'_> {
    /// Whether a path is listed, or below a listed directory. The time does not depend on the length of the
    /// list.
    fn covers(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.0.contains(above))
    }
}

/// Adds links to the samples of the task. If the task has no list of files, all held samples are old, and all
/// other files below the root are of the task. Returns how many samples the task has, and their paths. Those
/// beyond [`FILES_MAX`] are only counted.
fn add_task(
    builder: &mut SnapshotBuilder,
    buffer: &JournaledBuffer,
    catalog: &Catalog,
) -> (u64, HashSet<String>) {
    let (mut new, mut paths) = (0, HashSet::new());
    let is_old = |path: &Path| path.to_str().is_some_and(|path| buffer.sample_at(path).is_some());
    let listed = PathSet(buffer.files().iter().map(Path::new).collect());
    let is_of_task = |path: &Path| match buffer.files() {
        [] => path.starts_with(&buffer.settings.root) && !is_old(path),
        _ => listed.covers(path),
    };
    catalog.for_each_file(|path, _, stat| {
        if stat.kind != Kind::File || !is_of_task(path) {
            return;
        }
        // A link needs a target in UTF-8.
        let (Some(class), Some(text)) = (buffer.class_of(path), path.to_str()) else { return };
        if new < FILES_MAX {
            builder.add(&class, name_of(text), new as usize, Content::Link(text.to_owned()));
            paths.insert(text.to_owned());
        }
        new += 1;
    });
    (new, paths)
}

/// The samples of the task, as links, and draws of an epoch from held samples of other tasks.
///
/// # Errors
/// `EOVERFLOW` if these are more than [`FILES_MAX`] files. The log says so.
pub(super) fn mix(
    buffer: &JournaledBuffer,
    catalog: &Catalog,
    epoch: u64,
) -> Result<Snapshot, Errno> {
    let mut builder = SnapshotBuilder::default();
    let (new, paths) = add_task(&mut builder, buffer, catalog);
    let old = |id: SampleId| !paths.contains(buffer.path(id));
    let samples: Vec<SampleId> =
        buffer.buffer().members().map(|member| member.sample).filter(|id| old(*id)).collect();
    for (k, id) in draws_of_mix(buffer, epoch, new, samples)?.into_iter().enumerate() {
        let Some(member) = buffer.buffer().get(id) else { continue };
        let Some(sample) = buffer.written_sample(id) else { continue };
        builder.add_replay(buffer.class_name(member.class), k, sample);
    }
    Ok(builder.build())
}

/// The draws of a mix that has so many new samples from these old ones.
fn draws_of_mix(
    buffer: &JournaledBuffer,
    epoch: u64,
    new: u64,
    old: Vec<SampleId>,
) -> Result<Vec<SampleId>, Errno> {
    let (settings, name) = (&buffer.settings, &buffer.settings.name);
    let mut replays = replay_count(new, settings.batch, settings.replay);
    if replays > 0 && old.is_empty() {
        tracing::warn!(name, "a mix is without old samples: the buffer holds none of other tasks");
        replays = 0;
    }
    if new.saturating_add(replays) > FILES_MAX {
        tracing::warn!(name, new, replays, "a mix would have more than {FILES_MAX} files");
        return Err(Errno::EOVERFLOW);
    }
    let seed = buffer.buffer().rules().seed;
    let mut draws = EpochDraws::new(seed, epoch, old, settings.distance);
    Ok((0..replays).map_while(|k| draws.at(k)).collect())
}

/// Draws a mix from what all nodes keep: samples of other tasks than the present one.
///
/// # Errors
/// As [`mix`].
pub(super) fn draft_of_mix(
    buffer: &JournaledBuffer,
    catalog: &Catalog,
    epoch: u64,
    joined: Joined,
) -> Result<Draft, Errno> {
    let (new, paths) = add_task(&mut SnapshotBuilder::default(), buffer, catalog);
    let (counts, mut samples) = (joined.counts(), joined.samples);
    samples.retain(|(_, listed)| !paths.contains(&listed.source));
    let old = (0..samples.len() as u32).map(SampleId).collect();
    let drawn = draws_of_mix(buffer, epoch, new, old)?;
    // Most of them may not be drawn.
    let mut places = BTreeMap::<u32, u32>::new();
    drawn.iter().for_each(|id| _ = places.insert(id.0, 0));
    places.values_mut().zip(0..).for_each(|(place, next)| *place = next);
    let draws = drawn.iter().map(|id| places[&id.0]).collect();
    let samples = samples.into_iter().zip(0..).filter(|(_, at)| places.contains_key(at));
    let samples = samples.map(|(sample, _)| sample).collect();
    Ok(Draft { task: buffer.task_of_cluster(), counts, samples, draws: Some(draws) })
}

/// The view of a draft. Names do not depend on the node. `sample` finds a sample, or where it is.
///
/// # Errors
/// `EOVERFLOW` if a mix has more than [`FILES_MAX`] files.
pub(super) fn of_draft(
    buffer: &JournaledBuffer,
    catalog: &Catalog,
    draft: &Draft,
    sample: &dyn Fn(&JournaledBuffer, u64, &Listed) -> Arc<KeptSample>,
) -> Result<Snapshot, Errno> {
    let mut builder = SnapshotBuilder::default();
    let Some(draws) = &draft.draws else {
        for (at, (keeper, listed)) in draft.samples.iter().enumerate() {
            let content = Content::Sample(sample(buffer, *keeper, listed));
            builder.add(&listed.class, name_of(&listed.source), at, content);
        }
        return Ok(builder.build());
    };
    let (new, _) = add_task(&mut builder, buffer, catalog);
    if new.saturating_add(draws.len() as u64) > FILES_MAX {
        return Err(Errno::EOVERFLOW);
    }
    let samples = draft.samples.iter().map(|(keeper, listed)| sample(buffer, *keeper, listed));
    let samples: Vec<Arc<KeptSample>> = samples.collect();
    for (k, draw) in draws.iter().enumerate() {
        let class = &draft.samples[*draw as usize].1.class;
        builder.add_replay(class, k, Arc::clone(&samples[*draw as usize]));
    }
    Ok(builder.build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_covers_what_it_names_and_what_is_below() {
        let files = ["a/b", "a/bc/1.jpg", "d", "e/f/g"];
        let listed = PathSet(files.iter().map(Path::new).collect());
        let paths = [
            "a",
            "a/b",
            "a/b/1.jpg",
            "a/b/c/1.jpg",
            "a/bc",
            "a/bc/1.jpg",
            "a/bc/1.jpg/x",
            "a/bc/2.jpg",
            "a/bd",
            "b",
            "d",
            "d/1",
            "d1",
            "dd/1",
            "e",
            "e/f",
            "e/f/g",
            "e/f/gh",
        ];
        let covered: Vec<&str> =
            paths.into_iter().filter(|path| listed.covers(Path::new(path))).collect();
        let expected =
            ["a/b", "a/b/1.jpg", "a/b/c/1.jpg", "a/bc/1.jpg", "a/bc/1.jpg/x", "d", "d/1", "e/f/g"];
        assert_eq!(covered, expected);
        for path in paths {
            let covers = files.iter().any(|file| Path::new(path).starts_with(file));
            assert_eq!(listed.covers(Path::new(path)), covers, "{path}");
        }
        // The root of the dataset.
        let all = PathSet([Path::new("")].into());
        assert!(paths.iter().all(|path| all.covers(Path::new(path))));
        assert!(!PathSet(HashSet::new()).covers(Path::new("a")));
    }

    #[test]
    fn a_file_with_a_suffix_takes_no_name_of_another() {
        let mut builder = SnapshotBuilder::default();
        let names =
            ["1.jpg", "1~2.jpg", "1.jpg", "1~2~2.jpg", "1", "1", ".x", ".x", "1~5", "1~5~5"];
        for (at, name) in names.into_iter().enumerate() {
            builder.add("c", name, at, Content::Link(at.to_string()));
        }
        let snapshot = builder.build();
        let (_, files) = &snapshot.classes[0];
        let found: BTreeMap<&str, String> = files
            .iter()
            .map(|file| match &file.content {
                Content::Link(at) => (file.name.as_str(), at.clone()),
                Content::Sample(_) => unreachable!("all are links"),
            })
            .collect();
        assert_eq!(found.len(), names.len(), "{found:?}");
        assert!(found.values().map(|at| at.parse::<usize>().unwrap()).sum::<usize>() == 45);
        assert_eq!(found["1~2~2.jpg"], "2");
    }
}
