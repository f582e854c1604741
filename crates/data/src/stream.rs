//! Samples that a program makes itself, one after the other: read in order, by every rank of the process.

use super::dataset::{Dataset, Part, Sample};
use super::error::{Error, Result};
use super::pack::IGNORED;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// As many samples as nobody reaches: a stream ends when its program says so.
const ENDLESS: u64 = 1 << 52;

/// Token ids of a sample, and what to learn in their places; without labels, the ids themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ids {
    /// The tokens, at most one more than `data.sequence`.
    pub tokens: Vec<i64>,
    /// As many labels, each the token that should stand there; -100 where there is nothing to learn.
    pub labels: Option<Vec<i64>>,
}

/// A program's own samples.
pub trait Stream: Send + Sync + Debug {
    /// The next sample; nothing after the last.
    fn next(&self) -> Result<Option<Ids>>;

    /// What `restore` needs to continue after the samples given so far; nothing where it cannot.
    fn state(&self) -> Result<Option<Value>>;

    /// Goes on where `state` was asked.
    fn restore(&self, state: &Value) -> Result<()>;
}

/// A stream as a dataset: positions are counted from the first sample of the run. Ranks read within a window of each
/// other; what all have read is let go.
#[derive(Debug)]
pub struct Streamed {
    source: Arc<dyn Stream>,
    sequence: usize,
    vocab: u64,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Where the run began, and how far apart states are kept; nothing before it begins.
    start: Option<(u64, Window)>,
    next: u64,
    samples: BTreeMap<u64, Sample>,
    states: BTreeMap<u64, Option<Value>>,
    ended: bool,
}

/// How far ranks are from each other at most.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Samples of a step: states are kept for its ends.
    pub step: u64,
    /// Samples that may still be read after later ones.
    pub behind: u64,
}

