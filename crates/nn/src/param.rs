//! Parameters: a name as in Hugging Face files, a layout, initial values, and the leaf that gradients arrive at.

use crate::error::{Error, Result};
use crate::layers::{Embedding, ExpertLinear, Linear};
use crate::parallel::Parallel;
use planaria_array::ops::Distribution;
use planaria_array::random::{Key, Normal, Window};
use planaria_array::{Array, DType, Device};
use planaria_layout::{Layout, Mesh, Placement, Shape, Shard};
use planaria_tensor::Tensor;
use std::fmt;
use std::sync::Arc;

/// What a parameter is for. Weight decay and the like are decided by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamKind {
    /// The weight of a product.
    Matrix,
    /// A table of rows by token.
    Embedding,
    /// The weight of a norm.
    Norm,
    /// Something added.
    Bias,
}

/// The values a parameter starts with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Start {
    /// Normal around 0.
    Normal {
        /// Standard deviation.
        std: f64,
    },
    /// Uniform between minus this and this.
    Uniform {
        /// The bound.
        bound: f64,
    },
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
}

/// What a parameter is to training and to files. Names are those in the files of an adapter, with `*` as in
/// [`ParamSpec::name`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Of a model that stands alone: trained unless a run freezes it.
    #[default]
    Own,
    /// Of the model under an adapter: never trained, and not in the adapter's files.
    Base,
    /// The same, but a copy is in the adapter's files for whoever reads them.
    Copied(String),
    /// Of the model under an adapter, trained and saved with the adapter.
    Retrained(String),
    /// The adapter's own.
    Added(String),
}

impl Role {
    /// Whether training may change it.
    pub fn is_trained(&self) -> bool {
        matches!(self, Role::Own | Role::Retrained(_) | Role::Added(_))
    }

    /// Whether the files of the model have it, as opposed to those of an adapter alone.
    pub fn is_of_model(&self) -> bool {
        !matches!(self, Role::Added(_))
    }

    /// Its name in the files of an adapter, where it is in them.
    pub fn in_adapter(&self) -> Option<&str> {
        match self {
            Role::Own | Role::Base => None,
            Role::Copied(name) | Role::Retrained(name) | Role::Added(name) => Some(name),
        }
    }
}

/// How the `tp` axis cuts a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Not at all.
    Whole,
    /// One dim, also in uneven pieces.
    Dim(usize),
    /// One dim between heads; where the heads cannot be shared out evenly the parameter stays whole.
    Heads {
        /// The dim.
        dim: usize,
        /// How many heads it holds.
        heads: usize,
    },
    /// One dim that holds several parts of the same heads one after the other, such as queries, keys and values: each part
    /// between heads. Whole where the heads cannot be shared out evenly.
    Fused {
        /// The dim.
        dim: usize,
        /// How many heads each part holds.
        heads: usize,
        /// How many parts there are.
        parts: usize,
    },
}

/// One line of a model's table of parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamSpec {
    /// Name as in Hugging Face files. A `*` stands for the index along dim 0: on disk there is one tensor for each.
    pub name: String,
    /// Global shape.
    pub shape: Shape,
    /// What it is for.
    pub kind: ParamKind,
    /// Its first values.
    pub start: Start,
    /// How `tp` cuts it.
    pub tp: Cut,
    /// The dim that `ep` cuts.
    pub ep: Option<usize>,
    /// The parameter that has the same values.
    pub tied: Option<String>,
    /// The block it belongs to; none for what stands before or after the blocks.
    pub block: Option<usize>,
    /// Its dtype, where that is not the model's.
    pub dtype: Option<DType>,
    /// What it is to training and to files.
    pub role: Role,
}

impl ParamSpec {
    /// What each axis of the inner mesh does to it.
    pub fn placements(&self, mesh: &Mesh) -> Vec<Placement> {
        let tp = |size: usize| match self.tp {
            Cut::Whole => Placement::Replicate,
            Cut::Dim(dim) => Placement::shard(dim),
            Cut::Heads { dim, heads } if heads.is_multiple_of(size) => Placement::shard(dim),
            Cut::Fused { dim, heads, parts } if heads.is_multiple_of(size) => {
                Placement::Shard(Shard { dim, sections: parts, order: 0 })
            }
            Cut::Heads { .. } | Cut::Fused { .. } => Placement::Replicate,
        };
        let axis = |axis: &planaria_layout::Axis| match axis.name.as_str() {
            "tp" => tp(axis.size),
            "ep" => self.ep.map_or(Placement::Replicate, Placement::shard),
            _ => Placement::Replicate,
        };
        mesh.axes().iter().map(axis).collect()
    }

