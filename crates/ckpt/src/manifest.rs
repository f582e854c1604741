//! The manifest: what a checkpoint folder holds, byte by byte, written last and read first.

use crate::error::{Error, Result};
use crate::state::{TensorKey, TensorKind, TrainState};
use planaria_layout::{DType, Extent, Listed, Region, Shape, Tile};
use planaria_store::check_name;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// Name of the manifest in a folder.
pub(crate) const MANIFEST: &str = "manifest.json";
/// Largest manifest that is read.
pub(crate) const MANIFEST_BYTES: u64 = 1 << 30;
/// What `format` says.
pub(crate) const FORMAT: &str = "planaria-checkpoint";
/// The version that this code writes, and the newest it reads.
const VERSION: u32 = 1;
/// Bytes under one checksum: few enough that a part of a file is verified without reading much beside it.
pub(crate) const SUM_BLOCK: u64 = 1 << 20;

/// The manifest as it is written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: String,
    pub(crate) version: u32,
    pub(crate) writer: String,
    pub(crate) step: u64,
    pub(crate) samples: u64,
    pub(crate) tokens: u64,
    pub(crate) random: Value,
    pub(crate) schedule: Value,
    pub(crate) config: Value,
    pub(crate) extra: Value,
    pub(crate) tied: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) derive: Option<Derive>,
    pub(crate) ranks: usize,
    pub(crate) block: u64,
    pub(crate) files: Vec<FileRecord>,
    pub(crate) others: Vec<OtherRecord>,
    pub(crate) tensors: Vec<TensorRecord>,
}

/// Tensors that were left out because others hold their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Derive {
    /// A parameter is its master weight, cast.
    ParametersFromMasters,
    /// A master weight is its parameter, cast.
    MastersFromParameters,
}

/// A file of tensors; `sums` has eight hexadecimal digits for each block.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FileRecord {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) sums: String,
}

/// A small file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct OtherRecord {
    pub(crate) name: String,
    pub(crate) size: u64,
    pub(crate) sum: String,
    pub(crate) role: Role,
}

/// Why a small file is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It belongs to the state.
    State,
    /// It tells other programs which tensor is in which file.
    Index,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TensorRecord {
    pub(crate) kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<String>,
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) tiles: Vec<TileRecord>,
    /// The boxes that ranks held when this was saved, for people to read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held: Option<String>,
}

/// Where a box lies; without `region` it is the whole tensor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TileRecord {
    pub(crate) file: usize,
    pub(crate) offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<String>,
}

/// A committed checkpoint: what stands in its manifest, checked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The folder in its store.
    pub folder: String,
    /// Program and version that wrote it.
    pub writer: String,
    /// Number of ranks that wrote it.
    pub ranks: usize,
    /// What was left out to be derived.
    pub derive: Option<Derive>,
    /// Everything of the state but its tensors and files.
    pub state: TrainState,
    /// The files of tensors, numbered as in [`Extent::file`].
    pub files: Vec<DataFile>,
    /// Bytes under each checksum.
    pub block: u64,
    /// The small files.
    pub others: Vec<SmallFile>,
    /// The tensors.
    pub tensors: BTreeMap<TensorKey, Stored>,
}

/// A file of tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Name in the folder.
    pub name: String,
    /// Its size.
    pub size: u64,
    /// CRC-32C of each block.
    pub sums: Vec<u32>,
}

/// A small file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SmallFile {
    /// Name in the folder.
    pub name: String,
    /// Its size.
    pub size: u64,
    /// CRC-32C of its bytes.
    pub sum: u32,
    /// Why it is there.
    pub role: Role,
}

/// A tensor in the files.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Element type.
    pub dtype: DType,
    /// Global shape.
    pub shape: Shape,
    /// Its boxes, row-major, and where they lie. Together they are the whole tensor.
    pub tiles: Vec<Tile<Extent>>,
    /// The boxes that ranks held when it was saved.
    pub held: Option<String>,
}

impl TensorKind {
    fn text(&self) -> (&'static str, Option<String>) {
        match self {
            TensorKind::Parameter => ("parameter", None),
            TensorKind::Master => ("master", None),
            TensorKind::Slot(slot) => ("slot", Some(slot.clone())),
            TensorKind::Ema => ("ema", None),
            TensorKind::Buffer => ("buffer", None),
        }
    }