impl Streamed {
    /// The samples of a stream, for a model of `vocab` tokens and inputs of `sequence`.
    pub fn new(source: Arc<dyn Stream>, sequence: usize, vocab: u64) -> Streamed {
        Streamed { source, sequence, vocab, queue: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins at a position: from the state that was saved there, or past the samples before it. Every rank calls this; the
    /// first one does it.
    pub fn begin(&self, position: u64, state: Option<&Value>, window: Window) -> Result<()> {
        let mut queue = self.lock();
        if queue.start.is_some() {
            return Ok(());
        }
        match state {
            Some(state) => self.source.restore(state)?,
            None => {
                for at in 0..position {
                    if self.source.next()?.is_none() {
                        return Err(Error::StreamEnded { samples: at });
                    }
                }
            }
        }
        queue.start = Some((position, window));
        queue.next = position;
        let state = self.source.state()?;
        queue.states.insert(position, state);
        Ok(())
    }

    /// The state at the end of a step that was read.
    pub fn state(&self, position: u64) -> Option<Value> {
        self.lock().states.get(&position).cloned().flatten()
    }

    /// Takes the next sample in.
    fn pull(&self, queue: &mut Queue) -> Result<()> {
        let Some(ids) = self.source.next()? else {
            queue.ended = true;
            return Err(Error::StreamEnded { samples: queue.next });
        };
        let at = queue.next;
        queue.samples.insert(at, self.sample(at, ids)?);
        queue.next += 1;
        if let Some((start, window)) = queue.start {
            if (queue.next - start).is_multiple_of(window.step.max(1)) {
                queue.states.insert(queue.next, self.source.state()?);
            }
            let first = queue.next.saturating_sub(window.behind);
            queue.samples = queue.samples.split_off(&first);
            queue.states = queue.states.split_off(&first.saturating_sub(window.step));
        }
        Ok(())
    }

    fn sample(&self, at: u64, ids: Ids) -> Result<Sample> {
        let refuse = |problem: String| Err(Error::StreamSample { index: at, problem });
        let most = self.sequence + 1;
        if ids.tokens.is_empty() || ids.tokens.len() > most {
            return refuse(format!(
                "it has {} tokens; give 1 to {most}, as data.sequence says",
                ids.tokens.len()
            ));
        }
        if ids.labels.as_ref().is_some_and(|labels| labels.len() != ids.tokens.len()) {
            return refuse("it has another number of labels than of tokens".into());
        }
        let known = |id: i64| u64::try_from(id).is_ok_and(|id| id < self.vocab);
        let wanted = ids.labels.as_ref().unwrap_or(&ids.tokens);
        let bad = ids.tokens.iter().find(|id| !known(**id));
        let bad = bad.or_else(|| wanted.iter().find(|id| **id != IGNORED && !known(**id)));
        if let Some(id) = bad {
            return refuse(format!("token {id} is outside the vocabulary of {}", self.vocab));
        }
        let mut labels: Vec<i64> = wanted[1..].to_vec();
        labels.resize(self.sequence, IGNORED);
        let mut tokens: Vec<u32> = ids.tokens.iter().map(|&id| id as u32).collect();
        tokens.resize(most, 0);
        Ok(Sample { tokens, labels, ..Sample::default() })
    }
}

impl Dataset for Streamed {
    fn len(&self) -> u64 {
        ENDLESS
    }

    fn sequence(&self) -> usize {
        self.sequence
    }

    fn read(&self, index: u64, out: &mut Sample) -> Result<()> {
        let mut queue = self.lock();
        while queue.next <= index {
            if queue.ended {
                return Err(Error::StreamEnded { samples: queue.next });
            }
            self.pull(&mut queue)?;
        }
        match queue.samples.get(&index) {
            Some(sample) => {
                out.clone_from(sample);
                Ok(())
            }
            None => Err(Error::StreamSample {
                index,
                problem: "it was dropped before all ranks had read it".into(),
            }),
        }
    }

    fn parts(&self) -> Vec<Part> {
        vec![Part { name: "the program's own data".into(), samples: ENDLESS, weight: None }]
    }

    /// What a stream gives is not known beforehand.
    fn fingerprint(&self) -> u32 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of three equal tokens, counted from 0, up to a last one.
    #[derive(Debug)]
    struct Count(Mutex<i64>, i64);

    impl Stream for Count {
        fn next(&self) -> Result<Option<Ids>> {
            let mut at = self.0.lock().unwrap();
            *at += 1;
            Ok((*at <= self.1).then(|| Ids { tokens: vec![*at - 1; 3], labels: None }))
        }
        fn state(&self) -> Result<Option<Value>> {
            Ok(Some((*self.0.lock().unwrap()).into()))
        }
        fn restore(&self, state: &Value) -> Result<()> {
            *self.0.lock().unwrap() = state.as_i64().unwrap();
            Ok(())
        }
    }

    fn stream(last: i64) -> Streamed {
        Streamed::new(Arc::new(Count(Mutex::new(0), last)), 4, 100)
    }

    fn first(data: &Streamed, index: u64) -> Result<u32> {
        let mut sample = Sample::default();
        data.read(index, &mut sample)?;
        assert_eq!((sample.tokens.len(), sample.labels.len()), (5, 4));
        assert_eq!(sample.labels[2..], [IGNORED, IGNORED], "nothing is learnt past the end");
        Ok(sample.tokens[0])
    }

    #[test]
    fn a_stream_goes_on_from_its_state_or_past_what_was_read() {
        let window = Window { step: 4, behind: 8 };
        let data = stream(50);
        data.begin(0, None, window).unwrap();
        assert_eq!((first(&data, 6).unwrap(), first(&data, 5).unwrap()), (6, 5), "ranks read in any order");
        let state = data.state(4).unwrap();
        assert_eq!(data.state(3), None);
        for (saved, from) in [(Some(&state), 4), (None, 9)] {
            let again = stream(50);
            again.begin(from, saved, window).unwrap();
            again.begin(0, None, window).unwrap();
            assert_eq!(first(&again, from).unwrap(), from as u32);
        }
        assert_eq!(first(&data, 30).unwrap(), 30);
        assert!(first(&data, 6).unwrap_err().to_string().contains("sample 6"));
        assert!(first(&data, 50).unwrap_err().to_string().contains("50 samples"));
    }

    #[test]
    fn samples_that_no_model_could_take_are_named() {
        for (tokens, labels, told) in [
            (vec![], None, "0 tokens"),
            (vec![1; 6], None, "6 tokens"),
            (vec![100], None, "token 100"),
            (vec![1, -1], None, "token -1"),
            (vec![1, 2], Some(vec![1]), "labels"),
            (vec![1, 2], Some(vec![-100, 101]), "token 101"),
            (vec![1, 2], Some(vec![-100, -5]), "token -5"),
        ] {
            let error = stream(1).sample(3, Ids { tokens, labels }).unwrap_err().to_string();
            assert!(error.contains("sample 3") && error.contains(told), "{error}");
        }
    }
}
