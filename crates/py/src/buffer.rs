//! The buffer protocol both ways: our memory for `memoryview` and its kin, and arrays over their memory.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use planaria::array::{Access, Array, DType, Exported};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::array::PyArray;
use crate::dlpack::{Place, over};
use crate::error::{Raise, no_dtype};
use crate::gil::compute;
use crate::object::Share;

/// The character of the struct module for each dtype that it knows.
const fn format(dtype: DType) -> Option<&'static CStr> {
    Some(match dtype {
        DType::Bool => c"?",
        DType::I8 => c"b",
        DType::I16 => c"h",
        DType::I32 => c"i",
        DType::I64 => c"q",
        DType::U8 => c"B",
        DType::U16 => c"H",
        DType::U32 => c"I",
        DType::U64 => c"Q",
        DType::F16 => c"e",
        DType::F32 => c"f",
        DType::F64 => c"d",
        DType::BF16 | DType::F8E4M3 | DType::F8E5M2 => return None,
    })
}

/// What a view handed out keeps alive.
struct Held {
    exported: Exported,
    geometry: Box<[isize]>,
}

#[pymethods]
impl PyArray {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let array = &slf.get().0;
        let refused = |what: String| Err(PyBufferError::new_err(what));
        let Some(format) = format(array.dtype()) else {
            return refused(format!("buffers cannot express {}; use numpy() or torch()", array.dtype()));
        };
        let asks = |flag: c_int| flags & flag == flag;
        if asks(ffi::PyBUF_WRITABLE) && array.is_readonly() {
            return refused("the array is read-only; write to a copy of it".into());
        }
        let plain = !asks(ffi::PyBUF_STRIDES) || asks(ffi::PyBUF_C_CONTIGUOUS);
        let columns = asks(ffi::PyBUF_F_CONTIGUOUS) && !is_column_major(array);
        let either = asks(ffi::PyBUF_ANY_CONTIGUOUS) && !is_column_major(array) && !array.is_contiguous();
        if (plain && !array.is_contiguous()) || columns || either {
            return refused(format!(
                "strides {:?} are not what was asked for; copy the array first",
                array.strides()
            ));
        }
        // After a snapshot this copies.
        let exported = compute(slf.py(), || array.export())?;
        let size = array.dtype().size() as isize;
        let sizes = array.shape().iter().map(|&n| n as isize);
        let geometry: Box<[isize]> = sizes.chain(array.strides().iter().map(|s| s * size)).collect();
        let held = Box::leak(Box::new(Held { exported, geometry }));
        // SAFETY: the interpreter gives a view to be filled in; what it points to lives in `held` until the view is
        // released, and the array itself is kept by the reference in `obj`.
        unsafe {
            (*view).buf = held.exported.data().cast();
            (*view).len = array.numel() as isize * size;
            (*view).readonly = c_int::from(array.is_readonly());
            (*view).itemsize = size;
            (*view).format =
                if asks(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            (*view).ndim = array.ndim() as c_int;
            (*view).shape =
                if asks(ffi::PyBUF_ND) { held.geometry.as_mut_ptr() } else { std::ptr::null_mut() };
            (*view).strides = match asks(ffi::PyBUF_STRIDES) {
                true => held.geometry.as_mut_ptr().add(array.ndim()),
                false => std::ptr::null_mut(),
            };
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = std::ptr::from_mut(held).cast::<c_void>();
            (*view).obj = slf.into_any().into_ptr();
        }
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: a view that `__getbuffer__` filled in, released once.
        drop(unsafe { Box::from_raw((*view).internal.cast::<Held>()) });
    }
}

fn is_column_major(array: &Array) -> bool {
    let reversed: Vec<i64> = (0..array.ndim() as i64).rev().collect();
    array.permute(&reversed).is_ok_and(|turned| turned.is_contiguous())
}

/// The dtype of a format of the struct module, in the machine's byte order.
fn dtype_of(format: &CStr, size: usize) -> Option<DType> {
    let text = format.to_str().ok()?;
    let letter = match text.strip_prefix(['@', '=', if cfg!(target_endian = "little") { '<' } else { '>' }]) {
        Some(letter) => letter,
        None => text,
    };
    let (signed, unsigned) = ("bhilqn".contains(letter), "BHILQN".contains(letter));
    let kind = |d: &DType| match letter {
        "?" => *d == DType::Bool,
        "e" | "f" | "d" => *d != DType::BF16 && d.is_float(),
        _ => d.is_int() && ((signed && format_is_signed(*d)) || (unsigned && !format_is_signed(*d))),
    };
    DType::ALL.into_iter().filter(kind).find(|d| letter.len() == 1 && d.size() == size)
}

fn format_is_signed(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64)
}

/// An array over the memory of any object with the buffer protocol; `None` when it has none. Elements at odd addresses are
/// copied, unless they must be shared.
pub(crate) fn import(object: &Bound<'_, PyAny>, share: Share) -> PyResult<Option<Array>> {
    let py = object.py();
    // SAFETY: asking a live object whether it has the protocol.
    if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        return Ok(None);
    }
    let buffer = PyUntypedBuffer::get(object)?;
    let size = buffer.item_size();
    let dtype = dtype_of(buffer.format(), size)
        .ok_or_else(|| no_dtype(py, &format!("of buffer format '{}'", buffer.format().to_string_lossy())))?;
    let shape: Vec<usize> = if buffer.dimensions() == 0 { Vec::new() } else { buffer.shape().to_vec() };
    if buffer.suboffsets().is_some() || shape.contains(&0) {
        return match shape.contains(&0) {
            true => Array::zeros(&shape, dtype).map(Some).map_err(|error| error.raise(py)),
            false => Err(PyBufferError::new_err("a buffer of pointers cannot be an array; copy it first")),
        };
    }
    let steps = if shape.is_empty() { &[] } else { buffer.strides() };
    let odd = steps.iter().any(|step| step % size as isize != 0)
        || !(buffer.buf_ptr() as usize).is_multiple_of(size);
    if odd && share == Share::Always {
        let what = format!("elements of {size} bytes at odd addresses cannot be shared; use copy=None");
        return Err(PyValueError::new_err(what));
    }
    if odd {
        let bytes = PyMemoryView::from(object)?.call_method0("tobytes")?;
        let bytes = bytes.cast::<PyBytes>()?.as_bytes();
        return compute(py, || Array::from_bytes(bytes, &shape, dtype)).map(Some);
    }
    let strides: Vec<isize> = steps.iter().map(|step| step / size as isize).collect();
    let before =
        shape.iter().zip(&strides).filter(|(_, s)| **s < 0).map(|(n, s)| (n - 1) * s.unsigned_abs()).sum();
    let after: usize =
        shape.iter().zip(&strides).filter(|(_, s)| **s > 0).map(|(n, s)| (n - 1) * s.unsigned_abs()).sum();
    // The first element may lie behind others, where strides are negative.
    let start = (buffer.buf_ptr() as usize).wrapping_sub(before * size);
    let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(start))
        .ok_or_else(|| PyBufferError::new_err("the buffer has no memory"))?;
    let access = if buffer.readonly() { Access::Read } else { Access::Write };
    let place = Place { start, bytes: (before + after + 1) * size, shape: &shape, strides: &strides, before };
    over(py, place, dtype, access, Box::new(buffer)).map(Some)
}
