//! The answers to the questions of commands.

use serde_json::{Value, json};

use super::buffer_codes::BufferCodes;
use super::buffer_thread::BufferThread;
use super::journaled::JournaledBuffer;
use super::open_buffer::OpenBuffer;
use super::paths::{PathMeaning, Paths};
use super::queue::OfferBytes;
use super::scores::take_scores;
use super::snapshots;
use super::{BufferReport, MissedNotes, OfferReport, Question, SampleReport, SleepReport};
use crate::buffer::{EpochDraws, Member, SleepSet};
use crate::error::{Error, ErrorKind, Result};
use crate::rehearsal::views::{FILES_MAX, View};

pub(super) fn usage(message: String) -> Error {
    Error::new(ErrorKind::Usage, message)
}

pub(super) fn answer(thread: &mut BufferThread, question: Question) -> Result<Value> {
    match question {
        Question::Stats => {
            let missed = thread.notes.missed();
            let report = |buffer: &OpenBuffer| {
                let joint = thread.paths.views.joint(buffer.number);
                let joint = joint.and_then(|joint| joint.report(buffer.number));
                let report = report(buffer, thread.warnings(buffer), missed);
                json!(BufferReport { joint, ..report })
            };
            Ok(thread.buffers.iter().map(report).collect())
        }
        Question::List { buffer } => {
            let buffer = &buffer_named(&mut thread.buffers, &buffer)?.journaled;
            Ok(buffer.buffer().members().map(|member| json!(describe(buffer, member))).collect())
        }
        Question::Show { buffer, path } => {
            show(buffer_named(&mut thread.buffers, &buffer)?, &thread.paths, &path)
        }
        Question::Score { buffer, lines, .. } => {
            let buffer = buffer_named(&mut thread.buffers, &buffer)?;
            let counts = take_scores(buffer, &thread.paths, &lines);
            buffer.write_answered().map(|()| json!(counts))
        }
        // The asking thread copies.
        Question::Export { .. } => Ok(Value::Null),
        Question::Offer { buffer, paths } => {
            let buffer = buffer_named(&mut thread.buffers, &buffer)?;
            let report = offer_listed(buffer, &thread.paths, &paths);
            buffer.write_answered().map(|()| json!(report))
        }
        Question::Task { buffer, task, files } => {
            let buffer = buffer_named(&mut thread.buffers, &buffer)?;
            let answer = begin_task(buffer, &thread.paths, task, &files)?;
            buffer.write_answered().map(|()| answer)
        }
        Question::Draw { buffer, epoch, count } => {
            draw(&buffer_named(&mut thread.buffers, &buffer)?.journaled, epoch, count)
        }
        Question::Sleep { buffer, set } => make_sleep_set(thread, &buffer, set),
    }
}

pub(super) fn buffer_named<'a>(
    buffers: &'a mut [OpenBuffer],
    name: &str,
) -> Result<&'a mut OpenBuffer> {
    let name_of = |buffer: &OpenBuffer| buffer.journaled.settings.name.clone();
    let Some(at) = buffers.iter().position(|buffer| name_of(buffer) == name) else {
        let names: Vec<String> = buffers.iter().map(name_of).collect();
        return Err(usage(format!("there is no rehearsal buffer `{name}`"))
            .hint(format!("there are: {}", names.join(", "))));
    };
    Ok(&mut buffers[at])
}

fn show(buffer: &OpenBuffer, paths: &Paths, path: &str) -> Result<Value> {
    let member = match paths.meaning(buffer, path) {
        Some(PathMeaning::Held(sample)) => buffer.journaled.buffer().get(sample),
        Some(PathMeaning::OtherBuffer(other)) => {
            let message = format!("{path} is of the rehearsal buffer `{other}`");
            return Err(usage(message).hint("name that buffer, or a path within the dataset"));
        }
        Some(PathMeaning::NotHeld(_)) | None => None,
    };
    let none = || usage(format!("{path} is not in the buffer"));
    member.map(|member| json!(describe(&buffer.journaled, member))).ok_or_else(none)
}

