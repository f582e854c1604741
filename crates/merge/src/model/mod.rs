//! Models: tensors by name with their configuration and the small files beside them.

mod adapted;
pub(crate) mod adapter;
mod fused;
mod paddle;
mod ranks;
mod stacks;
mod start;
mod stated;

pub(crate) use paddle::turned;

use crate::error::{Error, Result, nearest};
use crate::input::Input;
use crate::recipe::Reference;
use crate::values::Values;
use adapter::Adapter;
use planaria_ckpt::convert::weights;
use planaria_ckpt::formats::{OpenOptions, Source, open};
use planaria_store::{Store, StoreExt, join, local_path};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Largest small file.
const SMALL: u64 = 256 << 20;

/// A model that goes into a merge.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// As the recipe names it.
    pub(crate) name: String,
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, Arc<dyn Values>>,
    /// Tensors of element types that cannot be computed with.
    pub(crate) foreign: BTreeSet<String>,
    files: Files,
    /// The checkpoint that it comes from in the end.
    pub(crate) source: Arc<Source>,
    /// What is read of it; nothing of a model that was computed.
    pub(crate) inputs: Vec<Arc<Input>>,
    /// What was not as it said and was put right.
    pub(crate) warnings: Vec<String>,
}

/// Where the small files of a model are.
#[derive(Clone, Debug)]
enum Files {
    Stored(Arc<dyn Store>, String),
    Made(BTreeMap<String, Vec<u8>>),
}

/// Where relative paths of a recipe begin.
#[derive(Clone, Debug, Default)]
pub struct Root(Option<PathBuf>);

impl Root {
    /// Paths are relative to this folder.
    pub fn new(folder: impl Into<PathBuf>) -> Root {
        Root(Some(folder.into()))
    }

    fn find(&self, path: &str) -> Result<String> {
        let found = match (&self.0, local_path(path)) {
            (Some(root), Some(local)) if local.is_relative() => root.join(local),
            (_, Some(local)) => local,
            (_, None) => return Ok(path.to_string()),
        };
        if !found.exists() {
            let near = neighbours(&found);
            let name = found.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            let near = nearest(&name, near.iter().map(String::as_str));
            return Err(Error::model(path, format!("there is nothing at this path{near}")));
        }
        found.to_str().map(str::to_string).ok_or_else(|| Error::model(path, "the path is not text"))
    }
}

/// What stands in the same folder.
fn neighbours(path: &Path) -> Vec<String> {
    let entries = path.parent().and_then(|parent| std::fs::read_dir(parent).ok());
    let names = entries.into_iter().flatten().flatten();
    names.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

impl Model {
    /// Opens the checkpoint that a reference names, with its adapter if it has one. No tensor is read.
    pub(crate) fn open(reference: &Reference, root: &Root) -> Result<Model> {
        let mut model = Model::open_path(&reference.path, root)?;
        model.name = reference.to_string();
        if let Some(architecture) = &reference.architecture {
            model.config["architectures"] = serde_json::json!([architecture]);
        }
        model.with_adapter(reference, root)
    }

    /// The model with the adapter that a reference names, if it names one.
    pub(crate) fn with_adapter(mut self, reference: &Reference, root: &Root) -> Result<Model> {
        if let Some((path, _)) = &reference.lora {
            let adapter = Adapter::open(path, root)?;
            adapter.apply(&mut self)?;
            self.inputs.extend(adapter.inputs());
        }
        Ok(self)
    }

    pub(crate) fn open_path(path: &str, root: &Root) -> Result<Model> {
        let found = root.find(path)?;
        let (store, at) = planaria_store::locate(&found)?;
        let at = planaria_ckpt::newest(&*store, &at)?;
        let source = Arc::new(open(&store, &at, &OpenOptions::default())?);
        let input = Arc::new(Input::new(path, found.clone(), &source)?);
        let tensors = input.tensors().map(|(name, values)| (name.clone(), values)).collect();
        let named = weights(&source).into_iter().filter(|(_, key)| source.foreign.contains_key(key));
        let foreign = named.map(|(name, _)| name).collect();
        let folder = match local_path(&found) {
            Some(local) if local.is_file() => String::new(),
            _ => at,
        };
        let files = Files::Stored(store, folder);
        let (name, config, inputs) = (path.to_string(), Value::Null, vec![input]);
        let mut model = Model { name, config, tensors, foreign, files, source, inputs, warnings: Vec::new() };
        if let Some(text) = model.file("config.json")? {
            let bad =
                |error: serde_json::Error| Error::model(path, format!("config.json is not JSON: {error}"));
            model.config = serde_json::from_slice(&text).map_err(bad)?;
        }
        Ok(model)
    }

    /// A model that was computed.
    pub(crate) fn made(
        name: String,
        config: Value,
        tensors: BTreeMap<String, Arc<dyn Values>>,
        files: BTreeMap<String, Vec<u8>>,
        source: Arc<Source>,
    ) -> Model {
        Model {
            name,
            config,
            tensors,
            foreign: BTreeSet::new(),
            files: Files::Made(files),
            source,
            inputs: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// A small file beside the tensors, if it is there.
    pub(crate) fn file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        match &self.files {
            Files::Made(files) => Ok(files.get(name).cloned()),
            Files::Stored(store, folder) => match store.read(&join(folder, name), SMALL) {
                Ok(bytes) => Ok(Some(bytes)),
                Err(planaria_store::Error::NotFound { .. } | planaria_store::Error::NotAFile { .. }) => {
                    Ok(None)
                }
                Err(error) => Err(error.into()),
            },
        }
    }

    /// A small file of JSON.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>> {
        Ok(self.file(name)?.map(|text| String::from_utf8_lossy(&text).into_owned()))
    }

    /// The same as JSON.
    pub(crate) fn json(&self, name: &str) -> Result<Option<Value>> {
        let Some(text) = self.file(name)? else { return Ok(None) };
        let bad = |error: serde_json::Error| Error::model(&self.name, format!("{name} is not JSON: {error}"));
        serde_json::from_slice(&text).map(Some).map_err(bad)
    }

    /// `model_type` of the configuration, or of its text part.
    pub(crate) fn model_type(&self) -> &str {
        self.config["model_type"].as_str().unwrap_or("")
    }

    /// A number of the configuration, or of its text part.
    pub(crate) fn number(&self, keys: &[&str]) -> Option<usize> {
        let found =
            |config: &Value| keys.iter().find_map(|key| config[*key].as_u64()).map(|number| number as usize);
        found(&self.config).or_else(|| found(&self.config["text_config"]))
    }

    /// Rows of the vocabulary, as the configuration says.
    pub(crate) fn vocab_size(&self) -> Option<usize> {
        self.number(&["vocab_size"])
    }

    /// A tensor that must be there.
    pub(crate) fn tensor(&self, name: &str) -> Result<&Arc<dyn Values>> {
        if self.foreign.contains(name) {
            let what = format!("'{name}' has an element type that cannot be computed with");
            return Err(Error::model(&self.name, what));
        }
        self.tensors.get(name).ok_or_else(|| {
            let near = nearest(name, self.tensors.keys().map(String::as_str));
            Error::model(&self.name, format!("'{name}' is missing{near}"))
        })
    }
}
