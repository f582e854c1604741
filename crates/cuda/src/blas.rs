//! Matrix products by cublasLt, opened at run time: without split sums, so that a piece of a product has the bits of the
//! whole, and by the algorithm of a table of timed ones or the library's first choice, never by timing during a run.
#![allow(unsafe_code)]

mod table;
mod tune;

pub use table::tuned_line;
pub use tune::{Tuned, tune};

use crate::context::Context;
use crate::error::{Error, Result};
use crate::lane::Lane;
use cudarc::cublaslt::sys::{self, cublasStatus_t as Status};
use std::collections::HashMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Element types that the library multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProductType {
    /// 64-bit floats.
    F64,
    /// 32-bit floats, in true 32-bit arithmetic.
    F32,
    /// bfloat16, summed in 32 bits.
    BF16,
    /// 16-bit floats, summed in 32 bits.
    F16,
}

impl ProductType {
    fn bytes(self) -> u64 {
        match self {
            ProductType::F64 => 8,
            ProductType::F32 => 4,
            ProductType::BF16 | ProductType::F16 => 2,
        }
    }

    fn data(self) -> sys::cudaDataType_t {
        match self {
            ProductType::F64 => sys::cudaDataType_t::CUDA_R_64F,
            ProductType::F32 => sys::cudaDataType_t::CUDA_R_32F,
            ProductType::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
            ProductType::F16 => sys::cudaDataType_t::CUDA_R_16F,
        }
    }
}

/// A matrix by rows or by columns, one of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Matrix {
    /// True when rows lie one after the other, else columns do.
    pub by_rows: bool,
    /// Elements from one of them to the next.
    pub step: u64,
    /// Elements from one matrix of a batch to the next.
    pub batch_step: u64,
}

/// `out[m, n] = a[m, k] · b[k, n]`, `out` dense by rows; or that added to what `out` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Product {
    /// Element type of the operands.
    pub kind: ProductType,
    /// That of the result: the same, or f32 where the operands are narrower.
    pub out: ProductType,
    /// Whether the product is added to the result.
    pub add: bool,
    /// Extents.
    pub m: u64,
    /// Columns of the result.
    pub n: u64,
    /// Terms of each sum.
    pub k: u64,
    /// Products of this kind.
    pub batch: u64,
    /// The left matrix.
    pub a: Matrix,
    /// The right matrix.
    pub b: Matrix,
    /// Whether a row of `n` elements is added to every row of the result.
    pub bias: bool,
    /// The greatest power of two, up to 16, that all addresses are multiples of.
    pub alignment: u32,
}

/// Bytes the library may use beside operands and results.
const WORKSPACE: usize = 32 << 20;

/// A descriptor of the library's own.
struct Raw<T>(*mut T);

// SAFETY: only the library looks behind the pointer; a plan is used under its lock.
unsafe impl<T> Send for Raw<T> {}

/// What a product needs at each call, made once.
struct Plan {
    desc: Raw<sys::cublasLtMatmulDescOpaque_t>,
    layouts: [Raw<sys::cublasLtMatrixLayoutOpaque_t>; 3],
    algorithm: Algorithm,
}

/// The library on one device: its handle and the plans made so far; `None` for products it refuses.
pub(crate) struct Blas {
    handle: Raw<sys::cublasLtContext>,
    machine: Machine,
    plans: HashMap<Product, Option<Plan>>,
}

/// What an algorithm was timed on: the library's version and the number of multiprocessors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Machine {
    library: u64,
    multiprocessors: u32,
}

fn failed(reason: impl std::fmt::Display) -> Error {
    Error::Library { library: "cublasLt", reason: reason.to_string() }
}

fn check(call: &str, status: Status) -> Result<()> {
    if status == Status::CUBLAS_STATUS_SUCCESS {
        Ok(())
    } else {
        Err(failed(format!("{call} says {status:?}")))
    }
}

