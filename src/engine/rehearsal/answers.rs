//! What commands ask of the buffers, and the answers.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::Question;
use super::displays;
use super::held::Held;
use super::latent::Latent;
use super::owner::{Owner, Place};
use super::queue::Bytes;
use crate::catalog::NodeId;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::views::View;
use crate::rehearsal::{Capacity, ClassId, Draws, Feature, Member, Refused};

/// Lines that are named of those that were not taken.
const NAMED_MAX: usize = 5;

/// Draws and samples that a command may ask for at once.
const ANSWER_MAX: u64 = 1 << 24;

/// Why something does not happen to a buffer.
const FULL: &str = "the cache directory's disk takes nothing";

fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}

impl Owner {
    pub(super) fn answer(&mut self, question: Question) -> Result<Value> {
        match question {
            Question::Stats => Ok(json!(self.places.iter().map(stats).collect::<Vec<_>>())),
            Question::List { buffer } => self.named(&buffer).map(|at| list(&self.places[at].held)),
            Question::Show { buffer, path } => {
                let at = self.named(&buffer)?;
                let held = &self.places[at].held;
                let shown = || self.views.source(at, &path);
                let sample = held.sample(&path).or_else(|| held.sample(&shown()?));
                let member = sample.and_then(|sample| held.buffer().get(sample));
                let none = || usage(format!("{path} is not in the buffer"));
                member.map(|member| told(held, member)).ok_or_else(none)
            }
            // Whoever copies asks for a view.
            Question::Export { .. } => Ok(Value::Null),
            Question::Score { buffer, lines, features } => {
                let at = self.named(&buffer)?;
                if features {
                    return feed(self.writable(at)?, &lines);
                }
                let before = self.places[at].held.scored;
                let refused = self.score(at, &lines).unwrap_or_default();
                let taken = self.places[at].held.scored - before;
                Ok(json!({ "taken": taken, "refused": refused.count, "why": refused.why }))
            }
            Question::Offer { buffer, paths } => {
                let at = self.named(&buffer)?;
                self.offer_listed(at, &paths)
            }
            Question::Task { buffer, task, files } => {
                let at = self.named(&buffer)?;
                self.begin_task(at, task, &files)
            }
            Question::Draw { buffer, epoch, count } => {
                let held = self.named(&buffer).map(|at| &self.places[at].held)?;
                let samples = held.buffer().members().map(|member| member.sample);
                let seed = held.buffer().rules().seed;
                let mut draws = Draws::new(seed, epoch, samples, held.settings.distance);
                let drawn = (0..count.min(ANSWER_MAX)).map_while(|k| draws.at(k));
                Ok(json!(drawn.map(|sample| held.path(sample)).collect::<Vec<_>>()))
            }
            Question::Sleep { buffer, mut set } => {
                let at = self.named(&buffer)?;
                set.budget = set.budget.min(ANSWER_MAX);
                let held = &mut self.places[at].held;
                held.write();
                let held = &*held;
                let chosen = held.sleep(&set);
                let view = View::Sleep(self.nights);
                self.nights += 1;
                self.views.keep(at, view, displays::in_order(held, &chosen));
                let paths: Vec<&str> =
                    chosen.iter().map(|(_, sample)| sample.source.as_str()).collect();
                Ok(json!({ "view": view.name(), "samples": paths }))
            }
        }
    }

    fn named(&self, name: &str) -> Result<usize> {
        let found = self.places.iter().position(|place| place.held.settings.name == name);
        found.ok_or_else(|| {
            let names = self.places.iter().map(|place| place.held.settings.name.as_str());
            let names: Vec<&str> = names.collect();
            usage(format!("there is no rehearsal buffer `{name}`"))
                .hint(format!("there are: {}", names.join(", ")))
        })
    }

    /// A buffer to which something is to happen.
    fn writable(&mut self, buffer: usize) -> Result<&mut Held> {
        let held = &mut self.places[buffer].held;
        let full = || Error::new(ErrorKind::Cache, FULL).hint("make room in the cache directory");
        held.has_room().then_some(held).ok_or_else(full)
    }

    /// Offers files by name. Those that cannot be offered are named; the others are.
    fn offer_listed(&mut self, buffer: usize, paths: &str) -> Result<Value> {
        let (mut offered, mut refused) = (0_u64, Refusals::default());
        for path in paths.lines().map(str::trim).filter(|path| !path.is_empty()) {
            let Some(node) = self.find(Path::new(path)) else {
                refused.note(path, "is not a file of the dataset");
                continue;
            };
            if self.offer(buffer, Path::new(path), node, Bytes::Away, true) {
                offered += 1;
            } else {
                refused.note(path, "was offered before, is empty or too large, or is of no class");
            }
        }
        Ok(json!({ "offered": offered, "refused": refused.count, "why": refused.why }))
    }

    /// Begins a task of these files and directories, all of which must be there.
    fn begin_task(&mut self, buffer: usize, task: u32, files: &str) -> Result<Value> {
        let lines = files.lines().map(|line| line.trim().trim_matches('/'));
        let files: Vec<String> = lines.filter(|line| !line.is_empty()).map(str::to_owned).collect();
        if let Some(missing) = files.iter().find(|file| self.find(Path::new(file)).is_none()) {
            return Err(usage(format!("{missing} is not in the dataset")));
        }
        self.writable(buffer)?.begin_task(task, files);
        self.views.begin_task(buffer);
        Ok(Value::Null)
    }

