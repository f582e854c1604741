//! Checkpoints that a merge reads: their files and sizes, and a hash of what was read of them.

use crate::error::Result;
use crate::result::bytes_of;
use crate::seen::Stretch;
use crate::values::{Stored, Values};
use planaria_ckpt::convert::{Epilogue, weights};
use planaria_ckpt::formats::Source;
use planaria_ckpt::stream::Feed;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

/// A checkpoint that was opened.
#[derive(Debug)]
pub(crate) struct Input {
    /// As the recipe names it.
    name: String,
    /// Path or URL.
    pub(crate) place: String,
    source: Arc<Source>,
    tensors: BTreeMap<String, Arc<Stored>>,
}

/// What is read of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSummary {
    /// As the recipe names it.
    pub name: String,
    /// Who wrote it.
    pub format: String,
    /// Tensors.
    pub tensors: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Names and sizes of the files that hold them.
    pub files: Vec<(String, u64)>,
}

impl Input {
    /// All tensors of the model in a checkpoint. Nothing is read.
    pub(crate) fn new(name: &str, place: String, source: &Arc<Source>) -> Result<Input> {
        let feed = Arc::new(Feed::shared(source.clone()));
        let stored = |(name, key)| Ok((name, Arc::new(Stored::new(&feed, &key)?)));
        let tensors = weights(source).into_iter().map(stored).collect::<Result<_>>()?;
        Ok(Input { name: name.to_string(), place, source: source.clone(), tensors })
    }

    /// The tensors by name.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (&String, Arc<dyn Values>)> {
        self.tensors.iter().map(|(name, stored)| (name, stored.clone() as Arc<dyn Values>))
    }

    /// Bytes of all tensors.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors().map(|(_, values)| bytes_of(&values)).sum()
    }

    pub(crate) fn summary(&self) -> Result<InputSummary> {
        let mut files = Vec::new();
        for path in &self.source.files {
            let name = path.rsplit('/').next().unwrap_or(path).to_string();
            files.push((name, self.source.store.reader(path)?.size()));
        }
        let (name, format) = (self.name.clone(), self.source.format.to_string());
        Ok(InputSummary { name, format, tensors: self.tensors.len(), bytes: self.bytes(), files })
    }

    /// One line with the place of the hash.
    pub(crate) fn described(&self) -> String {
        let (tensors, bytes) = (self.tensors.len(), self.bytes());
        format!("{}: {tensors} tensors, {bytes} bytes, hash {}", self.name, self.mark())
    }

    /// What stands in the place of the hash until it is known.
    fn mark(&self) -> String {
        format!("{:016x}", fnv([self.place.as_bytes()]))
    }

    /// One number of names, types, shapes and values of all tensors, whatever files they are in. What was not read is.
    fn hash(&self) -> Result<u64> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        for (name, stored) in &self.tensors {
            parts.push(format!("{name} {}{}", stored.dtype(), stored.shape()).into_bytes());
            parts.push(stored.sum()?.to_le_bytes().to_vec());
        }
        Ok(fnv(parts.iter().map(Vec::as_slice)))
    }
}

/// FNV-1a over parts, each ended by a byte that no text has.
fn fnv<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let bytes = parts.into_iter().flat_map(|part| part.iter().chain(&[0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Every input once.
pub(crate) fn distinct<'i>(inputs: impl IntoIterator<Item = &'i Arc<Input>>) -> Vec<Arc<Input>> {
    let mut places = BTreeSet::new();
    inputs.into_iter().filter(|input| places.insert(&input.place)).cloned().collect()
}

/// Puts hashes of inputs into the files that tell of them.
#[derive(Debug)]
pub(crate) struct Hashes {
    inputs: Vec<Arc<Input>>,
    files: Vec<String>,
    /// Marks and what takes their place.
    found: OnceLock<Result<Vec<(String, String)>>>,
}

impl Hashes {
    pub(crate) fn new(inputs: Vec<Arc<Input>>, files: Vec<String>) -> Hashes {
        Hashes { inputs, files, found: OnceLock::new() }
    }
}

/// What a rank has read: numbers of input and tensor.
type Told = Vec<(usize, usize, Stretch)>;

impl Epilogue for Hashes {
    fn told(&self) -> Vec<u8> {
        let mut told: Told = Vec::new();
        for (number, input) in self.inputs.iter().enumerate() {
            for (tensor, stored) in input.tensors.values().enumerate() {
                told.extend(stored.seen().stretches().into_iter().map(|stretch| (number, tensor, stretch)));
            }
        }
        serde_json::to_vec(&told).unwrap_or_default()
    }

    fn hear(&self, told: &[u8]) {
        // What is not understood was not heard: it is read again.
        let told: Told = serde_json::from_slice(told).unwrap_or_default();
        for (number, tensor, stretch) in told {
            let stored = self.inputs.get(number).and_then(|input| input.tensors.values().nth(tensor));
            stored.into_iter().for_each(|stored| stored.seen().add(stretch));
        }
    }

    fn finish(&self, name: &str, bytes: &[u8]) -> planaria_ckpt::Result<Vec<u8>> {
        if !self.files.iter().any(|file| file == name) {
            return Ok(bytes.to_vec());
        }
        let found = self.found.get_or_init(|| {
            let found = self.inputs.iter().map(|input| Ok((input.mark(), format!("{:016x}", input.hash()?))));
            found.collect()
        });
        let found = found.as_ref().map_err(|error| error.clone().while_writing(name))?;
        let mut text = String::from_utf8_lossy(bytes).into_owned();
        for (mark, hash) in found {
            text = text.replace(&format!("hash {mark}"), &format!("hash {hash}"));
        }
        Ok(text.into_bytes())
    }
}