/// Looks for the library once: in the folder `PLANARIA_CUBLASLT` names, or where the loader looks.
fn present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    *PRESENT.get_or_init(|| {
        if let Some(folder) = std::env::var_os("PLANARIA_CUBLASLT").map(PathBuf::from) {
            use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};
            // SAFETY: the library's initialisers are the vendor's own.
            let library =
                unsafe { Library::open(Some(folder.join("libcublasLt.so.13")), RTLD_LAZY | RTLD_GLOBAL) };
            // Never unloaded: found again by its name.
            std::mem::forget(library);
        }
        // SAFETY: only looks for the library.
        unsafe { sys::is_culib_present() }
    })
}

/// Sets an attribute of a descriptor by one of the library's functions.
fn set<T>(call: &str, value: &T, to: impl FnOnce(*const c_void, usize) -> Status) -> Result<()> {
    check(call, to(std::ptr::from_ref(value).cast(), size_of::<T>()))
}

impl Blas {
    fn open(multiprocessors: u32) -> Result<Blas> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle; the calling thread is bound to the device.
        check("cublasLtCreate", unsafe { sys::cublasLtCreate(&raw mut handle) })?;
        // SAFETY: asks for a number.
        let library = unsafe { sys::cublasLtGetVersion() } as u64;
        let machine = Machine { library, multiprocessors };
        Ok(Blas { handle: Raw(handle), machine, plans: HashMap::new() })
    }

    /// Column by column, as the library sees it: the transpose of the result is that of b times that of a.
    fn plan(&self, p: &Product) -> Result<Option<Plan>> {
        let (compute, scale) = match p.kind {
            ProductType::F64 => (sys::cublasComputeType_t::CUBLAS_COMPUTE_64F, ProductType::F64),
            _ => (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, ProductType::F32),
        };
        let mut desc = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let status = unsafe { sys::cublasLtMatmulDescCreate(&raw mut desc, compute, scale.data()) };
        check("cublasLtMatmulDescCreate", status)?;
        use sys::cublasLtMatmulDescAttributes_t as D;
        let attribute = |name: D, value: i32| {
            // SAFETY: a live descriptor and an attribute of four bytes.
            set("cublasLtMatmulDescSetAttribute", &value, |buffer, size| unsafe {
                sys::cublasLtMatmulDescSetAttribute(desc, name, buffer, size)
            })
        };
        let turned = |by_rows: bool| i32::from(!by_rows);
        attribute(D::CUBLASLT_MATMUL_DESC_TRANSA, turned(p.b.by_rows))?;
        attribute(D::CUBLASLT_MATMUL_DESC_TRANSB, turned(p.a.by_rows))?;
        if p.bias {
            attribute(
                D::CUBLASLT_MATMUL_DESC_EPILOGUE,
                sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as i32,
            )?;
        }
        let sides = |matrix: Matrix, rows: u64, columns: u64| match matrix.by_rows {
            true => (columns, rows),
            false => (rows, columns),
        };
        let right = layout(p, p.kind, sides(p.b, p.k, p.n), p.b)?;
        let left = layout(p, p.kind, sides(p.a, p.m, p.k), p.a)?;
        let dense = Matrix { by_rows: true, step: p.n, batch_step: p.m * p.n };
        let result = layout(p, p.out, (p.n, p.m), dense)?;
        let layouts = [right, left, result];
        let timed = table::of(self.machine, p).filter(|timed| self.takes(desc, &layouts, timed));
        let algorithm = match timed {
            Some(timed) => Some(timed),
            None => self.choices(p, desc, &layouts, 1)?.pop(),
        };
        Ok(algorithm.map(|algorithm| Plan { desc: Raw(desc), layouts, algorithm }))
    }

    /// Whether the library can run an algorithm with the workspace there is.
    fn takes(
        &self,
        desc: sys::cublasLtMatmulDesc_t,
        [right, left, result]: &[Raw<sys::cublasLtMatrixLayoutOpaque_t>; 3],
        algorithm: &Algorithm,
    ) -> bool {
        // SAFETY: plain numbers, for which zeros are values.
        let mut found: sys::cublasLtMatmulHeuristicResult_t = unsafe { std::mem::zeroed() };
        // SAFETY: live descriptors; reads an algorithm and writes one result.
        let status = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                self.handle.0,
                desc,
                right.0,
                left.0,
                result.0,
                result.0,
                std::ptr::from_ref(algorithm),
                &raw mut found,
            )
        };
        status == Status::CUBLAS_STATUS_SUCCESS && found.workspaceSize <= WORKSPACE
    }

    /// The library's first choices that do not split sums.
    fn choices(
        &self,
        p: &Product,
        desc: sys::cublasLtMatmulDesc_t,
        layouts: &[Raw<sys::cublasLtMatrixLayoutOpaque_t>; 3],
        most: usize,
    ) -> Result<Vec<Algorithm>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as P;
        let mut preference = std::ptr::null_mut();
        // SAFETY: writes one handle.
        check("cublasLtMatmulPreferenceCreate", unsafe {
            sys::cublasLtMatmulPreferenceCreate(&raw mut preference)
        })?;
        let call = "cublasLtMatmulPreferenceSetAttribute";
        // SAFETY: live preferences, and values of the sizes given.
        set(call, &WORKSPACE, |buffer, size| unsafe {
            let name = P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            sys::cublasLtMatmulPreferenceSetAttribute(preference, name, buffer, size)
        })?;
        let no_split = 0u32;
        for (name, value) in [
            (P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_split),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p.alignment),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p.alignment),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &p.alignment),
            (P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p.alignment),
        ] {
            // SAFETY: as above.
            set(call, value, |buffer, size| unsafe {
                sys::cublasLtMatmulPreferenceSetAttribute(preference, name, buffer, size)
            })?;
        }
        let [right, left, result] = layouts;
        // SAFETY: plain numbers, for which zeros are values.
        let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> = vec![unsafe { std::mem::zeroed() }; most];
        let mut count = 0;
        // SAFETY: live descriptors; writes at most so many results and a count.
        let status = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle.0,
                desc,
                right.0,
                left.0,
                result.0,
                result.0,
                preference,
                most as i32,
                found.as_mut_ptr(),
                &raw mut count,
            )
        };
        // SAFETY: made above, and used by nobody any more.
        let _ = unsafe { sys::cublasLtMatmulPreferenceDestroy(preference) };
        let count = if status == Status::CUBLAS_STATUS_SUCCESS { count.max(0) as usize } else { 0 };
        Ok(found[..count.min(most)].iter().map(|found| found.algo).collect())
    }

    /// The plan of a product, made at its first call; `None` where the library refuses it.
    fn planned(&mut self, product: &Product) -> Result<Option<&Plan>> {
        if !self.plans.contains_key(product) {
            let plan = self.plan(product)?;
            self.plans.insert(*product, plan);
        }
        Ok(self.plans.get(product).and_then(Option::as_ref))
    }
}

