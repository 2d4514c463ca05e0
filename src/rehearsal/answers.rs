//! The owner's answers to the questions of commands.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Question;
use super::displays;
use super::held::Held;
use super::latent::Latent;
use super::owner::{Owner, Place};
use super::queue::Bytes;
use super::scores::Meant;
use crate::buffer::{Capacity, Draws, Member, SleepSet};
use crate::error::{Error, ErrorKind, Result};
use crate::rehearsal::views::View;

/// How many refused lines an answer names.
const NAMED_MAX: usize = 5;

/// How many draws or samples one answer, or one directory, may have.
const ANSWER_MAX: u64 = (1 << 24) - 2;

/// Why a buffer takes no changes.
pub(super) const FULL: &str = "the cache directory's disk takes nothing";

pub(super) fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}

fn bounded(option: &str, number: u64) -> Result<()> {
    if number <= ANSWER_MAX {
        return Ok(());
    }
    Err(usage(format!(
        "{option} {number} is more than {ANSWER_MAX}, which is what one answer holds"
    )))
}

impl Owner {
    pub(super) fn answer(&mut self, question: Question) -> Result<Value> {
        match question {
            Question::Stats => {
                let missed = self.around.notes.missed();
                let of = |place| stats(place, &self.doubts(place), &missed);
                Ok(json!(self.places.iter().map(of).collect::<Vec<_>>()))
            }
            Question::List { buffer } => self.named(&buffer).map(|at| list(&self.places[at].held)),
            Question::Show { buffer, path } => {
                let at = self.named(&buffer)?;
                let held = &self.places[at].held;
                let member = match self.meant(at, &path) {
                    Some(Meant::Held(sample)) => held.buffer().get(sample),
                    Some(Meant::Elsewhere(other)) => {
                        let message = format!("{path} is of the rehearsal buffer `{other}`");
                        return Err(
                            usage(message).hint("name that buffer, or a path within the dataset")
                        );
                    }
                    Some(Meant::Other(_)) | None => None,
                };
                let none = || usage(format!("{path} is not in the buffer"));
                member.map(|member| told(held, member)).ok_or_else(none)
            }
            Question::Score { buffer, lines, .. } => {
                let at = self.named(&buffer)?;
                let told = self.score(at, &lines).told();
                self.written(at).map(|()| told)
            }
            // The asking thread copies.
            Question::Export { .. } => Ok(Value::Null),
            Question::Offer { buffer, paths } => {
                let at = self.named(&buffer)?;
                let told = self.offer_listed(at, &paths)?;
                self.written(at).map(|()| told)
            }
            Question::Task { buffer, task, files } => {
                let at = self.named(&buffer)?;
                let told = self.begin_task(at, task, &files)?;
                self.written(at).map(|()| told)
            }
            Question::Draw { buffer, epoch, count } => {
                let held = self.named(&buffer).map(|at| &self.places[at].held)?;
                let samples = held.buffer().members().map(|member| member.sample);
                let seed = held.buffer().rules().seed;
                let mut draws = Draws::new(seed, epoch, samples, held.settings.distance);
                bounded("--count", count)?;
                let drawn = (0..count).map_while(|k| draws.at(k));
                Ok(json!(drawn.map(|sample| held.path(sample)).collect::<Vec<_>>()))
            }
            Question::Sleep { buffer, set } => {
                let at = self.named(&buffer)?;
                self.sleep(at, set)
            }
        }
    }

    /// Writes a buffer's records, so that an answered change survives the process.
    fn written(&mut self, buffer: usize) -> Result<()> {
        self.places[buffer].held.write().map_err(|error| {
            Error::new(ErrorKind::Cache, format!("{FULL} yet, so it may not last: {error}"))
                .hint("make room in the cache directory; what was said is written then")
        })
    }

