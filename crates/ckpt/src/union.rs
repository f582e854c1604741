//! What all ranks hold together: every tensor once, with the boxes of each rank.

use crate::error::{Error, Result};
use crate::options::Replicas;
use crate::state::{Group, Item, Piece, TensorKey, TensorKind, TrainState};
use crate::talk;
use planaria_comm::Comm;
use planaria_layout::{DType, Fixed, Listed, Rank, RankTiling, Region, Shape, Tile};
use planaria_store::checksum;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// What a rank says about one of its tensors.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Told {
    group: u8,
    name: String,
    slot: Option<String>,
    dtype: String,
    shape: Vec<usize>,
    /// Low and high corners.
    boxes: Vec<(Vec<usize>, Vec<usize>)>,
    /// Checksums of the boxes, where copies are compared.
    sums: Vec<u32>,
}

/// What a rank says about its state.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Hello {
    counters: [u64; 3],
    tied: BTreeMap<String, String>,
    files: Vec<(String, u64, u32)>,
    tensors: Vec<Told>,
}

/// A tensor that some ranks hold.
#[derive(Clone, Debug)]
pub(crate) struct Together {
    pub(crate) key: TensorKey,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    /// Who holds which boxes of it; the first is enough to have it all.
    pub(crate) held: Vec<RankTiling>,
}

impl Together {
    /// Every box with the ranks that hold it.
    pub(crate) fn boxes(&self) -> Vec<(Region, Vec<Rank>)> {
        let mut boxes = Vec::new();
        if let Some(first) = self.held.first().filter(|_| self.shape.numel() > 0) {
            first.lookup(&Region::whole(&self.shape), &Fixed::default(), &mut |region, copies| {
                boxes.push((region, (0..copies.count()).map(|copy| copies.get(copy)).collect()));
            });
        }
        boxes
    }
}

/// Everything the ranks hold.
#[derive(Clone, Debug)]
pub(crate) struct Union {
    /// In the order of the files.
    pub(crate) tensors: Vec<Together>,
    /// Small files with the first rank that has each.
    pub(crate) files: BTreeMap<String, usize>,
}

fn kind_number(kind: &TensorKind) -> u8 {
    match kind {
        TensorKind::Parameter => 0,
        TensorKind::Master => 1,
        TensorKind::Slot(_) => 2,
        TensorKind::Ema => 3,
        TensorKind::Buffer => 4,
    }
}

fn kind_of(number: u8, slot: Option<String>) -> TensorKind {
    match (number, slot) {
        (_, Some(slot)) => TensorKind::Slot(slot),
        (1, _) => TensorKind::Master,
        (3, _) => TensorKind::Ema,
        (4, _) => TensorKind::Buffer,
        _ => TensorKind::Parameter,
    }
}

fn told(item: &Item, replicas: Replicas) -> Result<Told> {
    let sum = |piece: &Piece| -> Result<u32> { Ok(checksum::crc32c(&piece.array.contiguous()?.bytes()?)) };
    let sums = match replicas {
        Replicas::Trust => Vec::new(),
        Replicas::Compare => item.pieces.iter().map(sum).collect::<Result<_>>()?,
    };
    let slot = if let TensorKind::Slot(slot) = &item.kind { Some(slot.clone()) } else { None };
    let corners = |region: &Region| (region.lo().to_vec(), region.hi().to_vec());
    Ok(Told {
        group: kind_number(&item.kind),
        name: item.name.clone(),
        slot,
        dtype: item.dtype.to_string(),
        shape: item.shape.to_vec(),
        boxes: item.pieces.iter().map(|piece| corners(&piece.region)).collect(),
        sums,
    })
}

/// What all ranks hold. Where not everyone knows, each rank tells the others what it holds. Collective.
pub(crate) fn gather(world: &dyn Comm, state: &TrainState, replicas: Replicas) -> Result<Union> {
    match &state.known {
        Some(known) => known.union(world, state, replicas),
        None => exchange(world, state, replicas),
    }
}

fn exchange(world: &dyn Comm, state: &TrainState, replicas: Replicas) -> Result<Union> {
    let items = &state.items;
    let checked = items.iter().try_for_each(|item| item.check());
    let checked = checked.and_then(|()| check_twice(items, world.rank()));
    let tensors = checked.and_then(|()| items.iter().map(|item| told(item, replicas)).collect());
    let tensors = talk::agree(world, tensors)?;
    let files = state.files.iter();
    let mine = Hello {
        counters: [state.step, state.samples, state.tokens],
        tied: state.tied.clone(),
        files: files.map(|(name, text)| (name.clone(), text.len() as u64, checksum::crc32c(text))).collect(),
        tensors,
    };
    join(talk::all_gather(world, mine)?)
}

