//! Displays: the files that views show of a buffer.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::held::Held;
use crate::buffer::{ClassId, Draws, Mix, SampleId};
use crate::catalog::Catalog;
use crate::rehearsal::views::{Content, Display, Exhibit, Sample};
use crate::source::Kind;

/// Digits of a place in a name: a sleep set has fewer than 10⁸ samples.
const IN_ORDER: usize = 8;

#[derive(Default)]
struct Making {
    classes: BTreeMap<String, BTreeMap<String, Content>>,
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

impl Making {
    /// Adds a file. While there is one of its name, `~` and `apart` are added before the extension.
    fn add(&mut self, class: &str, name: &str, apart: usize, content: Content) {
        let files = match self.classes.get_mut(class) {
            Some(files) => files,
            None => self.classes.entry(class.to_owned()).or_default(),
        };
        let mut name = name.to_owned();
        while files.contains_key(&name) {
            let (stem, extension) = name.split_at(name.rfind('.').unwrap_or(name.len()));
            name = format!("{stem}~{apart}{extension}");
        }
        files.insert(name, content);
    }

    fn made(self) -> Display {
        let exhibits = |files: BTreeMap<String, Content>| {
            files.into_iter().map(|(name, content)| Exhibit { name, content }).collect()
        };
        let classes = self.classes.into_iter();
        let classes = classes.map(|(class, files)| (class, exhibits(files))).collect();
        Display { classes, bindings: None }
    }
}

/// All written samples of a buffer.
pub(super) fn all(held: &Held) -> Display {
    each(held, Held::shows)
}

/// All held samples of a stream, written or not.
pub(super) fn stream(held: &mut Held, epoch: u64) -> Display {
    let bindings = held.bindings(epoch);
    let set = bindings.as_ref().map(|bindings| bindings.set().iter().copied().collect());
    let is_of = |set: &HashSet<u32>, id: SampleId| set.contains(&id.0);
    let display = each(held, |held, id| {
        held.holds(id).filter(|_| set.as_ref().is_none_or(|set| is_of(set, id)))
    });
    Display { bindings, ..display }
}

fn each(held: &Held, of: impl Fn(&Held, SampleId) -> Option<Arc<Sample>>) -> Display {
    let mut making = Making::default();
    for member in held.buffer().members() {
        let Some(sample) = of(held, member.sample) else { continue };
        let name = name_of(&sample.source).to_owned();
        let apart = member.sample.0 as usize;
        making.add(held.class(member.class), &name, apart, Content::Held(sample));
    }
    making.made()
}

/// Samples in an order. Their names begin with their places.
pub(super) fn in_order(held: &Held, samples: &[(ClassId, Arc<Sample>)]) -> Display {
    // There may be millions, and they are sorted by name already.
    let mut classes = BTreeMap::<ClassId, Vec<Exhibit>>::new();
    for (place, (class, sample)) in samples.iter().enumerate() {
        let name = format!("{place:0IN_ORDER$}-{}", name_of(&sample.source));
        let content = Content::Held(Arc::clone(sample));
        classes.entry(*class).or_default().push(Exhibit { name, content });
    }
    let named = |(class, files)| (held.class(class).to_owned(), files);
    let mut classes: Vec<(String, Vec<Exhibit>)> = classes.into_iter().map(named).collect();
    classes.sort_by(|(a, _), (b, _)| a.cmp(b));
    Display { classes, bindings: None }
}

struct Listed<'a>(HashSet<&'a Path>);

impl Listed<'_> {
    /// Whether a path is listed, or below a listed directory. The time does not depend on the length of the
    /// list.
    fn holds(&self, path: &Path) -> bool {
        path.ancestors().any(|above| self.0.contains(above))
    }
}

/// The samples of the task, as links, and draws of an epoch from held samples of other tasks. If the task has
/// no list of files, all held samples are old, and all other files below the root are of the task.
pub(super) fn mix(held: &Held, catalog: &Catalog, epoch: u64) -> Display {
    let mut making = Making::default();
    let (mut new, mut paths) = (0, HashSet::new());
    let is_old = |path: &Path| path.to_str().is_some_and(|path| held.sample(path).is_some());
    let listed = Listed(held.files().iter().map(Path::new).collect());
    let is_of_task = |path: &Path| match held.files() {
        [] => path.starts_with(&held.settings.root) && !is_old(path),
        _ => listed.holds(path),
    };
    catalog.for_each_file(|path, _, stat| {
        if stat.kind != Kind::File || !is_of_task(path) {
            return;
        }
        // A link needs a target in UTF-8.
        let (Some(class), Some(text)) = (held.class_of(path), path.to_str()) else { return };
        making.add(&class, name_of(text), new, Content::Link(text.to_owned()));
        paths.insert(text.to_owned());
        new += 1;
    });
    let settings = &held.settings;
    let old = |id: SampleId| !paths.contains(held.path(id));
    let samples: Vec<SampleId> =
        held.buffer().members().map(|member| member.sample).filter(|id| old(*id)).collect();
    let seed = held.buffer().rules().seed;
    let replays = Mix::new(new as u64, settings.batch, settings.replay).replays();
    if replays > 0 && samples.is_empty() {
        let name = &settings.name;
        tracing::warn!(name, "a mix is without old samples: the buffer holds none of other tasks");
    }
    let mut draws = Draws::new(seed, epoch, samples, settings.distance);
    for k in 0..replays {
        let Some(id) = draws.at(k) else { break };
        let Some(member) = held.buffer().get(id) else { continue };
        let Some(sample) = held.shows(id) else { continue };
        let name = format!("replay-{k:07}-{}", name_of(&sample.source));
        making.add(held.class(member.class), &name, k as usize, Content::Held(sample));
    }
    making.made()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_what_it_names_and_what_is_below() {
        let files = ["a/b", "a/bc/1.jpg", "d", "e/f/g"];
        let listed = Listed(files.iter().map(Path::new).collect());
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
        let held: Vec<&str> =
            paths.into_iter().filter(|path| listed.holds(Path::new(path))).collect();
        let expected =
            ["a/b", "a/b/1.jpg", "a/b/c/1.jpg", "a/bc/1.jpg", "a/bc/1.jpg/x", "d", "d/1", "e/f/g"];
        assert_eq!(held, expected);
        for path in paths {
            let holds = files.iter().any(|file| Path::new(path).starts_with(file));
            assert_eq!(listed.holds(Path::new(path)), holds, "{path}");
        }
        // The root of the dataset.
        let all = Listed([Path::new("")].into());
        assert!(paths.iter().all(|path| all.holds(Path::new(path))));
        assert!(!Listed(HashSet::new()).holds(Path::new("a")));
    }

    #[test]
    fn a_file_that_is_told_apart_takes_no_name_of_another() {
        let mut making = Making::default();
        let names =
            ["1.jpg", "1~2.jpg", "1.jpg", "1~2~2.jpg", "1", "1", ".x", ".x", "1~5", "1~5~5"];
        for (at, name) in names.into_iter().enumerate() {
            making.add("c", name, at, Content::Link(at.to_string()));
        }
        let display = making.made();
        let (_, files) = &display.classes[0];
        let found: BTreeMap<&str, String> = files
            .iter()
            .map(|file| match &file.content {
                Content::Link(at) => (file.name.as_str(), at.clone()),
                Content::Held(_) => unreachable!("all are links"),
            })
            .collect();
        assert_eq!(found.len(), names.len(), "{found:?}");
        assert!(found.values().map(|at| at.parse::<usize>().unwrap()).sum::<usize>() == 45);
        assert_eq!(found["1~2~2.jpg"], "2");
    }
}
