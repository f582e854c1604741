//! What happened when, as SVG: rows of bars over one axis of time, one picture below the other.

use super::colour;
use super::scale::{Scale, labels};
use super::svg::{draw, words};
use crate::error::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

/// Pixels of a row, and of what stands around the rows of a picture.
const ROW: i32 = 20;
const ROOM: (i32, i32, i32, i32) = (110, 24, 40, 70);

/// Rows of bars over one axis.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// What it shows.
    pub title: String,
    /// The unit of time.
    pub unit: String,
    /// Where the axis ends; it begins at 0.
    pub end: f64,
    /// What bars are, by their kind.
    pub kinds: Vec<String>,
    /// The rows, from above.
    pub rows: Vec<Row>,
}

/// One row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its bars.
    pub bars: Vec<Bar>,
}

/// Something that took time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bar {
    /// When it began.
    pub start: f64,
    /// When it was over.
    pub end: f64,
    /// Which of the kinds.
    pub kind: usize,
}

impl Timeline {
    /// Pictures of one width, one below the other, as an SVG document.
    pub fn to_svg(all: &[Timeline], width: u32) -> Result<String> {
        let width = width.clamp(400, 10_000);
        let height: i32 = all.iter().map(Timeline::height).sum();
        let mut out = String::new();
        {
            let area = SVGBackend::with_string(&mut out, (width, height.max(1) as u32)).into_drawing_area();
            area.fill(&WHITE).map_err(draw)?;
            let mut top = 0;
            for timeline in all {
                timeline.draw(&area, (width as i32, top))?;
                top += timeline.height();
            }
            area.present().map_err(draw)?;
        }
        Ok(out)
    }

    fn height(&self) -> i32 {
        ROOM.2 + ROOM.3 + ROW * self.rows.len() as i32
    }

    fn draw(
        &self,
        area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
        (width, top): (i32, i32),
    ) -> Result<()> {
        let (left, right, first) = (ROOM.0, width - ROOM.1, top + ROOM.2);
        let last = first + ROW * self.rows.len() as i32;
        let end = if self.end > 0.0 { self.end } else { 1.0 };
        let at = |time: f64| left + (f64::from(right - left) * (time / end).clamp(0.0, 1.0)).round() as i32;
        words(area, &self.title, (left, first - 12), 15, HPos::Left, VPos::Bottom, BLACK)?;
        for (number, row) in self.rows.iter().enumerate() {
            let y = first + ROW * number as i32;
            words(area, &row.name, (left - 8, y + ROW / 2), 12, HPos::Right, VPos::Center, BLACK)?;
            for (from, to, kind) in pixels(&row.bars, &at) {
                let corners = [(from, y + 2), (to, y + ROW - 2)];
                area.draw(&Rectangle::new(corners, rgb(kind).filled())).map_err(draw)?;
            }
        }
        let black = BLACK.stroke_width(1);
        area.draw(&PathElement::new(vec![(left, last), (right, last)], black)).map_err(draw)?;
        let times = Scale::Linear.ticks((0.0, end), 8);
        for (time, text) in times.iter().zip(labels(&times)) {
            let x = at(*time);
            area.draw(&PathElement::new(vec![(x, last), (x, last + 5)], black)).map_err(draw)?;
            words(area, &text, (x, last + 8), 12, HPos::Center, VPos::Top, BLACK)?;
        }
        words(area, &self.unit, (right, last + 24), 12, HPos::Right, VPos::Top, BLACK)?;
        let mut x = left;
        for (kind, name) in self.kinds.iter().enumerate() {
            let corners = [(x, last + 38), (x + 14, last + 50)];
            area.draw(&Rectangle::new(corners, rgb(kind).filled())).map_err(draw)?;
            words(area, name, (x + 20, last + 44), 12, HPos::Left, VPos::Center, BLACK)?;
            // About as wide as its letters are.
            x += 20 + 7 * name.len() as i32 + 16;
        }
        Ok(())
    }
}

/// Bars in pixels, each at least one wide; those of one kind that meet are one, so that a file has no more than a screen shows.
fn pixels(bars: &[Bar], at: &dyn Fn(f64) -> i32) -> Vec<(i32, i32, usize)> {
    let mut out: Vec<(i32, i32, usize)> = Vec::new();
    for bar in bars {
        let (from, to) = (at(bar.start), at(bar.end).max(at(bar.start) + 1));
        match out.last_mut() {
            Some((_, end, kind)) if *kind == bar.kind && from <= *end => *end = to.max(*end),
            _ => out.push((from, to, bar.kind)),
        }
    }
    out
}

fn rgb(kind: usize) -> RGBColor {
    let (r, g, b) = colour(kind);
    RGBColor(r, g, b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_that_meet_on_the_screen_are_one() {
        let bars =
            (0..10_000).map(|i| Bar { start: f64::from(i), end: f64::from(i) + 0.5, kind: 0 }).collect();
        let row = Row { name: "train".into(), bars };
        let timeline = Timeline {
            title: "a day".into(),
            end: 1e4,
            kinds: vec!["work".into()],
            rows: vec![row],
            ..Timeline::default()
        };
        let svg = Timeline::to_svg(&[timeline.clone(), timeline], 800).unwrap();
        assert_eq!(svg.matches("a day").count(), 2);
        assert!(svg.len() < 200_000, "{}", svg.len());
    }
}
