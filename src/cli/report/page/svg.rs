//! Writes a drawing: rectangles, lines and words, and the axes of a chart.

use std::fmt::{Display, Write};

/// Pixels of a drawing, and what is left of its charts for names and values.
pub(super) const WIDTH: f64 = 860.0;
pub(super) const LEFT: f64 = 130.0;
const RIGHT: f64 = 16.0;

/// Pixels below a chart for the values of its axis.
const BELOW: f64 = 34.0;

/// A text as XML may have it.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' => out.push('\n'),
            _ if c.is_control() => out.push('\u{fffd}'),
            _ => out.push(c),
        }
    }
    out
}

/// Where a word stands.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How a value of an axis becomes a place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    /// Pixels of both.
    from: f64,
    to: f64,
    is_log: bool,
}

impl Scale {
    /// Values from 0 across the width of a chart.
    pub(super) fn across(high: f64) -> Self {
        Scale { low: 0.0, high: high.max(1e-9), from: LEFT, to: WIDTH - RIGHT, is_log: false }
    }

    /// Values from 0 up the height of a chart whose top is at `top`.
    pub(super) fn up(high: f64, top: f64, height: f64) -> Self {
        Scale { low: 0.0, high: high.max(1e-9), from: top + height, to: top, is_log: false }
    }

    /// The same by powers of ten.
    pub(super) fn up_by_tens(low: f64, high: f64, top: f64, height: f64) -> Self {
        let low = 10_f64.powf(low.max(1e-9).log10().floor());
        let high = 10_f64.powf(high.max(low * 10.0).log10().ceil());
        Scale { low, high, from: top + height, to: top, is_log: true }
    }

    pub(super) fn at(&self, value: f64) -> f64 {
        let share = match self.is_log {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Round values of the axis.
    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let tens = |power: i32| 10_f64.powi(power);
            let (first, last) = (self.low.log10().round() as i32, self.high.log10().round() as i32);
            return (first..=last).map(tens).collect();
        }
        let rough = (self.high - self.low) / 6.0;
        let ten = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * ten).into_iter();
        let step = step.clone().find(|step| *step >= rough).unwrap_or(rough);
        let count = ((self.high - self.low) / step) as usize;
        (0..=count).map(|nth| self.low + nth as f64 * step).collect()
    }
}

/// A drawing.
#[derive(Default)]
pub(super) struct Svg {
    body: String,
    height: f64,
}

impl Svg {
    /// The place below all that was drawn so far.
    pub(super) fn height(&self) -> f64 {
        self.height
    }

    fn reaches(&mut self, y: f64) {
        self.height = self.height.max(y);
    }

    /// A word with its baseline at `y`.
    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: impl Display) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(&text.to_string());
        let _ = writeln!(
            self.body,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
        self.reaches(y + 6.0);
    }

    /// The name of a row, left of the chart.
    pub(super) fn name(&mut self, y: f64, text: impl Display) {
        self.text(LEFT - 8.0, y, Anchor::End, text);
    }

    /// A rectangle with a text that is shown if it is pointed at.
    pub(super) fn rect(
        &mut self,
        (x, y): (f64, f64),
        (w, h): (f64, f64),
        class: &str,
        title: &str,
    ) {
        let title = escaped(title);
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\">\
             <title>{title}</title></rect>"
        );
        self.reaches(y + h);
    }

    /// Many rectangles of one colour: left, top and width of each, and the height of all.
    pub(super) fn rects(&mut self, of: &[(f64, f64, f64)], h: f64, class: &str) {
        let mut path = String::new();
        for (x, y, w) in of {
            let _ = write!(path, "M{x:.1} {y:.0}h{w:.1}v{h:.0}h-{w:.1}z");
            self.reaches(y + h);
        }
        if !path.is_empty() {
            let _ = writeln!(self.body, "<path class=\"{class}\" d=\"{path}\"/>");
        }
    }

    fn points(points: &[(f64, f64)]) -> String {
        let words: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        words.join(" ")
    }

    pub(super) fn line(&mut self, points: &[(f64, f64)], class: &str) {
        let points = Self::points(points);
        let _ = writeln!(self.body, "<polyline class=\"line {class}\" points=\"{points}\"/>");
    }

    pub(super) fn area(&mut self, points: &[(f64, f64)], class: &str) {
        let points = Self::points(points);
        let _ = writeln!(self.body, "<polygon class=\"{class}\" points=\"{points}\"/>");
    }

    /// The axis below a chart that goes from `top` down to `bottom`.
    pub(super) fn axis_below(&mut self, scale: Scale, (top, bottom): (f64, f64), unit: &str) {
        for tick in scale.ticks() {
            let x = scale.at(tick);
            self.line(&[(x, top), (x, bottom)], "grid");
            self.text(x, bottom + 14.0, Anchor::Middle, short(tick));
        }
        self.text(scale.to, bottom + 28.0, Anchor::End, unit);
        self.reaches(bottom + BELOW);
    }

    /// The axis left of a chart.
    pub(super) fn axis_left(&mut self, scale: Scale, words: impl Fn(f64) -> String) {
        for tick in scale.ticks() {
            let y = scale.at(tick);
            self.line(&[(LEFT, y), (WIDTH - RIGHT, y)], "grid");
            self.name(y + 4.0, if tick == 0.0 { "0".to_owned() } else { words(tick) });
        }
    }

    /// The names of colours, in a row.
    pub(super) fn legend(&mut self, y: f64, of: &[(&str, &str)]) {
        let mut x = LEFT;
        for (class, name) in of {
            self.rect((x, y), (10.0, 10.0), class, name);
            self.text(x + 14.0, y + 9.5, Anchor::Start, name);
            x += 30.0 + 6.6 * name.chars().count() as f64;
        }
        self.reaches(y + 20.0);
    }

    /// The whole drawing.
    pub(super) fn finish(self, title: &str) -> String {
        let (height, title) = (self.height + 4.0, escaped(title));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" \
             role=\"img\"><title>{title}</title>\n{}</svg>\n",
            self.body
        )
    }
}

/// A value of an axis, without zeros that say nothing.
pub(super) fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_values() {
        let ticks = |high| Scale::across(high).ticks().into_iter().map(short).collect::<Vec<_>>();
        assert_eq!(ticks(25.1), ["0", "5", "10", "15", "20", "25"]);
        assert_eq!(ticks(0.7), ["0", "0.2", "0.4", "0.6"]);
        let tens = Scale::up_by_tens(0.03, 200.0, 0.0, 100.0);
        assert_eq!(tens.ticks().len(), 6);
        assert_eq!((tens.at(0.01), tens.at(1000.0)), (100.0, 0.0));
        assert!((tens.at(1.0) - 60.0).abs() < 1e-9);
    }

    #[test]
    fn texts_are_escaped() {
        assert_eq!(escaped("a<b>\"&\u{7}"), "a&lt;b&gt;&quot;&amp;\u{fffd}");
        let mut svg = Svg::default();
        svg.text(1.0, 2.0, Anchor::End, "x & y");
        svg.rects(&[(1.0, 2.0, 3.0)], 4.0, "fetch");
        let text = svg.finish("t");
        assert!(text.contains("x &amp; y</text>") && text.contains("M1.0 2h3.0v4h-3.0z"), "{text}");
    }
}