    fn sleep(&mut self, buffer: usize, set: SleepSet) -> Result<Value> {
        bounded("--budget", set.budget)?;
        let held = &mut self.places[buffer].held;
        let _ = held.write();
        let held = &*held;
        let is_unscored = held.buffer().members().all(|member| member.score.is_none());
        if set.chooser.goes_by_scores() && is_unscored && !held.buffer().is_empty() {
            let chooser = json!(set.chooser);
            let message = format!("{chooser} would be chance: no sample of the buffer has a score");
            return Err(usage(message).hint("`belady rehearse score` gives them theirs"));
        }
        let chosen = held.sleep(&set);
        let view = View::Sleep(self.nights);
        self.nights += 1;
        self.around.views.keep(buffer, view, displays::in_order(held, &chosen));
        let paths: Vec<&str> = chosen.iter().map(|(_, sample)| sample.source.as_str()).collect();
        Ok(json!({ "view": view.name(), "samples": paths }))
    }

    pub(super) fn named(&self, name: &str) -> Result<usize> {
        let found = self.places.iter().position(|place| place.held.settings.name == name);
        found.ok_or_else(|| {
            let names = self.places.iter().map(|place| place.held.settings.name.as_str());
            let names: Vec<&str> = names.collect();
            usage(format!("there is no rehearsal buffer `{name}`"))
                .hint(format!("there are: {}", names.join(", ")))
        })
    }

    /// A buffer that takes records.
    ///
    /// # Errors
    /// If its disk takes none.
    pub(super) fn writable(&mut self, buffer: usize) -> Result<&mut Held> {
        let held = &mut self.places[buffer].held;
        let full = || Error::new(ErrorKind::Cache, FULL).hint("make room in the cache directory");
        held.make_room().then_some(held).ok_or_else(full)
    }

    /// Offers files by name. Those that cannot be offered are counted, and the first are named.
    fn offer_listed(&mut self, buffer: usize, paths: &str) -> Result<Value> {
        let (mut offered, mut refused) = (0_u64, Refusals::default());
        for path in paths.lines().map(str::trim).filter(|path| !path.is_empty()) {
            let Some((node, known_as)) = self.known_as(path) else {
                refused.note(path, "is not a file of the dataset");
                continue;
            };
            if self.offer(buffer, &known_as, node, Bytes::Away, true) {
                offered += 1;
            } else {
                let held = &self.places[buffer].held;
                let why = match held.class_of(&known_as) {
                    Some(_) => "was offered before, or is empty or too large".to_owned(),
                    None => format!("is of no class by `{}`", held.settings.classes),
                };
                refused.note(path, &why);
            }
        }
        Ok(json!({ "offered": offered, "refused": refused.count, "why": refused.why }))
    }

    /// Begins a task with these files and directories, which must be in the dataset.
    fn begin_task(&mut self, buffer: usize, task: u32, files: &str) -> Result<Value> {
        let lines = files.lines().map(|line| line.trim().trim_matches('/'));
        let lines = lines.filter(|line| !line.is_empty());
        let known_as = |line: &str| {
            let known = self.known_as(line).map(|(_, path)| path.to_string_lossy().into_owned());
            known.ok_or_else(|| usage(format!("{line} is not in the dataset")))
        };
        let files = lines.map(known_as).collect::<Result<Vec<_>>>()?;
        let listed = files.len();
        let is_other = self.writable(buffer)?.begin_task(task, files);
        self.around.views.begin_task(buffer, is_other);
        Ok(json!({ "task": task, "listed": listed }))
    }
}

/// Refused lines: how many, and why the first ones.
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

fn stats(place: &Place, doubts: &[String], missed: &Value) -> Value {
    let Place { held, latent, queue, .. } = place;
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
        "doubts": doubts,
        "policy": rules.policy,
        "capacity": match rules.capacity {
            Capacity::Samples(limit) => json!({ "samples": limit }),
            Capacity::Bytes(limit) => json!({ "bytes": limit }),
        },
        "samples": buffer.len(),
        "bytes": bytes,
        "offered": buffer.offers(),
        "waiting": queue.len(),
        "missed": missed,
        "task": held.task(),
        "classes": classes,
        "tasks": tasks,
        "replays": replays,
        "scored": held.scores.taken,
        "passed": held.scores.passed,
        "refused": held.scores.refused.count,
        "why": held.scores.refused.why,
        "age_median": ages.get(ages.len() / 2),
        "age_max": ages.last(),
        "latent": latent.as_ref().map(Latent::stats),
    })
}

/// The samples that a buffer holds, the oldest first.
fn list(held: &Held) -> Value {
    json!(held.buffer().members().map(|member| told(held, member)).collect::<Vec<_>>())
}

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