    /// Its layout on the inner mesh.
    pub fn layout(&self, mesh: &Mesh) -> Result<Layout> {
        Ok(Layout::new(mesh, &self.shape, &self.placements(mesh))?)
    }

    /// The names of its tensors in files. Several where experts are one parameter: tensor `i` is index `i` of dim 0.
    pub fn files(&self) -> Vec<String> {
        self.each(&self.name)
    }

    /// The names of its tensors in the files of an adapter; none where it is not in them.
    pub fn adapter_files(&self) -> Option<Vec<String>> {
        self.role.in_adapter().map(|name| self.each(name))
    }

    fn each(&self, name: &str) -> Vec<String> {
        match name.split_once('*') {
            None => vec![name.to_string()],
            Some((before, after)) => (0..self.shape[0]).map(|i| format!("{before}{i}{after}")).collect(),
        }
    }

    /// True when [`ParamSpec::files`] are indices of dim 0.
    pub fn is_stacked(&self) -> bool {
        self.name.contains('*')
    }

    /// The key of its first values: the seed and the name, so that nothing else matters.
    fn key(&self, seed: u64) -> Key {
        // FNV-1a; only the parameters of one model must be told apart.
        let hash = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        // A tied parameter starts like its twin, also where that is on another stage.
        let name = self.tied.as_ref().unwrap_or(&self.name);
        Key::new(seed, name.bytes().fold(0xcbf2_9ce4_8422_2325, hash))
    }

    fn values(&self, init: &Init, parallel: Option<&Parallel>) -> Result<Tensor> {
        let normal = |std| Distribution::Normal(Normal { mean: 0.0, std });
        let uniform = |bound: f64| Distribution::Uniform { low: -bound, high: bound };
        let (device, key) = (init.device, self.key(init.seed));
        let dtype = self.dtype.unwrap_or(init.dtype);
        let Some(Parallel { world, mesh, .. }) = parallel else {
            let shape = &self.shape[..];
            return Ok(Tensor::new(match self.start {
                Start::Normal { std } => {
                    Array::random_on(&Window::whole(&self.shape), normal(std), dtype, key, device)?
                }
                Start::Uniform { bound } => {
                    Array::random_on(&Window::whole(&self.shape), uniform(bound), dtype, key, device)?
                }
                Start::Zeros => Array::zeros_on(shape, dtype, device)?,
                Start::Ones => Array::full_on(shape, 1.0, dtype, device)?,
            }));
        };
        let layout = self.layout(mesh)?;
        let values = match self.start {
            Start::Normal { std } => Tensor::random_with(&layout, normal(std), dtype, key, world)?,
            Start::Uniform { bound } => Tensor::random_with(&layout, uniform(bound), dtype, key, world)?,
            Start::Zeros => Tensor::full(&layout, 0.0, dtype, world)?,
            Start::Ones => Tensor::full(&layout, 1.0, dtype, world)?,
        };
        // A world without elements has none anywhere.
        Ok(if values.local().is_meta() { values } else { values.to(device)? })
    }
}

/// How a model's first values are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    /// Chosen once per run; values follow from it, the parameter's name and the global element index.
    pub seed: u64,
    /// The dtype of the parameters.
    pub dtype: DType,
    /// Where they are.
    pub device: Device,
}

impl Default for Init {
    fn default() -> Init {
        Init { seed: 0, dtype: DType::F32, device: Device::Cpu }
    }
}

/// Makes the value that forward uses, when it is not the leaf itself.
pub type Source = Arc<dyn Fn() -> planaria_tensor::Result<Tensor> + Send + Sync>;

/// One parameter. A clone is another handle on the same leaf.
#[derive(Clone)]
pub struct Param {
    spec: Arc<ParamSpec>,
    leaf: Tensor,
    trainable: bool,
    source: Option<Source>,
}

impl Param {
    /// A parameter with its first values; on the inner mesh of `parallel`, where that is given.
    pub fn new(spec: ParamSpec, init: &Init, parallel: Option<&Parallel>) -> Result<Param> {
        let leaf = spec.values(init, parallel)?.requires_grad();
        Ok(Param { spec: Arc::new(spec), leaf, trainable: true, source: None })
    }

    /// A parameter that shares the elements of `other` and has a gradient of its own.
    pub fn tied_to(spec: ParamSpec, other: &Param) -> Param {
        let leaf = other.leaf.detach().requires_grad();
        Param { spec: Arc::new(spec), leaf, trainable: true, source: None }
    }

    /// What the table says about it.
    pub fn spec(&self) -> &ParamSpec {
        &self.spec
    }

    /// Name as in Hugging Face files.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What it is for.
    pub fn kind(&self) -> ParamKind {
        self.spec.kind
    }

