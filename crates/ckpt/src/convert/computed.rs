//! Checkpoints whose tensors are computed while they are written: merges of models, adapters.

use super::made::{Made, Origin};
use super::range::Beyond;
use super::{Beside, Conversion, ConvertOptions, To, check_names, names, plain, unmapped, wanted};
use crate::error::{Error, Result};
use crate::formats::roles::Roles;
use crate::formats::write;
use crate::formats::{Key, Part, Source};
use planaria_layout::{DType, Region, Shape};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

/// Values that are made when they are written. Any elements may be asked for, in any order, by several threads; the same
/// elements are always the same.
pub trait Values: Debug + Send + Sync {
    /// Puts the elements from `first` on, in row-major order, into `out`.
    fn fill(&self, first: usize, out: &mut [u8]) -> Result<()>;
}

/// A tensor of the model that is computed while it is written.
#[derive(Clone, Debug)]
pub struct Computed {
    /// Its name.
    pub name: String,
    /// Element type as written.
    pub dtype: DType,
    /// Extents.
    pub shape: Shape,
    /// Where its elements come from.
    pub values: Arc<dyn Values>,
}

/// What is written beside the tensors, and under which names they stand.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// How the files of weights of a Hugging Face folder begin: `model`, or `adapter_model`.
    pub stem: &'static str,
    /// Small files by name.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Who finishes them once all tensors are written.
    pub epilogue: Option<Arc<dyn Epilogue>>,
}

/// Finishes small files with what is known only when all tensors have been written, such as checksums of what was read.
pub trait Epilogue: Debug + Send + Sync {
    /// What this rank knows, for the first one.
    fn told(&self) -> Vec<u8>;
    /// What another rank told.
    fn hear(&self, told: &[u8]);
    /// A small file as it is written; of the same length, since sizes are told before.
    fn finish(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>>;
}

/// Plans a checkpoint of computed tensors; nothing is computed yet. Nothing of `beside` is read: it only says where the
/// values come from in the end.
pub fn plan_computed<'s>(
    beside: &'s Source,
    to: To,
    tensors: Vec<Computed>,
    surroundings: Surroundings,
    options: &ConvertOptions,
) -> Result<Conversion<'s>> {
    options.check()?;
    if tensors.is_empty() {
        return Err(Error::Request { what: "nothing is left to write".to_string() });
    }
    let made: Vec<Made> = tensors.into_iter().map(Made::computed).collect();
    check_names(&made)?;
    let mut loads = BTreeMap::new();
    let wanted: Result<Vec<_>> =
        made.iter().map(|made| wanted(beside, made, to, &options.cut, &mut loads)).collect();
    let (wanted, limit) = (wanted?, options.max_shard_size);
    let draft = match to {
        To::HuggingFace => write::hugging_face(&wanted, surroundings.stem, limit, &plain())?,
        To::PaddleUnified => write::unified(&wanted, limit)?,
        To::TorchDcp => write::dcp(&wanted, &BTreeMap::new(), &|name| vec![name.into()], limit),
        To::Planaria => write::planaria(&wanted, limit)?,
    };
    Ok(Conversion {
        source: beside,
        to,
        beyond: Beyond::of(&made),
        made,
        draft,
        left_out: Vec::new(),
        values_left_out: Vec::new(),
        beside: Beside::default(),
        given: surroundings.files,
        epilogue: surroundings.epilogue,
        warnings: Vec::new(),
        about: Value::Null,
        dtype: None,
        max_memory: options.max_memory,
    })
}

/// The tensors of a source's model by the names that its modules give them. Where only master weights were saved, they are
/// the model.
pub fn weights(source: &Source) -> BTreeMap<String, Key> {
    let mut made = unmapped(source, &Roles::of(source), false);
    names::masters_for_missing(&mut made);
    let model = made.into_iter().filter(|made| made.key.part == Part::Model);
    let named = model.filter_map(|made| match made.from {
        Origin::Same(key) => Some((made.key.name, key)),
        _ => None,
    });
    named.collect()
}

impl Made {
    fn computed(computed: Computed) -> Made {
        let Computed { name, dtype, shape, values } = computed;
        Made { key: Key::model(name), dtype, shape, from: Origin::Computed(values) }
    }
}

/// Puts a box of a computed tensor, in row-major order, into `out`.
pub(super) fn fill(made: &Made, values: &dyn Values, want: &Region, out: &mut [u8]) -> Result<()> {
    let (size, mut at) = (made.dtype.size(), 0);
    for (first, len) in want.runs(&Region::whole(&made.shape)) {
        values.fill(first, &mut out[at..at + len * size])?;
        at += len * size;
    }
    Ok(())
}