/// An algorithm as the library writes it down.
type Algorithm = sys::cublasLtMatmulAlgo_t;

/// A product in the table of times: types, how its operands lie, extents.
fn name_of(op: &'static str, p: &Product) -> String {
    let way = |matrix: Matrix| if matrix.by_rows { 'r' } else { 'c' };
    let Product { kind, out, m, n, k, batch, .. } = p;
    format!("{op}: {kind:?} to {out:?} {}{} {m}x{n}x{k} of {batch}", way(p.a), way(p.b))
}

/// Tells a plan where the row is that it adds to every row.
fn set_bias(plan: &Plan, bias: u64) -> Result<()> {
    // SAFETY: a live descriptor and an address, which is eight bytes.
    set("cublasLtMatmulDescSetAttribute", &bias, |buffer, size| unsafe {
        let name = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
        sys::cublasLtMatmulDescSetAttribute(plan.desc.0, name, buffer, size)
    })
}

/// A factor in the type of the sums, at the start of a word.
fn factor(kind: ProductType, value: f32) -> u64 {
    let mut word = [0; 8];
    match kind {
        ProductType::F64 => word = f64::from(value).to_ne_bytes(),
        _ => word[..4].copy_from_slice(&value.to_ne_bytes()),
    }
    u64::from_ne_bytes(word)
}

