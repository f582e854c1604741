//! Exact inverses: every source element is found again in exactly one place of a target.

use crate::catalog::Tensor;
use crate::error::{Error, Obstacle, Result};
use crate::mapping::{Mapping, Rearrange, Target};
use crate::node::{Filled, Make, NodeId, Nodes, inverse};
use crate::query::{LIMIT, Query, Raw};
use planaria_layout::{DType, DTypeKind, Dims, Listed, Region, Shape, Tile};
use std::collections::HashMap;
use std::sync::Arc;

/// What to do about elements that went to several places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ties {
    /// Not an exact inverse: the copies may have come to differ.
    #[default]
    Refuse,
    /// Copies are equal by agreement (tied weights): the first target that has one gives it back.
    First,
}

/// A box of a source and the piece of a target it went to.
struct Sent {
    target: usize,
    raw: Raw,
}

impl Mapping {
    /// The mapping that undoes this one exactly, or all reasons why there is none. Sources dropped on purpose
    /// are not made again, and targets that are not loaded are not read.
    pub fn inverse(&self, ties: Ties) -> Result<Mapping> {
        let mut obstacles = Vec::new();
        let mut sent: Vec<Vec<Sent>> = self.sources.iter().map(|_| Vec::new()).collect();
        for (index, target) in self.targets.iter().enumerate() {
            for raw in self.all_pieces(target)? {
                sent[raw.source].push(Sent { target: index, raw });
            }
        }
        let mut nodes = Nodes::default();
        let loaded: Vec<usize> =
            (0..self.targets.len()).filter(|&i| self.targets[i].node.is_some()).collect();
        let source_nodes: HashMap<usize, NodeId> = loaded
            .iter()
            .enumerate()
            .map(|(number, &target)| {
                let tensor = &self.targets[target].tensor;
                (target, nodes.push(tensor.shape().clone(), tensor.dtype(), Make::Source(number)))
            })
            .collect();
        let mut targets = Vec::new();
        for (source, sent) in sent.iter().enumerate() {
            let (name, tensor) = &self.sources[source];
            if sent.is_empty() && self.is_left_out(name, tensor) {
                continue;
            }
            let before = obstacles.len();
            let mut back = Back { mapping: self, nodes: &mut nodes, targets: &source_nodes, ties };
            if let Some(node) =
                back.source((name, tensor), sent, &mut obstacles).filter(|_| before == obstacles.len())
            {
                targets.push(Target { name: name.clone(), tensor: tensor.clone(), node: Some(node) });
            }
        }
        if !obstacles.is_empty() {
            return Err(Error::NotInvertible(obstacles));
        }
        let unloaded = self.targets.iter().filter(|target| target.node.is_none());
        let mut dropped: Vec<Arc<str>> = unloaded.map(|target| target.name.clone()).collect();
        dropped.sort();
        Ok(Mapping {
            dropped,
            absent: self.dropped.clone(),
            sources: loaded
                .iter()
                .map(|&i| (self.targets[i].name.clone(), self.targets[i].tensor.clone()))
                .collect(),
            by_name: targets.iter().enumerate().map(|(index, target)| (target.name.clone(), index)).collect(),
            targets,
            nodes,
            warnings: crate::error::Report::new(&Arc::from(""), Vec::new()),
        })
    }

    /// Dropped on purpose, or without elements to lose.
    fn is_left_out(&self, name: &Arc<str>, tensor: &Tensor) -> bool {
        self.is_dropped(name) || (tensor.shape().numel() == 0 && self.target(name).is_none())
    }

    fn all_pieces(&self, target: &Target) -> Result<Vec<Raw>> {
        let whole = Region::whole(target.tensor.shape());
        let Some(node) = target.node.filter(|_| !whole.is_empty()) else { return Ok(Vec::new()) };
        let found = Query { nodes: &self.nodes }.visit(node, &whole);
        found.map_err(|_| Error::TooManyPieces {
            name: target.name.to_string(),
            region: Box::new(whole),
            limit: LIMIT,
        })
    }
}

struct Back<'a> {
    mapping: &'a Mapping,
    nodes: &'a mut Nodes,
    /// The node of each loaded target, which the inverse reads.
    targets: &'a HashMap<usize, NodeId>,
    ties: Ties,
}

