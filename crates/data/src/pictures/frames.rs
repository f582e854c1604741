//! Which frames of a video are looked at.

use super::Refusal;

/// How many frames are wanted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wanted {
    /// So many, rounded to an even number.
    Frames(usize),
    /// So many a second, within limits.
    PerSecond {
        /// Frames a second.
        fps: f64,
        /// At least so many.
        least: usize,
        /// At most so many.
        most: usize,
    },
}

impl Default for Wanted {
    fn default() -> Wanted {
        Wanted::PerSecond { fps: 2.0, least: 4, most: 768 }
    }
}

/// The chosen frames of a video.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Their numbers, ascending.
    pub frames: Vec<usize>,
    /// Frames a second after the choice.
    pub fps: f64,
}

/// Chooses an even number of frames, spread over the whole video.
pub fn sample_frames(total: usize, video_fps: f64, wanted: Wanted) -> Result<Sampled, Refusal> {
    let refuse = |count: f64| Err(Refusal::Frames { total, count });
    if !(video_fps > 0.0 && video_fps.is_finite()) {
        return refuse(f64::NAN);
    }
    let count = match wanted {
        Wanted::Frames(count) => (count as f64 / 2.0).round_ties_even() * 2.0,
        Wanted::PerSecond { fps, least, most } => {
            let least = least.div_ceil(2) * 2;
            let most = most.min(total) / 2 * 2;
            let count = total as f64 / video_fps * fps;
            let count = count.max(least as f64).min(most as f64).min(total as f64);
            (count / 2.0).floor() * 2.0
        }
    };
    if !(count >= 2.0 && count <= total as f64) {
        return refuse(count);
    }
    let n = count as usize;
    let step = (total - 1) as f64 / (n - 1) as f64;
    // As torch has it: the second half is counted from the end.
    let at =
        |i: usize| if i < n / 2 { step * i as f64 } else { (total - 1) as f64 - step * (n - 1 - i) as f64 };
    let frames = (0..n).map(|i| at(i).round_ties_even() as usize).collect();
    Ok(Sampled { frames, fps: count / total as f64 * video_fps })
}
