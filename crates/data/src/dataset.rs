//! What training reads from: numbered samples of one length.

use super::error::Result;
use super::pack::{Borders, IGNORED};
use super::pictures::Seen;
use super::sampler::Place;
use planaria_array::Array;

/// One sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// `sequence + 1` tokens.
    pub tokens: Vec<u32>,
    /// `sequence` labels: the next tokens, -100 where there is nothing to learn.
    pub labels: Vec<i64>,
    /// Where documents begin in the inputs, after the first, if they do not see each other.
    pub starts: Vec<usize>,
    /// Pictures and videos whose vectors take the places of marked tokens, in the order of these.
    pub shown: Vec<Seen>,
}

/// A stretch of samples from one source.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Where it comes from.
    pub name: String,
    /// Number of samples.
    pub samples: u64,
    /// Share among all samples, if shares were asked for.
    pub weight: Option<f64>,
}

/// Numbered samples. The same number gives the same sample on every rank and in every run.
pub trait Dataset: Send + Sync + std::fmt::Debug {
    /// Number of samples.
    fn len(&self) -> u64;

    /// Whether there is no sample.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Inputs, and labels, per sample.
    fn sequence(&self) -> usize;

    /// Reads sample `index` into `out`.
    fn read(&self, index: u64, out: &mut Sample) -> Result<()>;

    /// Reads the sample at a place: what is drawn of a row may be another in every epoch.
    fn read_at(&self, place: &Place, out: &mut Sample) -> Result<()> {
        self.read(place.index, out)
    }

    /// A number for each text of the sample at a place, equal for equal texts; none where samples are not made of texts.
    fn texts(&self, _place: &Place) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }

    /// What the documents of a sample see of each other.
    fn borders(&self) -> Borders {
        Borders::Joined
    }

    /// The sources, in the order of their samples.
    fn parts(&self) -> Vec<Part>;

    /// A number that changes with the content.
    fn fingerprint(&self) -> u32;
}

/// Some samples as the model takes them.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Positions of the samples in the order of training.
    pub positions: std::ops::Range<u64>,
    /// The source of the first.
    pub part: usize,
    /// Inputs, `i64[samples,sequence]`.
    pub tokens: Array,
    /// Labels of the same shape, -100 where there is nothing to learn.
    pub labels: Array,
    /// For each sample the starts of its documents, where they do not see each other.
    pub starts: Option<Vec<Vec<usize>>>,
    /// What the samples show, in their order.
    pub shown: Vec<Seen>,
    /// What an objective made of these samples before the step, in an order of its own. Nothing when they are read.
    pub attached: Vec<Array>,
}

impl Batch {
    /// Reads the samples at these places.
    pub fn read(
        dataset: &dyn Dataset,
        positions: std::ops::Range<u64>,
        place_of: impl Fn(u64) -> Result<Place>,
    ) -> Result<Batch> {
        let rows = positions.clone().count();
        let mut part = 0;
        let shape = [rows, dataset.sequence()];
        let (mut tokens, mut labels, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        let mut shown = Vec::new();
        let mut sample = Sample::default();
        for position in positions.clone() {
            let place = place_of(position)?;
            if position == positions.start {
                part = place.part;
            }
            dataset.read_at(&place, &mut sample)?;
            tokens.extend(sample.tokens[..shape[1]].iter().map(|&t| i64::from(t)));
            labels.extend_from_slice(&sample.labels);
            starts.push(sample.starts.clone());
            shown.append(&mut sample.shown);
        }
        Ok(Batch {
            positions,
            part,
            tokens: Array::from_slice(&tokens, &shape)?,
            labels: Array::from_slice(&labels, &shape)?,
            starts: (dataset.borders() == Borders::Separate).then_some(starts),
            shown,
            attached: Vec::new(),
        })
    }

    /// The same filled up to so many rows. Those have no labels; the first sample stands in, as its shape is what matters.
    pub fn read_filled(
        dataset: &dyn Dataset,
        positions: std::ops::Range<u64>,
        rows: u64,
        place_of: impl Fn(u64) -> Result<Place>,
    ) -> Result<Batch> {
        let (first, end) = (positions.start, positions.end);
        let of = |position: u64| place_of(if position < end { position } else { first });
        let mut batch = Batch::read(dataset, first..first + rows, of)?;
        if end < first + rows {
            let shape = batch.labels.shape().to_vec();
            let mut labels = batch.labels.to_vec::<i64>()?;
            labels[(end - first) as usize * dataset.sequence()..].fill(IGNORED);
            batch.labels = Array::from_slice(&labels, &shape)?;
        }
        Ok(batch)
    }
}