/// Offers files by name. Those that cannot be offered are counted, and the first are named.
fn offer_listed(buffer: &mut OpenBuffer, paths: &Paths, listed: &str) -> OfferReport {
    let mut report = OfferReport::default();
    for path in listed.lines().map(str::trim).filter(|path| !path.is_empty()) {
        let Some((node, known_as)) = paths.known_as(path) else {
            report.refused.note(path, "is not a file of the dataset");
            continue;
        };
        if buffer.enqueue(paths.catalog(), &known_as, node, OfferBytes::NotRequested, true) {
            report.offered += 1;
        } else {
            let why = match buffer.journaled.class_of(&known_as) {
                Some(_) => "was offered before, or is empty or too large".to_owned(),
                None => format!("is of no class by `{}`", buffer.journaled.settings.classes),
            };
            report.refused.note(path, &why);
        }
    }
    report
}

/// Begins a task with these files and directories, which must be in the dataset.
fn begin_task(buffer: &mut OpenBuffer, paths: &Paths, task: u32, files: &str) -> Result<Value> {
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

pub(super) fn check_bound(option: &str, number: u64) -> Result<()> {
    let too_many = || {
        usage(format!("{option} {number} is more than {FILES_MAX}, which is what one answer holds"))
    };
    (number <= FILES_MAX).then_some(()).ok_or_else(too_many)
}

fn draw(buffer: &JournaledBuffer, epoch: u64, count: u64) -> Result<Value> {
    check_bound("--count", count)?;
    let samples = buffer.buffer().members().map(|member| member.sample);
    let seed = buffer.buffer().rules().seed;
    let mut draws = EpochDraws::new(seed, epoch, samples, buffer.settings.distance);
    let drawn = (0..count).map_while(|k| draws.at(k));
    Ok(drawn.map(|sample| buffer.path(sample)).collect())
}

fn make_sleep_set(thread: &mut BufferThread, name: &str, set: SleepSet) -> Result<Value> {
    let open = buffer_named(&mut thread.buffers, name)?;
    check_bound("--budget", set.budget)?;
    let (number, buffer) = (open.number, &*open.written());
    let is_unscored = buffer.buffer().members().all(|member| member.score.is_none());
    if set.chooser.goes_by_scores() && is_unscored && !buffer.buffer().is_empty() {
        let chooser = json!(set.chooser);
        let message = format!("{chooser} would be chance: no sample of the buffer has a score");
        return Err(usage(message).hint("`belady rehearse score` gives them theirs"));
    }
    let chosen = buffer.sleep_set(&set);
    let view = View::Sleep(thread.sleep_sets_made);
    thread.sleep_sets_made += 1;
    let snapshot = snapshots::in_order(buffer, &chosen);
    let kept = thread.paths.views.snapshots.keep(number, view, snapshot);
    kept.map_err(|_| usage(format!("{} cannot be shown; the log says why", view.name())))?;
    let samples = chosen.iter().map(|(_, sample)| sample.source.as_str().into()).collect();
    Ok(json!(SleepReport { view: view.name(), samples }))
}

fn report(buffer: &OpenBuffer, doubts: Vec<String>, missed: MissedNotes) -> BufferReport {
    let OpenBuffer { journaled, codes, queue, scores, .. } = buffer;
    let (buffer, rules) = (journaled.buffer(), journaled.buffer().rules());
    let mut report = BufferReport {
        name: journaled.settings.name.clone(),
        doubts,
        policy: json!(rules.policy).as_str().unwrap_or_default().to_owned(),
        capacity: Some(rules.capacity),
        samples: buffer.len(),
        offered: buffer.offers(),
        waiting: queue.len(),
        missed,
        task: journaled.task(),
        scored: scores.taken,
        passed: scores.passed,
        refused: scores.refused.clone(),
        latent: codes.as_ref().map(BufferCodes::report),
        ..BufferReport::default()
    };
    for class in buffer.classes() {
        report.classes.insert(journaled.class_name(class).to_owned(), buffer.count(class));
    }
    let mut ages = Vec::new();
    for member in buffer.members() {
        *report.tasks.entry(member.task.to_string()).or_default() += 1;
        report.bytes += member.bytes;
        report.replays += u64::from(member.replays);
        ages.push(buffer.offers() - member.sample.0);
    }
    ages.sort_unstable();
    report.age_median = ages.get(ages.len() / 2).copied();
    report.age_max = ages.last().copied();
    report
}

fn describe(buffer: &JournaledBuffer, member: &Member) -> SampleReport {
    SampleReport {
        path: buffer.path(member.sample).to_owned(),
        class: buffer.class_name(member.class).to_owned(),
        task: member.task,
        bytes: member.bytes,
        age: buffer.buffer().offers() - member.sample.0,
        replays: member.replays,
        score: member.score,
    }
}
