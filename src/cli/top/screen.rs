//! The view on a terminal.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, signal};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Gauge as Bar, Paragraph};
use ratatui::{DefaultTerminal, Frame};

use super::view::View;
use crate::cli::report::LoaderNow;
use crate::cli::terminal::escaped;
use crate::error::{Error, ErrorKind, Result};

/// Columns of the bar of a loader's parts, and of the names before lines.
const BAR: f64 = 60.0;
const NAME: u16 = 9;

/// How long a signal may go unnoticed.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Whether a signal has come that ends the view.
static SIGNALLED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_signal: c_int) {
    SIGNALLED.store(true, Ordering::Release);
}

/// The terminal, which is given back when this is dropped, and after a panic. A signal that ends other programs has the user
/// leave.
pub(super) struct Screen(DefaultTerminal);

impl Screen {
    pub(super) fn open() -> Result<Self> {
        for ends in [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT] {
            // SAFETY: the handler only stores to an atomic, which is allowed in a handler.
            unsafe { signal(ends, SigHandler::Handler(on_signal)) }
                .map_err(|errno| failed(&errno.into()))?;
        }
        ratatui::try_init().map(Screen).map_err(|error| {
            // The terminal may have been changed already.
            ratatui::restore();
            failed(&error)
        })
    }

    pub(super) fn draw(&mut self, view: &View) -> Result<()> {
        self.0.draw(|frame| draw(frame, view)).map(|_| ()).map_err(|error| failed(&error))
    }

    /// Waits until then. The view is drawn anew if the size of the terminal changes. Returns whether the user wants to leave.
    pub(super) fn wait(&mut self, until: Instant, view: &View) -> Result<bool> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if SIGNALLED.load(Ordering::Acquire) {
                return Ok(true);
            }
            if !event::poll(left.min(SIGNALS_EVERY)).map_err(|error| failed(&error))? {
                if left <= SIGNALS_EVERY {
                    return Ok(false);
                }
                continue;
            }
            match event::read().map_err(|error| failed(&error))? {
                Event::Key(key) => {
                    let ends =
                        key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
                    if ends || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                        return Ok(true);
                    }
                }
                Event::Resize(..) => self.draw(view)?,
                _ => {}
            }
            if left == Duration::ZERO {
                return Ok(false);
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn failed(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Usage, format!("the terminal cannot be used: {error}"))
        .hint("add --plain")
}

fn draw(frame: &mut Frame, view: &View) {
    let text = lines(view, usize::from(frame.area().width));
    let heights = [
        Constraint::Length(text.len() as u16),
        Constraint::Length(view.gauges.len() as u16),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [top, tiers, _, bottom] = Layout::vertical(heights).areas(frame.area());
    frame.render_widget(Paragraph::new(text), top);
    let rows = Layout::vertical(view.gauges.iter().map(|_| Constraint::Length(1))).split(tiers);
    for (gauge, row) in view.gauges.iter().zip(rows.iter()) {
        let [name, bar] =
            Layout::horizontal([Constraint::Length(NAME), Constraint::Fill(1)]).areas(*row);
        frame.render_widget(Paragraph::new(gauge.name).bold(), name);
        let bar_of = Bar::default().ratio(gauge.full).label(gauge.words.as_str());
        frame.render_widget(
            bar_of.gauge_style(Style::new().fg(Color::Blue).bg(Color::DarkGray)),
            bar,
        );
    }
    frame.render_widget(Paragraph::new("q: leave").dim(), bottom);
}

fn lines(view: &View, width: usize) -> Vec<Line<'static>> {
    let mut lines = vec![Line::from(escaped(&view.title)).bold(), Line::default()];
    if view.loaders.is_empty() {
        lines.push(Line::from("no loader was seen that has read for a second and more"));
    }
    for loader in &view.loaders {
        lines.extend(of_loader(loader));
    }
    lines.extend([Line::default(), Line::from(format!("{}:", view.over)).dim()]);
    for (name, words) in &view.lines {
        let indent = usize::from(NAME);
        let color = if *name == "faults" { Color::Red } else { Color::Reset };
        let mut name = Some(*name);
        for part in wrapped(&escaped(words), width.saturating_sub(indent)) {
            let name = Span::from(format!("{:<indent$}", name.take().unwrap_or_default())).bold();
            lines.push(Line::from(vec![name, Span::from(part).fg(color)]));
        }
    }
    lines
}

