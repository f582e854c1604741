//! A model's folder and adapters that go on top of it, opened to compute with.

use crate::data::Tokenizer;
use crate::error::{Error, Result};
use crate::pretrained::{Pretrained, Which};
use crate::weights::Files;
use planaria_array::Array;
use planaria_ckpt::{Item, TensorKind, TrainState};
use planaria_comm::{Comm, CommExt};
use planaria_layout::{Layout, Mesh, Placement, Shape};
use planaria_nn::lora::{Adapted, LoraConfig, starts};
use planaria_nn::models::{Architecture, Models, Network, Stage};
use planaria_nn::{Init, Parallel, Param};
use planaria_tensor::World;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that makes a folder one of an adapter.
const ADAPTER: &str = "adapter_config.json";

/// A model and its adapters, without their weights.
#[derive(Clone, Debug)]
pub struct Opened {
    base: Pretrained,
    adapters: Vec<Pretrained>,
    model: Arc<dyn Architecture>,
    models: Models,
}

impl Opened {
    /// Opens a folder of weights, or one of an adapter, which stands for the model that it names with the adapter on it, and
    /// puts further adapters on top.
    pub fn open(path: &Path, adapters: &[PathBuf], models: &Models) -> Result<Opened> {
        Opened::open_as(path, adapters, models, &|_| {})
    }

    /// The same with another model than the folder's `config.json` says: `shape` changes that.
    pub(crate) fn open_as(
        path: &Path,
        adapters: &[PathBuf],
        models: &Models,
        shape: &dyn Fn(&mut Map<String, Value>),
    ) -> Result<Opened> {
        let first = Pretrained::find(path)?;
        let mut found = Vec::new();
        let base = match read_config(&first, path)? {
            None => first,
            Some(config) => {
                let base = base_of(&config, path)?;
                found.push((first, config));
                base
            }
        };
        for path in adapters {
            let folder = Pretrained::find(path)?;
            let config = read_config(&folder, path)?.ok_or_else(|| Error::Run {
                what: format!("{} has no {ADAPTER}, so it is not an adapter", path.display()),
            })?;
            found.push((folder, config));
        }
        let mut config = base.model_config()?;
        for (folder, _) in &found {
            // An adapter was trained with the attention that its own run had.
            let own = folder.json("config.json")?.and_then(|mut own| own.remove("is_causal"));
            config.extend(own.map(|own| ("is_causal".to_string(), own)));
        }
        shape(&mut config);
        let mut model = models.open(config.into())?;
        let (adapters, configs): (Vec<_>, Vec<_>) = found.into_iter().unzip();
        if !configs.is_empty() {
            model = Arc::new(Adapted::several(model, configs)?);
        }
        Ok(Opened { base, adapters, model, models: models.clone() })
    }

    /// The model, with its adapters.
    pub fn model(&self) -> &Arc<dyn Architecture> {
        &self.model
    }

    /// The model's folder.
    pub(crate) fn base(&self) -> &Pretrained {
        &self.base
    }

    /// Where small files are looked for: first in the adapter's folder, which may have its own.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Pretrained> {
        self.adapters.iter().chain(std::iter::once(&self.base))
    }

    /// The tokenizer of the first of these folders that has one.
    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        for folder in self.folders() {
            if let Some(found) = folder.tokenizer()? {
                return Ok(found);
            }
        }
        self.base.own_tokenizer()
    }

    /// The whole model with its weights, in this rank's pieces of every matrix. Collective.
    pub fn load(&self, comm: &Arc<dyn Comm>, init: &Init) -> Result<Box<dyn Network>> {
        self.load_which(comm, init, Which::Trained)
    }

    pub(crate) fn load_which(
        &self,
        comm: &Arc<dyn Comm>,
        init: &Init,
        which: Which,
    ) -> Result<Box<dyn Network>> {
        let mesh = Mesh::new(&[("ep", 1), ("tp", comm.size())])?;
        let parallel =
            (comm.size() > 1).then(|| Parallel { world: World::new(comm.clone()), mesh, sequence: false });
        let mut network = self.model.build(&Stage::whole(&*self.model), parallel.as_ref(), init)?;
        let rank = comm.world_rank();
        let items =
            |chosen: &dyn Fn(&Param) -> bool, files: Files, network: &dyn Network| -> Result<Vec<Item>> {
                let mut items = Vec::new();
                for param in network.params().iter().filter(|param| chosen(param)) {
                    items.extend(pieces(param, rank, files)?);
                }
                Ok(items)
            };
        let of_model = items(&|param| param.tied().is_none(), Files::Model, &*network)?;
        self.base.load(&**comm, &mut TrainState::new(of_model), which, &self.models)?;
        let Some(adapted) = self.model.adapted() else { return Ok(network) };
        for number in 0..adapted.count() {
            let start = adapted.config(number).factors()?;
            if start.changes_base() {
                if adapted.count() > 1 {
                    let what =
                        "one of several adapters took its start out of the model's weights; merge it first";
                    return Err(Error::Run { what: what.into() });
                }
                let values = starts::values(&mut *network, start)?;
                put(&*network, values)?;
            }
            let own = |param: &Param| {
                let stored =
                    !matches!(param.spec().role, planaria_nn::Role::Copied(_)) && param.tied().is_none();
                stored && Adapted::owner(param.name()) == number
            };
            let mut state = TrainState::new(items(&own, Files::Run, &*network)?);
            self.adapters[number].load(&**comm, &mut state, Which::Trained, &self.models)?;
        }
        Ok(network)
    }
}

