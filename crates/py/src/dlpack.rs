//! DLPack both ways: capsules made of our arrays, and arrays over what other libraries put into theirs.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use planaria::array::{Access, Array, DType, Device, Exported, Foreign};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use crate::error::{Raise, exception, no_dtype};
use crate::gil::compute;
use crate::object::Share;

const LEGACY: &CStr = c"dltensor";
const LEGACY_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

/// Host memory, in the standard's numbering.
pub(crate) const CPU: (i32, i32) = (1, 0);
const READ_ONLY: u64 = 1;
const COPIED: u64 = 2;

/// Whose memory a capsule has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The array's, which others see too.
    Shared,
    /// Nobody else's.
    Copied,
}

#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: (i32, i32),
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Legacy {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

/// What one capsule keeps alive; the managed tensor comes first, so that its address is this one's.
#[repr(C)]
struct Held<M> {
    managed: M,
    geometry: Box<[i64]>,
    exported: Exported,
}

const fn type_code(dtype: DType) -> u8 {
    match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => 1,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::BF16 => 4,
        DType::Bool => 6,
        DType::F8E4M3 => 10,
        DType::F8E5M2 => 12,
    }
}

fn tensor_of(exported: &Exported, geometry: &mut [i64]) -> Tensor {
    let array = exported.array();
    let (shape, strides) = geometry.split_at_mut(array.ndim());
    Tensor {
        data: if array.numel() == 0 { std::ptr::null_mut() } else { exported.data().cast() },
        device: CPU,
        ndim: array.ndim() as i32,
        code: type_code(array.dtype()),
        bits: (array.dtype().size() * 8) as u8,
        lanes: 1,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    }
}

/// A capsule over the array's own memory: of version 1 where `versioned`, else one that cannot say that it is read-only.
pub(crate) fn export<'py>(
    py: Python<'py>,
    array: &Array,
    memory: Memory,
    versioned: bool,
) -> PyResult<Bound<'py, PyCapsule>> {
    if array.device() != Device::Cpu {
        let what = format!("an array on {} has no host memory to share; move it to the cpu", array.device());
        return Err(PyBufferError::new_err(what));
    }
    if array.is_readonly() && !versioned {
        let what = "the array is read-only, which DLPack before version 1 cannot say; pass max_version=(1, 0) or copy it";
        return Err(PyBufferError::new_err(what));
    }
    // After a snapshot this copies.
    let exported = compute(py, || array.export())?;
    let sizes = array.shape().iter().map(|&n| n as i64);
    let mut geometry: Box<[i64]> = sizes.chain(array.strides().iter().map(|&s| s as i64)).collect();
    let tensor = tensor_of(&exported, &mut geometry);
    if versioned {
        let copied = if memory == Memory::Copied { COPIED } else { 0 };
        let flags = (u64::from(array.is_readonly()) * READ_ONLY) | copied;
        let deleter = Some(delete_versioned as _);
        let managed = Versioned { major: 1, minor: 1, context: std::ptr::null_mut(), deleter, flags, tensor };
        capsule(py, Held { managed, geometry, exported }, VERSIONED, drop_versioned)
    } else {
        let managed = Legacy { tensor, context: std::ptr::null_mut(), deleter: Some(delete_legacy as _) };
        capsule(py, Held { managed, geometry, exported }, LEGACY, drop_legacy)
    }
}

fn capsule<'py, M>(
    py: Python<'py>,
    held: Held<M>,
    name: &'static CStr,
    destructor: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyCapsule>> {
    let pointer = NonNull::from(Box::leak(Box::new(held))).cast::<c_void>();
    // SAFETY: the pointer is that of a box which the destructor, or the deleter of whoever takes the tensor, frees once.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, pointer, name, Some(destructor)) }
}

unsafe extern "C" fn delete_legacy(managed: *mut Legacy) {
    // SAFETY: made by `export`, and called once by whoever owns the tensor.
    drop(unsafe { Box::from_raw(managed.cast::<Held<Legacy>>()) });
}

unsafe extern "C" fn delete_versioned(managed: *mut Versioned) {
    // SAFETY: as in `delete_legacy`.
    drop(unsafe { Box::from_raw(managed.cast::<Held<Versioned>>()) });
}

unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: called by the interpreter with a live capsule; under its first name nobody took the tensor.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) == 1 {
            delete_legacy(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `drop_legacy`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// A tensor taken out of a capsule; given back when dropped.
enum Taken {
    Legacy(NonNull<Legacy>),
    Versioned(NonNull<Versioned>),
}

// SAFETY: the standard lets a deleter be called from any thread, and the rest is read once, here.
unsafe impl Send for Taken {}
// SAFETY: as above; nothing is read through a shared reference after the array is made.
unsafe impl Sync for Taken {}

impl Taken {
    fn tensor(&self) -> &Tensor {
        // SAFETY: the producer keeps the tensor in place until its deleter is called, which happens in `drop`.
        unsafe {
            match self {
                Taken::Legacy(managed) => &managed.as_ref().tensor,
                Taken::Versioned(managed) => &managed.as_ref().tensor,
            }
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the capsule was renamed, so this is the only owner, and the deleter is called once.
        unsafe {
            match self {
                Taken::Legacy(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
                Taken::Versioned(managed) => {
                    if let Some(deleter) = managed.as_ref().deleter {
                        deleter(managed.as_ptr());
                    }
                }
            }
        }
    }
}

/// Asks an object for its capsule, in the newest form that it knows.
fn request<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let device: (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    if device.0 != CPU.0 {
        let what =
            format!("the memory is on DLPack device {device:?}, not on the cpu (1, 0); move it there first");
        return Err(PyBufferError::new_err(what));
    }
    let options = PyDict::new(py);
    options.set_item("max_version", (1, 1))?;
    match object.call_method("__dlpack__", (), Some(&options)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__"),
        answer => answer,
    }
}

fn take(capsule: &Bound<'_, PyAny>) -> PyResult<Taken> {
    let raw = capsule.as_ptr();
    // SAFETY: `raw` is a live object; a capsule under one of the standard's names holds the struct of that name, and is
    // renamed before its tensor is used, so that nobody else takes or frees it.
    unsafe {
        if ffi::PyCapsule_IsValid(raw, VERSIONED.as_ptr()) == 1 {
            let pointer = ffi::PyCapsule_GetPointer(raw, VERSIONED.as_ptr()).cast::<Versioned>();
            let managed =
                NonNull::new(pointer).ok_or_else(|| PyBufferError::new_err("an empty DLPack capsule"))?;
            ffi::PyCapsule_SetName(raw, VERSIONED_USED.as_ptr());
            let taken = Taken::Versioned(managed);
            return match managed.as_ref().major {
                1 => Ok(taken),
                major => Err(PyBufferError::new_err(format!("DLPack version {major} is not known; 1 is"))),
            };
        }
        if ffi::PyCapsule_IsValid(raw, LEGACY.as_ptr()) == 1 {
            let pointer = ffi::PyCapsule_GetPointer(raw, LEGACY.as_ptr()).cast::<Legacy>();
            let managed =
                NonNull::new(pointer).ok_or_else(|| PyBufferError::new_err("an empty DLPack capsule"))?;
            ffi::PyCapsule_SetName(raw, LEGACY_USED.as_ptr());
            return Ok(Taken::Legacy(managed));
        }
    }
    Err(PyTypeError::new_err("__dlpack__ did not return an unused DLPack capsule"))
}

fn dtype(py: Python<'_>, tensor: &Tensor) -> PyResult<DType> {
    let found = DType::ALL.into_iter().find(|&d| {
        type_code(d) == tensor.code && d.size() * 8 == usize::from(tensor.bits) && tensor.lanes == 1
    });
    found.ok_or_else(|| {
        let what = format!("of DLPack code {}, {} bits and {} lanes", tensor.code, tensor.bits, tensor.lanes);
        no_dtype(py, if tensor.code == 5 { "complex" } else { &what })
    })
}

/// Sizes and strides in elements.
type Geometry = (Vec<usize>, Vec<isize>);

fn geometry(tensor: &Tensor) -> Option<Geometry> {
    let ndim = usize::try_from(tensor.ndim).ok()?;
    if ndim == 0 {
        return Some((Vec::new(), Vec::new()));
    }
    // SAFETY: the standard promises `ndim` numbers at each address; strides may be absent, which means row-major.
    let (sizes, steps) = unsafe {
        let sizes = std::slice::from_raw_parts(NonNull::new(tensor.shape)?.as_ptr(), ndim);
        (sizes, NonNull::new(tensor.strides).map(|steps| std::slice::from_raw_parts(steps.as_ptr(), ndim)))
    };
    let shape = sizes.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<Vec<usize>>>()?;
    let mut strides = vec![1isize; ndim];
    for dim in (0..ndim).rev() {
        strides[dim] = match steps {
            Some(steps) => steps[dim] as isize,
            None if dim + 1 == ndim => 1,
            None => strides[dim + 1].checked_mul(shape[dim + 1].max(1) as isize)?,
        };
    }
    Some((shape, strides))
}

/// Elements before and from the first element on that a geometry reaches; `None` when there are too many to count.
fn reach(shape: &[usize], strides: &[isize]) -> Option<(usize, usize)> {
    let (mut low, mut high) = (0isize, 0isize);
    for (&len, &stride) in shape.iter().zip(strides) {
        let last = isize::try_from(len.max(1) - 1).ok()?.checked_mul(stride)?;
        if last < 0 { low = low.checked_add(last)? } else { high = high.checked_add(last)? }
    }
    Some((low.unsigned_abs(), high.unsigned_abs().checked_add(1)?))
}

/// Whether an array of NumPy's has strides that DLPack cannot say: fields of records have them.
fn has_odd_strides(object: &Bound<'_, PyAny>) -> bool {
    let strides = object.getattr("strides").and_then(|strides| strides.extract::<Vec<isize>>());
    let size = object.getattr("itemsize").and_then(|size| size.extract::<isize>());
    match (strides, size) {
        (Ok(strides), Ok(size)) if size > 0 => strides.iter().any(|step| step % size != 0),
        _ => false,
    }
}

/// An array over the memory of any object with `__dlpack__`; memory that is not aligned for its elements is copied, unless it
/// must be shared.
pub(crate) fn import(object: &Bound<'_, PyAny>, share: Share) -> PyResult<Array> {
    let py = object.py();
    let capsule = match request(object) {
        Err(error) if error.is_instance_of::<PyBufferError>(py) && has_odd_strides(object) => {
            if share == Share::Always {
                let what =
                    "strides that are no multiple of the element's size cannot be shared; use copy=None";
                return Err(PyValueError::new_err(what));
            }
            request(&object.call_method0("copy")?)?
        }
        answer => answer?,
    };
    let taken = take(&capsule)?;
    let tensor = taken.tensor();
    let dtype = dtype(py, tensor)?;
    let broken = || PyBufferError::new_err("the DLPack tensor has no valid shape");
    let (shape, strides) = geometry(tensor).ok_or_else(broken)?;
    let read_only = match &taken {
        // SAFETY: as in `Taken::tensor`.
        Taken::Versioned(managed) => unsafe { managed.as_ref().flags & READ_ONLY != 0 },
        Taken::Legacy(_) => false,
    };
    if shape.contains(&0) {
        return Array::zeros(&shape, dtype).map_err(|error| error.raise(py));
    }
    let first = (tensor.data as usize).checked_add(tensor.byte_offset as usize).ok_or_else(broken)?;
    let (before, from) = reach(&shape, &strides).ok_or_else(broken)?;
    let start =
        before.checked_mul(dtype.size()).and_then(|bytes| first.checked_sub(bytes)).ok_or_else(broken)?;
    let bytes = (before + from).checked_mul(dtype.size()).ok_or_else(broken)?;
    let start = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(start)).ok_or_else(broken)?;
    let access = if read_only { Access::Read } else { Access::Write };
    if !start.addr().get().is_multiple_of(dtype.size()) && share != Share::Always {
        return realigned(py, (start, bytes), (&shape, &strides, before), dtype, Box::new(taken));
    }
    let place = Place { start, bytes, shape: &shape, strides: &strides, before };
    over(py, place, dtype, access, Box::new(taken))
}

/// A copy of elements that lie at odd addresses: taken byte by byte.
fn realigned(
    py: Python<'_>,
    (start, bytes): (NonNull<u8>, usize),
    (shape, strides, before): (&[usize], &[isize], usize),
    dtype: DType,
    owner: Box<dyn std::any::Any + Send + Sync>,
) -> PyResult<Array> {
    let size = dtype.size();
    let sizes: Vec<usize> = shape.iter().copied().chain([size]).collect();
    let steps: Vec<isize> = strides.iter().map(|s| s * size as isize).chain([1]).collect();
    let place = Place { start, bytes, shape: &sizes, strides: &steps, before: before * size };
    let raw = over(py, place, DType::U8, Access::Read, owner)?;
    compute(py, || Array::from_bytes(&raw.copy()?.bytes()?, shape, dtype))
}

/// Where elements lie in the memory of others.
pub(crate) struct Place<'a> {
    pub(crate) start: NonNull<u8>,
    pub(crate) bytes: usize,
    pub(crate) shape: &'a [usize],
    pub(crate) strides: &'a [isize],
    /// Elements before the first one.
    pub(crate) before: usize,
}

/// An array over `place`, which `owner` keeps valid; memory that is not aligned for its elements is refused.
pub(crate) fn over(
    py: Python<'_>,
    place: Place<'_>,
    dtype: DType,
    access: Access,
    owner: Box<dyn std::any::Any + Send + Sync>,
) -> PyResult<Array> {
    // SAFETY: the producer promised the memory until `owner` is dropped; all of it, from the lowest element to the highest.
    let memory = unsafe { Foreign::new(place.start, place.bytes, owner) };
    let geometry = (place.shape, place.strides, place.before);
    Array::from_foreign(memory, dtype, geometry, access).map_err(|error| match error {
        planaria::array::Error::Argument { .. } => exception(py, "ArgumentError", error.to_string()),
        other => other.raise(py),
    })
}