/// Words in as few lines of this width as they take. A line ends after a semicolon. What is longer than a line is cut.
fn wrapped(words: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for thought in words.split_inclusive("; ") {
        let has_room =
            |line: &&mut String| line.chars().count() + thought.trim_end().chars().count() <= width;
        match lines.last_mut().filter(has_room) {
            Some(line) => line.push_str(thought),
            None => lines.push(thought.to_owned()),
        }
    }
    lines
}

/// A loader: its verdict, the parts of its workers' time as a bar of colours, and their names.
fn of_loader(loader: &LoaderNow) -> Vec<Line<'static>> {
    const COLORS: [Color; 6] =
        [Color::Red, Color::Green, Color::Yellow, Color::DarkGray, Color::Magenta, Color::White];
    let of_trainer = loader.trainer.as_ref().map(|words| format!(", its trainer {words}"));
    let verdict = vec![
        Span::from(escaped(&loader.who)).bold(),
        Span::from(": "),
        Span::from(loader.verdict).bold(),
        Span::from(of_trainer.unwrap_or_default()),
    ];
    let indent = || Span::from(" ".repeat(usize::from(NAME)));
    let (mut bar, mut names) = (vec![indent()], vec![indent()]);
    for ((name, share), color) in loader.parts.iter().zip(COLORS) {
        bar.push(Span::from("█".repeat((share * BAR).round() as usize)).fg(color));
        if *share >= 0.005 {
            names.push(Span::from(format!("{name} {:.0} %  ", share * 100.0)).fg(color));
        }
    }
    let epoch = Line::from(vec![indent(), Span::from(loader.epoch.clone())]);
    vec![Line::from(verdict), epoch, Line::from(bar), Line::from(names)]
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::cli::top::view::Gauge;

    fn drawn(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        terminal.backend().to_string()
    }

    fn view() -> View {
        View {
            title: "/pfs/data\u{7} at /mnt".into(),
            over: "now",
            loaders: vec![LoaderNow {
                who: "python3 (pid 7)".into(),
                epoch: "epoch 2, 2 workers: 12.5 s so far".into(),
                verdict: "fetch-bound",
                trainer: Some("waits for data 81 % of the time".into()),
                parts: vec![("fetch", 0.75), ("processor", 0.25)],
            }],
            lines: vec![("readers", "100 opens/s".into()), ("faults", "3 reads failed".into())],
            gauges: vec![Gauge { name: "ram", full: 0.5, words: "1 GiB kept of 2 GiB".into() }],
        }
    }

    #[test]
    fn all_of_the_view_is_on_the_screen() {
        let text = drawn(&view(), 80, 16);
        for words in [
            "/pfs/data\\x07 at /mnt",
            "python3 (pid 7): fetch-bound, its trainer waits for data 81 % of the time",
            "epoch 2, 2 workers: 12.5 s so far",
            "█████",
            "fetch 75 %  processor 25 %",
            "readers  100 opens/s",
            "faults   3 reads failed",
            "1 GiB kept of 2 GiB",
            "q: leave",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }

    #[test]
    fn a_line_that_is_too_long_goes_on_below() {
        assert_eq!(wrapped("one; two; three", 9), ["one; two; ", "three"]);
        assert_eq!(wrapped("one two three", 3), ["one two three"]);
        let mut long = view();
        long.lines[0].1 = format!("{}; the end", "x".repeat(68));
        assert!(drawn(&long, 80, 17).contains("\"         the end"));
    }

    #[test]
    fn a_small_terminal_shows_the_beginning() {
        assert!(drawn(&view(), 20, 3).contains("/pfs/data"));
        drawn(&view(), 1, 1);
    }
}
