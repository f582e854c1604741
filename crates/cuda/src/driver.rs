//! The driver's functions, each once, with their results as values. Everything unsafe about them is here.
#![allow(unsafe_code)]

use crate::error::Error;
use crate::launch::Arg;
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, CString, c_void};
use std::sync::OnceLock;

/// A driver call that failed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) call: &'static str,
    pub(crate) code: CUresult,
}

/// What a driver call gives.
pub(crate) type Raw<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn is_out_of_memory(&self) -> bool {
        self.code == CUresult::CUDA_ERROR_OUT_OF_MEMORY
    }

    /// True when the context is lost: all later calls would answer the same.
    pub(crate) fn is_fatal(&self) -> bool {
        !matches!(
            self.code,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY
                | CUresult::CUDA_ERROR_INVALID_VALUE
                | CUresult::CUDA_ERROR_NOT_FOUND
                | CUresult::CUDA_ERROR_INVALID_IMAGE
                | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
                | CUresult::CUDA_ERROR_INVALID_PTX
                | CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
                | CUresult::CUDA_ERROR_NOT_READY
        )
    }

    /// As an error of `op`; `trail` tells what was queued before.
    pub(crate) fn error(&self, op: &'static str, trail: String) -> Error {
        let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
            let mut text = std::ptr::null();
            // SAFETY: the driver writes a pointer to one of its constant strings, or null.
            unsafe {
                get(self.code, &raw mut text);
                if text.is_null() {
                    String::from("unknown")
                } else {
                    CStr::from_ptr(text).to_string_lossy().into()
                }
            }
        };
        let (code, text) = (text(sys::cuGetErrorName), text(sys::cuGetErrorString));
        Error::Driver { op, call: self.call, code, text, trail }
    }
}

fn check(call: &'static str, code: CUresult) -> Raw<()> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(Failure { call, code }) }
}

/// A name of something the driver keeps.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Handle<T>(*mut T);

impl<T> Handle<T> {
    /// For libraries that take the driver's handles.
    pub(crate) fn pointer(self) -> *mut T {
        self.0
    }
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Handle<T> {
        *self
    }
}

impl<T> Copy for Handle<T> {}

// SAFETY: only the driver looks behind the pointer, and it may be called from any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// A device's primary context.
pub(crate) type RawContext = Handle<sys::CUctx_st>;
/// A queue of work.
pub(crate) type RawStream = Handle<sys::CUstream_st>;
/// A mark in a queue.
pub(crate) type RawEvent = Handle<sys::CUevent_st>;
/// Loaded code.
pub(crate) type RawModule = Handle<sys::CUmod_st>;
/// A kernel in loaded code.
pub(crate) type RawFunction = Handle<sys::CUfunc_st>;
/// Recorded work that can be queued.
pub(crate) type RawGraph = Handle<sys::CUgraphExec_st>;

/// Opens the driver once. Must come before any other call here.
pub(crate) fn open() -> Result<(), Error> {
    static OPENED: OnceLock<Result<(), Error>> = OnceLock::new();
    let open = || {
        let none = |reason: String| Error::NoDriver { reason };
        // SAFETY: only looks for the library, whose initialisers are the driver's own.
        if !unsafe { sys::is_culib_present() } {
            return Err(none("libcuda.so.1 was not found".into()));
        }
        // SAFETY: the first call of the driver, as it demands.
        let code = unsafe { sys::cuInit(0) };
        check("cuInit", code).map_err(|failure| match failure.error("open", String::new()) {
            Error::Driver { code, text, .. } => none(format!("cuInit says {code} ({text})")),
            other => other,
        })
    };
    OPENED.get_or_init(open).clone()
}

pub(crate) fn version() -> Raw<i32> {
    let mut version = 0;
    // SAFETY: writes one integer.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
    Ok(version)
}

pub(crate) fn device_count() -> Raw<u32> {
    let mut count = 0;
    // SAFETY: writes one integer.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) })?;
    Ok(count.max(0) as u32)
}

