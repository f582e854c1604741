//! Positions on three axes: frame, row and column for what is seen, three times the same for text.

use super::places::{Grid, rotations};
use crate::error::{Error, Result};
use planaria_array::Array;
use planaria_array::ops::RotaryTable;

/// Which tokens stand for what is seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marks {
    /// `image_token_id`.
    pub image: i64,
    /// `video_token_id`.
    pub video: i64,
    /// Patches on each side of what one token stands for.
    pub merge: usize,
    /// Positions of a second of video, where frames are placed by time.
    pub per_second: Option<f64>,
}

/// What is seen, in the order in which the rows show it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scenes {
    /// Grids of pictures.
    pub images: Vec<Grid>,
    /// Grids of videos.
    pub videos: Vec<Grid>,
    /// Seconds from one frame of a video's grid to the next; 1 where none are given.
    pub seconds: Vec<f64>,
}

/// Where the tokens of rows stand.
#[derive(Clone, Debug)]
pub struct Axes {
    /// `[3, rows, tokens]`, I64: frame, row, column. 0 where a row has no token.
    pub ids: Array,
    /// The position after the last, of each row.
    pub next: Vec<i64>,
}

/// The positions of rows of tokens of one length; `real` says which of them count.
pub fn axes(rows: &[Vec<i64>], real: Option<&[Vec<bool>]>, scenes: &Scenes, marks: &Marks) -> Result<Axes> {
    let length = rows.first().map_or(0, Vec::len);
    let refuse = |message: String| Err(Error::Argument { what: "positions", message });
    if rows.iter().any(|row| row.len() != length) {
        return refuse("rows of several lengths; pad them to one".to_string());
    }
    let mut seen = Seen::new(scenes, marks);
    let mut ids = vec![0i64; 3 * rows.len() * length];
    let mut next = Vec::with_capacity(rows.len());
    for (number, row) in rows.iter().enumerate() {
        let counts = |at: &usize| real.and_then(|real| real.get(number)).is_none_or(|real| real[*at]);
        let real: Vec<usize> = (0..length).filter(counts).collect();
        let tokens: Vec<i64> = real.iter().map(|&at| row[at]).collect();
        let (places, end) = seen.row(number, &tokens)?;
        for (&at, place) in real.iter().zip(places) {
            place
                .iter()
                .enumerate()
                .for_each(|(axis, &p)| ids[(axis * rows.len() + number) * length + at] = p);
        }
        next.push(end);
    }
    seen.finish()?;
    Ok(Axes { ids: Array::from_slice(&ids, &[3, rows.len(), length])?, next })
}

/// The positions of rows `[rows, tokens]` in which documents stand one after the other: each begins at 0. `starts` says where those
/// after the first of a row begin.
pub fn document_axes(tokens: &Array, starts: &[Vec<usize>], scenes: &Scenes, marks: &Marks) -> Result<Array> {
    let [rows, length] = tokens.shape()[..] else {
        let message = format!("tokens are [rows, tokens], got {}", tokens.shape());
        return Err(Error::Argument { what: "positions", message });
    };
    let all = tokens.to(planaria_array::Device::Cpu)?.to_vec::<i64>()?;
    let mut seen = Seen::new(scenes, marks);
    let mut ids = vec![0i64; 3 * rows * length];
    for number in 0..rows {
        let inside = starts.get(number).map_or(&[][..], Vec::as_slice).iter().filter(|&&at| at < length);
        let mut borders = vec![0];
        borders.extend(inside.copied().chain([length]));
        for document in borders.windows(2) {
            let first = number * length + document[0];
            let (places, _) = seen.row(number, &all[first..number * length + document[1]])?;
            for (at, place) in (first..).zip(places) {
                place.iter().enumerate().for_each(|(axis, &p)| ids[axis * rows * length + at] = p);
            }
        }
    }
    seen.finish()?;
    Ok(Array::from_slice(&ids, &[3, rows, length])?)
}

struct Seen<'a> {
    scenes: &'a Scenes,
    marks: &'a Marks,
    images: usize,
    videos: usize,
}

