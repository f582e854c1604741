//! Curves in a terminal: axes, dots, the runs' names at the ends of their lines, marks below.

use super::canvas::{Dots, Pen};
use super::scale::{Scale, labels};
use super::{Chart, colour};
use crate::history::MarkKind;
use std::fmt::Write;

/// Where a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Canvas {
    /// Characters per line.
    pub width: usize,
    /// Lines.
    pub height: usize,
    /// Whether colours are understood.
    pub colour: bool,
}

impl Default for Canvas {
    fn default() -> Canvas {
        Canvas { width: 80, height: 20, colour: false }
    }
}

/// Longest name of a run that is shown.
const NAME: usize = 18;

impl Chart {
    /// The chart as text.
    pub fn to_text(&self, canvas: &Canvas) -> String {
        let rows = canvas.height.clamp(8, 200) - 4;
        let values = self.scale.ticks(self.values, rows / 3);
        let value_labels = labels(&values);
        let left = value_labels.iter().map(String::len).max().unwrap_or(1);
        let names: Vec<String> = self.curves.iter().map(|c| c.name.chars().take(NAME).collect()).collect();
        let right = names.iter().map(|n| n.chars().count()).max().unwrap_or(0) + 1;
        let columns = canvas.width.clamp(40, 1000).saturating_sub(left + right + 2).max(10);
        let dots = self.draw(columns, rows);
        let ends = self.ends(&dots);
        let mut out =
            format!("{:left$} {}{}\n", "", self.metric, if self.scale == Scale::Log { " (log)" } else { "" });
        for row in 0..rows {
            let tick = values.iter().position(|&v| self.row_of(&dots, v) == Some(row));
            let (text, edge) = tick.map_or(("", '│'), |i| (value_labels[i].as_str(), '┤'));
            let _ = write!(out, "{text:>left$} {edge}");
            for column in 0..columns {
                let (mark, pen) = dots.cell(column, row).unwrap_or((' ', Pen::default()));
                out.push_str(&painted(mark, pen, canvas.colour));
            }
            if let Some(run) = ends.iter().position(|&end| end == Some(row)) {
                let pen = Pen { colour: colour(run), faint: false };
                let name: String = names[run].chars().map(|c| painted(c, pen, canvas.colour)).collect();
                let _ = write!(out, " {name}");
            }
            end_line(&mut out);
        }
        self.step_axis(&mut out, left, columns);
        self.mark_line(&mut out, left, columns, canvas.colour);
        out
    }

    fn draw(&self, columns: usize, rows: usize) -> Dots {
        let mut dots = Dots::new(columns, rows);
        for faint in [true, false] {
            for (run, curve) in self.curves.iter().enumerate() {
                let pen = Pen { colour: colour(run), faint };
                let mut before = None;
                for &point in if faint { &curve.points } else { &curve.smooth } {
                    let place = self.place(point);
                    if let Some(place) = place {
                        dots.line(before.unwrap_or(place), place, pen);
                    }
                    before = place;
                }
            }
        }
        dots
    }

    fn row_of(&self, dots: &Dots, value: f64) -> Option<usize> {
        self.scale.place(value, self.values).map(|y| dots.row(y))
    }

    /// The row where each run's name stands: that of its last value, or the next free one.
    fn ends(&self, dots: &Dots) -> Vec<Option<usize>> {
        let mut taken: Vec<Option<usize>> = Vec::new();
        for curve in &self.curves {
            let wanted = curve.smooth.last().and_then(|p| self.row_of(dots, p.1));
            let free = |row: &usize| !taken.contains(&Some(*row));
            let place = wanted.and_then(|w| (0..dots.rows).filter(free).min_by_key(|row| row.abs_diff(w)));
            taken.push(place);
        }
        taken
    }

    fn step_axis(&self, out: &mut String, left: usize, columns: usize) {
        let ticks = Scale::Linear.ticks(self.steps, columns / 14);
        let places: Vec<usize> = ticks.iter().map(|&t| column(self.place_step(t), columns)).collect();
        let _ = write!(out, "{:left$} └", "");
        (0..columns).for_each(|c| out.push(if places.contains(&c) { '┬' } else { '─' }));
        end_line(out);
        let mut line = String::new();
        for (place, text) in places.into_iter().zip(labels(&ticks)) {
            let start = (left + 2 + place).saturating_sub(text.len() / 2);
            if line.is_empty() || start > line.len() {
                let _ = write!(line, "{:1$}{text}", "", start - line.len());
            }
        }
        out.push_str(&line);
        end_line(out);
    }

    fn mark_line(&self, out: &mut String, left: usize, columns: usize, colours: bool) {
        let mut line: Vec<Option<(char, Pen)>> = vec![None; columns];
        let mut seen = [false; 2];
        for (run, curve) in self.curves.iter().enumerate() {
            for mark in &curve.marks {
                let restart = mark.kind == MarkKind::Restart;
                seen[usize::from(restart)] = true;
                let cell = &mut line[column(self.place_step(mark.step as f64), columns)];
                // A restart is rarer than a checkpoint of the same step.
                if restart || cell.is_none() {
                    let pen = Pen { colour: colour(run), faint: false };
                    *cell = Some((if restart { '↻' } else { '▴' }, pen));
                }
            }
        }
        if seen == [false; 2] {
            return;
        }
        let _ = write!(out, "{:1$}", "", left + 2);
        for cell in line {
            out.push_str(&cell.map_or_else(|| " ".to_string(), |(c, pen)| painted(c, pen, colours)));
        }
        end_line(out);
        let told: Vec<&str> = [(seen[0], "▴ checkpoint"), (seen[1], "↻ restart")]
            .into_iter()
            .filter_map(|(seen, text)| seen.then_some(text))
            .collect();
        let _ = write!(out, "{:1$}{2}", "", left + 2, told.join("  "));
        end_line(out);
    }
}

/// The column of a place from 0 to 1.
fn column(x: f64, columns: usize) -> usize {
    (x.clamp(0.0, 1.0) * (columns - 1) as f64).round() as usize
}

fn painted(mark: char, pen: Pen, colours: bool) -> String {
    if !colours || mark == ' ' {
        return mark.to_string();
    }
    let (r, g, b) = pen.colour;
    let faint = if pen.faint { "2;" } else { "" };
    format!("\x1b[{faint}38;2;{r};{g};{b}m{mark}\x1b[0m")
}

/// Ends a line without spaces before its end.
fn end_line(out: &mut String) {
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}