fn check_twice(items: &[Item], rank: usize) -> Result<()> {
    let mut seen = BTreeSet::new();
    for item in items {
        // Parameters and buffers share their files.
        if !seen.insert((item.kind.group(), item.key().in_file())) {
            return Err(Error::NamedTwice { tensor: item.key().to_string(), rank });
        }
    }
    Ok(())
}

fn join(ranks: Vec<Hello>) -> Result<Union> {
    let first = &ranks[0];
    for (rank, hello) in ranks.iter().enumerate() {
        let differ = |what: &str, first: String, second: String| Error::RanksDisagree {
            what: what.to_string(),
            first_rank: 0,
            first,
            rank,
            second,
        };
        if hello.counters != first.counters {
            let text = |c: [u64; 3]| format!("{c:?}");
            return Err(differ("step, samples and tokens", text(first.counters), text(hello.counters)));
        }
        if hello.tied != first.tied {
            return Err(differ("tied tensors", format!("{:?}", first.tied), format!("{:?}", hello.tied)));
        }
    }
    let tied = first.tied.clone();
    let files = join_files(&ranks)?;
    let mut found: BTreeMap<(Group, String), Gathering> = BTreeMap::new();
    for (rank, hello) in ranks.into_iter().enumerate() {
        hello.tensors.into_iter().try_for_each(|told| add(&mut found, told, rank))?;
    }
    let tensors = found.into_values().map(Gathering::finish).collect::<Result<_>>()?;
    Union::new(tensors, files, &tied)
}

impl Union {
    /// The tensors in the order of the files. An alias is not stored when what it stands for is.
    pub(crate) fn new(
        mut tensors: Vec<Together>,
        files: BTreeMap<String, usize>,
        tied: &BTreeMap<String, String>,
    ) -> Result<Union> {
        if !tied.is_empty() {
            let place = |key: &TensorKey| (key.kind.group(), key.in_file());
            let places: HashSet<(Group, String)> = tensors.iter().map(|tensor| place(&tensor.key)).collect();
            tensors.retain(|tensor| {
                let Some(target) = tied.get(&tensor.key.name) else { return true };
                let target = TensorKey { kind: tensor.key.kind.clone(), name: target.clone() };
                tensor.key.same_place(&target) || !places.contains(&place(&target))
            });
        }
        let tensors = in_order(tensors);
        let twice = tensors.windows(2).find(|pair| pair[0].key.same_place(&pair[1].key));
        match twice {
            None => Ok(Union { tensors, files }),
            Some(pair) => Err(Error::NamedTwice { tensor: pair[0].key.to_string(), rank: 0 }),
        }
    }
}

struct Gathering {
    key: TensorKey,
    dtype: DType,
    shape: Shape,
    first_rank: usize,
    boxes: Vec<Tile<Rank>>,
    /// The first rank that has each box, and the checksum of its copy.
    sums: BTreeMap<Region, (usize, u32)>,
}

/// Adds what one rank said.
fn add(found: &mut BTreeMap<(Group, String), Gathering>, told: Told, rank: usize) -> Result<()> {
    let key = TensorKey { kind: kind_of(told.group, told.slot), name: told.name };
    let wrong = |problem| Error::Tiles { tensor: key.to_string(), problem };
    let dtype: DType = told.dtype.parse().map_err(wrong)?;
    let shape = Shape::new(&told.shape).map_err(wrong)?;
    let gathering = found.entry((key.kind.group(), key.in_file())).or_insert_with(|| Gathering {
        key: key.clone(),
        dtype,
        shape: shape.clone(),
        first_rank: rank,
        boxes: Vec::new(),
        sums: BTreeMap::new(),
    });
    let differ = |what: &str, first: String, second: String| Error::RanksDisagree {
        what: format!("the {what} of tensor '{key}'"),
        first_rank: gathering.first_rank,
        first,
        rank,
        second,
    };
    if gathering.dtype != dtype {
        return Err(differ("dtype", gathering.dtype.to_string(), dtype.to_string()));
    }
    if gathering.shape != shape {
        return Err(differ("shape", gathering.shape.to_string(), shape.to_string()));
    }
    if gathering.key.kind != key.kind {
        return Err(differ("kind", format!("{:?}", gathering.key.kind), format!("{:?}", key.kind)));
    }
    for (number, (lo, hi)) in told.boxes.into_iter().enumerate() {
        let region = Region::new(&lo, &hi).map_err(wrong)?;
        if let Some(&sum) = told.sums.get(number) {
            let (first_rank, first) = *gathering.sums.entry(region.clone()).or_insert((rank, sum));
            if first != sum {
                let what = format!("the values of {region} of tensor '{key}'");
                let text = |sum: u32| format!("checksum {sum:08x}");
                let (first, second) = (text(first), text(sum));
                return Err(Error::RanksDisagree { what, first_rank, first, rank, second });
            }
        }
        gathering.boxes.push(Tile { region, holder: rank });
    }
    Ok(())
}

