//! Safetensors files: the same bytes as the reference crate, and no trust in what is read.

use planaria_layout::{DType, Shape};
use planaria_store::container::{Align, FileLayout, Header, Limits, NewTensor, dtype_name, parse_dtype};
use planaria_store::{Error, HeaderProblem, Local, Object, Reader, Sharing, Store, StoreExt};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};

fn reference_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::U8 => Dtype::U8,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U16 => Dtype::U16,
        DType::U32 => Dtype::U32,
        DType::U64 => Dtype::U64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::F8E5M2 => Dtype::F8_E5M2,
    }
}

fn tensor(name: &str, dtype: DType, shape: &[usize]) -> NewTensor {
    NewTensor { name: name.to_string(), dtype, shape: Shape::new(shape).unwrap(), foreign: None }
}

/// Data of a tensor, told apart by its name.
fn data(tensor: &NewTensor) -> Vec<u8> {
    let seed = tensor.name.bytes().map(usize::from).sum::<usize>();
    (0..tensor.shape.numel() * tensor.dtype.size()).map(|i| (i * 7 + seed) as u8).collect()
}

/// Writes the file the way several ranks would: header and tensors in any order.
fn written(tensors: &[NewTensor], metadata: &BTreeMap<String, String>, align: Align) -> Vec<u8> {
    let layout = FileLayout::new("f", tensors.to_vec(), metadata, align).unwrap();
    let store = Object::memory();
    let file = store.writer("f", layout.file_len(), Sharing::Threads).unwrap();
    std::thread::scope(|scope| {
        for (tensor, offset, len) in layout.tensors() {
            let file = &*file;
            scope.spawn(move || {
                let bytes = data(tensor);
                assert_eq!(bytes.len() as u64, len);
                file.write_at(offset, &bytes).unwrap();
            });
        }
        file.write_at(0, layout.header()).unwrap();
    });
    file.finish().unwrap();
    store.read("f", u64::MAX).unwrap()
}

fn reference(tensors: &[NewTensor], metadata: &BTreeMap<String, String>) -> Vec<u8> {
    let bytes: Vec<Vec<u8>> = tensors.iter().map(data).collect();
    let views = tensors.iter().zip(&bytes).map(|(tensor, bytes)| {
        let view = TensorView::new(reference_dtype(tensor.dtype), tensor.shape.to_vec(), bytes).unwrap();
        (tensor.name.clone(), view)
    });
    let info = (!metadata.is_empty()).then(|| metadata.clone().into_iter().collect::<HashMap<_, _>>());
    safetensors::serialize(views, info).unwrap()
}

