//! The charts of an epoch.

use std::collections::BTreeMap;

use super::svg::{Anchor, LEFT, Scale, Svg, WIDTH, short};
use crate::cache::Latencies;
use crate::cli::report::judged::Judged;
use crate::cli::report::text::{named, percent, seconds};
use crate::stall::{Epoch, Kind, Model, Point, State};

/// Pixels of a bar, of the lane of a worker, and of other charts.
const BAR: f64 = 22.0;
const LANE: f64 = 9.0;
const CHART: f64 = 150.0;

const MIB: f64 = 1_048_576.0;

/// Parts of the workers' time by the classes of their colours, in the order of [`named`].
const PARTS: [&str; 6] = ["fetch", "processor", "queued", "idle", "elsewhere", "unknown"];

/// Parts of an epoch: a class of a colour, a name and seconds.
type Segment = (&'static str, &'static str, f64);

fn bar(svg: &mut Svg, name: &str, across: Scale, segments: &[Segment]) {
    let (top, mut passed) = (svg.height() + 6.0, 0.0);
    svg.name(top + 15.0, name);
    for (class, part, length) in segments {
        let (from, to) = (across.at(passed), across.at(passed + length));
        passed += length;
        if to - from >= 0.05 {
            let title = format!("{part}: {}", seconds(*length));
            svg.rect((from, top), (to - from, BAR), class, &title);
        }
    }
}

/// What the workers and the trainer did, measured and by the model.
pub(super) fn by_part(judged: &Judged) -> String {
    let Judged { epoch, finding, .. } = judged;
    let mut svg = Svg::default();
    let longest = finding.model.map_or(0.0, |model| model.seconds).max(epoch.seconds);
    let across = Scale::across(longest);
    let measured: Vec<Segment> = PARTS
        .into_iter()
        .zip(named(&finding.parts))
        .map(|(class, (name, share))| (class, name, share * epoch.seconds))
        .collect();
    bar(&mut svg, "workers", across, &measured);
    if let Some(model) = &finding.model {
        bar(&mut svg, "by the model", across, &workers_of(model));
    }
    if let Some(wait) = finding.trainer_wait {
        let step = (1.0 - wait) * epoch.seconds;
        let trainer = [("idle", "waits for data", wait * epoch.seconds), ("step", "steps", step)];
        bar(&mut svg, "trainer", across, &trainer);
    }
    if let Some(model) = &finding.model {
        let step = (model.step_s * model.batches as f64).min(model.seconds);
        let wait = ("idle", "waits for data", model.seconds - step);
        bar(&mut svg, "by the model", across, &[wait, ("step", "steps", step)]);
    }
    let bottom = svg.height() + 4.0;
    svg.axis_below(across, (0.0, bottom), "seconds");
    let mut legend: Vec<(&str, &str)> = PARTS
        .into_iter()
        .zip(named(&finding.parts))
        .map(|(class, (name, _))| (class, name))
        .collect();
    legend.push(("step", "steps of the trainer"));
    for row in legend.chunks(4) {
        let y = svg.height();
        svg.legend(y, row);
    }
    svg.finish("the epoch by part, measured and by the model")
}

/// What each worker of the model does on average.
fn workers_of(model: &Model) -> [Segment; 3] {
    let each = model.batches as f64 / f64::from(model.workers.max(1));
    let fetch = model.fetch_s * each;
    let preparation = model.preparation_s * each + model.starting_s;
    let idle = (model.seconds - fetch - preparation).max(0.0);
    [
        ("fetch", "fetch", fetch),
        ("processor", "preparation", preparation),
        ("idle", "no work", idle),
    ]
}

