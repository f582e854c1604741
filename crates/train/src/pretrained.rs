//! A folder of weights to begin with or to speak from: a checkpoint of ours, the newest of a run, or what others wrote.

use crate::config::{Config, ModelSection};
use crate::data::Tokenizer;
use crate::error::{Error, Result};
use crate::trainer::read_model_config;
use planaria_array::{Array, DType};
use planaria_ckpt::formats::{self, Key, OpenOptions, Part, Source};
use planaria_ckpt::{Casts, LoadOptions, TensorKind, TrainState, Unmatched};
use planaria_comm::{Comm, CommExt, Value as Told, value};
use planaria_nn::models::Models;
use planaria_store::{Store, StoreExt, join, locate};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Which weights of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// Those that were trained.
    #[default]
    Trained,
    /// Their running average, which a run keeps with `optim.ema`.
    Averaged,
}

/// Weights, and the small files beside them.
#[derive(Clone, Debug)]
pub(crate) struct Pretrained {
    /// As it was given, for messages.
    path: String,
    store: Arc<dyn Store>,
    /// Where the small files are.
    folder: String,
    /// What is opened: the folder, or one file in it.
    at: String,
}

/// Largest small file.
const SMALL: u64 = 1 << 29;
/// Ends of names that old versions of transformers saved and that every model makes again.
const MADE_AGAIN: [&str; 4] = ["rotary_emb.inv_freq", ".position_ids", ".attn.bias", ".attn.masked_bias"];
/// The mark of a checkpoint of ours.
const COMMIT: &str = "COMMIT";

impl Pretrained {
    /// Finds weights at a path or URL: a folder, a file, or the folder of a run, which stands for its newest checkpoint.
    pub(crate) fn find(path: &Path) -> Result<Pretrained> {
        let name = path.display().to_string();
        if !name.contains("://") && !path.exists() {
            let source = io::Error::new(io::ErrorKind::NotFound, "there is no such file or folder");
            return Err(Error::Io { path: name, source });
        }
        let found = || -> Result<Pretrained> {
            let (store, file) = locate(&name)?;
            if !file.is_empty() {
                return Ok(Pretrained { path: name.clone(), store, folder: String::new(), at: file });
            }
            let folder = planaria_ckpt::newest(&*store, "")?;
            Ok(Pretrained { path: name.clone(), store, at: folder.clone(), folder })
        };
        found().map_err(|error| error.in_weights(&name))
    }

    /// The store that holds them.
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Where the weights are inside the path that was given; empty for all of it.
    pub(crate) fn folder(&self) -> &str {
        &self.folder
    }

