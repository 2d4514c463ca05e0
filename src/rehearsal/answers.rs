//! The answers to the questions of commands.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Question;
use super::buffer_codes::BufferCodes;
use super::journaled::JournaledBuffer;
use super::owned_buffer::OwnedBuffer;
use super::owner::Owner;
use super::paths::{PathMeaning, Paths};
use super::queue::OfferBytes;
use super::scores::take_scores;
use super::snapshots;
use crate::buffer::{Capacity, Draws, Member, SleepSet};
use crate::error::{Error, ErrorKind, Result};
use crate::rehearsal::views::View;

/// How many refused lines an answer names.
const NAMED_MAX: usize = 5;

/// How many draws or samples one answer, or one directory, may have.
const ANSWER_MAX: u64 = (1 << 24) - 2;

pub(super) fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
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

pub(super) fn answer(owner: &mut Owner, question: Question) -> Result<Value> {
    match question {
        Question::Stats => {
            let missed = owner.notes.missed();
            let stats = |buffer| stats(buffer, &owner.warnings(buffer), &missed);
            Ok(json!(owner.buffers.iter().map(stats).collect::<Vec<_>>()))
        }
        Question::List { buffer } => {
            let buffer = &named(&mut owner.buffers, &buffer)?.journaled;
            let described = buffer.buffer().members().map(|member| describe(buffer, member));
            Ok(json!(described.collect::<Vec<_>>()))
        }
        Question::Show { buffer, path } => {
            show(named(&mut owner.buffers, &buffer)?, &owner.paths, &path)
        }
        Question::Score { buffer, lines, .. } => {
            let buffer = named(&mut owner.buffers, &buffer)?;
            let answer = take_scores(buffer, &owner.paths, &lines).to_json();
            buffer.write_answered().map(|()| answer)
        }
        // The asking thread copies.
        Question::Export { .. } => Ok(Value::Null),
        Question::Offer { buffer, paths } => {
            let buffer = named(&mut owner.buffers, &buffer)?;
            let answer = offer_listed(buffer, &owner.paths, &paths);
            buffer.write_answered().map(|()| answer)
        }
        Question::Task { buffer, task, files } => {
            let buffer = named(&mut owner.buffers, &buffer)?;
            let answer = begin_task(buffer, &owner.paths, task, &files)?;
            buffer.write_answered().map(|()| answer)
        }
        Question::Draw { buffer, epoch, count } => {
            draw(&named(&mut owner.buffers, &buffer)?.journaled, epoch, count)
        }
        Question::Sleep { buffer, set } => make_sleep_set(owner, &buffer, set),
    }
}

pub(super) fn named<'a>(buffers: &'a mut [OwnedBuffer], name: &str) -> Result<&'a mut OwnedBuffer> {
    let name_of = |buffer: &OwnedBuffer| buffer.journaled.settings.name.clone();
    let Some(at) = buffers.iter().position(|buffer| name_of(buffer) == name) else {
        let names: Vec<String> = buffers.iter().map(name_of).collect();
        return Err(usage(format!("there is no rehearsal buffer `{name}`"))
            .hint(format!("there are: {}", names.join(", "))));
    };
    Ok(&mut buffers[at])
}

fn show(buffer: &OwnedBuffer, paths: &Paths, path: &str) -> Result<Value> {
    let member = match paths.meaning(buffer, path) {
        Some(PathMeaning::Held(sample)) => buffer.journaled.buffer().get(sample),
        Some(PathMeaning::OtherBuffer(other)) => {
            let message = format!("{path} is of the rehearsal buffer `{other}`");
            return Err(usage(message).hint("name that buffer, or a path within the dataset"));
        }
        Some(PathMeaning::NotHeld(_)) | None => None,
    };
    let none = || usage(format!("{path} is not in the buffer"));
    member.map(|member| describe(&buffer.journaled, member)).ok_or_else(none)
}

/// Offers files by name. Those that cannot be offered are counted, and the first are named.
fn offer_listed(buffer: &mut OwnedBuffer, paths: &Paths, listed: &str) -> Value {
    let (mut offered, mut refused) = (0_u64, Refusals::default());
    for path in listed.lines().map(str::trim).filter(|path| !path.is_empty()) {
        let Some((node, known_as)) = paths.known_as(path) else {
            refused.note(path, "is not a file of the dataset");
            continue;
        };
        if buffer.offer(paths.catalog(), &known_as, node, OfferBytes::NotRequested, true) {
            offered += 1;
        } else {
            let why = match buffer.journaled.class_of(&known_as) {
                Some(_) => "was offered before, or is empty or too large".to_owned(),
                None => format!("is of no class by `{}`", buffer.journaled.settings.classes),
            };
            refused.note(path, &why);
        }
    }
    json!({ "offered": offered, "refused": refused.count, "why": refused.why })
}