impl<'a> Seen<'a> {
    fn new(scenes: &'a Scenes, marks: &'a Marks) -> Seen<'a> {
        Seen { scenes, marks, images: 0, videos: 0 }
    }

    /// Refuses what has no place in the tokens.
    fn finish(&self) -> Result<()> {
        let given = (self.scenes.images.len(), self.scenes.videos.len());
        if (self.images, self.videos) == given {
            return Ok(());
        }
        let message = format!(
            "{} pictures and {} videos are given, but the tokens have places for {} and {}",
            given.0, given.1, self.images, self.videos
        );
        Err(Error::Argument { what: "positions", message })
    }

    fn row(&mut self, number: usize, tokens: &[i64]) -> Result<(Vec<[i64; 3]>, i64)> {
        let mut places: Vec<[i64; 3]> = Vec::with_capacity(tokens.len());
        let mut next = 0i64;
        while places.len() < tokens.len() {
            let token = tokens[places.len()];
            if token != self.marks.image && token != self.marks.video {
                places.push([next; 3]);
                next += 1;
                continue;
            }
            let [frames, rows, columns] = self.grid(number, token)?;
            let (rows, columns) = (rows / self.marks.merge, columns / self.marks.merge);
            let wanted = frames * rows * columns;
            let found = tokens[places.len()..].iter().take(wanted).take_while(|&&t| t == token).count();
            if found != wanted || wanted == 0 {
                let message = format!(
                    "row {number} has {found} tokens in a row for a grid of {frames} frames, {rows} rows and {columns} \
                     columns, which needs {wanted}"
                );
                return Err(Error::Argument { what: "positions", message });
            }
            let second = self.frame_step(token);
            for frame in 0..frames {
                let at = next + second.map_or(frame as i64, |step| (frame as f64 * step).floor() as i64);
                for row in 0..rows {
                    let place = |column: usize| [at, next + row as i64, next + column as i64];
                    places.extend((0..columns).map(place));
                }
            }
            let item = &places[places.len() - wanted..];
            next = item.iter().flatten().copied().max().unwrap_or(next) + 1;
        }
        Ok((places, next))
    }

    /// The grid of the next picture or video.
    fn grid(&mut self, row: usize, token: i64) -> Result<Grid> {
        let is_image = token == self.marks.image;
        let (grids, at, what) = match is_image {
            true => (&self.scenes.images, &mut self.images, "pictures"),
            false => (&self.scenes.videos, &mut self.videos, "videos"),
        };
        let Some(&grid) = grids.get(*at) else {
            let message =
                format!("row {row} has a place for one more of the {} {what} that are given", grids.len());
            return Err(Error::Argument { what: "positions", message });
        };
        *at += 1;
        Ok(grid)
    }

    /// Positions from one frame to the next, where they follow time.
    fn frame_step(&self, token: i64) -> Option<f64> {
        let per_second = self.marks.per_second?;
        if token == self.marks.image {
            return Some(0.0);
        }
        let seconds = self.scenes.seconds.get(self.videos - 1).copied().unwrap_or(1.0);
        Some(seconds * per_second)
    }
}

/// Cosines and sines of every token, row after row: pair `j` takes its position from the axis whose section it is in.
pub fn rotation_rows(ids: &Array, frequencies: &[f64], sections: [usize; 3]) -> Result<RotaryTable> {
    let count = ids.numel() / 3;
    let values = ids.to(planaria_array::Device::Cpu)?.to_vec::<i64>()?;
    let ends = [sections[0], sections[0] + sections[1]];
    let axis = |pair: usize| ends.iter().filter(|&&end| pair >= end).count();
    let angle = |token: usize, pair: usize| values[axis(pair) * count + token] as f64 * frequencies[pair];
    let angles: Vec<f64> = (0..count)
        .flat_map(|token| (0..frequencies.len()).map(move |pair| (token, pair)))
        .map(|(t, p)| angle(t, p))
        .collect();
    rotations(&angles, frequencies.len())
}
