//! Curves as SVG.

use super::scale::{Scale, labels};
use super::{Chart, Curve, colour};
use crate::error::{Error, Result};
use crate::history::MarkKind;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Points a curve is reduced to: more than a screen has columns.
const POINTS: usize = 2000;
/// Room for labels: left, right, top, bottom.
const ROOM: (i32, i32, i32, i32) = (70, 150, 34, 56);

pub(super) fn draw<E: std::fmt::Display>(error: E) -> Error {
    Error::Draw { what: error.to_string() }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// Maps places from (0, 0) at the bottom left to (1, 1) into pixels.
#[derive(Clone, Copy)]
struct Frame {
    left: i32,
    right: i32,
    top: i32,
    bottom: i32,
}

impl Frame {
    fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        let along =
            |from: i32, to: i32, t: f64| from + (f64::from(to - from) * t.clamp(0.0, 1.0)).round() as i32;
        (along(self.left, self.right, x), along(self.bottom, self.top, y))
    }
}

impl Chart {
    /// The chart as an SVG document of `size` pixels, at least 320 x 200.
    pub fn to_svg(&self, size: (u32, u32)) -> Result<String> {
        let size = (size.0.clamp(320, 10_000), size.1.clamp(200, 10_000));
        let mut out = String::new();
        {
            let area = SVGBackend::with_string(&mut out, size).into_drawing_area();
            area.fill(&WHITE).map_err(draw)?;
            let (right, bottom) = (size.0 as i32 - ROOM.1, size.1 as i32 - ROOM.3);
            let frame = Frame { left: ROOM.0, right, top: ROOM.2, bottom };
            self.axes(&area, frame)?;
            for (run, curve) in self.curves.iter().enumerate() {
                self.line(&area, frame, &curve.points, rgb(run).mix(0.3).stroke_width(1))?;
                self.line(&area, frame, &curve.smooth, rgb(run).stroke_width(2))?;
                self.marks(&area, frame, run, curve)?;
            }
            self.names(&area, frame)?;
            self.legend(&area, frame)?;
            area.present().map_err(draw)?;
        }
        Ok(out)
    }

    fn axes(&self, area: &Area<'_>, frame: Frame) -> Result<()> {
        let grid = RGBColor(225, 225, 225).stroke_width(1);
        let black = BLACK.stroke_width(1);
        let path = |a: (f64, f64), b: (f64, f64), style: ShapeStyle| {
            area.draw(&PathElement::new(vec![frame.at(a), frame.at(b)], style)).map_err(draw)
        };
        let values = self.scale.ticks(self.values, 8);
        for (value, text) in values.iter().zip(labels(&values)) {
            let Some(y) = self.scale.place(*value, self.values) else { continue };
            path((0.0, y), (1.0, y), grid)?;
            let (x, y) = frame.at((0.0, y));
            words(area, &text, (x - 8, y), 13, HPos::Right, VPos::Center, BLACK)?;
        }
        let steps = Scale::Linear.ticks(self.steps, 8);
        for (step, text) in steps.iter().zip(labels(&steps)) {
            let (x, y) = frame.at((self.place_step(*step), 0.0));
            area.draw(&PathElement::new(vec![(x, y), (x, y + 5)], black)).map_err(draw)?;
            words(area, &text, (x, y + 9), 13, HPos::Center, VPos::Top, BLACK)?;
        }
        path((0.0, 0.0), (1.0, 0.0), black)?;
        path((0.0, 0.0), (0.0, 1.0), black)?;
        let title = format!("{}{}", self.metric, if self.scale == Scale::Log { " (log)" } else { "" });
        words(area, &title, (frame.left, frame.top - 12), 15, HPos::Left, VPos::Bottom, BLACK)?;
        words(area, "step", (frame.right, frame.bottom + 26), 13, HPos::Right, VPos::Top, BLACK)
    }

    /// Draws the stretches of a curve between values that cannot be drawn.
    fn line(&self, area: &Area<'_>, frame: Frame, points: &[(u64, f64)], style: ShapeStyle) -> Result<()> {
        for stretch in points.split(|p| !p.1.is_finite()).filter(|s| !s.is_empty()) {
            let places = reduced(stretch).into_iter().filter_map(|p| Some(frame.at(self.place(p)?)));
            area.draw(&PathElement::new(places.collect::<Vec<_>>(), style)).map_err(draw)?;
        }
        Ok(())
    }

