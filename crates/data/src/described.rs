//! What a rank without data knows of it: everything but the samples.

use super::corpus::Data;
use super::dataset::{Dataset, Part, Sample};
use super::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A dataset that other ranks read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Described {
    sequence: usize,
    fingerprint: u32,
    parts: Vec<Row>,
}

/// A source: its name, its samples, and the bits of its weight, which text would round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    name: String,
    samples: u64,
    weight: Option<u64>,
}

impl Described {
    fn of(data: &dyn Dataset) -> Described {
        let row = |part: Part| Row {
            name: part.name,
            samples: part.samples,
            weight: part.weight.map(f64::to_bits),
        };
        Described {
            sequence: data.sequence(),
            fingerprint: data.fingerprint(),
            parts: data.parts().into_iter().map(row).collect(),
        }
    }
}

impl Dataset for Described {
    fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.samples).sum()
    }

    fn sequence(&self) -> usize {
        self.sequence
    }

    fn read(&self, index: u64, _: &mut Sample) -> Result<()> {
        Err(Error::Elsewhere { index })
    }

    fn parts(&self) -> Vec<Part> {
        let part = |row: &Row| Part {
            name: row.name.clone(),
            samples: row.samples,
            weight: row.weight.map(f64::from_bits),
        };
        self.parts.iter().map(part).collect()
    }

    fn fingerprint(&self) -> u32 {
        self.fingerprint
    }
}

/// The sides of some data as text, for ranks that do not read it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Description {
    train: Described,
    eval: Option<Described>,
}

impl Description {
    /// The numbers of some data, without its samples.
    pub fn of(data: &Data) -> Description {
        let eval = data.eval.as_ref().map(|eval| Described::of(&**eval));
        Description { train: Described::of(&*data.train), eval }
    }

    /// Data of which every number is known and no sample.
    pub fn into_data(self) -> Data {
        Data {
            train: Arc::new(self.train),
            eval: self.eval.map(|eval| Arc::new(eval) as Arc<dyn Dataset>),
            report: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Sampler, Source, Tokenizer};

    #[test]
    fn a_description_gives_the_same_order_and_no_sample() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config { sequence: 4, ..Config::default() };
        for (name, weight) in [("a.txt", 0.1), ("b.txt", 0.7)] {
            let path = folder.path().join(name);
            std::fs::write(&path, "every piece grows back whole").unwrap();
            let mut source = Source::new(path.display().to_string());
            source.weight = Some(weight);
            config.source.push(source.clone());
            config.eval = vec![source];
        }
        let data = config.open(&Tokenizer::bytes()).unwrap();
        let text = serde_json::to_string(&Description::of(&data)).unwrap();
        let told = serde_json::from_str::<Description>(&text).unwrap().into_data();
        let order = |data: &Data| Sampler::new(&*data.train, 3, config.order).unwrap();
        assert_eq!(order(&told).state(), order(&data).state());
        assert!((0..50).all(|p| order(&told).place(p).unwrap() == order(&data).place(p).unwrap()));
        assert_eq!(told.eval.unwrap().len(), data.eval.unwrap().len());
        let error = told.train.read(3, &mut Sample::default()).unwrap_err();
        assert!(error.to_string().contains("sample 3"), "{error}");
    }
}
