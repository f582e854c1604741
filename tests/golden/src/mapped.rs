//! Checkpoints whose expected values are those of a mapping: `NAME.model_tpN.expected.safetensors` holds what the
//! statements of `NAME/aoa_load.json` make of the folder for a model cut in `N` parts.

use crate::checkpoints::{Expected, read_all, read_expected};
use anyhow::{Context, Result, ensure};
use planaria_aoa::{Catalog, Options, Program, Strictness, Tensor};
use planaria_ckpt::formats::Key;
use planaria_layout::{Region, Shape};
use planaria_store::container::{dtype_name, parse_dtype};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// The file with the statements.
const STATEMENTS: &str = "aoa_load.json";

#[derive(Deserialize)]
struct Statements {
    aoa_statements: Vec<String>,
}

/// A folder, the parts its model is cut in, and what the mapping makes of it.
pub(crate) struct Case {
    folder: PathBuf,
    parts: usize,
    expected: PathBuf,
}

impl Case {
    /// The case of an expected file, if it is one of these.
    pub(crate) fn of(expected: &Path) -> Option<Case> {
        let name = expected.file_name()?.to_str()?.strip_suffix(".expected.safetensors")?;
        let (stem, parts) = name.split_once(".model_tp")?;
        let folder = expected.with_file_name(stem);
        let parts = parts.parse().ok().filter(|parts| *parts > 0)?;
        folder.join(STATEMENTS).is_file().then_some(Case { folder, parts, expected: expected.to_path_buf() })
    }

    pub(crate) fn check(&self) -> Result<()> {
        let statements: Statements = serde_json::from_slice(&fs::read(self.folder.join(STATEMENTS))?)?;
        let (source, tensors) = read_all(&self.folder)?;
        let expected = read_expected(&self.expected)?;
        let mut sources = Catalog::new();
        for (key, entry) in &source.tensors {
            sources.insert(key.name.as_str(), Tensor::new(entry.shape.clone(), entry.dtype));
        }
        let options = Options { strictness: Strictness::Lenient, ..Options::default() };
        let program = Program::from_statements(&statements.aoa_statements)?;
        let mapping = program.compile(&sources, Some(&self.targets(&expected)?), &options)?;
        for (name, (dtype, shape, wanted)) in &expected {
            let whole = Region::whole(&Shape::new(shape)?);
            let mut found = vec![0; wanted.len()];
            for piece in mapping.pieces(name, &whole)? {
                let key = Key::model(piece.source);
                let entry = source.get(&key)?;
                ensure!(dtype_name(entry.dtype) == dtype, "{name}: made from {key}, which is not a {dtype}");
                let (size, bytes) = (entry.dtype.size(), &tensors[&key]);
                let from = piece.from.runs(&Region::whole(&entry.shape));
                let from: Vec<usize> = from.flat_map(|(at, len)| at..at + len).collect();
                let to = piece.to.runs(&whole).flat_map(|(at, len)| at..at + len);
                for (to, i) in to.zip(piece.order()) {
                    found[to * size..][..size].copy_from_slice(&bytes[from[i] * size..][..size]);
                }
            }
            ensure!(found == *wanted, "{name}: the bytes differ");
        }
        Ok(())
    }

    /// The tensors to make, cut along the last dim where it divides: that is how fused weights are held.
    fn targets(&self, expected: &Expected) -> Result<Catalog> {
        let mut targets = Catalog::new();
        for (name, (dtype, shape, _)) in expected {
            let dtype = parse_dtype(dtype).with_context(|| format!("{name}: unknown dtype {dtype}"))?;
            let mut offsets = vec![vec![0; shape.len()]];
            if let Some(last) = shape.last().copied().filter(|last| last % self.parts == 0) {
                offsets = (0..self.parts)
                    .map(|part| {
                        let mut offset = vec![0; shape.len()];
                        offset[shape.len() - 1] = last / self.parts * part;
                        offset
                    })
                    .collect();
            }
            let tensor = Tensor::new(Shape::new(shape)?, dtype);
            targets.insert(name.as_str(), tensor.with_offsets(offsets.iter().map(Vec::as_slice)));
        }
        Ok(targets)
    }
}
