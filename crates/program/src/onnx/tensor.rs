//! Tensors of ONNX files: element types, elements in the file or beside it.

use super::proto::{self, Entry};
use crate::error::{Error, Result};
use planaria_array::{Array, DType};

/// Element type and its number in files.
const TYPES: [(DType, i32); 15] = [
    (DType::F32, 1),
    (DType::U8, 2),
    (DType::I8, 3),
    (DType::U16, 4),
    (DType::I16, 5),
    (DType::I32, 6),
    (DType::I64, 7),
    (DType::Bool, 9),
    (DType::F16, 10),
    (DType::F64, 11),
    (DType::U32, 12),
    (DType::U64, 13),
    (DType::BF16, 16),
    (DType::F8E4M3, 17),
    (DType::F8E5M2, 19),
];

/// The number of an element type.
pub(super) fn number(dtype: DType) -> i32 {
    TYPES.iter().find(|row| row.0 == dtype).map_or(0, |row| row.1)
}

/// The element type of a number.
pub(super) fn dtype(place: &str, number: i32) -> Result<DType> {
    let found = TYPES.iter().find(|row| row.1 == number).map(|row| row.0);
    found.ok_or_else(|| Error::Onnx {
        place: place.to_string(),
        what: format!("element type {number} is not supported"),
    })
}

/// A tensor with its elements.
pub(super) fn inline(name: &str, array: &Array) -> Result<proto::Tensor> {
    let failed = |source| Error::Array { place: name.to_string(), source };
    let array = array.contiguous().map_err(failed)?;
    let raw_data = Some(array.bytes().map_err(failed)?.to_vec());
    Ok(proto::Tensor { raw_data, ..described(name, &array) })
}

/// A tensor whose elements are in a file beside the model.
pub(super) fn external(name: &str, array: &Array, file: &str, offset: u64) -> proto::Tensor {
    let entry = |key: &str, value: String| Entry { key: Some(key.to_string()), value: Some(value) };
    let size = array.numel() * array.dtype().size();
    let external_data = vec![
        entry("location", file.to_string()),
        entry("offset", offset.to_string()),
        entry("length", size.to_string()),
    ];
    proto::Tensor { external_data, data_location: Some(1), ..described(name, array) }
}

fn described(name: &str, array: &Array) -> proto::Tensor {
    let dims = array.shape().iter().map(|&n| n as i64).collect();
    let (data_type, name) = (Some(number(array.dtype())), Some(name.to_string()));
    proto::Tensor { dims, data_type, name, ..proto::Tensor::default() }
}

/// Reads bytes of a file beside the model: its name, the offset, and how many.
pub(super) type Beside<'a> = dyn Fn(&str, u64, u64) -> std::io::Result<Vec<u8>> + 'a;

/// The elements of a tensor; those beside the model are asked for by file, offset and length.
pub(super) fn array(tensor: &proto::Tensor, beside: &Beside<'_>) -> Result<Array> {
    let place = format!("tensor {}", tensor.name.as_deref().unwrap_or_default());
    let refuse = |what: String| Error::Onnx { place: place.clone(), what };
    let dtype = dtype(&place, tensor.data_type.unwrap_or(0))?;
    let dims = tensor.dims.iter().map(|d| usize::try_from(*d)).collect::<Result<Vec<_>, _>>();
    let dims = dims.map_err(|_| refuse(format!("its extents are {:?}", tensor.dims)))?;
    let count = dims.iter().try_fold(dtype.size(), |n, d| n.checked_mul(*d));
    let size = count.ok_or_else(|| refuse(format!("extents {dims:?} are too large")))?;
    let bytes = if tensor.data_location == Some(1) {
        outside(tensor, size, beside).map_err(refuse)?
    } else if let Some(raw) = &tensor.raw_data {
        raw.clone()
    } else {
        listed(tensor, dtype)
    };
    if bytes.len() != size {
        return Err(refuse(format!("it has {} bytes, its shape needs {size}", bytes.len())));
    }
    Array::from_bytes(&bytes, &dims, dtype).map_err(|source| Error::Array { place, source })
}

fn outside(tensor: &proto::Tensor, size: usize, beside: &Beside<'_>) -> Result<Vec<u8>, String> {
    let find = |key: &str| {
        let entry = tensor.external_data.iter().find(|entry| entry.key.as_deref() == Some(key));
        entry.and_then(|entry| entry.value.clone())
    };
    let file = find("location").ok_or("it does not say where its elements are")?;
    let plain = !file.is_empty() && !file.contains(['/', '\\']) && file != "..";
    if !plain {
        return Err(format!("its elements are in '{file}', which is not beside the model"));
    }
    let number = |key: &str, default: u64| match find(key) {
        Some(text) => text.parse::<u64>().map_err(|_| format!("its {key} is \"{text}\"")),
        None => Ok(default),
    };
    let (offset, length) = (number("offset", 0)?, number("length", size as u64)?);
    if length != size as u64 {
        return Err(format!("{length} bytes are in '{file}', its shape needs {size}"));
    }
    beside(&file, offset, length).map_err(|error| format!("'{file}': {error}"))
}

/// Elements in lists of numbers, which small ones of other writers have.
fn listed(tensor: &proto::Tensor, dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => tensor.float_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F64 => tensor.double_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::I64 => tensor.int64_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::I32 => tensor.int32_data.iter().flat_map(|v| v.to_le_bytes()).collect(),
        // Smaller ones stand in the low bytes of integers.
        _ => tensor.int32_data.iter().flat_map(|v| v.to_le_bytes()[..dtype.size().min(4)].to_vec()).collect(),
    }
}
