//! PyTorch distributed checkpoints: `__{writer}_{n}.distcp` and `.metadata`.

use super::pickle::Py;
use super::zip::{ALIGN, Archive};
use super::{Draft, Frame, NewFile, Slot, Tail, Wanted};
use crate::formats::{Key, Part};
use crate::union::natural;
use planaria_layout::{DType, Region};
use serde_json::Value;
use std::collections::BTreeMap;

const METADATA: &str = "torch.distributed.checkpoint.metadata";

/// The name under which torch knows a tensor: parts other than the model stand before it.
fn fqn(key: &Key) -> String {
    match key.part {
        Part::Model => key.name.clone(),
        part => format!("{part}.{}", key.name),
    }
}

/// `bfloat16` in `torch.bfloat16`.
pub(crate) fn torch_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "bool",
        DType::U8 => "uint8",
        DType::I8 => "int8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::U16 => "uint16",
        DType::U32 => "uint32",
        DType::U64 => "uint64",
        DType::F16 => "float16",
        DType::BF16 => "bfloat16",
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::F8E4M3 => "float8_e4m3fn",
        DType::F8E5M2 => "float8_e5m2",
    }
}

/// What torch calls the element type of a tensor.
fn name_of(tensor: &Wanted) -> &'static str {
    tensor.foreign.map_or(torch_name(tensor.dtype), |foreign| foreign.torch)
}

/// The typed storage of old element types; younger ones have none.
fn storage_class(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "BoolStorage",
        DType::U8 => "ByteStorage",
        DType::I8 => "CharStorage",
        DType::I16 => "ShortStorage",
        DType::I32 => "IntStorage",
        DType::I64 => "LongStorage",
        DType::F16 => "HalfStorage",
        DType::BF16 => "BFloat16Storage",
        DType::F32 => "FloatStorage",
        DType::F64 => "DoubleStorage",
        DType::U16 | DType::U32 | DType::U64 | DType::F8E4M3 | DType::F8E5M2 => return None,
    })
}

/// The pickle that makes a tensor of the archive's data.
fn tensor_pickle(tensor: &Wanted, region: &Region) -> Vec<u8> {
    let (dtype, numel) = (tensor.dtype, region.numel());
    let extents = region.extents();
    let extents = tensor.foreign.map_or(&extents[..], |foreign| foreign.extents(&extents));
    let mut strides = vec![1; extents.len()];
    for dim in (1..extents.len()).rev() {
        strides[dim - 1] = strides[dim] * extents[dim].max(1);
    }
    let class = storage_class(dtype).filter(|_| tensor.foreign.is_none());
    let (storage, count) = match class {
        Some(class) => (Py::global("torch", class), numel),
        None => (Py::global("torch.storage", "UntypedStorage"), numel * dtype.size()),
    };
    let id = vec![Py::text("storage"), storage, Py::text("0"), Py::text("cpu"), Py::size(count as u64)];
    let mut args = vec![
        Py::Persistent(Box::new(Py::Tuple(id))),
        Py::Int(0),
        Py::sizes(extents),
        Py::sizes(&strides),
        Py::Bool(false),
        Py::call(("collections", "OrderedDict"), Vec::new()),
    ];
    let rebuild = match class {
        Some(_) => "_rebuild_tensor_v2",
        None => {
            args.push(Py::global("torch", name_of(tensor)));
            "_rebuild_tensor_v3"
        }
    };
    Py::call(("torch._utils", rebuild), args).pickled()
}

/// Items of the metadata while files are laid out.
struct Items<'p> {
    tensors: Vec<(Py, Py)>,
    planner: Vec<(Py, Py)>,
    storage: Vec<(Py, Py)>,
    paths: &'p Paths<'p>,
}

/// Where a name stands in nested dicts and lists: keys and numbers.
pub(crate) type Paths<'p> = dyn Fn(&str) -> Vec<Value> + 'p;

/// A folder of these tensors and other values, in files of at most `limit` bytes where a tensor allows it.
pub(crate) fn dcp(
    tensors: &[Wanted],
    values: &BTreeMap<String, Value>,
    paths: &Paths<'_>,
    limit: u64,
) -> Draft {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by(|&a, &b| natural(&fqn(&tensors[a].key), &fqn(&tensors[b].key)));
    let writers = tensors.iter().flat_map(|tensor| tensor.boxes.iter().map(|(writer, _)| writer + 1)).max();
    let mut items = Items { tensors: Vec::new(), planner: Vec::new(), storage: Vec::new(), paths };
    let mut places: Vec<Vec<Option<(String, u64, u64)>>> =
        tensors.iter().map(|tensor| vec![None; tensor.boxes.len()]).collect();
    let mut draft = Draft::default();
    for writer in 0..writers.unwrap_or(1) {
        let mut volumes = Volumes { writer, limit, files: Vec::new() };
        if writer == 0 {
            for (name, value) in values {
                let at = volumes.add(Archive::new(&Py::from_json(value).pickled(), None), None);
                items.object(name, at);
            }
        }
        for &number in &order {
            let tensor = &tensors[number];
            for (index, (_, region)) in tensor.boxes.iter().enumerate().filter(|(_, held)| held.0 == writer) {
                let archive = Archive::new(
                    &tensor_pickle(tensor, region),
                    Some((region.numel() * tensor.dtype.size()) as u64),
                );
                places[number][index] = Some(volumes.add(archive, Some((number, region))));
            }
        }
        draft.files.append(&mut volumes.files);
    }
    for &number in &order {
        items.tensor(&tensors[number], &places[number]);
    }
    draft.small.push((".metadata".to_string(), items.metadata()));
    draft
}

