//! What a mapping makes of a checkpoint: of its parameters, and of everything that goes with them.
//!
//! A mapping speaks of parameters. Master weights, moving averages and moments have a value for each of their elements, so
//! they move the same way; only the casts are not theirs. A single value, such as a number of steps, goes to every tensor
//! that is made of its parameter, and tensors that become one must agree about it.

use super::made::{Casts, Made, Origin};
use crate::error::{Error, Result};
use crate::formats::roles::{Roles, part_key};
use crate::formats::{Entry, Key, Source};
use crate::state::{TensorKey, TensorKind};
use planaria_aoa::{Catalog, Mapping, Options, Program, Tensor};
use planaria_layout::{DType, Region, Shape};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The tensors of a source by what they are and by the weight they belong to.
type Kinds = BTreeMap<TensorKind, BTreeMap<String, Key>>;

/// Which side of the statements the source is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// The left: what the statements say.
    #[default]
    Forward,
    /// The right: the statements are undone.
    Back,
}

/// A mapping, and how it is read.
#[derive(Clone, Debug)]
pub struct Remap {
    /// The statements.
    pub program: Program,
    /// Which side of them the source is.
    pub way: Way,
    /// How strictly they are read, and the parts of fused weights.
    pub options: Options,
}

impl From<Program> for Remap {
    fn from(program: Program) -> Remap {
        Remap { program, way: Way::default(), options: Options::default() }
    }
}

impl Remap {
    fn compile(&self, catalog: &Catalog) -> Result<Mapping> {
        Ok(match self.way {
            Way::Forward => self.program.compile(catalog, None, &self.options)?,
            Way::Back => self.program.compile_reverse(catalog, None, &self.options)?,
        })
    }
}

/// What a mapping makes.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    pub(super) made: Vec<Made>,
    pub(super) left_out: Vec<(Key, &'static str)>,
    pub(super) warnings: Vec<String>,
    /// By weight: what it became part of.
    pub(super) became: BTreeMap<String, Vec<String>>,
}

/// Applies a mapping to a source.
pub(super) fn mapped(source: &Source, roles: &Roles, remap: &Remap) -> Result<Mapped> {
    let mut kinds = Kinds::new();
    for (key, role) in roles.iter() {
        kinds.entry(role.kind.clone()).or_default().insert(role.name.clone(), key.clone());
    }
    let catalog = catalog(source, &kinds)?;
    let mapping = Arc::new(remap.compile(&catalog)?);
    let stand_ins = wide_parameters(source, &mut kinds);
    let kinds: Vec<(TensorKind, Arc<BTreeMap<String, Key>>)> =
        kinds.into_iter().map(|(kind, keys)| (kind, Arc::new(keys))).collect();
    let mut work = Work { source, catalog: &catalog, mapping, stand_ins, found: Mapped::default() };
    if !work.mapping.warnings().is_empty() {
        work.found.warnings.push(work.mapping.warnings().render());
    }
    work.names()?;
    let mapping = work.mapping.clone();
    for name in mapping.absent() {
        work.leave(&TensorKey::parameter(name), "the mapping declares it and gives it no values");
    }
    for target in mapping.targets().iter().filter(|target| target.is_loaded()) {
        for (kind, keys) in &kinds {
            work.make(target.name(), kind, keys)?;
        }
    }
    for (kind, keys) in &kinds {
        work.rest(kind, keys)?;
    }
    Ok(work.found)
}

/// What the mapping is compiled against: every weight, described by its parameter or, where that was not saved, by what
/// has its shape.
fn catalog(source: &Source, kinds: &Kinds) -> Result<Catalog> {
    let mut catalog = Catalog::new();
    // Parameters come first in the order of kinds, then masters.
    for (kind, keys) in kinds {
        for (name, key) in keys {
            let entry = source.get(key)?;
            let single = matches!(kind, TensorKind::Slot(_)) && entry.shape.numel() == 1;
            if catalog.get(name).is_none() && !single {
                let starts: Vec<&[usize]> = entry.tiles.boxes().map(|(region, _)| region.lo()).collect();
                let tensor = Tensor::new(entry.shape.clone(), entry.dtype).with_offsets(starts);
                catalog.insert(name.as_str(), tensor);
            }
        }
    }
    Ok(catalog)
}

/// A parameter in full precision is its own master: it may become one tensor with others that have one. Those that are
/// taken for masters.
fn wide_parameters(source: &Source, kinds: &mut Kinds) -> BTreeSet<Key> {
    let parameters = kinds.get(&TensorKind::Parameter).cloned().unwrap_or_default();
    let Some(masters) = kinds.get_mut(&TensorKind::Master) else { return BTreeSet::new() };
    let is_wide = |key: &Key| source.tensors.get(key).is_some_and(|entry| entry.dtype == DType::F32);
    let mut taken = BTreeSet::new();
    for (name, key) in parameters.into_iter().filter(|(_, key)| is_wide(key)) {
        masters.entry(name).or_insert_with(|| {
            taken.insert(key.clone());
            key
        });
    }
    taken
}

struct Work<'s> {
    source: &'s Source,
    catalog: &'s Catalog,
    mapping: Arc<Mapping>,
    /// Parameters that are taken for masters beside true ones.
    stand_ins: BTreeSet<Key>,
    found: Mapped,
}