/// Name and bytes of a device.
pub(crate) fn describe(ordinal: u32) -> Raw<(String, usize)> {
    let mut name = [0; 256];
    let mut bytes = 0;
    // SAFETY: the buffer's length is given; the driver ends the text with a zero.
    let code = unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32 - 1, ordinal as i32) };
    check("cuDeviceGetName", code)?;
    // SAFETY: writes one integer.
    check("cuDeviceTotalMem", unsafe { sys::cuDeviceTotalMem_v2(&raw mut bytes, ordinal as i32) })?;
    // SAFETY: the last byte was never written, so the text ends inside the buffer.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    Ok((name, bytes))
}

/// What no other device of any machine is called.
pub(crate) fn uuid(ordinal: u32) -> Raw<[u8; 16]> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: writes sixteen bytes.
    check("cuDeviceGetUuid", unsafe { sys::cuDeviceGetUuid_v2(&raw mut uuid, ordinal as i32) })?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}

/// One number about a device.
pub(crate) fn attribute(ordinal: u32, which: sys::CUdevice_attribute) -> Raw<i32> {
    let mut value = 0;
    // SAFETY: writes one integer.
    check("cuDeviceGetAttribute", unsafe {
        sys::cuDeviceGetAttribute(&raw mut value, which, ordinal as i32)
    })?;
    Ok(value)
}

pub(crate) fn retain(ordinal: u32) -> Raw<RawContext> {
    let mut context = std::ptr::null_mut();
    // SAFETY: device handles of the driver are the ordinals; writes one handle.
    check("cuDevicePrimaryCtxRetain", unsafe {
        sys::cuDevicePrimaryCtxRetain(&raw mut context, ordinal as i32)
    })?;
    Ok(Handle(context))
}

/// Makes a context the calling thread's.
pub(crate) fn bind(context: RawContext) -> Raw<()> {
    // SAFETY: the context is retained for the life of the process.
    check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context.0) })
}

/// Free and total bytes of the bound device.
pub(crate) fn memory_info() -> Raw<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: writes two integers.
    check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
    Ok((free, total))
}

pub(crate) fn new_stream() -> Raw<RawStream> {
    const NON_BLOCKING: u32 = 1;
    let mut stream = std::ptr::null_mut();
    // SAFETY: writes one handle.
    check("cuStreamCreate", unsafe { sys::cuStreamCreate(&raw mut stream, NON_BLOCKING) })?;
    Ok(Handle(stream))
}

pub(crate) fn destroy_stream(stream: RawStream) {
    // SAFETY: the owner gives it up; work still queued is finished first by the driver.
    let _ = unsafe { sys::cuStreamDestroy_v2(stream.0) };
}

pub(crate) fn synchronize(stream: RawStream) -> Raw<()> {
    // SAFETY: a live stream.
    check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(stream.0) })
}

pub(crate) fn new_event(timed: bool) -> Raw<RawEvent> {
    const DISABLE_TIMING: u32 = 2;
    let mut event = std::ptr::null_mut();
    // SAFETY: writes one handle.
    let code = unsafe { sys::cuEventCreate(&raw mut event, if timed { 0 } else { DISABLE_TIMING }) };
    check("cuEventCreate", code)?;
    Ok(Handle(event))
}

pub(crate) fn destroy_event(event: RawEvent) {
    // SAFETY: the owner gives it up; the driver keeps it while streams wait for it.
    let _ = unsafe { sys::cuEventDestroy_v2(event.0) };
}

pub(crate) fn record(event: RawEvent, stream: RawStream) -> Raw<()> {
    // SAFETY: live handles.
    check("cuEventRecord", unsafe { sys::cuEventRecord(event.0, stream.0) })
}

pub(crate) fn wait(stream: RawStream, event: RawEvent) -> Raw<()> {
    // SAFETY: live handles.
    check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream.0, event.0, 0) })
}