    /// Checkpoints as short ticks on the axis, restarts as long ones.
    fn marks(&self, area: &Area<'_>, frame: Frame, run: usize, curve: &Curve) -> Result<()> {
        for mark in &curve.marks {
            let (x, y) = frame.at((self.place_step(mark.step as f64), 0.0));
            let (length, style) = match mark.kind {
                MarkKind::Checkpoint => (7, rgb(run).stroke_width(1)),
                MarkKind::Restart => (16, rgb(run).stroke_width(2)),
            };
            area.draw(&PathElement::new(vec![(x, y), (x, y - length)], style)).map_err(draw)?;
        }
        Ok(())
    }

    /// What faint and bold lines, short and long ticks stand for, as far as there are any.
    fn legend(&self, area: &Area<'_>, frame: Frame) -> Result<()> {
        let has = |kind| self.curves.iter().flat_map(|c| &c.marks).any(|mark| mark.kind == kind);
        let grey = RGBColor(90, 90, 90);
        let flat = |x: i32, y: i32| vec![(x, y), (x + 22, y)];
        let upright = |length: i32| move |x: i32, y: i32| vec![(x + 11, y + 5), (x + 11, y + 5 - length)];
        type Sample<'s> = &'s dyn Fn(i32, i32) -> Vec<(i32, i32)>;
        let averaged = self.smooth > 0.0;
        let average = format!("moving average ({})", self.smooth);
        let entries: [(bool, Sample<'_>, ShapeStyle, &str); 4] = [
            (averaged, &flat, grey.mix(0.3).stroke_width(1), "as recorded"),
            (averaged, &flat, grey.stroke_width(2), &average),
            (has(MarkKind::Checkpoint), &upright(7), grey.stroke_width(1), "checkpoint"),
            (has(MarkKind::Restart), &upright(16), grey.stroke_width(2), "restart"),
        ];
        let (mut x, y) = (frame.left, frame.bottom + 36);
        for (_, sample, style, text) in entries.into_iter().filter(|entry| entry.0) {
            area.draw(&PathElement::new(sample(x, y), style)).map_err(draw)?;
            words(area, text, (x + 28, y), 12, HPos::Left, VPos::Center, grey)?;
            // About as wide as its letters are.
            x += 28 + 7 * text.len() as i32 + 16;
        }
        Ok(())
    }

    /// Each run's name at the end of its line, moved apart where they would overlap.
    fn names(&self, area: &Area<'_>, frame: Frame) -> Result<()> {
        let end =
            |curve: &Curve| curve.smooth.last().and_then(|&p| self.place(p)).map_or(0, |p| frame.at(p).1);
        let mut ends: Vec<(i32, usize)> = self.curves.iter().map(end).zip(0..).collect();
        ends.sort_unstable();
        let mut lowest = i32::MIN;
        for (y, run) in ends {
            let y = y.max(lowest.saturating_add(15));
            lowest = y;
            let place = (frame.right + 6, y);
            words(area, &self.curves[run].name, place, 13, HPos::Left, VPos::Center, rgb(run))?;
        }
        Ok(())
    }
}

fn rgb(run: usize) -> RGBColor {
    let (r, g, b) = colour(run);
    RGBColor(r, g, b)
}

pub(super) fn words(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    horizontal: HPos,
    vertical: VPos,
    colour: RGBColor,
) -> Result<()> {
    let style = TextStyle::from(("sans-serif", size)).pos(Pos::new(horizontal, vertical)).color(&colour);
    area.draw(&Text::new(text.to_string(), at, style)).map_err(draw)
}

/// First, lowest, highest and last point of each of some pieces: peaks stay, the file stays small.
fn reduced(points: &[(u64, f64)]) -> Vec<(u64, f64)> {
    if points.len() <= POINTS {
        return points.to_vec();
    }
    let mut out = Vec::with_capacity(POINTS);
    for piece in points.chunks(points.len().div_ceil(POINTS / 4)) {
        let by_value = |a: &&(u64, f64), b: &&(u64, f64)| a.1.total_cmp(&b.1);
        let mut kept: Vec<_> =
            [piece.first(), piece.iter().min_by(by_value), piece.iter().max_by(by_value), piece.last()]
                .into_iter()
                .flatten()
                .copied()
                .collect();
        kept.sort_by_key(|p| p.0);
        kept.dedup();
        out.extend(kept);
    }
    out
}