/// Begins a task with these files and directories, which must be in the dataset.
fn begin_task(buffer: &mut OwnedBuffer, paths: &Paths, task: u32, files: &str) -> Result<Value> {
    let lines = files.lines().map(|line| line.trim().trim_matches('/'));
    let known_as = |line: &str| {
        let known = paths.known_as(line).map(|(_, path)| path.to_string_lossy().into_owned());
        known.ok_or_else(|| usage(format!("{line} is not in the dataset")))
    };
    let files = lines.filter(|line| !line.is_empty()).map(known_as).collect::<Result<Vec<_>>>()?;
    let listed = files.len();
    let is_other = buffer.writable()?.begin_task(task, files);
    paths.views.snapshots.begin_task(buffer.number, is_other);
    Ok(json!({ "task": task, "listed": listed }))
}

fn bounded(option: &str, number: u64) -> Result<()> {
    if number <= ANSWER_MAX {
        return Ok(());
    }
    Err(usage(format!(
        "{option} {number} is more than {ANSWER_MAX}, which is what one answer holds"
    )))
}

fn draw(buffer: &JournaledBuffer, epoch: u64, count: u64) -> Result<Value> {
    bounded("--count", count)?;
    let samples = buffer.buffer().members().map(|member| member.sample);
    let seed = buffer.buffer().rules().seed;
    let mut draws = Draws::new(seed, epoch, samples, buffer.settings.distance);
    let drawn = (0..count).map_while(|k| draws.at(k));
    Ok(json!(drawn.map(|sample| buffer.path(sample)).collect::<Vec<_>>()))
}

fn make_sleep_set(owner: &mut Owner, name: &str, set: SleepSet) -> Result<Value> {
    let owned = named(&mut owner.buffers, name)?;
    bounded("--budget", set.budget)?;
    let (number, buffer) = (owned.number, &*owned.written());
    let is_unscored = buffer.buffer().members().all(|member| member.score.is_none());
    if set.chooser.goes_by_scores() && is_unscored && !buffer.buffer().is_empty() {
        let chooser = json!(set.chooser);
        let message = format!("{chooser} would be chance: no sample of the buffer has a score");
        return Err(usage(message).hint("`belady rehearse score` gives them theirs"));
    }
    let chosen = buffer.sleep_set(&set);
    let view = View::Sleep(owner.sleep_sets_made);
    owner.sleep_sets_made += 1;
    owner.paths.views.snapshots.keep(number, view, snapshots::in_order(buffer, &chosen));
    let paths: Vec<&str> = chosen.iter().map(|(_, sample)| sample.source.as_str()).collect();
    Ok(json!({ "view": view.name(), "samples": paths }))
}

fn stats(owned: &OwnedBuffer, warnings: &[String], missed: &Value) -> Value {
    let OwnedBuffer { journaled, codes, queue, scores, .. } = owned;
    let (buffer, rules) = (journaled.buffer(), journaled.buffer().rules());
    let mut tasks = BTreeMap::<String, u64>::new();
    let (mut bytes, mut replays, mut ages) = (0, 0_u64, Vec::new());
    for member in buffer.members() {
        *tasks.entry(member.task.to_string()).or_default() += 1;
        bytes += member.bytes;
        replays += u64::from(member.replays);
        ages.push(buffer.offers() - member.sample.0);
    }
    ages.sort_unstable();
    let count = |class| (journaled.class_name(class), buffer.count(class));
    let classes: BTreeMap<&str, usize> = buffer.classes().map(count).collect();
    json!({
        "name": journaled.settings.name,
        "doubts": warnings,
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
        "task": journaled.task(),
        "classes": classes,
        "tasks": tasks,
        "replays": replays,
        "scored": scores.taken,
        "passed": scores.passed,
        "refused": scores.refused.count,
        "why": scores.refused.why,
        "age_median": ages.get(ages.len() / 2),
        "age_max": ages.last(),
        "latent": codes.as_ref().map(BufferCodes::stats),
    })
}

fn describe(buffer: &JournaledBuffer, member: &Member) -> Value {
    json!({
        "path": buffer.path(member.sample),
        "class": buffer.class_name(member.class),
        "task": member.task,
        "bytes": member.bytes,
        "age": buffer.buffer().offers() - member.sample.0,
        "replays": member.replays,
        "score": member.score,
    })
}