/// What each worker did over time. `None` if that is not known any more.
pub(super) fn lanes(epoch: &Epoch) -> Option<String> {
    if epoch.lanes.is_empty() {
        return None;
    }
    let name = if epoch.kind == Kind::Workers { "worker" } else { "thread" };
    let (mut svg, across) = (Svg::default(), Scale::across(epoch.seconds));
    let mut of_state: BTreeMap<char, Vec<(f64, f64, f64)>> = BTreeMap::new();
    for (nth, lane) in epoch.lanes.iter().enumerate() {
        let top = nth as f64 * (LANE + 2.0);
        if epoch.lanes.len() <= 16 || nth % 8 == 0 {
            svg.name(top + LANE, format!("{name} {}", nth + 1));
        }
        let mut begin = 0;
        for run in lane.states.as_bytes().chunk_by(|a, b| a == b) {
            let at = |span: usize| across.at(lane.since + span as f64 * lane.span);
            let (from, to) = (at(begin), at(begin + run.len()));
            of_state.entry(char::from(run[0])).or_default().push((from, top, to - from));
            begin += run.len();
        }
    }
    for (class, state) in STATES {
        svg.rects(of_state.get(&state.letter()).map_or(&[], Vec::as_slice), LANE, class);
    }
    let bottom = svg.height() + 2.0;
    svg.axis_below(across, (0.0, bottom), "seconds since the start of the epoch");
    let y = svg.height();
    svg.legend(y, &STATES.map(|(class, state)| (class, state.words())));
    Some(svg.finish("what each worker did over time"))
}

const STATES: [(&str, State); 5] = [
    ("fetch", State::Fetches),
    ("processor", State::Runs),
    ("idle", State::HasNoWork),
    ("elsewhere", State::Elsewhere),
    ("unknown", State::Unknown),
];

/// How long readers of the mount have waited, by cause. `None` if nobody has.
pub(super) fn waits(waits: &BTreeMap<String, Latencies>) -> Option<String> {
    let mut of: Vec<(&String, &Latencies)> = waits.iter().filter(|(_, w)| w.count > 0).collect();
    of.sort_by_key(|(_, waits)| std::cmp::Reverse(waits.total_us));
    let shown = |w: &Latencies| {
        [w.p50_us, w.p90_us, w.p99_us, w.p999_us, w.max_us].map(|us| us.max(1) as f64)
    };
    let all: Vec<f64> = of.iter().flat_map(|(_, waits)| shown(waits)).collect();
    let (low, high) =
        (all.iter().copied().reduce(f64::min)?, all.iter().copied().reduce(f64::max)?);
    let mut svg = Svg::default();
    let up = Scale::up_by_tens(low, high, 8.0, CHART);
    svg.axis_left(up, |us| seconds(us / 1e6));
    let columns = ["half", "90 %", "99 %", "99.9 %", "the longest"];
    let x = |nth: usize| LEFT + (WIDTH - LEFT) * (nth as f64 + 0.5) / columns.len() as f64;
    for (nth, name) in columns.iter().enumerate() {
        svg.text(x(nth), CHART + 26.0, Anchor::Middle, name);
    }
    let mut legend = Vec::new();
    for ((cause, waits), class) in of.iter().zip(COLORS) {
        let points: Vec<(f64, f64)> =
            shown(waits).iter().enumerate().map(|(nth, us)| (x(nth), up.at(*us))).collect();
        svg.line(&points, &format!("{class}-line"));
        legend.push((
            class,
            format!("{cause}: {}, {} in all", waits.count, seconds(waits.total_us as f64 / 1e6)),
        ));
    }
    let legend: Vec<(&str, &str)> =
        legend.iter().map(|(class, name)| (*class, name.as_str())).collect();
    for row in legend.chunks(3) {
        let y = svg.height() + 4.0;
        svg.legend(y, row);
    }
    Some(svg.finish("how long readers waited, by cause"))
}

/// Colours of lines, one after the other.
const COLORS: [&str; 8] =
    ["fetch", "queued", "processor", "elsewhere", "step", "unknown", "cap", "lead"];

