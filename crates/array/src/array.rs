//! The array: a dtype, a shape and strides over shared storage.

use crate::buffer::{Buffer, HostBuffer};
use crate::cpu::strided::{Operand, may_overlap};
use crate::device::Device;
use crate::element::{Element, Scalar, with_dtype};
use crate::error::{Error, Result};
use crate::storage::{self, Coverage, CudaUpdate, Storage};
use bytemuck::Pod;
use planaria_cuda::Lane;
use planaria_layout::{DType, Shape};
use smallvec::SmallVec;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Element steps between neighbours along each dim.
pub type Strides = SmallVec<[isize; 6]>;

/// An n-dimensional array in one memory. Cloning it, slicing it or transposing it makes a view:
/// views share storage and see each other's writes. [`Array::snapshot`] makes an independent value for free.
#[derive(Clone)]
pub struct Array {
    storage: Arc<Storage>,
    dtype: DType,
    shape: Shape,
    strides: Strides,
    offset: usize,
}

/// Strides of a row-major array without gaps.
pub(crate) fn contiguous_strides(shape: &[usize]) -> Strides {
    let mut strides: Strides = SmallVec::from_elem(1, shape.len());
    let mut step = 1isize;
    for i in (0..shape.len()).rev() {
        strides[i] = step;
        // A `Shape` bounds the product of its non-zero extents, so this cannot overflow.
        step *= shape[i].max(1) as isize;
    }
    strides
}

impl Array {
    pub(crate) fn from_storage(storage: Arc<Storage>, dtype: DType, shape: Shape) -> Array {
        let strides = contiguous_strides(&shape);
        Array { storage, dtype, shape, strides, offset: 0 }
    }

    /// A whole array over memory of its own.
    pub(crate) fn from_buffer(buffer: HostBuffer, dtype: DType, shape: Shape) -> Array {
        Array::from_storage(Storage::host(buffer), dtype, shape)
    }

    /// Puts other memory of the same size in place of the storage's.
    pub(crate) fn replace(&self, buffer: HostBuffer) {
        self.storage.replace(buffer);
    }

    /// The same storage under another geometry; the caller has checked that it stays inside.
    pub(crate) fn with_geometry(&self, shape: Shape, strides: Strides, offset: usize) -> Array {
        Array { storage: self.storage.clone(), dtype: self.dtype, shape, strides, offset }
    }

    /// An array of zeros.
    pub fn zeros(shape: &[usize], dtype: DType) -> Result<Array> {
        Array::zeros_of(Shape::new(shape)?, dtype)
    }

    pub(crate) fn zeros_of(shape: Shape, dtype: DType) -> Result<Array> {
        let buffer = HostBuffer::zeroed(shape.numel() * dtype.size())?;
        Ok(Array::from_storage(Storage::host(buffer), dtype, shape))
    }

    /// An array of unspecified values, for whoever writes all of them: a receive, a read. The allocator hands out
    /// initialised bytes only (old contents, or zeros that cost nothing until touched), so a value read too early is
    /// wrong, not undefined; debug builds set every bit, NaN in floats, to show such reads. Truth values are false.
    pub fn empty(shape: &[usize], dtype: DType) -> Result<Array> {
        let shape = Shape::new(shape)?;
        if dtype == DType::Bool {
            // Kernels rely on bytes that are 0 or 1.
            return Array::zeros_of(shape, dtype);
        }
        let mut buffer = HostBuffer::new(shape.numel() * dtype.size())?;
        if cfg!(debug_assertions) {
            buffer.slice_mut::<u8>().fill(0xff);
        }
        Ok(Array::from_storage(Storage::host(buffer), dtype, shape))
    }

    /// A shape and dtype without bytes, for planning.
    pub fn meta(shape: &[usize], dtype: DType) -> Result<Array> {
        Ok(Array::meta_of(Shape::new(shape)?, dtype))
    }

    pub(crate) fn meta_of(shape: Shape, dtype: DType) -> Array {
        Array::from_storage(Storage::meta(shape.numel() * dtype.size()), dtype, shape)
    }

    /// The shape and dtype of this array on the meta device.
    pub fn to_meta(&self) -> Array {
        Array::meta_of(self.shape.clone(), self.dtype)
    }

    /// An array filled with one value.
    pub fn full(shape: &[usize], value: impl Into<Scalar>, dtype: DType) -> Result<Array> {
        let (shape, value) = (Shape::new(shape)?, value.into());
        with_dtype!(dtype, T => Array::build(shape, |out: &mut [T]| {
            let value = T::from_scalar(value);
            planaria_cpu::pool::for_chunks_mut(out, 4096, size_of::<T>(), |_, piece| piece.fill(value));
        }))
    }

