//! What one rank asks of a checkpoint: names, shapes and element types checked, boxes found, before any read.

use crate::catalog::{Catalog, Found};
use crate::error::{Error, Result};
use crate::options::{Casts, LoadOptions};
use crate::read::{After, Slot};
use crate::state::{Item, Piece, TensorKey, TensorKind};
use crate::strided::Window;
use planaria_aoa::Mapping;
use planaria_array::Array;
use planaria_layout::{DType, Dims, Region};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a rank asks for, in the form that it tells all others.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Wants {
    /// Number of a tensor and the corners of a box of it.
    pub(crate) boxes: Vec<(usize, Vec<usize>, Vec<usize>)>,
    pub(crate) touched: BTreeSet<usize>,
    pub(crate) loaded: Vec<String>,
    pub(crate) missing: Vec<String>,
    pub(crate) ignored: Vec<String>,
    pub(crate) cast: Vec<(String, String, String)>,
}

/// A value that several tensors of the files must have in common, since a mapping makes one tensor of theirs.
#[derive(Clone, Debug)]
pub(crate) struct Twin {
    tensor: String,
    names: [String; 2],
    arrays: [Array; 2],
}

impl Twin {
    /// Once both are read.
    pub(crate) fn check(&self) -> Result<()> {
        let [first, second] = &self.arrays;
        if first.copy()?.bytes()?[..] == second.copy()?.bytes()?[..] {
            return Ok(());
        }
        let [first, second] = self.names.clone();
        Err(Error::Disagree { tensor: self.tensor.clone(), first, second })
    }
}

/// What one rank asks for.
pub(crate) struct Resolved {
    pub(crate) wants: Wants,
    /// Where each box goes, with the number of its tensor.
    pub(crate) slots: Vec<(usize, Slot)>,
    pub(crate) twins: Vec<Twin>,
}

/// Checks this rank's items against a catalog.
pub(crate) fn resolve(catalog: &Catalog, items: &[Item], options: &LoadOptions) -> Result<Resolved> {
    let mut asking =
        Asking { catalog, options, wants: Wants::default(), slots: Vec::new(), twins: Vec::new() };
    for item in items {
        item.check()?;
        check_writable(item)?;
        let name = item.key().to_string();
        if options.ignores(&name) {
            asking.wants.ignored.push(name);
            continue;
        }
        match &options.mapping {
            Some(mapping) => asking.mapped(mapping, item, name)?,
            None => asking.plain(item, name)?,
        }
    }
    let Asking { wants, slots, twins, .. } = asking;
    Ok(Resolved { wants, slots, twins })
}

/// Loading writes through the views it is given.
fn check_writable(item: &Item) -> Result<()> {
    for Piece { array, .. } in &item.pieces {
        let strange = |(step, len): (&isize, &usize)| *step <= 0 && *len > 1;
        if array.strides().iter().zip(&**array.shape()).any(strange) {
            return Err(Error::NotWritable {
                tensor: item.key().to_string(),
                strides: array.strides().to_vec(),
            });
        }
    }
    Ok(())
}

struct Asking<'a> {
    catalog: &'a Catalog,
    options: &'a LoadOptions,
    wants: Wants,
    slots: Vec<(usize, Slot)>,
    twins: Vec<Twin>,
}