impl Work<'_> {
    fn leave(&mut self, role: &TensorKey, why: &'static str) {
        self.found.left_out.push((part_key(role), why));
    }

    /// What each weight becomes part of.
    fn names(&mut self) -> Result<()> {
        for target in self.mapping.targets().iter().filter(|target| target.is_loaded()) {
            for from in self.mapping.sources_of(target.name())? {
                let became = self.found.became.entry(from.to_string()).or_default();
                became.push(target.name().to_string());
            }
        }
        Ok(())
    }

    fn entry(&self, key: &Key) -> Result<&Entry> {
        self.source.get(key)
    }

    /// One target, of one kind.
    fn make(&mut self, target: &str, kind: &TensorKind, keys: &Arc<BTreeMap<String, Key>>) -> Result<()> {
        let mapping = self.mapping.clone();
        let sources = mapping.sources_of(target)?;
        let held: Vec<(&str, &Key)> =
            sources.iter().filter_map(|name| Some((*name, keys.get(*name)?))).collect();
        if held.iter().all(|(_, key)| self.is_stand_in(kind, key)) {
            return Ok(());
        }
        let role = TensorKey { kind: kind.clone(), name: target.to_string() };
        let mut alike = !kind.is_count();
        let mut single = matches!(kind, TensorKind::Slot(_));
        for (name, key) in &held {
            let shape = &self.entry(key)?.shape;
            alike &= self.catalog.get(name).is_some_and(|tensor| tensor.shape() == shape);
            single &= shape.numel() == 1;
        }
        let is_odd = !alike && !single;
        if is_odd && !self.is_rename(target)? {
            for (name, _) in &held {
                let role = TensorKey { kind: kind.clone(), name: name.to_string() };
                self.leave(&role, "its shape is not that of its parameter, which the mapping rearranges");
            }
            return Ok(());
        }
        if let Some(lacking) = sources.iter().find(|name| !keys.contains_key(**name)) {
            return Err(incomplete(&role, held[0].0, lacking));
        }
        let carried = held.iter().find_map(|(name, key)| Some((*name, *self.source.foreign.get(*key)?)));
        if let Some((name, foreign)) = carried
            && !self.is_rename(target)?
        {
            let what = format!(
                "'{name}' has the element type {}, which can be renamed and not rearranged",
                foreign.name
            );
            return Err(Error::Request { what });
        }
        let from = match (alike && carried.is_none(), single) {
            (true, _) => {
                let casts = if *kind == TensorKind::Parameter { Casts::Apply } else { Casts::Skip };
                let (mapping, target, keys) = (mapping.clone(), target.to_string(), keys.clone());
                Origin::Mapped { mapping, target, keys, casts }
            }
            (false, true) => Origin::Agreed(held.iter().map(|(_, key)| (*key).clone()).collect()),
            (false, false) => Origin::Same(held[0].1.clone()),
        };
        let (dtype, shape) = self.form(target, kind, &held, &from)?;
        self.found.made.push(Made { key: part_key(&role), dtype, shape, from });
        Ok(())
    }

    fn is_stand_in(&self, kind: &TensorKind, key: &Key) -> bool {
        *kind == TensorKind::Master && self.stand_ins.contains(key)
    }

    /// Element type and shape of what is made.
    fn form(
        &self,
        target: &str,
        kind: &TensorKind,
        held: &[(&str, &Key)],
        from: &Origin,
    ) -> Result<(DType, Shape)> {
        let first = self.entry(held[0].1)?;
        let Origin::Mapped { .. } = from else { return Ok((first.dtype, first.shape.clone())) };
        let made = self.mapping.target(target).map(planaria_aoa::Target::tensor);
        let made = made.ok_or_else(|| Error::NoTensor { tensor: target.to_string() })?;
        // Of several types the widest holds all values.
        let mut stored = first.dtype;
        for (_, key) in held {
            let dtype = self.entry(key)?.dtype;
            stored = if dtype.size() > stored.size() { dtype } else { stored };
        }
        let dtype = if *kind == TensorKind::Parameter { made.dtype().unwrap_or(stored) } else { stored };
        Ok((dtype, made.shape().clone()))
    }

    /// Whether a target is one source, whole and in the same order.
    fn is_rename(&self, target: &str) -> Result<bool> {
        let Some(made) = self.mapping.target(target) else { return Ok(false) };
        let whole = Region::whole(made.tensor().shape());
        let pieces = self.mapping.pieces(target, &whole)?;
        Ok(match &pieces[..] {
            [piece] => {
                let from = self.catalog.get(piece.source).map(|tensor| Region::whole(tensor.shape()));
                piece.steps.is_empty() && from.is_some_and(|from| from == piece.from && from == whole)
            }
            _ => false,
        })
    }

    /// Tensors that no target was made of: of weights that the mapping leaves out, which is their wish, or of none.
    fn rest(&mut self, kind: &TensorKind, keys: &BTreeMap<String, Key>) -> Result<()> {
        let unread: BTreeSet<String> = self.mapping.unread().into_iter().map(str::to_string).collect();
        for (name, key) in keys {
            let role = TensorKey { kind: kind.clone(), name: name.clone() };
            if self.catalog.get(name).is_none() {
                // State that belongs to no weight stays as it is.
                let entry = self.entry(key)?;
                let (dtype, shape) = (entry.dtype, entry.shape.clone());
                let from = Origin::Same(key.clone());
                self.found.made.push(Made { key: part_key(&role), dtype, shape, from });
            } else if unread.contains(name) && !self.is_stand_in(kind, key) {
                self.leave(&role, "no statement of the mapping keeps it");
            }
        }
        Ok(())
    }
}

/// Tensors become one, and only some have this state.
fn incomplete(role: &TensorKey, holder: &str, lacking: &str) -> Error {
    let of = |name: &str| TensorKey { kind: role.kind.clone(), name: name.to_string() };
    let what = format!(
        "'{role}' cannot be made: there is '{}' and no '{}', and the mapping makes one tensor of them",
        of(holder),
        of(lacking)
    );
    Error::Request { what }
}