    /// A 0-d array.
    pub fn scalar(value: impl Into<Scalar>, dtype: DType) -> Result<Array> {
        Array::full(&[], value, dtype)
    }

    /// A copy of `data`, which holds the elements in row-major order.
    pub fn from_slice<T: Element>(data: &[T], shape: &[usize]) -> Result<Array> {
        let shape = Shape::new(shape)?;
        if shape.numel() != data.len() {
            let what =
                format!("{} values do not fill shape {shape}, which has {}", data.len(), shape.numel());
            return Err(Error::argument("from_slice", what));
        }
        Array::build(shape, |out: &mut [T]| planaria_cpu::pool::copy_slice(out, data))
    }

    /// A fresh contiguous array whose every element `fill` writes.
    #[inline(always)]
    pub(crate) fn build<T: Element>(shape: Shape, fill: impl FnOnce(&mut [T])) -> Result<Array> {
        Array::build_bytes(shape, T::DTYPE, fill)
    }

    /// Like [`Array::build`] for kernels that only know the element's size.
    pub(crate) fn build_bytes<T: Pod>(
        shape: Shape,
        dtype: DType,
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Array> {
        debug_assert_eq!(size_of::<T>(), dtype.size());
        let mut fill = Some(fill);
        Array::build_with(shape, dtype, &mut |buffer| {
            if let Some(fill) = fill.take() {
                fill(buffer.slice_mut());
            }
        })
    }

    /// The part of [`Array::build`] that knows nothing of elements and is compiled once.
    fn build_with(shape: Shape, dtype: DType, fill: &mut dyn FnMut(&mut HostBuffer)) -> Result<Array> {
        let mut buffer = HostBuffer::new(shape.numel() * dtype.size())?;
        fill(&mut buffer);
        Ok(Array::from_storage(Storage::host(buffer), dtype, shape))
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Element steps along each dim.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Position of the first element in the storage, in elements.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of dims.
    pub fn ndim(&self) -> usize {
        self.shape.ndim()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Where the bytes live.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// True on the meta device: no bytes to compute with.
    pub fn is_meta(&self) -> bool {
        self.device() == Device::Meta
    }

    /// Counts writes to the storage, through this view or any other.
    pub fn version(&self) -> u64 {
        self.storage.version()
    }

    /// True when writes through one of the two can be seen through the other.
    pub fn shares_storage(&self, other: &Array) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage) || self.storage.overlaps(&other.storage)
    }

    /// True when the elements may not be written: memory that other code lent for reading only.
    pub fn is_readonly(&self) -> bool {
        !self.storage.is_writable()
    }

    pub(crate) fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// True when no other array, view or reader has these bytes: they may be overwritten unseen.
    pub fn is_exclusive(&self) -> bool {
        Arc::strong_count(&self.storage) == 1 && !self.storage.is_shared() && !self.storage.is_pinned()
    }

    /// What tells storages apart; only to be compared, and only while both live.
    pub(crate) fn storage_key(&self) -> usize {
        Arc::as_ptr(&self.storage).addr()
    }

    /// True when a write would first have to copy the bytes, because a snapshot holds them.
    pub fn is_snapshotted(&self) -> bool {
        self.storage.is_shared()
    }

    /// Number of elements the storage has room for.
    pub(crate) fn storage_len(&self) -> usize {
        self.storage.bytes() / self.dtype.size()
    }

    /// True when the elements lie in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1isize;
        for (&len, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if len == 0 {
                return true;
            }
            if len != 1 {
                if stride != step {
                    return false;
                }
                step *= len as isize;
            }
        }
        true
    }

    /// True unless every element certainly has a memory cell of its own, without which nothing is written.
    pub fn may_overlap(&self) -> bool {
        may_overlap(&self.shape, &self.strides)
    }

    /// An independent value with the same elements. No bytes are copied until one of the two is written, unless other
    /// code shares them (see [`Array::export`]): then they are copied now.
    pub fn snapshot(&self) -> Result<Array> {
        let mut copy = self.clone();
        copy.storage = self.storage.snapshot()?;
        Ok(copy)
    }

    pub(crate) fn check_dtype(&self, op: &'static str, dtype: DType) -> Result<()> {
        if self.dtype == dtype {
            Ok(())
        } else {
            Err(Error::DTypeMismatch { op, lhs: self.dtype, rhs: dtype })
        }
    }

    /// The storage's bytes, held for reading.
    pub(crate) fn host(&self, op: &'static str) -> Result<Host> {
        let buffer = self.storage.read();
        match *buffer {
            Buffer::Host(_) => Ok(Host(buffer)),
            Buffer::Cuda(_) | Buffer::Meta => Err(storage::no_bytes(op, self.device())),
        }
    }

