//! What loaders do now, for the live view.

use super::judged::{Judged, Report};
use super::text::{named, percent, title, verdict};

/// What a loader does now, in words.
pub(in crate::cli) struct LoaderNow {
    pub(in crate::cli) who: String,
    pub(in crate::cli) epoch: String,
    pub(in crate::cli) verdict: &'static str,
    /// What the trainer does, if it is known.
    pub(in crate::cli) trainer: Option<String>,
    /// Shares of its workers' time.
    pub(in crate::cli) parts: Vec<(&'static str, f64)>,
}

impl LoaderNow {
    /// Those whose epochs go on. If there are none, the one with the latest epoch.
    pub(in crate::cli) fn all(report: &Report) -> Vec<Self> {
        let goes_on = |judged: &&Judged| !judged.epoch.is_over;
        let now: Vec<Self> = report.epochs.iter().filter(goes_on).map(Self::of).collect();
        match now.is_empty() {
            true => report.epochs.last().map(Self::of).into_iter().collect(),
            false => now,
        }
    }

    fn of(judged: &Judged) -> Self {
        let Judged { epoch, finding, .. } = judged;
        let waits = |wait| format!("waits for data {} of the time", percent(wait));
        LoaderNow {
            who: format!("{} (pid {})", epoch.program, epoch.trainer),
            epoch: title(epoch),
            verdict: verdict(finding),
            trainer: finding.trainer_wait.map(waits),
            parts: named(&finding.parts).into(),
        }
    }

    /// All of it in a line.
    pub(in crate::cli) fn line(&self) -> String {
        let parts = self.parts.iter().map(|(name, share)| format!("{name} {}", percent(*share)));
        let trainer = self.trainer.as_ref().map(|trainer| format!("trainer {trainer}"));
        let words: Vec<String> = trainer.into_iter().chain(parts).collect();
        format!("{}, {}, {}: {}", self.who, self.epoch, self.verdict, words.join(", "))
    }
}