/// The files of one writer.
struct Volumes {
    writer: usize,
    limit: u64,
    files: Vec<NewFile>,
}

impl Volumes {
    /// Puts an archive behind the others; file, offset and length of it.
    fn add(&mut self, archive: Archive, of: Option<(usize, &Region)>) -> (String, u64, u64) {
        let data = archive.data_len();
        let start = self.files.last().map_or(0, |file| file.len.next_multiple_of(ALIGN));
        let mut file = match self.files.pop() {
            Some(file) if start == 0 || start.saturating_add(data) <= self.limit => file,
            full => {
                self.files.extend(full);
                let name = format!("__{}_{}.distcp", self.writer, self.files.len());
                NewFile { name, ..NewFile::default() }
            }
        };
        let start = file.len.next_multiple_of(ALIGN);
        let mut bytes = vec![0; (start - file.len) as usize];
        bytes.extend(archive.prefix());
        file.frames.push(Frame { offset: file.len, bytes });
        let mut end = start + archive.prefix().len() as u64;
        let mut slot = None;
        if let Some((tensor, region)) = of {
            slot = (data > 0).then_some(file.slots.len());
            if data > 0 {
                file.slots.push(Slot { tensor, region: region.clone(), offset: end, len: data });
            }
            end += data;
        }
        let len = archive.tail_len();
        file.tails.push(Tail { offset: end, len, slot, archive });
        file.len = end + len;
        let place = (file.name.clone(), start, file.len - start);
        self.files.push(file);
        place
    }
}

impl Items<'_> {
    fn planned(&mut self, name: &str) {
        let path = (self.paths)(name).iter().map(Py::from_json).collect();
        self.planner.push((Py::text(name), Py::Tuple(path)));
    }

    fn object(&mut self, name: &str, (file, offset, len): (String, u64, u64)) {
        self.tensors.push((Py::text(name), Py::record((METADATA, "BytesStorageMetadata"), Vec::new())));
        self.planned(name);
        let index = vec![("fqn", Py::text(name)), ("index", Py::None)];
        self.storage.push((Py::record((METADATA, "MetadataIndex"), index), stored(file, offset, len)));
    }

    fn tensor(&mut self, tensor: &Wanted, places: &[Option<(String, u64, u64)>]) {
        let name = fqn(&tensor.key);
        let size = |sizes: &[usize]| Py::call(("torch", "Size"), vec![Py::sizes(sizes)]);
        let extents =
            |carried: &[usize]| size(tensor.foreign.map_or(carried, |foreign| foreign.extents(carried)));
        let chunk = |region: &Region| {
            let fields = vec![("offsets", extents(region.lo())), ("sizes", extents(&region.extents()))];
            Py::record((METADATA, "ChunkStorageMetadata"), fields)
        };
        let properties = Py::Tuple(vec![
            Py::global("torch", name_of(tensor)),
            Py::call(("torch.serialization", "_get_layout"), vec![Py::text("torch.strided")]),
            Py::Bool(false),
            Py::call((METADATA, "_MEM_FORMAT_ENCODING"), vec![Py::Int(0)]),
            Py::Bool(false),
        ]);
        let about = vec![
            ("properties", Py::object((METADATA, "TensorProperties"), properties)),
            ("size", extents(&tensor.shape)),
            ("chunks", Py::List(tensor.boxes.iter().map(|(_, region)| chunk(region)).collect())),
        ];
        self.tensors.push((Py::text(name.as_str()), Py::record((METADATA, "TensorStorageMetadata"), about)));
        self.planned(&name);
        for (number, ((_, region), place)) in tensor.boxes.iter().zip(places).enumerate() {
            let Some((file, offset, len)) = place.clone() else { continue };
            let index = vec![
                ("fqn", Py::text(name.as_str())),
                ("index", Py::size(number as u64)),
                ("offset", extents(region.lo())),
            ];
            self.storage.push((Py::record((METADATA, "MetadataIndex"), index), stored(file, offset, len)));
        }
    }

    fn metadata(self) -> Vec<u8> {
        let fields = vec![
            ("state_dict_metadata", Py::Dict(self.tensors)),
            ("planner_data", Py::Dict(self.planner)),
            ("storage_data", Py::Dict(self.storage)),
            ("storage_meta", Py::None),
            ("version", Py::text("1.0.0")),
        ];
        Py::record((METADATA, "Metadata"), fields).pickled()
    }
}

fn stored(file: String, offset: u64, len: u64) -> Py {
    let fields =
        vec![("relative_path", Py::Text(file)), ("offset", Py::size(offset)), ("length", Py::size(len))];
    Py::record(("torch.distributed.checkpoint.filesystem", "_StorageInfo"), fields)
}