/// Bytes a second by where they came from, and how far ahead of the readers the mount was. `None` if there is too little.
pub(super) fn bytes(epoch: &Epoch) -> Option<String> {
    let points = &epoch.points;
    let rates: Vec<[f64; 3]> = points.windows(2).map(|pair| rate(&pair[0], &pair[1])).collect();
    if rates.len() < 3 {
        return None;
    }
    let highest = rates.iter().map(|rate| rate.iter().sum::<f64>()).fold(0.0, f64::max);
    if highest == 0.0 {
        return None;
    }
    let (mut svg, across) = (Svg::default(), Scale::across(epoch.seconds));
    let up = Scale::up(highest / MIB, 8.0, CHART);
    svg.axis_left(up, |mib| format!("{} MiB/s", short(mib)));
    let mut floor = vec![0.0; rates.len()];
    for (nth, class) in ["fetch", "processor", "step"].into_iter().enumerate() {
        let before = floor.clone();
        floor.iter_mut().zip(&rates).for_each(|(sum, rate)| *sum += rate[nth]);
        let edge = |sums: &[f64]| -> Vec<(f64, f64)> {
            let steps = sums.iter().zip(points.windows(2));
            steps
                .flat_map(|(sum, pair)| {
                    [pair[0].at, pair[1].at].map(|at| (across.at(at), up.at(*sum / MIB)))
                })
                .collect()
        };
        let (upper, lower) = (edge(&floor), edge(&before));
        svg.area(&upper.into_iter().chain(lower.into_iter().rev()).collect::<Vec<_>>(), class);
    }
    svg.axis_below(across, (8.0, CHART + 8.0), "seconds since the start of the epoch");
    let y = svg.height();
    svg.legend(
        y,
        &[("fetch", "the source"), ("processor", "the cache disk"), ("step", "other nodes")],
    );
    lead(&mut svg, points, across);
    Some(svg.finish("bytes by where they came from, and the lead"))
}

fn rate(before: &Point, after: &Point) -> [f64; 3] {
    let seconds = (after.at - before.at).max(1e-3);
    let of = |count: fn(&Point) -> u64| count(after).saturating_sub(count(before)) as f64 / seconds;
    [of(|point| point.source_bytes), of(|point| point.disk_bytes), of(|point| point.member_bytes)]
}

/// How many seconds the mount was ahead of the readers.
fn lead(svg: &mut Svg, points: &[Point], across: Scale) {
    let leads: Vec<(f64, f64)> =
        points.iter().filter_map(|point| Some((point.at, point.lead_s?))).collect();
    let Some(most) = leads.iter().map(|(_, lead)| *lead).reduce(f64::max) else { return };
    let top = svg.height() + 12.0;
    let up = Scale::up(most, top, CHART / 2.0);
    svg.axis_left(up, |lead| format!("{} ahead", seconds(lead)));
    let line: Vec<(f64, f64)> =
        leads.iter().map(|(at, lead)| (across.at(*at), up.at(*lead))).collect();
    svg.line(&line, "lead-line");
    svg.axis_below(across, (top, top + CHART / 2.0), "seconds since the start of the epoch");
}

/// What a later epoch would take with so much RAM, as shares of the data, with the cap.
pub(super) fn by_ram(curve: &[(f64, f64)], judged: &Judged) -> Option<String> {
    let highest = curve.iter().map(|(_, seconds)| *seconds).reduce(f64::max)?;
    let (mut svg, across) = (Svg::default(), Scale::across(100.0));
    let up = Scale::up(highest.max(judged.epoch.seconds), 8.0, CHART);
    svg.axis_left(up, seconds);
    svg.axis_below(across, (8.0, CHART + 8.0), "RAM, in % of the data");
    let line: Vec<(f64, f64)> =
        curve.iter().map(|(share, seconds)| (across.at(*share), up.at(*seconds))).collect();
    svg.line(&line, "fetch-line");
    for ((share, would), (x, y)) in curve.iter().zip(&line) {
        let title = format!("RAM for {}: {}", percent(share / 100.0), seconds(*would));
        svg.rect((x - 3.0, y - 3.0), (6.0, 6.0), "fetch", &title);
    }
    let mut legend = vec![("fetch", "a later epoch")];
    if let Some(cap) = judged.finding.cap_s {
        svg.line(&[(across.at(0.0), up.at(cap)), (across.at(100.0), up.at(cap))], "cap-line");
        legend.push(("cap", "the cap: no storage brings it below"));
    }
    let y = svg.height();
    svg.legend(y, &legend);
    Some(svg.finish("the time of a later epoch by RAM"))
}