#[test]
fn every_dtype_has_the_name_of_the_reference() {
    for dtype in DType::ALL {
        let name = serde_json::to_value(reference_dtype(dtype)).unwrap();
        assert_eq!(name.as_str().unwrap(), dtype_name(dtype));
        assert_eq!(parse_dtype(dtype_name(dtype)), Some(dtype));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn files_have_the_bytes_of_the_reference_crate(
        raw in prop::collection::btree_map("[a-z.\"/é]{1,6}", (0usize..15, prop::collection::vec(0usize..4, 0..4)), 0..8),
        format in prop::option::of("[a-z]{1,3}"),
    ) {
        let tensors: Vec<NewTensor> =
            raw.iter().map(|(name, (dtype, shape))| tensor(name, DType::ALL[*dtype], shape)).collect();
        let metadata: BTreeMap<String, String> = format.map(|f| ("format".to_string(), f)).into_iter().collect();
        let ours = written(&tensors, &metadata, Align::Word);
        prop_assert_eq!(&ours, &reference(&tensors, &metadata));
        // With the data moved to a block boundary it is still a file the reference reads.
        let blocks = written(&tensors, &metadata, Align::Block);
        let read = SafeTensors::deserialize(&blocks).unwrap();
        for tensor in &tensors {
            prop_assert_eq!(read.tensor(&tensor.name).unwrap().data(), &data(tensor)[..]);
        }
        for (bytes, unit) in [(&ours, 8), (&blocks, 4096)] {
            let header = read_header(bytes, &Limits::default()).unwrap();
            prop_assert_eq!(header.data_start % unit, 0);
            prop_assert_eq!(&header.metadata, &metadata);
            prop_assert_eq!(header.tensors.len(), tensors.len());
            for tensor in &tensors {
                let info = header.get(&tensor.name).unwrap();
                prop_assert_eq!((info.dtype, &info.shape), (tensor.dtype, &tensor.shape));
                prop_assert_eq!(info.offset % tensor.dtype.size() as u64, 0);
                let range = info.offset as usize..(info.offset + info.len) as usize;
                prop_assert_eq!(&bytes[range], &data(tensor)[..]);
            }
        }
    }

    #[test]
    fn damaged_headers_never_panic(flips in prop::collection::vec((0usize..400, any::<u8>()), 1..6)) {
        let tensors = [tensor("a", DType::F32, &[3, 2]), tensor("b", DType::U8, &[5])];
        let mut bytes = written(&tensors, &BTreeMap::new(), Align::Word);
        for (at, value) in flips {
            let len = bytes.len();
            bytes[at % len] = value;
        }
        if let Ok(header) = read_header(&bytes, &Limits::default()) {
            for info in header.tensors {
                prop_assert!(info.offset + info.len <= bytes.len() as u64);
            }
        }
    }
}

fn read_header(bytes: &[u8], limits: &Limits) -> Result<Header, Error> {
    let store = Object::memory();
    store.write("f", bytes).unwrap();
    Header::read(&*store.reader("f")?, limits)
}

/// A file with this header text and this many data bytes.
fn with_header(text: &str, data: usize) -> Result<Header, HeaderProblem> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    match read_header(&bytes, &Limits { tensors: 3, ..Limits::default() }) {
        Ok(header) => Ok(header),
        Err(Error::Header { problem, .. }) => Err(problem),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn hostile_headers_are_refused_by_kind() {
    let one = |shape: &str, offsets: &str| {
        format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let two = |a: &str, b: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{a}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{b}}}}}"#
        )
    };
    use HeaderProblem as P;
    assert!(with_header(&one("[2]", "[0,8]"), 8).is_ok());
    assert!(matches!(with_header(&one("[2]", "[0,8]"), 4), Err(P::OutOfFile { size: 4, .. })));
    assert!(matches!(with_header(&one("[2]", "[0,8]"), 9), Err(P::Hole { start: 8, end: 9 })));
    assert!(matches!(with_header(&one("[2]", "[8,0]"), 8), Err(P::OutOfFile { .. })));
    assert!(matches!(with_header(&one("[3]", "[0,8]"), 8), Err(P::BadLength { found: 8, expected: 12, .. })));
    let absurd = one("[4294967296,4294967296]", "[0,0]");
    assert!(matches!(with_header(&absurd, 0), Err(P::BadShape { .. })), "overflow to zero");
    let absurd = one("[18446744073709551615]", "[0,0]");
    assert!(matches!(with_header(&absurd, 0), Err(P::BadShape { .. })));
    let deep = one(&format!("[{}1]", "1,".repeat(64)), "[0,4]");
    assert!(matches!(with_header(&deep, 4), Err(P::BadShape { .. })));
    assert!(matches!(with_header(&one("[-1]", "[0,4]"), 4), Err(P::Json(_))));
    assert!(matches!(with_header(&two("[0,4]", "[2,6]"), 6), Err(P::Overlap { .. })));
    assert!(matches!(with_header(&two("[0,4]", "[5,9]"), 9), Err(P::Hole { start: 4, end: 5 })));
    let twice = r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    assert!(matches!(with_header(twice, 0), Err(P::Duplicate { .. })));
    let many: Vec<String> =
        (0..4).map(|i| format!(r#""t{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#)).collect();
    assert!(matches!(with_header(&format!("{{{}}}", many.join(",")), 0), Err(P::TooMany { limit: 3 })));
    let odd = r#"{"a":{"dtype":"F3","shape":[2],"data_offsets":[0,1]}}"#;
    assert!(matches!(with_header(odd, 1), Err(P::UnknownDType { .. })));
    let half = r#"{"a":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}}"#;
    assert!(matches!(with_header(half, 3), Err(P::BadShape { .. })));
    for text in ["", "[]", "{", "{} x", r#"{"a":1}"#, r#"{"__metadata__":{"a":1}}"#] {
        assert!(matches!(with_header(text, 0), Err(P::Json(_))), "{text}");
    }
}

#[test]
fn a_huge_header_size_is_refused_before_it_is_allocated() {
    let mut bytes = u64::MAX.to_le_bytes().to_vec();
    bytes.extend_from_slice(b"{}");
    let refused = read_header(&bytes, &Limits::default()).unwrap_err();
    assert!(matches!(refused, Error::Header { problem: HeaderProblem::TooLarge { .. }, .. }), "{refused}");
    let short = read_header(&99_999_999u64.to_le_bytes(), &Limits::default()).unwrap_err();
    assert!(matches!(short, Error::Header { problem: HeaderProblem::Truncated { .. }, .. }), "{short}");
    assert!(read_header(b"abc", &Limits::default()).is_err());
}

#[test]
fn a_header_of_a_large_sparse_file_is_read_without_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let layout = FileLayout::new(
        "f",
        [tensor("big", DType::F32, &[25 << 30]), tensor("last", DType::U8, &[3])],
        &BTreeMap::new(),
        Align::Word,
    )
    .unwrap();
    let file = std::fs::File::create(folder.path().join("f")).unwrap();
    file.set_len(layout.file_len()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, layout.header(), 0).unwrap();
    let store = Local::new(folder.path());
    let reader = Counting { reader: store.reader("f").unwrap(), asked: AtomicUsize::new(0) };
    let header = Header::read(&reader, &Limits::default()).unwrap();
    let last = header.get("last").unwrap();
    assert_eq!((&reader as &dyn Reader).read(last.offset, last.len as usize).unwrap(), [0; 3]);
    let asked = reader.asked.into_inner();
    assert!(asked < 1 << 20, "{asked} bytes of 100 GiB are asked for");
}

/// A file that counts the bytes that are asked of it.
#[derive(Debug)]
struct Counting {
    reader: Box<dyn Reader>,
    asked: AtomicUsize,
}

impl Reader for Counting {
    fn name(&self) -> &str {
        self.reader.name()
    }

    fn size(&self) -> u64 {
        self.reader.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> planaria_store::Result<usize> {
        self.asked.fetch_add(into.len(), Ordering::Relaxed);
        self.reader.read_at(offset, into)
    }
}

#[test]
fn names_cannot_stand_twice_in_a_new_file() {
    let twice = [tensor("a", DType::U8, &[1]), tensor("a", DType::F32, &[1])];
    assert!(FileLayout::new("f", twice, &BTreeMap::new(), Align::Word).is_err());
    let reserved = [tensor("__metadata__", DType::U8, &[1])];
    assert!(FileLayout::new("f", reserved, &BTreeMap::new(), Align::Word).is_err());
}