/// Whether all work before the event is done.
pub(crate) fn passed(event: RawEvent) -> Raw<bool> {
    // SAFETY: a live event.
    match unsafe { sys::cuEventQuery(event.0) } {
        CUresult::CUDA_SUCCESS => Ok(true),
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        code => Err(Failure { call: "cuEventQuery", code }),
    }
}

pub(crate) fn wait_host(event: RawEvent) -> Raw<()> {
    // SAFETY: a live event.
    check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(event.0) })
}

/// Milliseconds between two timed events that have passed.
pub(crate) fn elapsed(start: RawEvent, end: RawEvent) -> Raw<f32> {
    let mut milliseconds = 0.0;
    // SAFETY: live events; writes one number.
    let code = unsafe { sys::cuEventElapsedTime_v2(&raw mut milliseconds, start.0, end.0) };
    check("cuEventElapsedTime", code)?;
    Ok(milliseconds)
}

pub(crate) fn allocate(bytes: usize) -> Raw<u64> {
    let mut address = 0;
    // SAFETY: writes one address.
    check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) })?;
    Ok(address)
}

pub(crate) fn free(address: u64) -> Raw<()> {
    // SAFETY: the driver refuses what it did not hand out.
    check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
}

/// Pinned host memory, usable from every context.
pub(crate) fn allocate_pinned(bytes: usize) -> Raw<*mut u8> {
    const PORTABLE: u32 = 1;
    let mut pointer = std::ptr::null_mut();
    // SAFETY: writes one pointer.
    check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&raw mut pointer, bytes, PORTABLE) })?;
    Ok(pointer.cast())
}

/// Frees pinned memory.
///
/// # Safety
/// `pointer` came from [`allocate_pinned`], and neither the host nor the device uses it any more.
pub(crate) unsafe fn free_pinned(pointer: *mut u8) {
    // SAFETY: the caller's promise.
    let _ = unsafe { sys::cuMemFreeHost(pointer.cast()) };
}

pub(crate) fn fill_bytes(stream: RawStream, address: u64, value: u8, bytes: usize) -> Raw<()> {
    // SAFETY: device memory only; a wrong address is the device's error.
    check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(address, value, bytes, stream.0) })
}

pub(crate) fn copy_within(stream: RawStream, to: u64, from: u64, bytes: usize) -> Raw<()> {
    // SAFETY: device memory only.
    check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.0) })
}

/// Queues a copy from pageable memory, which the driver has read when this returns.
pub(crate) fn copy_in(stream: RawStream, to: u64, from: &[u8]) -> Raw<()> {
    // SAFETY: for pageable memory the driver stages the bytes before it returns.
    check("cuMemcpyHtoDAsync", unsafe {
        sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), stream.0)
    })
}

/// Copies to the host and waits.
pub(crate) fn copy_out(stream: RawStream, to: &mut [u8], from: u64) -> Raw<()> {
    // SAFETY: the slice outlives the copy, because this waits for it.
    check("cuMemcpyDtoHAsync", unsafe {
        sys::cuMemcpyDtoHAsync_v2(to.as_mut_ptr().cast(), from, to.len(), stream.0)
    })?;
    synchronize(stream)
}

/// Queues a copy between pinned memory and the device.
///
/// # Safety
/// The pinned memory stays allocated, and for copies out unread, until the stream has passed the copy.
pub(crate) unsafe fn copy_pinned(
    stream: RawStream,
    host: *mut u8,
    device: u64,
    bytes: usize,
    out: bool,
) -> Raw<()> {
    if out {
        // SAFETY: the caller's promise.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(host.cast(), device, bytes, stream.0) };
        return check("cuMemcpyDtoHAsync", code);
    }
    // SAFETY: the caller's promise.
    check("cuMemcpyHtoDAsync", unsafe { sys::cuMemcpyHtoDAsync_v2(device, host.cast(), bytes, stream.0) })
}

