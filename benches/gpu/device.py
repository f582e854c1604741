"""Compiles kernels with NVRTC and launches them through the driver: no header, no compiler, no Rust.

Compilation needs libnvrtc 13 (a wheel or a toolkit) and no GPU; `Kernel` needs a driver and torch's context.
"""
import concurrent.futures
import ctypes
import glob
import hashlib
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCES = os.path.join(ROOT, "crates/array/src/cuda/kernels")
CACHE = os.path.join(ROOT, "target/gpu")


def _nvrtc():
    places = [p for p in [os.environ.get("NVRTC_DIR")] if p]
    for folder in sys.path:
        places += glob.glob(os.path.join(folder, "nvidia/cu13/lib"))
        places += glob.glob(os.path.join(folder, "nvidia/cuda_nvrtc/lib"))
    places += ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"]
    for place in places:
        library = os.path.join(place, "libnvrtc.so.13")
        if os.path.exists(library):
            # Loaded first, or the compiler does not find it.
            for builtins in glob.glob(os.path.join(place, "libnvrtc-builtins.so.13*")):
                ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(library)
    raise RuntimeError(f"no libnvrtc.so.13 in {places}; set NVRTC_DIR")


def _texts():
    names = sorted(os.listdir(SOURCES))
    return {n: open(os.path.join(SOURCES, n), "rb").read() for n in names if n.endswith((".cu", ".cuh"))}


def path_of(file, options):
    """Where the cubin of a file with these options is kept."""
    texts = _texts()
    key = hashlib.sha256()
    for name, text in texts.items():
        if name.endswith(".cuh") or name == file:
            key.update(name.encode() + b"\0" + text + b"\0")
    key.update("\0".join(options).encode())
    return os.path.join(CACHE, f"{file[:-3]}-{key.hexdigest()[:16]}.cubin")


def compile_cubin(file, options):
    """(path of the cubin or None, compiler's report)."""
    path = path_of(file, options)
    if os.path.exists(path) and os.path.exists(path + ".log"):
        return path, open(path + ".log").read()
    nvrtc = _nvrtc()
    text = open(os.path.join(SOURCES, file), "rb").read()
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, file.encode(), 0, None, None)
    words = ["--gpu-architecture=sm_90a", "--std=c++17", "-I" + SOURCES, "--ptxas-options=-v", "-lineinfo"] + list(options)
    array = (ctypes.c_char_p * len(words))(*[w.encode() for w in words])
    code = nvrtc.nvrtcCompileProgram(program, len(words), array)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    log = log.value.decode()
    if code != 0:
        return None, log
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    os.makedirs(CACHE, exist_ok=True)
    for name, data in ((path + ".log", log.encode()), (path, cubin.raw)):
        with open(name + f".{os.getpid()}", "wb") as f:
            f.write(data)
        os.rename(name + f".{os.getpid()}", name)
    return path, log


def report_of(log):
    """{kernel: (registers, bytes spilled)} of a compiler's report."""
    found, name, spills = {}, None, 0
    for line in log.splitlines():
        if m := re.search(r"Compiling entry function '(\w+)'", line):
            name, spills = m[1], 0
        elif m := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spills = int(m[1]) + int(m[2])
        elif (m := re.search(r"Used (\d+) registers", line)) and name:
            found[name] = (int(m[1]), spills)
    return found


def compile_all(wanted, workers):
    """Compiles [(file, options)] side by side; returns {(file, options): (path, log)}."""
    wanted = list(dict.fromkeys((f, tuple(o)) for f, o in wanted))
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        return dict(zip(wanted, pool.map(compile_cubin, [f for f, _ in wanted], [o for _, o in wanted])))


class Struct(ctypes.Structure):
    """A kernel's parameter struct; `fill` sets fields by name, tensors by address."""

    def fill(self, **values):
        known = {name for name, *_ in self._fields_}
        for name, value in values.items():
            assert name in known, name
            if hasattr(value, "data_ptr"):
                value = value.data_ptr()
            if isinstance(value, (list, tuple)):
                field = getattr(self, name)
                for i, v in enumerate(value):
                    field[i] = v.data_ptr() if hasattr(v, "data_ptr") else v
            else:
                setattr(self, name, value)
        return self


P = ctypes.c_void_p
I32, I64, U32, U64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint32, ctypes.c_uint64
F32, F64 = ctypes.c_float, ctypes.c_double
_driver = None
_modules = {}
_kernels = {}


def driver():
    global _driver
    if _driver is None:
        _driver = ctypes.CDLL("libcuda.so.1")
    return _driver


def check(code, what):
    if code != 0:
        text = ctypes.c_char_p()
        driver().cuGetErrorName(code, ctypes.byref(text))
        raise RuntimeError(f"{what}: {text.value.decode() if text.value else code}")


def Kernel(file, options, name):  # noqa: N802: reads as a type
    """One kernel of a compiled file; the same one for the same arguments."""
    key = (file, tuple(options), name)
    if key not in _kernels:
        _kernels[key] = _Kernel(*key)
    return _kernels[key]


class _Kernel:

    def __init__(self, file, options, name):
        path, log = compile_cubin(file, tuple(options))
        if path is None:
            raise RuntimeError(f"{file} {options}: {log[:2000]}")
        if path not in _modules:
            module = P()
            check(driver().cuModuleLoad(ctypes.byref(module), path.encode()), f"load {path}")
            _modules[path] = module
        self.name, self.function = name, P()
        check(driver().cuModuleGetFunction(ctypes.byref(self.function), _modules[path], name.encode()), name)
        self.report = report_of(log).get(name)

    def __call__(self, grid, block, *args, shared=0):
        import torch
        grid = (grid,) if isinstance(grid, int) else grid
        grid = tuple(grid) + (1,) * (3 - len(grid))
        if shared > 40000:
            check(driver().cuFuncSetAttribute(self.function, 8, shared), f"{self.name}: {shared} bytes of shared memory")
        held = [P(a.data_ptr()) if hasattr(a, "data_ptr") else P(None) if a is None else a for a in args]
        array = (P * len(held))(*[ctypes.cast(ctypes.byref(h), P) for h in held])
        stream = P(torch.cuda.current_stream().cuda_stream)
        code = driver().cuLaunchKernel(self.function, *grid, block, 1, 1, shared, stream, array, None)
        check(code, f"launch {self.name} {grid} {block} {shared}")


class TensorMap(ctypes.Structure):
    """The 128 bytes that describe a tensor to the copy engine."""
    _fields_ = [("opaque", ctypes.c_uint64 * 16)]


def tensor_map(x, dims, strides, box):
    """A map of two-byte elements with a 128-byte swizzle; dims from the innermost, strides in elements of all but it."""
    room = (ctypes.c_uint8 * 256)()
    place = ctypes.addressof(room)
    place += -place % 64
    kind = {"torch.bfloat16": 9, "torch.float16": 6}[str(x.dtype)]
    n = len(dims)
    code = driver().cuTensorMapEncodeTiled(
        P(place), kind, n, P(x.data_ptr()), (U64 * n)(*dims), (U64 * (n - 1))(*[2 * s for s in strides]), (U32 * n)(*box), (U32 * n)(*[1] * n),
        0, 3, 2, 0)  # no interleave, 128-byte swizzle, 128-byte lines into L2, zeros outside
    check(code, f"tensor map {dims} {strides} {box}")
    return TensorMap.from_buffer_copy((ctypes.c_uint8 * 128).from_address(place))