    /// Takes lines `path score`. A path, which may have spaces in it, is within the dataset or that
    /// of a file of a view. Says what was refused.
    pub(super) fn score(&mut self, buffer: usize, lines: &str) -> Option<Refusals> {
        let held = &mut self.places.get_mut(buffer)?.held;
        let has_room = held.has_room();
        let mut refused = Refusals::default();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let Some((path, score)) = line.rsplit_once(char::is_whitespace) else {
                refused.note(line, "is not of the form `path score`");
                continue;
            };
            let Ok(value) = score.parse::<f32>() else {
                refused.note(line, "has no number at its end");
                continue;
            };
            let path = path.trim_end();
            if !has_room {
                refused.note(path, FULL);
                continue;
            }
            let shown = || self.views.source(buffer, path);
            let sample = held.sample(path).or_else(|| held.sample(&shown()?));
            match sample.map(|sample| held.score(sample, value)) {
                Some(Ok(())) => held.scored += 1,
                Some(Err(_)) => refused.note(path, "has a score that is not a finite number"),
                None => refused.note(path, "is not in the buffer"),
            }
        }
        if refused.count > 0 {
            held.refused.count += refused.count;
            held.refused.why.clone_from(&refused.why);
        }
        Some(refused)
    }

    /// The node of a path within the dataset.
    fn find(&self, path: &Path) -> Option<NodeId> {
        path.components().try_fold(NodeId::ROOT, |parent, part| {
            Some(self.catalog().lookup(parent, part.as_os_str(), true)?.ok()?.node)
        })
    }
}

/// What was not taken, the first of it by name.
#[derive(Default)]
pub(super) struct Refusals {
    pub(super) count: u64,
    pub(super) why: Vec<String>,
}

impl Refusals {
    pub(super) fn note(&mut self, what: &str, why: &str) {
        self.count += 1;
        if self.why.len() < NAMED_MAX {
            self.why.push(format!("{what}: {why}"));
        }
    }
}

/// Takes lines `path feature feature ...`, all of them or none.
fn feed(held: &mut Held, lines: &str) -> Result<Value> {
    let (mut features, mut refused) = (Vec::new(), Refusals::default());
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.split_whitespace();
        let path = words.next().unwrap_or_default();
        let values: Option<Vec<f32>> = words.map(|word| word.parse().ok()).collect();
        let Some(values) = values.filter(|values| !values.is_empty()) else {
            refused.note(path, "has no feature, or one that is not of numbers");
            continue;
        };
        let Some(sample) = held.sample(path) else {
            refused.note(path, "is not in the buffer");
            continue;
        };
        let class = held.buffer().get(sample).map_or(ClassId(0), |member| member.class);
        features.push(Feature { sample: Some(sample), class, values });
    }
    let taken = features.len();
    held.feed(&features).map_err(|why| match why {
        Refused::NotFinite => usage("a feature is not a finite number; none was taken".to_owned()),
        Refused::Dimension { found, expected } => usage(format!(
            "a feature has {found} numbers where the first has {expected}; none was taken"
        )),
        Refused::NotHeld => usage("a sample is not in the buffer".to_owned()),
    })?;
    Ok(json!({ "taken": taken, "refused": refused.count, "why": refused.why }))
}

/// How full a buffer is.
fn stats(place: &Place) -> Value {
    let Place { held, latent, queue } = place;
    let (buffer, rules) = (held.buffer(), held.buffer().rules());
    let mut tasks = BTreeMap::<String, u64>::new();
    let (mut bytes, mut replays, mut ages) = (0, 0_u64, Vec::new());
    for member in buffer.members() {
        *tasks.entry(member.task.to_string()).or_default() += 1;
        bytes += member.bytes;
        replays += u64::from(member.replays);
        ages.push(buffer.offers() - member.sample.0);
    }
    ages.sort_unstable();
    let classes: BTreeMap<&str, usize> =
        buffer.classes().map(|class| (held.class(class), buffer.count(class))).collect();
    json!({
        "name": held.settings.name,
        "policy": rules.policy,
        "capacity": match rules.capacity {
            Capacity::Samples(limit) => json!({ "samples": limit }),
            Capacity::Bytes(limit) => json!({ "bytes": limit }),
        },
        "samples": buffer.len(),
        "bytes": bytes,
        "offered": buffer.offers(),
        "waiting": queue.len(),
        "task": held.task(),
        "classes": classes,
        "tasks": tasks,
        "replays": replays,
        "scored": held.scored,
        "refused": held.refused.count,
        "why": held.refused.why,
        "age_median": ages.get(ages.len() / 2),
        "age_max": ages.last(),
        "latent": latent.as_ref().map(Latent::stats),
    })
}

/// What a buffer holds, the oldest first.
fn list(held: &Held) -> Value {
    json!(held.buffer().members().map(|member| told(held, member)).collect::<Vec<_>>())
}

/// What is known of a sample.
fn told(held: &Held, member: &Member) -> Value {
    json!({
        "path": held.path(member.sample),
        "class": held.class(member.class),
        "task": member.task,
        "bytes": member.bytes,
        "age": held.buffer().offers() - member.sample.0,
        "replays": member.replays,
        "score": member.score,
    })
}