impl Back<'_> {
    /// The node that makes a source again.
    fn source(
        &mut self,
        (name, tensor): (&Arc<str>, &Tensor),
        sent: &[Sent],
        obstacles: &mut Vec<Obstacle>,
    ) -> Option<NodeId> {
        let source_name = name.to_string();
        if sent.is_empty() && tensor.shape().numel() > 0 {
            obstacles.push(Obstacle::Unread { source_name });
            return None;
        }
        let mut tiles: Vec<Tile<Filled>> = Vec::with_capacity(sent.len());
        for part in sent {
            if let Some((from, to)) = lossy(tensor.dtype(), &part.raw.casts) {
                let target = self.mapping.targets[part.target].name.to_string();
                obstacles.push(Obstacle::Lossy { source_name, target, from, to });
                return None;
            }
            let node = self.undo(part, tensor.dtype());
            let lo = Dims::from_slice(part.raw.from.lo());
            tiles.push(Tile { region: part.raw.from.clone(), holder: Filled { node, lo } });
        }
        if let [tile] = &tiles[..]
            && tile.region == Region::whole(tensor.shape())
        {
            return Some(tile.holder.node);
        }
        let listed = self.listed(tensor.shape(), tiles, source_name, obstacles)?;
        Some(self.nodes.push(tensor.shape().clone(), tensor.dtype(), Make::Tiles { tiles: listed }))
    }

    fn listed(
        &self,
        shape: &Shape,
        tiles: Vec<Tile<Filled>>,
        source_name: String,
        obstacles: &mut Vec<Obstacle>,
    ) -> Option<Listed<Filled>> {
        // Holders of equal boxes are sorted by node, and nodes were made in target order: the first is first.
        let listed = match Listed::new(shape, tiles) {
            Ok(listed) => listed,
            Err(planaria_layout::Error::Overlap { first, second }) => {
                let region = first.intersect(&second).unwrap_or(*first);
                obstacles.push(Obstacle::Tied { source_name, region: Box::new(region) });
                return None;
            }
            Err(planaria_layout::Error::Hole { covered, total }) => {
                obstacles.push(Obstacle::PartlyRead { source_name, covered, total });
                return None;
            }
            Err(_) => return None,
        };
        let tied = listed.boxes().find(|(_, copies)| copies.len() > 1).map(|(region, _)| region.clone());
        if let Some(region) = tied.filter(|_| self.ties == Ties::Refuse) {
            obstacles.push(Obstacle::Tied { source_name, region: Box::new(region) });
            return None;
        }
        Some(listed)
    }

    /// A piece of a target, cut out and rearranged back into its source block.
    fn undo(&mut self, part: &Sent, dtype: Option<DType>) -> NodeId {
        let raw = &part.raw;
        let whole = self.targets[&part.target];
        let mut node = if raw.to == Region::whole(self.nodes.shape(whole)) {
            whole
        } else {
            let shape = Shape::from_dims(raw.to.extents()).unwrap_or_default();
            let kind = Make::Cut { of: whole, lo: Dims::from_slice(raw.to.lo()) };
            self.nodes.push(shape, self.nodes.get(whole).dtype, kind)
        };
        // Extents of the block before each step.
        let mut extents = vec![raw.from.extents()];
        for step in &raw.steps {
            let before = &extents[extents.len() - 1];
            extents.push(match step {
                Rearrange::Permute(order) => order.iter().map(|&d| before[d]).collect(),
                Rearrange::Reshape(to) => to.clone(),
            });
        }
        for (step, before) in raw.steps.iter().zip(&extents).rev() {
            node = match step {
                Rearrange::Permute(order) => self.nodes.permute(node, &inverse(order)),
                Rearrange::Reshape(_) => {
                    let to: Vec<i64> = before.iter().map(|&d| d as i64).collect();
                    // The block has the extents it had on the way in.
                    self.nodes.reshape(node, &to, "").unwrap_or(node)
                }
            };
        }
        dtype.map_or(node, |dtype| self.nodes.cast(node, dtype))
    }
}

/// The first cast of a chain that loses digits.
fn lossy(dtype: Option<DType>, casts: &[DType]) -> Option<(DType, DType)> {
    let mut from = dtype?;
    for &to in casts {
        if !holds(to, from) {
            return Some((from, to));
        }
        from = to;
    }
    None
}

/// Whether `wide` holds every value of `narrow`.
fn holds(wide: DType, narrow: DType) -> bool {
    let (digits, range) = precision(wide);
    let (needed_digits, needed_range) = precision(narrow);
    let sign = match (wide.kind(), narrow.kind()) {
        (DTypeKind::Float | DTypeKind::Signed, DTypeKind::Bool | DTypeKind::Unsigned) => true,
        (DTypeKind::Float, DTypeKind::Signed) => true,
        (wide, narrow) => wide == narrow || (wide == DTypeKind::Unsigned && narrow == DTypeKind::Bool),
    };
    wide == narrow || (sign && digits >= needed_digits && range >= needed_range)
}

/// Binary digits kept, and the power of two that values stay below.
fn precision(dtype: DType) -> (u32, u32) {
    match dtype {
        DType::Bool => (1, 1),
        DType::U8 => (8, 8),
        DType::U16 => (16, 16),
        DType::U32 => (32, 32),
        DType::U64 => (64, 64),
        DType::I8 => (7, 7),
        DType::I16 => (15, 15),
        DType::I32 => (31, 31),
        DType::I64 => (63, 63),
        DType::F8E4M3 => (4, 9),
        DType::F8E5M2 => (3, 16),
        DType::F16 => (11, 16),
        DType::BF16 => (8, 128),
        DType::F32 => (24, 128),
        DType::F64 => (53, 1024),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_types_hold_narrower_ones() {
        use DType::*;
        assert!(
            holds(F32, BF16) && holds(F32, F16) && holds(F64, I32) && holds(F16, F8E5M2) && holds(I16, U8)
        );
        assert!(holds(BF16, F8E4M3) && holds(BF16, U8));
        assert!(
            !holds(BF16, F16) && !holds(F16, BF16) && !holds(BF16, F32) && !holds(I8, U8) && !holds(F32, I32)
        );
        assert!(!holds(F16, U16) && !holds(Bool, U8));
    }
}