    fn parse(kind: &str, slot: Option<&str>) -> Option<TensorKind> {
        Some(match (kind, slot) {
            ("parameter", None) => TensorKind::Parameter,
            ("master", None) => TensorKind::Master,
            ("slot", Some(slot)) => TensorKind::Slot(slot.to_string()),
            ("ema", None) => TensorKind::Ema,
            ("buffer", None) => TensorKind::Buffer,
            _ => return None,
        })
    }
}

/// Eight hexadecimal digits for each sum.
pub(crate) fn sums_text(sums: &[u32]) -> String {
    sums.iter().map(|sum| format!("{sum:08x}")).collect()
}

fn parse_sums(text: &str) -> Option<Vec<u32>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(8) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let sum = |eight: &[u8]| u32::from_str_radix(std::str::from_utf8(eight).ok()?, 16).ok();
    digits.chunks(8).map(sum).collect()
}

impl Manifest {
    /// The manifest of a state with these files and tensors.
    pub(crate) fn new(state: &TrainState, ranks: usize) -> Manifest {
        Manifest {
            format: FORMAT.to_string(),
            version: VERSION,
            writer: format!("planaria {}", env!("CARGO_PKG_VERSION")),
            step: state.step,
            samples: state.samples,
            tokens: state.tokens,
            random: state.random.clone(),
            schedule: state.schedule.clone(),
            config: state.config.clone(),
            extra: state.extra.clone(),
            tied: state.tied.clone(),
            derive: None,
            ranks,
            block: SUM_BLOCK,
            files: Vec::new(),
            others: Vec::new(),
            tensors: Vec::new(),
        }
    }

    /// Reads and checks the text of a manifest.
    pub(crate) fn read(folder: &str, text: &[u8]) -> Result<Checkpoint> {
        let file = planaria_store::join(folder, MANIFEST);
        let refuse = |what: String| Error::Malformed { file: file.clone(), what };
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let parsed = serde_json::from_slice::<Manifest>(text);
        // Of a manifest that cannot be read it matters first whether it is one, and for us.
        let head = match &parsed {
            Ok(manifest) => Ok(Head { format: manifest.format.clone(), version: manifest.version }),
            Err(_) => serde_json::from_slice::<Head>(text),
        };
        let head = head.map_err(|error| refuse(error.to_string()))?;
        if head.format != FORMAT {
            return Err(refuse(format!("its format is '{}', not '{FORMAT}'", head.format)));
        }
        if head.version > VERSION || head.version == 0 {
            let what = format!("its version is {}, this program reads up to {VERSION}", head.version);
            return Err(Error::Unsupported { file, what });
        }
        let manifest = parsed.map_err(|error| refuse(error.to_string()))?;
        manifest.checked(folder).map_err(|error| match error {
            Refusal::Text(what) => refuse(what),
            Refusal::Error(error) => error,
        })
    }

    fn checked(self, folder: &str) -> std::result::Result<Checkpoint, Refusal> {
        let unit = crate::schedule::UNIT;
        if self.block < planaria_store::BLOCK as u64 || self.block > unit || !unit.is_multiple_of(self.block)
        {
            return Err(Refusal::Text(format!("blocks of {} bytes are not possible", self.block)));
        }
        let mut names = BTreeSet::new();
        let mut files = Vec::with_capacity(self.files.len());
        for record in self.files {
            plain_name(&record.name, &mut names)?;
            let sums =
                parse_sums(&record.sums).filter(|s| s.len() as u64 == record.size.div_ceil(self.block));
            let Some(sums) = sums else {
                return Err(Refusal::Text(format!("the checksums of '{}' do not fit its size", record.name)));
            };
            files.push(DataFile { name: record.name, size: record.size, sums });
        }
        let mut others = Vec::with_capacity(self.others.len());
        for record in self.others {
            plain_name(&record.name, &mut names)?;
            let sum = parse_sums(&record.sum).and_then(|sums| <[u32; 1]>::try_from(sums).ok());
            let Some([sum]) = sum else {
                return Err(Refusal::Text(format!(
                    "'{}' is not a checksum of '{}'",
                    record.sum, record.name
                )));
            };
            others.push(SmallFile { name: record.name, size: record.size, sum, role: record.role });
        }
        let tensors = checked_tensors(self.tensors, &files)?;
        let state = TrainState {
            items: Vec::new(),
            step: self.step,
            samples: self.samples,
            tokens: self.tokens,
            random: self.random,
            schedule: self.schedule,
            config: self.config,
            extra: self.extra,
            files: BTreeMap::new(),
            tied: self.tied,
            known: None,
        };
        let (folder, writer, ranks, block) = (folder.to_string(), self.writer, self.ranks, self.block);
        let derive = self.derive;
        Ok(Checkpoint { folder, writer, ranks, derive, state, files, block, others, tensors })
    }
}