/// Loads a cubin.
pub(crate) fn load(image: &[u8]) -> Raw<RawModule> {
    let mut module = std::ptr::null_mut();
    // SAFETY: the image is a whole ELF file, whose header tells its size; writes one handle.
    check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&raw mut module, image.as_ptr().cast()) })?;
    Ok(Handle(module))
}

pub(crate) fn function(module: RawModule, name: &str) -> Raw<RawFunction> {
    let mut function = std::ptr::null_mut();
    let missing = Failure { call: "cuModuleGetFunction", code: CUresult::CUDA_ERROR_NOT_FOUND };
    let name = CString::new(name).map_err(|_| missing)?;
    // SAFETY: a live module and a text that ends with a zero; writes one handle.
    check("cuModuleGetFunction", unsafe {
        sys::cuModuleGetFunction(&raw mut function, module.0, name.as_ptr())
    })?;
    Ok(Handle(function))
}

/// Lets a kernel use more than 48 KiB of shared memory.
pub(crate) fn allow_shared(function: RawFunction, bytes: u32) -> Raw<()> {
    let which = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: a live function.
    check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(function.0, which, bytes as i32) })
}

/// A map of four dims of two-byte elements, the innermost first, for bulk copies of boxes: 128-byte swizzle, zeros outside.
pub(crate) fn tensor_map(
    address: u64,
    half: bool,
    dims: [u64; 4],
    strides: [u64; 3],
    boxes: [u32; 4],
) -> Raw<[u64; 16]> {
    use sys::CUtensorMapDataType_enum as Kind;
    let kind = match half {
        true => Kind::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        false => Kind::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    };
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let steps = [1u32; 4];
    // SAFETY: four extents, three strides, four box sizes and four steps, as many as the rank says; writes one map.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            &raw mut map,
            kind,
            4,
            address as *mut c_void,
            dims.as_ptr(),
            strides.as_ptr(),
            boxes.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_128B,
            sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    check("cuTensorMapEncodeTiled", code)?;
    Ok(map.opaque)
}

/// Queues a kernel.
pub(crate) fn launch(
    stream: RawStream,
    function: RawFunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    args: &[Arg<'_>],
) -> Raw<()> {
    let mut pointers: Vec<*mut c_void> = args.iter().map(|arg| arg.pointer().cast_mut()).collect();
    // SAFETY: the driver reads each argument before it returns, and `args` lives until then. Kernels write to
    // device memory only.
    check("cuLaunchKernel", unsafe {
        sys::cuLaunchKernel(
            function.0,
            grid[0],
            grid[1],
            grid[2],
            block[0],
            block[1],
            block[2],
            shared,
            stream.0,
            pointers.as_mut_ptr(),
            std::ptr::null_mut(),
        )
    })
}

/// From now on what is queued on a stream is recorded and not done. Other calls stay allowed, such as those for memory.
pub(crate) fn begin_capture(stream: RawStream) -> Raw<()> {
    let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: a live stream.
    check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream.0, mode) })
}

/// Ends the recording; what was recorded is made ready to be queued if it is to be kept.
pub(crate) fn end_capture(stream: RawStream, keep: bool) -> Raw<Option<RawGraph>> {
    let (mut graph, mut ready) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: a live stream; writes one handle.
    check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream.0, &raw mut graph) })?;
    let made = if keep {
        // SAFETY: the graph that was just recorded; writes one handle.
        check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&raw mut ready, graph, 0) })
    } else {
        Ok(())
    };
    if !graph.is_null() {
        // SAFETY: nobody else has it.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
    }
    made?;
    Ok(keep.then_some(Handle(ready)))
}

pub(crate) fn launch_graph(stream: RawStream, graph: RawGraph) -> Raw<()> {
    // SAFETY: live handles; the memory that the recorded work uses belongs to the graph's owner.
    check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(graph.0, stream.0) })
}

pub(crate) fn destroy_graph(graph: RawGraph) {
    // SAFETY: the owner gives it up; the driver keeps it while it runs.
    let _ = unsafe { sys::cuGraphExecDestroy(graph.0) };
}