/// A matrix of `sides.0` rows and `sides.1` columns, column by column.
fn layout(
    p: &Product,
    kind: ProductType,
    sides: (u64, u64),
    matrix: Matrix,
) -> Result<Raw<sys::cublasLtMatrixLayoutOpaque_t>> {
    use sys::cublasLtMatrixLayoutAttribute_t as L;
    let mut layout = std::ptr::null_mut();
    // SAFETY: writes one handle.
    check("cublasLtMatrixLayoutCreate", unsafe {
        sys::cublasLtMatrixLayoutCreate(&raw mut layout, kind.data(), sides.0, sides.1, matrix.step as i64)
    })?;
    if p.batch > 1 {
        let call = "cublasLtMatrixLayoutSetAttribute";
        let (count, step) = (p.batch as i32, matrix.batch_step as i64);
        // SAFETY: a live layout, and values of the sizes given.
        set(call, &count, |buffer, size| unsafe {
            sys::cublasLtMatrixLayoutSetAttribute(layout, L::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, buffer, size)
        })?;
        // SAFETY: as above.
        set(call, &step, |buffer, size| unsafe {
            let name = L::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
            sys::cublasLtMatrixLayoutSetAttribute(layout, name, buffer, size)
        })?;
    }
    Ok(Raw(layout))
}

/// The library on a device, once it was needed.
#[derive(Default)]
pub(crate) struct BlasOf(Mutex<Option<Blas>>);

impl Lane {
    /// Queues a product of matrices at the given addresses; false when the library is missing or does not take it.
    pub fn product(
        self: &Arc<Lane>,
        op: &'static str,
        product: &Product,
        [a, b, bias, out]: [u64; 4],
    ) -> Result<bool> {
        if !present() {
            return Ok(false);
        }
        let context: &Context = self.context();
        context.bind(op)?;
        let mut blas = context.blas.0.lock().unwrap_or_else(PoisonError::into_inner);
        let blas = match &mut *blas {
            Some(blas) => blas,
            empty => empty.insert(Blas::open(context.info().multiprocessors)?),
        };
        let handle = Raw(blas.handle.0);
        let Some(plan) = blas.planned(product)? else { return Ok(false) };
        if product.bias {
            set_bias(plan, bias)?;
        }
        self.multiply(op, product, &handle, (plan, &plan.algorithm), [a, b, out])?;
        Ok(true)
    }

    /// Queues a product by an algorithm.
    fn multiply(
        self: &Arc<Lane>,
        op: &'static str,
        product: &Product,
        handle: &Raw<sys::cublasLtContext>,
        (plan, algorithm): (&Plan, &Algorithm),
        [a, b, out]: [u64; 3],
    ) -> Result<()> {
        let workspace = self.block(op, WORKSPACE)?;
        let (one, keep) = (factor(product.kind, 1.0), factor(product.kind, f32::from(product.add)));
        let [right, left, result] = &plan.layouts;
        let name = || name_of(op, product);
        self.library(op, &name, || {
            // SAFETY: live descriptors that fit the memory, which is the device's; factors are read before it returns.
            unsafe {
                sys::cublasLtMatmul(
                    handle.0,
                    plan.desc.0,
                    std::ptr::from_ref(&one).cast(),
                    b as *const c_void,
                    right.0,
                    a as *const c_void,
                    left.0,
                    std::ptr::from_ref(&keep).cast(),
                    out as *const c_void,
                    result.0,
                    out as *mut c_void,
                    result.0,
                    std::ptr::from_ref(algorithm),
                    workspace.address() as *mut c_void,
                    WORKSPACE,
                    self.compute().raw.pointer().cast(),
                )
            }
        })
        .and_then(|status| check("cublasLtMatmul", status))
    }
}

impl Product {
    /// The alignment of addresses and steps: the greatest power of two, up to 16, that divides them all in bytes.
    pub fn align(mut self, addresses: &[u64]) -> Product {
        let size = self.kind.bytes();
        let mut bits = 16u64;
        for matrix in [self.a, self.b] {
            bits |= matrix.step * size;
            bits |= if self.batch > 1 { matrix.batch_step * size } else { 0 };
        }
        bits |= self.n * self.out.bytes();
        addresses.iter().for_each(|address| bits |= address);
        self.alignment = 1 << bits.trailing_zeros();
        self
    }
}