    /// A small text beside the weights, if it is there.
    pub(crate) fn text(&self, name: &str) -> Result<Option<String>> {
        match self.store.read(&join(&self.folder, name), SMALL) {
            Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
            Err(planaria_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(Error::from(error).in_weights(&self.path)),
        }
    }

    /// A small JSON object beside the weights, if it is there.
    pub(crate) fn json(&self, name: &str) -> Result<Option<Map<String, Value>>> {
        match self.value(name)? {
            None => Ok(None),
            Some((_, Value::Object(map))) => Ok(Some(map)),
            Some((origin, _)) => Err(Error::Syntax { origin, what: "not a JSON object".into() }),
        }
    }

    /// A small JSON list beside the weights, if it is there.
    pub(crate) fn json_list(&self, name: &str) -> Result<Option<Vec<Value>>> {
        match self.value(name)? {
            None => Ok(None),
            Some((_, Value::Array(list))) => Ok(Some(list)),
            Some((origin, _)) => Err(Error::Syntax { origin, what: "not a JSON list".into() }),
        }
    }

    /// The tensors of a folder in this one, by name.
    pub(crate) fn tensors_in(&self, folder: &str) -> Result<BTreeMap<String, Array>> {
        let read = || -> Result<BTreeMap<String, Array>> {
            let source = formats::open(&self.store, &join(&self.folder, folder), &OpenOptions::default())?;
            let mut out = BTreeMap::new();
            for (key, entry) in &source.tensors {
                let array = Array::from_bytes(&source.read(key)?, &entry.shape, entry.dtype)?;
                out.insert(key.name.clone(), array.cast(DType::F32)?);
            }
            Ok(out)
        };
        read().map_err(|error| error.in_weights(&self.path))
    }

    /// A small JSON file beside the weights and its name for messages, if it is there.
    fn value(&self, name: &str) -> Result<Option<(String, Value)>> {
        let file = join(&self.folder, name);
        let Some(text) = self.text(name)? else { return Ok(None) };
        let origin = format!("{}/{file}", self.path.trim_end_matches('/'));
        match serde_json::from_str(&text) {
            Ok(value) => Ok(Some((origin, value))),
            Err(e) => Err(Error::Syntax { origin: format!("{origin}:{}", e.line()), what: e.to_string() }),
        }
    }

    /// The `config.json`.
    pub(crate) fn model_config(&self) -> Result<Map<String, Value>> {
        self.json("config.json")?.ok_or_else(|| {
            let what = "there is no config.json beside the weights".to_string();
            Error::Run { what }.in_weights(&self.path)
        })
    }

    /// The tokenizer, where the folder has one.
    pub(crate) fn tokenizer(&self) -> Result<Option<Tokenizer>> {
        let read = || -> Result<Option<Tokenizer>> {
            let mut files = BTreeMap::new();
            for name in Tokenizer::file_names() {
                match self.store.read(&join(&self.folder, name), SMALL) {
                    Ok(text) => drop(files.insert(name.to_string(), text)),
                    Err(planaria_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(if Tokenizer::is_in(&files) { Some(Tokenizer::from_files(&files)?) } else { None })
        };
        read().map_err(|error| error.in_weights(&self.path))
    }

    /// The tokenizer that the weights were trained with: ids of another would mean other things, so none is guessed.
    pub(crate) fn own_tokenizer(&self) -> Result<Tokenizer> {
        self.tokenizer()?.ok_or_else(|| Error::NoTokenizer { path: self.path.clone() })
    }

    /// Fills the arrays of a state's parameters, whatever wrote the weights and however they are cut. Tensors that
    /// nobody asked for are left where they are; the names of those that a model could have. Collective.
    pub(crate) fn load(
        &self,
        world: &dyn Comm,
        state: &mut TrainState,
        which: Which,
        models: &Models,
    ) -> Result<Vec<String>> {
        self.load_from(world, state, which, models).map_err(|error| {
            let first = match &error {
                Error::Checkpoint(planaria_ckpt::Error::Rank { rank, .. }) => Some(*rank),
                _ => None,
            };
            let error = error.in_weights(&self.path);
            // All ranks have the error of the first that failed, which reports it.
            match first.filter(|&rank| rank != world.world_rank()) {
                Some(rank) => Error::Told { rank, what: error.to_string(), usage: error.is_usage() },
                None => error,
            }
        })
    }

    fn load_from(
        &self,
        world: &dyn Comm,
        state: &mut TrainState,
        which: Which,
        models: &Models,
    ) -> Result<Vec<String>> {
        let options =
            LoadOptions { unexpected: Unmatched::Allow, casts: Casts::Floats, ..LoadOptions::default() };
        // Rank 0 decides, so that a checkpoint committed meanwhile is seen by all or by none.
        let committed = self.store.exists(&join(&self.at, COMMIT));
        let mine = Told::List(vec![Told::Text(self.at.clone()), Told::Bool(matches!(committed, Ok(true)))]);
        let told = value::broadcast(world, &mine, 0)?;
        let Told::List(list) = &told else {
            return Err(Error::Bug { what: format!("{told:?} is not a folder") });
        };
        let [Told::Text(at), Told::Bool(committed)] = &list[..] else {
            return Err(Error::Bug { what: format!("{told:?} is not a folder") });
        };
        let committed = *committed;
        let source = formats::open(&self.store, at, &OpenOptions::default());
        let source = together(world, source.map_err(|error| Error::from(error).in_weights(&self.path)))?;
        if which == Which::Averaged {
            take_averages(&source, state)?;
            state.known = None;
        }
        // What a folder of a model that is not known here ties is not known either.
        let config = self.json("config.json")?.map(Value::Object);
        let model = config.and_then(|config| models.open(config).ok());
        let ties = model.as_ref().map(|model| planaria_nn::models::ties(&**model)).transpose()?;
        let ties = ties.unwrap_or_default();
        let others = model.as_ref().map_or(&[][..], |model| model.other_names());
        let prefix = prefix(&source, state, &ties, others);
        if !committed {
            // A checkpoint of ours says itself what is tied.
            state.tied.extend(ties);
        }
        state.rename(|name| prefix.of(name))?;
        state.tied = state.tied.iter().map(|(k, v)| (prefix.of(k), prefix.of(v))).collect();
        let tied: BTreeSet<String> = state.tied.keys().cloned().collect();
        let report = match committed {
            true => planaria_ckpt::load(world, &*self.store, at, state, &options)?,
            false => planaria_ckpt::load_source(world, &source, state, &options)?,
        };
        let is_weight = |name: &String| {
            let stored = source.tensors.contains_key(&Key::model(name.as_str()));
            stored && !tied.contains(name) && !MADE_AGAIN.iter().any(|end| name.ends_with(end))
        };
        Ok(report.unexpected.into_iter().filter(is_weight).collect())
    }
}

/// Asks for the average of every parameter that has one; one that is not trained has none.
fn take_averages(source: &Source, state: &mut TrainState) -> Result<()> {
    let has = |name: &str| source.tensors.contains_key(&Key { part: Part::Ema, name: name.to_string() });
    if !source.tensors.keys().any(|key| key.part == Part::Ema) {
        let what = "there is no running average of the weights; runs with `optim.ema` keep one";
        return Err(Error::Run { what: what.into() });
    }
    state.items.iter_mut().filter(|item| has(&item.name)).for_each(|item| item.kind = TensorKind::Ema);
    Ok(())
}

/// Before what every rank would have found, on its way between ranks: by a wrong configuration, or else.
const MARKS: [(char, bool); 2] = [('\u{1}', true), ('\u{2}', false)];

/// All ranks continue, or all fail. Those that failed return their own error, except that what every rank would have found is
/// reported by the first of them only. Collective.
pub(crate) fn together<T, E: Into<Error>>(world: &dyn Comm, mine: Result<T, E>) -> Result<T> {
    let mine = mine.map_err(Into::into);
    let text = mine.as_ref().map(|_| ()).map_err(|error| {
        let mark = MARKS.iter().find(|(_, usage)| error.is_of_all() && *usage == error.is_usage());
        mark.map_or_else(|| error.to_string(), |(mark, _)| format!("{mark}{error}"))
    });
    match (mine, world.agree(text)) {
        (mine, Err(planaria_comm::Error::Remote { rank, message })) => match (mine, heard(rank, &message)) {
            (Err(own), None) => Err(own),
            (Err(own), Some(_)) if rank == world.world_rank() => Err(own),
            (Err(own), Some(_)) if !own.is_of_all() => Err(own),
            (_, Some(told)) => Err(told),
            (Ok(_), None) => Err(planaria_comm::Error::Remote { rank, message }.into()),
        },
        (Err(error), _) => Err(error),
        (Ok(_), Err(error)) => Err(error.into()),
        (Ok(value), Ok(())) => Ok(value),
    }
}

fn heard(rank: usize, message: &str) -> Option<Error> {
    MARKS.iter().find_map(|(mark, usage)| {
        let what = message.strip_prefix(*mark)?.to_string();
        Some(Error::Told { rank, what, usage: *usage })
    })
}

/// How names in the files differ from those of the model.
enum Prefix {
    /// They begin with this, as where a training loop saved its model inside something else.
    Longer(String),
    /// What has this prefix was saved by itself, without it and without the head.
    Bare(String),
    /// They begin with other words: ours, and theirs.
    Other(Vec<(String, String)>),
}

impl Prefix {
    fn of(&self, name: &str) -> String {
        match self {
            Prefix::Longer(prefix) => format!("{prefix}{name}"),
            Prefix::Bare(prefix) => name.strip_prefix(prefix.as_str()).unwrap_or(name).to_string(),
            Prefix::Other(pairs) => {
                let theirs = pairs.iter().find_map(|(ours, theirs)| Some((theirs, name.strip_prefix(ours)?)));
                theirs.map_or_else(|| name.to_string(), |(theirs, rest)| format!("{theirs}{rest}"))
            }
        }
    }
}

/// The one under which most of the parameters that are wanted, or those they are tied to, are there; the usual names where
/// none is better. Wanted by all ranks, where that is known, or by this one.
fn prefix(
    source: &Source,
    state: &TrainState,
    ties: &BTreeMap<String, String>,
    others: &[(&str, &str)],
) -> Prefix {
    let known = state.known.iter().flat_map(|known| known.tensors()).map(|tensor| &tensor.name);
    let own = state.items.iter().filter(|_| state.known.is_none()).map(|item| &item.name);
    let wanted: Vec<&String> = known.chain(own).map(|name| ties.get(name).unwrap_or(name)).collect();
    let mut tried: BTreeSet<String> = BTreeSet::new();
    let mut candidates = vec![Prefix::Longer(String::new())];
    for first in wanted.iter().filter_map(|name| name.split_once('.')).map(|(first, _)| format!("{first}.")) {
        if tried.insert(first.clone()) {
            candidates.push(Prefix::Bare(first));
        }
    }
    if !others.is_empty() {
        let pair = |(ours, theirs): &(&str, &str)| (ours.to_string(), theirs.to_string());
        candidates.push(Prefix::Other(others.iter().map(pair).collect()));
    }
    let names = || source.tensors.keys().filter(|key| key.part == Part::Model).map(|key| &key.name);
    let longer = |wanted: &&String| names().find_map(|name| name.strip_suffix(wanted.as_str()));
    let longer = wanted.iter().find_map(longer).filter(|prefix| prefix.ends_with('.'));
    candidates.extend(longer.map(|prefix| Prefix::Longer(prefix.to_string())));
    let found = |prefix: &Prefix| {
        wanted.iter().filter(|name| source.tensors.contains_key(&Key::model(prefix.of(name)))).count()
    };
    let better = |best: Prefix, other: Prefix| if found(&other) > found(&best) { other } else { best };
    candidates.into_iter().reduce(better).unwrap_or(Prefix::Longer(String::new()))
}

/// Where a run's architecture, tokenizer and generation config come from, first the weights that it starts from. Where those
/// are gone and the run has a checkpoint, that has them too.
fn origins(config: &Config) -> Result<Vec<Pretrained>> {
    let ModelSection { init, config: named, .. } = &config.model;
    let mut found = Vec::new();
    for path in [init, named].into_iter().flatten() {
        match Pretrained::find(path) {
            Err(error) => {
                let own = Pretrained::find(&config.run_dir()).ok();
                found.push(own.filter(|own| !own.folder.is_empty()).ok_or(error)?);
            }
            Ok(there) => found.push(there),
        }
    }
    Ok(found)
}

/// The `config.json` that the `[model]` section changes: the one it names, or that of the weights it starts from.
pub(crate) fn base_config(config: &Config) -> Result<Option<Map<String, Value>>> {
    match &config.model.config {
        Some(path) if path.exists() => read_model_config(path).map(Some),
        _ => origins(config)?.pop().map(|from| from.model_config()).transpose(),
    }
}

/// The tokenizer of a run: the one it names, that of the weights it starts from, that beside its `config.json`, or bytes where it
/// starts from no weights.
pub(crate) fn open_tokenizer(config: &Config) -> Result<Tokenizer> {
    if config.data.tokenizer.is_none() {
        let origins = origins(config)?;
        for from in &origins {
            if let Some(tokenizer) = from.tokenizer()? {
                return Ok(config.data.extend_tokenizer(tokenizer)?);
            }
        }
        if let (Some(weights), true) = (origins.first(), config.model.init.is_some()) {
            weights.own_tokenizer()?;
        }
    }
    Ok(config.data.open_tokenizer()?)
}

/// A JSON object of the weights that a run starts from, or beside its `config.json`; empty without one.
pub(crate) fn settings(config: &Config, name: &str) -> Result<Map<String, Value>> {
    for from in origins(config)? {
        if let Some(found) = from.json(name)? {
            return Ok(found);
        }
    }
    Ok(Map::new())
}

/// Small texts in the same places, those that are there.
pub(crate) fn texts(config: &Config, names: &[&str]) -> Result<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    for from in origins(config)?.iter().rev() {
        for name in names {
            out.extend(from.text(name)?.map(|text| (name.to_string(), text)));
        }
    }
    Ok(out)
}