impl Asking<'_> {
    fn find(&self, key: &TensorKey) -> Option<Found> {
        self.catalog.find(key, self.options.rebuild())
    }

    /// A tensor that is loaded as it stands in the files.
    fn plain(&mut self, item: &Item, name: String) -> Result<()> {
        let Some(found) = self.find(&item.key()) else {
            self.wants.missing.push(name);
            return Ok(());
        };
        let stored = &self.catalog.tensors[found.number];
        self.wants.touched.insert(found.number);
        let casts = self.casts(&name, stored.dtype, item, found.derived)?;
        let one = item.shape.numel() == 1 && stored.shape.numel() == 1;
        if item.shape != stored.shape && !one {
            let (found, expected) = (stored.shape.clone(), item.shape.clone());
            return Err(Error::ShapeOf { tensor: name, found, expected });
        }
        for piece in item.pieces.iter().filter(|piece| !piece.region.is_empty()) {
            // A scalar and a vector of one element stand for each other.
            let (region, array) = match item.shape == stored.shape {
                true => (piece.region.clone(), piece.array.clone()),
                false => (Region::whole(&stored.shape), single(&piece.array, stored.shape.ndim())?),
            };
            let window = Window::new(&array, &region, None)?;
            self.want(found.number, Slot { window, stored: stored.dtype, casts: casts.clone(), after: None });
        }
        self.wants.loaded.push(name);
        Ok(())
    }

    /// A tensor that a mapping makes from those in the files.
    fn mapped(&mut self, mapping: &Mapping, item: &Item, name: String) -> Result<()> {
        let Some(target) = mapping.target(&item.name) else {
            self.wants.missing.push(name);
            return Ok(());
        };
        if !target.is_loaded() {
            self.wants.ignored.push(name);
            return Ok(());
        }
        let single = item.shape.numel() == 1 && matches!(item.kind, TensorKind::Slot(_));
        if single && (item.kind.is_count() || *target.tensor().shape() != item.shape) {
            return self.single(mapping, item, name);
        }
        if *target.tensor().shape() != item.shape {
            let (found, expected) = (target.tensor().shape().clone(), item.shape.clone());
            return Err(Error::ShapeOf { tensor: name, found, expected });
        }
        for piece in item.pieces.iter().filter(|piece| !piece.region.is_empty()) {
            for part in mapping.pieces(&item.name, &piece.region)? {
                self.part(item, piece, &part, &name)?;
            }
        }
        self.wants.loaded.push(name);
        Ok(())
    }

    /// Optimizer state of one element moves with its tensor, unchanged. Tensors that become one must have the same.
    fn single(&mut self, mapping: &Mapping, item: &Item, name: String) -> Result<()> {
        let sources = mapping.sources_of(&item.name)?;
        let source = sources.first().map_or(item.name.clone(), |source| source.to_string());
        let moved = Item { name: source, ..item.clone() };
        self.plain(&moved, name.clone())?;
        for source in sources.iter().skip(1) {
            let mut other = Item { name: source.to_string(), ..item.clone() };
            let Some(found) = self.find(&other.key()) else { continue };
            self.wants.touched.insert(found.number);
            let held = item.pieces.iter().find(|piece| !piece.region.is_empty());
            let Some(Piece { region, array }) = held else { continue };
            let twin = Array::zeros(array.shape(), item.dtype)?;
            other.pieces = vec![Piece { region: region.clone(), array: twin.clone() }];
            self.plain(&other, name.clone())?;
            let names = [moved.key().to_string(), other.key().to_string()];
            self.twins.push(Twin { tensor: name.clone(), names, arrays: [array.clone(), twin] });
        }
        Ok(())
    }

    /// One box of a source, and its way to a box of a piece.
    fn part(&mut self, item: &Item, piece: &Piece, part: &planaria_aoa::Piece<'_>, name: &str) -> Result<()> {
        let key = TensorKey { kind: item.kind.clone(), name: part.source.to_string() };
        let Some(found) = self.find(&key) else {
            let missing = format!("{key}, which '{name}' is made of");
            if !self.wants.missing.contains(&missing) {
                self.wants.missing.push(missing);
            }
            return Ok(());
        };
        let stored = &self.catalog.tensors[found.number];
        self.wants.touched.insert(found.number);
        if !Region::whole(&stored.shape).contains(&part.from) || part.from.ndim() != stored.shape.ndim() {
            let problem = planaria_layout::Error::TileOutside {
                tile: Box::new(part.from.clone()),
                shape: stored.shape.to_string(),
            };
            return Err(Error::Tiles { tensor: key.to_string(), problem });
        }
        // Full-precision state moves like its parameter, without the casts.
        let named: &[DType] = match item.kind {
            TensorKind::Parameter | TensorKind::Buffer => &part.casts,
            TensorKind::Master | TensorKind::Slot(_) | TensorKind::Ema => &[],
        };
        let last = named.last().copied().unwrap_or(stored.dtype);
        let mut casts = named.to_vec();
        casts.extend(self.casts(name, last, item, found.derived)?);
        let Some(inner) = part.to.relative_to(&piece.region) else { return Ok(()) };
        let view = piece.array.region(&inner)?;
        let slot = match part.permutation() {
            Some(order) => {
                let window = Window::new(&view, &part.from, Some(&inverse(&order)))?;
                Slot { window, stored: stored.dtype, casts, after: None }
            }
            None => {
                // The block is collected as it is stored and rearranged when it is complete.
                let block = Array::zeros(&part.from.extents(), stored.dtype)?;
                let window = Window::new(&block, &part.from, None)?;
                let after = After { block, steps: part.steps.to_vec(), casts, view };
                Slot { window, stored: stored.dtype, casts: Vec::new(), after: Some(after) }
            }
        };
        self.want(found.number, slot);
        Ok(())
    }

    fn want(&mut self, number: usize, slot: Slot) {
        let region = &slot.window.region;
        self.wants.boxes.push((number, region.lo().to_vec(), region.hi().to_vec()));
        self.slots.push((number, slot));
    }

    /// The change of type that is needed at the end, if it is allowed.
    fn casts(&mut self, name: &str, from: DType, item: &Item, derived: bool) -> Result<Vec<DType>> {
        let to = item.dtype;
        let floats = from.is_float() && to.is_float();
        let allowed = match self.options.casts {
            Casts::Refuse => derived && floats,
            Casts::Floats => floats,
            Casts::Any => true,
        };
        if from == to {
            return Ok(Vec::new());
        }
        if !allowed {
            return Err(Error::DType { tensor: name.to_string(), found: from, expected: to });
        }
        let cast = (name.to_string(), from.to_string(), to.to_string());
        if !self.wants.cast.contains(&cast) {
            self.wants.cast.push(cast);
        }
        Ok(vec![to])
    }
}

/// A view of one element with another number of dims.
fn single(array: &Array, ndim: usize) -> Result<Array> {
    Ok(array.as_strided(&vec![1; ndim], &vec![1; ndim], array.offset())?)
}

/// Which target dim each source dim became.
pub(crate) fn inverse(order: &[usize]) -> Dims {
    let mut back = Dims::from_elem(0, order.len());
    order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
    back
}
