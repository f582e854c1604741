//! `samples.jsonl`: what a run generated, some texts of a step per line.

use crate::error::{Error, Result};
use crate::metrics::{ends_torn, now};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Name of the file in a run's folder.
pub const SAMPLES: &str = "samples.jsonl";

/// Bytes from which on the older half of the file is let go.
const MOST: u64 = 32 << 20;

/// Characters of a text that are kept.
const LONGEST: usize = 4000;

/// One text that was generated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// What was given.
    pub prompt: String,
    /// What came.
    pub response: String,
    /// What it is worth, where somebody says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward: Option<f64>,
    /// Whether it ended by itself.
    pub finished: bool,
}

/// What was generated in a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sampled {
    /// The step.
    pub step: u64,
    /// When, in seconds since 1970.
    pub time: f64,
    /// The texts.
    pub samples: Vec<Sample>,
}

/// Appends lines to the file of a run; it is made with the first.
#[derive(Debug)]
pub struct SamplesWriter {
    path: PathBuf,
    most: u64,
}

impl SamplesWriter {
    /// Writes to the folder of a run.
    pub fn new(run: &Path) -> SamplesWriter {
        SamplesWriter { path: run.join(SAMPLES), most: MOST }
    }

    /// Appends what was generated in a step; long texts lose their ends.
    pub fn write(&self, step: u64, samples: &[Sample]) -> Result<()> {
        let io = |what| Error::io(what, &self.path);
        let cut = |text: &str| match text.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text.to_string(),
        };
        let cut = |sample: &Sample| Sample {
            prompt: cut(&sample.prompt),
            response: cut(&sample.response),
            reward: sample.reward.filter(|reward| reward.is_finite()),
            finished: sample.finished,
        };
        let line = Sampled { step, time: now(), samples: samples.iter().map(cut).collect() };
        let text = serde_json::to_string(&line).unwrap_or_default();
        let open = File::options().read(true).append(true).create(true).open(&self.path);
        let mut file = open.map_err(io("open"))?;
        let start = if ends_torn(&mut file).map_err(io("read"))? { "\n" } else { "" };
        file.write_all(format!("{start}{text}\n").as_bytes()).map_err(io("write"))?;
        if file.metadata().is_ok_and(|about| about.len() > self.most) {
            self.halve().map_err(io("write"))?;
        }
        Ok(())
    }

    /// Lets go of the older half.
    fn halve(&self) -> std::io::Result<()> {
        let bytes = fs::read(&self.path)?;
        let middle = bytes.len() / 2;
        let begin = bytes[middle..].iter().position(|&byte| byte == b'\n').map_or(0, |at| middle + at + 1);
        let new = self.path.with_extension("new");
        fs::write(&new, &bytes[begin..])?;
        fs::rename(new, &self.path)
    }
}

/// The steps that have samples, in order, and those of one of them: the last that is not after `wanted`. Steps that a resumed run has
/// overtaken are left out, and so are lines that cannot be read.
pub fn read_samples(run: &Path, wanted: u64) -> (Vec<u64>, Option<Sampled>) {
    /// The number alone; the rest of a line is passed over.
    #[derive(Deserialize)]
    struct Numbered {
        step: u64,
    }
    let Ok(file) = File::open(run.join(SAMPLES)) else { return (Vec::new(), None) };
    let mut bytes = Vec::new();
    // Whatever stands there, no more is read than a run writes.
    if file.take(2 * MOST).read_to_end(&mut bytes).is_err() {
        return (Vec::new(), None);
    }
    let mut lines: Vec<(u64, &[u8])> = Vec::new();
    for line in bytes.split(|&byte| byte == b'\n') {
        let Ok(Numbered { step }) = serde_json::from_slice(line) else { continue };
        lines.truncate(lines.partition_point(|&(earlier, _)| earlier < step));
        lines.push((step, line));
    }
    let at = lines.partition_point(|&(step, _)| step <= wanted);
    let chosen = at.checked_sub(1).and_then(|at| serde_json::from_slice(lines[at].1).ok());
    (lines.into_iter().map(|(step, _)| step).collect(), chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(text: &str, reward: f64) -> Sample {
        Sample { prompt: "2+2".into(), response: text.into(), reward: Some(reward), ..Sample::default() }
    }

    #[test]
    fn what_a_resumed_run_repeats_counts_and_a_torn_line_costs_itself() {
        let run = tempfile::tempdir().unwrap();
        assert_eq!(read_samples(run.path(), 9), (Vec::new(), None));
        let writer = SamplesWriter::new(run.path());
        for step in 1..=4 {
            writer.write(step, &[sample("4", step as f64)]).unwrap();
        }
        let mut raw = File::options().append(true).open(run.path().join(SAMPLES)).unwrap();
        raw.write_all(b"{\"step\":5,\"samp").unwrap();
        let long = "ü".repeat(2 * LONGEST);
        writer.write(3, &[sample(&long, f64::NAN), sample("5", 0.5)]).unwrap();
        let (steps, newest) = read_samples(run.path(), u64::MAX);
        let newest = newest.unwrap();
        assert_eq!((steps, newest.step), (vec![1, 2, 3], 3));
        assert_eq!((newest.samples[0].reward, newest.samples[1].reward), (None, Some(0.5)));
        assert_eq!(newest.samples[0].response.chars().count(), LONGEST + 1);
        assert_eq!(read_samples(run.path(), 2).1.unwrap().samples, [sample("4", 2.0)]);
        assert_eq!(read_samples(run.path(), 0).1, None);
    }

    #[test]
    fn the_file_stays_within_its_bound() {
        let run = tempfile::tempdir().unwrap();
        let writer = SamplesWriter { most: 4096, ..SamplesWriter::new(run.path()) };
        (1..=500).for_each(|step| writer.write(step, &[sample("four", 1.0)]).unwrap());
        assert!(fs::metadata(run.path().join(SAMPLES)).unwrap().len() <= 4096 + 200);
        let (steps, newest) = read_samples(run.path(), u64::MAX);
        assert_eq!((steps.last(), newest.unwrap().step), (Some(&500), 500));
        assert!(steps.windows(2).all(|pair| pair[0] + 1 == pair[1]) && steps.len() > 5);
    }
}