    /// The parameter that has the same values.
    pub fn tied(&self) -> Option<&str> {
        self.spec.tied.as_deref()
    }

    /// The tensor that gradients arrive at.
    pub fn leaf(&self) -> &Tensor {
        &self.leaf
    }

    /// What forward computes with: the leaf, or what the source makes.
    pub fn value(&self) -> planaria_tensor::Result<Tensor> {
        match &self.source {
            Some(source) => source(),
            None => Ok(self.leaf.clone()),
        }
    }

    /// True when a gradient is wanted.
    pub fn is_trainable(&self) -> bool {
        self.trainable
    }

    /// Takes another line of a table for the same parameter: what it is to training, and whose values it has.
    pub(crate) fn become_of(&mut self, spec: ParamSpec) -> Result<()> {
        let (was_tied, trained) = (self.spec.tied.is_some(), spec.role.is_trained());
        let apart = was_tied && spec.tied.is_none();
        self.spec = Arc::new(spec);
        self.set_trainable(trained);
        // No longer the elements of another.
        if apart { self.set_array(self.leaf.local().copy()?) } else { Ok(()) }
    }

    /// Asks for a gradient, or does not.
    pub fn set_trainable(&mut self, trainable: bool) {
        self.trainable = trainable;
        self.leaf = self.leafed(self.leaf.detach());
    }

    /// Takes other elements as this rank's piece; the old leaf and its gradient stay behind.
    pub fn set_array(&mut self, array: Array) -> Result<()> {
        let before = self.leaf.local();
        if array.shape() != before.shape() || array.dtype() != before.dtype() {
            let text = |a: &Array| format!("{}{}", a.dtype(), a.shape());
            let (expected, found) = (text(before), text(&array));
            return Err(Error::Elements { name: self.name().to_string(), expected, found });
        }
        self.leaf = self.leafed(match (self.leaf.layout(), self.leaf.world()) {
            (Some(layout), Some(world)) => Tensor::from_piece(array, layout, world)?,
            _ => Tensor::new(array),
        });
        Ok(())
    }

    fn leafed(&self, value: Tensor) -> Tensor {
        if self.trainable { value.requires_grad() } else { value }
    }

    /// Lets forward take its value from elsewhere, such as pieces that are gathered when they are needed. The source
    /// is asked once per use, also when a block is computed again.
    pub fn set_source(&mut self, source: Option<Source>) {
        self.source = source;
    }

    /// Takes the gradient that backward has left, brought to the layout of the parameter: sums over ranks that were
    /// pending are done. Collective over the inner mesh.
    pub fn take_grad(&self) -> Result<Option<Tensor>> {
        let Some(grad) = self.leaf.take_grad() else { return Ok(None) };
        Ok(Some(match self.leaf.layout() {
            Some(layout) => grad.reshard(layout)?,
            None => grad,
        }))
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Param({}, {:?})", self.spec.name, self.leaf)
    }
}

/// A layer that an adapter can stand on.
#[derive(Debug)]
pub enum Adaptable<'a> {
    /// A product.
    Linear(&'a mut Linear),
    /// A table of rows by token.
    Embedding(&'a mut Embedding),
    /// The same product of every expert.
    Experts(&'a mut ExpertLinear),
}

/// Something that has parameters. They are visited in the order of the model's table.
pub trait Module {
    /// Shows every parameter.
    fn visit(&self, f: &mut dyn FnMut(&Param));

    /// Shows every parameter, to be changed.
    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param));

    /// Shows every layer that an adapter can stand on, to be changed.
    fn visit_layers(&mut self, _f: &mut dyn FnMut(Adaptable<'_>)) {}

    /// Handles on all parameters.
    fn params(&self) -> Vec<Param> {
        let mut all = Vec::new();
        self.visit(&mut |param| all.push(param.clone()));
        all
    }
}

impl Module for Param {
    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        f(self);
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        f(self);
    }
}

impl<M: Module> Module for Option<M> {
    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.iter_mut().for_each(|module| module.visit_layers(f));
    }

    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.iter().for_each(|module| module.visit(f));
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.iter_mut().for_each(|module| module.visit_mut(f));
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit_layers(&mut self, f: &mut dyn FnMut(Adaptable<'_>)) {
        self.iter_mut().for_each(|module| module.visit_layers(f));
    }

    fn visit(&self, f: &mut dyn FnMut(&Param)) {
        self.iter().for_each(|module| module.visit(f));
    }

    fn visit_mut(&mut self, f: &mut dyn FnMut(&mut Param)) {
        self.iter_mut().for_each(|module| module.visit_mut(f));
    }
}