impl Gathering {
    /// The boxes must be the whole tensor; equal ones are copies.
    fn finish(self) -> Result<Together> {
        let wrong = |problem| Error::Tiles { tensor: self.key.to_string(), problem };
        let held: RankTiling = Arc::new(Listed::new(&self.shape, self.boxes).map_err(wrong)?);
        Ok(Together { key: self.key, dtype: self.dtype, shape: self.shape, held: vec![held] })
    }
}

fn join_files(ranks: &[Hello]) -> Result<BTreeMap<String, usize>> {
    let mut files: BTreeMap<String, usize> = BTreeMap::new();
    let mut seen: BTreeMap<&str, (u64, u32)> = BTreeMap::new();
    for (rank, hello) in ranks.iter().enumerate() {
        for (name, size, sum) in &hello.files {
            let first_rank = *files.entry(name.clone()).or_insert(rank);
            let first = *seen.entry(name).or_insert((*size, *sum));
            if first != (*size, *sum) {
                let what = format!("the file '{name}'");
                let text = |(size, sum): (u64, u32)| format!("{size} bytes with checksum {sum:08x}");
                let (first, second) = (text(first), text((*size, *sum)));
                return Err(Error::RanksDisagree { what, first_rank, first, rank, second });
            }
        }
    }
    Ok(files)
}

/// The order of tensors in files: by group, then by name with numbers as numbers, then by slot. A parameter has the name
/// of all that belongs to it, so names are put in order first.
fn in_order(tensors: Vec<Together>) -> Vec<Together> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.key.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.sort_by(|a, b| natural(a, b));
    let places: HashMap<&str, usize> = names.into_iter().enumerate().map(|(n, name)| (name, n)).collect();
    let place = |key: &TensorKey| (key.kind.group(), places[key.name.as_str()]);
    let mut order: Vec<((Group, usize), usize)> =
        tensors.iter().enumerate().map(|(number, tensor)| (place(&tensor.key), number)).collect();
    order.sort_by(|(a, x), (b, y)| {
        a.cmp(b).then_with(|| tensors[*x].key.kind.cmp(&tensors[*y].key.kind)).then(x.cmp(y))
    });
    let mut tensors: Vec<Option<Together>> = tensors.into_iter().map(Some).collect();
    order.into_iter().filter_map(|(_, number)| tensors[number].take()).collect()
}

/// Compares names so that `layers.2` comes before `layers.10`.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    // All before the first difference is alike, but for a number that it may stand in.
    let same = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let number = a.as_bytes()[..same].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (mut left, mut right) = (&a.as_bytes()[same - number..], &b.as_bytes()[same - number..]);
    loop {
        let (Some(x), Some(y)) = (left.first(), right.first()) else {
            return left.len().cmp(&right.len()).then_with(|| a.cmp(b));
        };
        if x.is_ascii_digit() && y.is_ascii_digit() {
            let digits = |text: &[u8]| text.iter().take_while(|b| b.is_ascii_digit()).count();
            let (x, left_rest) = left.split_at(digits(left));
            let (y, right_rest) = right.split_at(digits(right));
            let strip = |text: &[u8]| text.iter().position(|b| *b != b'0').unwrap_or(text.len());
            let (x, y) = (&x[strip(x)..], &y[strip(y)..]);
            match x.len().cmp(&y.len()).then_with(|| x.cmp(y)) {
                Ordering::Equal => (left, right) = (left_rest, right_rest),
                other => return other,
            }
        } else if x == y {
            (left, right) = (&left[1..], &right[1..]);
        } else {
            return x.cmp(y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_ordered_as_people_count() {
        let mut names = ["layers.10.w", "layers.2.w", "a", "layers.2.b", "layers.02.w", "layers"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["a", "layers", "layers.2.b", "layers.02.w", "layers.2.w", "layers.10.w"]);
    }

    proptest! {
        #[test]
        fn the_order_of_names_is_one_order(a in "[a01.]{0,6}", b in "[a01.]{0,6}", c in "[a01.]{0,6}") {
            prop_assert_eq!(natural(&a, &b), natural(&b, &a).reverse());
            prop_assert_eq!(natural(&a, &b).is_eq(), a == b);
            if natural(&a, &b).is_le() && natural(&b, &c).is_le() {
                prop_assert!(natural(&a, &c).is_le(), "{} {} {}", a, b, c);
            }
        }
    }
}