/// Writes new values into the parameters that have these names.
fn put(network: &dyn Network, values: starts::Values) -> Result<()> {
    let params = network.params();
    for (name, values) in values {
        let found = params.iter().find(|param| param.name() == name);
        found.map_or(Ok(()), |param| param.leaf().local().copy_from(&values))?;
    }
    Ok(())
}

/// What a folder says of an adapter, where it has one.
fn read_config(folder: &Pretrained, path: &Path) -> Result<Option<LoraConfig>> {
    let wrong = |error: planaria_nn::Error| Error::from(error).in_weights(&path.display().to_string());
    folder.text(ADAPTER)?.map(|text| LoraConfig::parse(&text).map_err(wrong)).transpose()
}

/// The model that an adapter names: as a path of here, or beside the adapter.
fn base_of(config: &LoraConfig, path: &Path) -> Result<Pretrained> {
    let Some(name) = &config.base_model_name_or_path else {
        let what =
            "its adapter_config.json names no model; give the model, and the adapter with --lora".to_string();
        return Err(Error::Run { what }.in_weights(&path.display().to_string()));
    };
    let beside = path.join(name);
    match Pretrained::find(Path::new(name)) {
        Err(_) if beside.exists() => Pretrained::find(&beside),
        found => {
            found.map_err(|error| error.in_weights(&format!("the model of the adapter {}", path.display())))
        }
    }
}

/// What this rank has of a parameter, by its names in files.
fn pieces(param: &Param, rank: usize, files: Files) -> Result<Vec<Item>> {
    let (leaf, spec) = (param.leaf(), param.spec());
    let Some(names) = files.names(spec) else { return Ok(Vec::new()) };
    let local = leaf.local();
    let item = |name: &str, layout: Option<&Layout>, array: &Array| match layout {
        Some(layout) => Ok(Item::placed(TensorKind::Parameter, name, layout, rank, array)?),
        None => Ok(Item::whole(TensorKind::Parameter, name, array)),
    };
    if !spec.is_stacked() {
        return Ok(vec![item(&names[0], leaf.layout(), local)?]);
    }
    let first = match leaf.layout() {
        Some(layout) => layout.piece(rank)?.boxes().first().map_or(0, |b| b.lo()[0]),
        None => 0,
    };
    let inner = leaf.layout().map(without_first_dim).transpose()?;
    (0..local.shape()[0])
        .map(|i| item(&names[first + i], inner.as_ref(), &local.select(0, i as i64)?))
        .collect()
}

/// The layout of one expert: the dims after the first, on the same mesh.
fn without_first_dim(layout: &Layout) -> Result<Layout> {
    let shape = Shape::new(&layout.shape()[1..])?;
    let dim = |p: &Placement| match p {
        Placement::Shard(shard) if shard.dim > 0 => Placement::shard(shard.dim - 1),
        _ => Placement::Replicate,
    };
    let placements: Vec<Placement> = layout.placements().iter().map(dim).collect();
    Ok(Layout::new(layout.mesh(), &shape, &placements)?)
}