/// Why a manifest is refused.
enum Refusal {
    Text(String),
    Error(Error),
}

/// A file directly in the folder, named once.
fn plain_name(name: &str, seen: &mut BTreeSet<String>) -> std::result::Result<(), Refusal> {
    check_name(name).map_err(|error| Refusal::Error(error.into()))?;
    if name.contains('/') {
        return Err(Refusal::Text(format!("it names '{name}', which is in another folder")));
    }
    if !seen.insert(name.to_string()) {
        return Err(Refusal::Text(format!("it names the file '{name}' twice")));
    }
    Ok(())
}

fn checked_tensors(
    records: Vec<TensorRecord>,
    files: &[DataFile],
) -> std::result::Result<BTreeMap<TensorKey, Stored>, Refusal> {
    let mut tensors: BTreeMap<TensorKey, Stored> = BTreeMap::new();
    for record in records {
        let Some(kind) = TensorKind::parse(&record.kind, record.slot.as_deref()) else {
            return Err(Refusal::Text(format!(
                "tensor '{}' is of the unknown kind '{}'",
                record.name, record.kind
            )));
        };
        let key = TensorKey { kind, name: record.name.clone() };
        let stored = record.checked(&key, files)?;
        match tensors.entry(key) {
            Entry::Vacant(place) => place.insert(stored),
            Entry::Occupied(place) => {
                return Err(Refusal::Text(format!("tensor '{}' appears twice", place.key())));
            }
        };
    }
    let tiles =
        tensors.iter().flat_map(|(key, stored)| stored.tiles.iter().map(move |tile| (tile.holder, key)));
    let mut extents: Vec<(Extent, &TensorKey)> = tiles.filter(|(extent, _)| extent.len > 0).collect();
    extents.sort_unstable();
    for pair in extents.windows(2) {
        let ((first, one), (second, other)) = (&pair[0], &pair[1]);
        if first.file == second.file && first.offset + first.len > second.offset {
            return Err(Refusal::Text(format!("tensors '{one}' and '{other}' share bytes of a file")));
        }
    }
    Ok(tensors)
}

impl TensorRecord {
    /// The record of a tensor whose tiles stand elsewhere.
    pub(crate) fn new(key: &TensorKey, dtype: DType, shape: &Shape) -> TensorRecord {
        let (kind, slot) = key.kind.text();
        TensorRecord {
            kind: kind.to_string(),
            slot,
            name: key.name.clone(),
            dtype: dtype.to_string(),
            shape: shape.to_vec(),
            tiles: Vec::new(),
            held: None,
        }
    }

    fn checked(self, key: &TensorKey, files: &[DataFile]) -> std::result::Result<Stored, Refusal> {
        let wrong = |problem| Refusal::Error(Error::Tiles { tensor: key.to_string(), problem });
        let dtype: DType = self.dtype.parse().map_err(wrong)?;
        let shape = Shape::new(&self.shape).map_err(wrong)?;
        let mut tiles = Vec::with_capacity(self.tiles.len());
        for TileRecord { file, offset, region } in self.tiles {
            let region = match region {
                Some(text) => text.parse::<Region>().map_err(wrong)?,
                None => Region::whole(&shape),
            };
            let len = (region.numel() as u64).saturating_mul(dtype.size() as u64);
            let size = files.get(file).map_or(0, |file| file.size);
            if file >= files.len() || offset.checked_add(len).is_none_or(|end| end > size) {
                let what =
                    format!("tensor '{key}' has {len} bytes at {offset} of file {file}, which has {size}");
                return Err(Refusal::Text(what));
            }
            if !offset.is_multiple_of(dtype.size() as u64) {
                return Err(Refusal::Text(format!("tensor '{key}' is not aligned to its elements")));
            }
            tiles.push(Tile { region, holder: Extent { file, offset, len } });
        }
        if let [tile] = &tiles[..]
            && tile.region == Region::whole(&shape)
        {
            return Ok(Stored { dtype, shape, tiles, held: self.held });
        }
        // Whole, without overlap. Copies of a box would be allowed there and are not written.
        Listed::new(&shape, tiles.iter().cloned()).map_err(wrong)?;
        let boxes: BTreeSet<&Region> = tiles.iter().map(|tile| &tile.region).collect();
        if boxes.len() != tiles.len() {
            return Err(Refusal::Text(format!("tensor '{key}' has a box that appears twice")));
        }
        Ok(Stored { dtype, shape, tiles, held: self.held })
    }
}
