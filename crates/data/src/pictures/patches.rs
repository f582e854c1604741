//! Pictures and videos as rows of numbers, one for each patch, in the order of the vision tower.

use super::{Picture, Refusal, fitting_size};
use serde_json::{Map, Value};

/// Frames, rows and columns of patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Pairs of frames, or however many a patch reaches over; 1 for a picture.
    pub frames: usize,
    /// Rows of patches.
    pub rows: usize,
    /// Columns of patches.
    pub columns: usize,
}

impl Grid {
    /// Patches.
    pub fn patches(&self) -> usize {
        self.frames * self.rows * self.columns
    }

    /// Tokens in the text, of `merge * merge` patches each.
    pub fn tokens(&self, merge: usize) -> usize {
        self.patches() / (merge * merge)
    }
}

/// Patches of one picture or video.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    /// How they lie.
    pub grid: Grid,
    /// A row for each patch, block after block of `merge * merge`: channel, frame, row and column inside it.
    pub values: Vec<f32>,
}

/// `preprocessor_config.json`: how pictures become patches.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocess {
    /// Side of a patch.
    pub patch: usize,
    /// Frames of a patch.
    pub frames: usize,
    /// Patches on each side of what becomes one token.
    pub merge: usize,
    /// Fewest pixels after resizing.
    pub least: usize,
    /// Most pixels after resizing.
    pub most: usize,
    /// Taken from each channel.
    pub mean: [f32; 3],
    /// What each channel is divided by.
    pub std: [f32; 3],
    /// Factor on 8-bit values before that.
    pub rescale: f64,
}

impl Default for Preprocess {
    fn default() -> Preprocess {
        Preprocess {
            patch: 14,
            frames: 2,
            merge: 2,
            least: 56 * 56,
            most: 28 * 28 * 1280,
            mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
            std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
            rescale: 1.0 / 255.0,
        }
    }
}

impl Preprocess {
    /// Reads the object of a `preprocessor_config.json`. `size` has numbers of pixels under names of edges; those named as
    /// numbers of pixels come first.
    pub fn from_config(map: &Map<String, Value>) -> Result<Preprocess, Refusal> {
        let wrong = |key: &str, expected: &'static str| Refusal::Setting {
            key: key.to_string(),
            found: map.get(key).map_or("missing".to_string(), Value::to_string),
            expected,
        };
        let size = |key: &str, otherwise: usize| match map.get(key).filter(|value| !value.is_null()) {
            None => Ok(otherwise),
            Some(value) => value
                .as_u64()
                .and_then(|n| usize::try_from(n).ok())
                .filter(|&n| n > 0 && n < 1 << 32)
                .ok_or_else(|| wrong(key, "a positive integer")),
        };
        let triple = |key: &str, otherwise: [f32; 3]| -> Result<[f32; 3], Refusal> {
            let Some(value) = map.get(key).filter(|value| !value.is_null()) else { return Ok(otherwise) };
            let numbers: Option<Vec<f64>> =
                value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
            match numbers.as_deref() {
                Some(&[r, g, b]) => Ok([r as f32, g as f32, b as f32]),
                _ => Err(wrong(key, "three numbers")),
            }
        };
        let usual = Preprocess::default();
        let edge = |key: &str, otherwise: usize| {
            let inner = map.get("size").and_then(Value::as_object).and_then(|edges| edges.get(key));
            let pixels = inner.and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
            pixels.filter(|&n| n > 0).unwrap_or(otherwise)
        };
        let read = Preprocess {
            patch: size("patch_size", usual.patch)?,
            frames: size("temporal_patch_size", usual.frames)?,
            merge: size("merge_size", usual.merge)?,
            least: size("min_pixels", edge("shortest_edge", usual.least))?,
            most: size("max_pixels", edge("longest_edge", usual.most))?,
            mean: triple("image_mean", usual.mean)?,
            std: triple("image_std", usual.std)?,
            rescale: match map.get("rescale_factor").filter(|value| !value.is_null()) {
                None => usual.rescale,
                Some(value) => value
                    .as_f64()
                    .filter(|x| *x > 0.0)
                    .ok_or_else(|| wrong("rescale_factor", "a number above 0"))?,
            },
        };
        if read.std.iter().any(|&s| !(s.is_finite() && s != 0.0)) {
            return Err(wrong("image_std", "three numbers other than 0"));
        }
        if read.patch > 1 << 10 || read.merge > 1 << 8 || read.frames > 1 << 8 {
            return Err(wrong("patch_size", "sizes of at most 1024, with merges and frames of at most 256"));
        }
        Ok(read)
    }

    /// Numbers of a patch.
    pub fn width(&self) -> usize {
        3 * self.frames * self.patch * self.patch
    }

    /// The patches of one picture.
    pub fn picture(&self, picture: &Picture) -> Result<Patches, Refusal> {
        self.video(std::slice::from_ref(picture))
    }

    /// The patches of a video: frames of one size, the last repeated where patches need more of them. A picture is one frame.
    pub fn video(&self, frames: &[Picture]) -> Result<Patches, Refusal> {
        let sizes: Vec<(usize, usize)> = frames.iter().map(|f| (f.height, f.width)).collect();
        let grid = self.grid(&sizes)?;
        let Grid { rows, columns, .. } = grid;
        let (height, width) = (rows * self.patch, columns * self.patch);
        let mut resized: Vec<Picture> = frames.iter().map(|frame| frame.resized(height, width)).collect();
        while !resized.len().is_multiple_of(self.frames) {
            resized.extend(resized.last().cloned());
        }
        let levels = self.levels();
        let mut values = Vec::with_capacity(grid.patches() * self.width());
        for frames in resized.chunks_exact(self.frames) {
            for block_row in 0..rows / self.merge {
                for block_column in 0..columns / self.merge {
                    for row in 0..self.merge {
                        for column in 0..self.merge {
                            let top = (block_row * self.merge + row) * self.patch;
                            let left = (block_column * self.merge + column) * self.patch;
                            self.patch_at(frames, (top, left), &levels, &mut values);
                        }
                    }
                }
            }
        }
        Ok(Patches { grid, values })
    }

    /// How the patches of frames of these heights and widths lie.
    pub fn grid(&self, sizes: &[(usize, usize)]) -> Result<Grid, Refusal> {
        let Some(&first) = sizes.first() else {
            return Err(Refusal::Frames { total: 0, count: 0.0 });
        };
        if let Some(&other) = sizes.iter().find(|&&size| size != first) {
            return Err(Refusal::Sizes { first, other });
        }
        let (height, width) = fitting_size(first, self.patch * self.merge, (self.least, self.most))?;
        let frames = sizes.len().div_ceil(self.frames);
        Ok(Grid { frames, rows: height / self.patch, columns: width / self.patch })
    }

    /// The number that stands for each 8-bit value of each channel.
    fn levels(&self) -> [[f32; 256]; 3] {
        std::array::from_fn(|channel| {
            let level = |value: usize| (value as f64 * self.rescale) as f32;
            std::array::from_fn(|value| (level(value) - self.mean[channel]) / self.std[channel])
        })
    }

    fn patch_at(
        &self,
        frames: &[Picture],
        (top, left): (usize, usize),
        levels: &[[f32; 256]; 3],
        values: &mut Vec<f32>,
    ) {
        for (channel, levels) in levels.iter().enumerate() {
            for frame in frames {
                for y in top..top + self.patch {
                    let row = &frame.rgb[(y * frame.width + left) * 3..][..self.patch * 3];
                    values.extend(row.iter().skip(channel).step_by(3).map(|&v| levels[usize::from(v)]));
                }
            }
        }
    }
}