    /// The storage's bytes as they are now, wherever they live.
    pub(crate) fn buffer(&self) -> Arc<Buffer> {
        self.storage.read()
    }

    /// Begins a change of a device's bytes; `coverage` as in [`Storage::begin_cuda_update`].
    pub(crate) fn begin_cuda_update(
        &self,
        op: &'static str,
        lane: &Arc<Lane>,
        coverage: Coverage,
    ) -> Result<CudaUpdate<'_>> {
        self.storage.begin_cuda_update(op, lane, coverage)
    }

    /// This view over bytes obtained from [`Array::host`].
    pub(crate) fn operand<'a, T: Pod>(&self, host: &'a Host) -> Operand<'a, T> {
        Operand::new(host.slice::<T>(), self.offset, &self.shape, &self.strides)
    }

    /// The elements in row-major order as one slice; copies only when the view is not contiguous.
    pub(crate) fn values<T: Element>(&self, op: &'static str) -> Result<Values<T>> {
        self.check_dtype(op, T::DTYPE)?;
        let flat = self.contiguous()?;
        Ok(Values { host: flat.host(op)?, start: flat.offset, len: flat.numel(), element: PhantomData })
    }

    /// Runs `write` on the whole storage as elements of T (same size as the dtype), for kernels that
    /// write through this view's geometry.
    pub(crate) fn write<T: Pod, R>(&self, op: &'static str, write: impl FnOnce(&mut [T]) -> R) -> Result<R> {
        debug_assert_eq!(size_of::<T>(), self.dtype.size());
        self.storage.write(op, write)
    }

    /// Runs `write` on the whole storage as bytes.
    pub(crate) fn write_storage<R>(&self, op: &'static str, write: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        self.storage.write(op, write)
    }

    /// Begins a change of every element of a contiguous view, in one pass: in place, or, when a snapshot holds the
    /// bytes, from the old ones to fresh memory. Two updates of one storage at a time would wait for each other.
    pub(crate) fn begin_update(&self, op: &'static str) -> Result<Update<'_>> {
        debug_assert!(self.is_contiguous());
        let len = self.numel();
        let coverage = if len == self.storage_len() { Coverage::All } else { Coverage::Part };
        let start = if len == 0 { 0 } else { self.offset };
        Ok(Update { storage: self.storage.begin_update(op, coverage)?, range: start..start + len })
    }

    /// The elements in row-major order. Of a device's array they are copied here, after all work that makes them.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.on_host()?.values::<T>("to_vec")?.to_vec())
    }

    /// This array, or a copy in host memory where a device holds it.
    fn on_host(&self) -> Result<Array> {
        match self.device() {
            Device::Cpu | Device::Meta => Ok(self.clone()),
            Device::Cuda(_) => self.to(Device::Cpu),
        }
    }

    /// The value of an array with exactly one element.
    pub fn item(&self) -> Result<Scalar> {
        if self.numel() != 1 {
            return Err(Error::argument(
                "item",
                format!("shape {} has {} elements, not 1", self.shape, self.numel()),
            ));
        }
        let here = self.on_host()?;
        let host = here.host("item")?;
        with_dtype!(here.dtype, T => Ok(host.slice::<T>()[here.offset].to_scalar()))
    }
}

/// A change of a contiguous view's elements under way.
pub(crate) struct Update<'a> {
    storage: storage::Update<'a>,
    range: Range<usize>,
}

impl Update<'_> {
    /// The elements. With old ones, the new ones must be written in full; else change them in place.
    pub(crate) fn slices<T: Element>(&mut self) -> (Option<&[T]>, &mut [T]) {
        let (old, new) = self.storage.slices::<T>();
        (old.map(|old| &old[self.range.clone()]), &mut new[self.range.clone()])
    }

    /// Makes the change visible.
    pub(crate) fn commit(self) {
        self.storage.commit();
    }
}

/// Host bytes held for reading. While it lives, writers move to fresh bytes.
pub(crate) struct Host(Arc<Buffer>);

impl Host {
    pub(crate) fn slice<T: Pod>(&self) -> &[T] {
        match self.0.as_ref() {
            Buffer::Host(buffer) => buffer.slice(),
            Buffer::Cuda(_) | Buffer::Meta => unreachable!("only host bytes are held as host bytes"),
        }
    }
}

/// Elements of an array in row-major order.
pub(crate) struct Values<T> {
    host: Host,
    start: usize,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Element> Deref for Values<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match self.len {
            0 => &[],
            len => &self.host.slice::<T>()[self.start..self.start + len],
        }
    }
}
