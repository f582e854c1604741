//! Pictures and videos for models that see: decoded, resized, and cut into patches.

mod frames;
mod patches;
mod read;
mod resize;
mod shown;

pub use frames::{Sampled, Wanted, sample_frames};
pub use patches::{Grid, Patches, Preprocess};
pub use read::Alpha;
pub use resize::{Picture, fitting_size};
pub use shown::{Item, Pixels, Seen, ShownKind, Sight};

use thiserror::Error;

/// Why a picture or a video cannot be taken.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// A file that is not a picture, or a damaged one, or one that is too large.
    #[error("this is not a valid PNG, JPEG or WebP picture: {reason}")]
    Broken {
        /// What the decoder said.
        reason: String,
    },
    /// Sides too far apart.
    #[error(
        "a picture of {height} by {width} pixels: one side is more than {most} times the other; crop it first"
    )]
    Ratio {
        /// Rows.
        height: usize,
        /// Columns.
        width: usize,
        /// The largest ratio.
        most: usize,
    },
    /// Frames of several sizes in one video.
    #[error("frames of {first:?} and {other:?} pixels (height, width) in one video; resize them to one size")]
    Sizes {
        /// Of the first frame.
        first: (usize, usize),
        /// Of another one.
        other: (usize, usize),
    },
    /// More frames than there are, or fewer than two.
    #[error("{count} frames of a video that has {total}; ask for at least 2 and at most {total}")]
    Frames {
        /// Frames of the video.
        total: usize,
        /// Frames asked for.
        count: f64,
    },
    /// A value in `preprocessor_config.json`.
    #[error("preprocessor_config.json: `{key}` is {found}, expected {expected}")]
    Setting {
        /// The key.
        key: String,
        /// What stands there.
        found: String,
        /// What should.
        expected: &'static str,
    },
}
