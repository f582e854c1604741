"""Arrays: what goes in, what comes out, and who shares memory with whom."""

import array as stdlib_array
import copy
import ctypes
import gc
import pickle
import subprocess
import sys
import time

import pytest

import planaria
from planaria import Array, DType

np = pytest.importorskip("numpy")
ml_dtypes = pytest.importorskip("ml_dtypes")

NUMPY = {
    "bool": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "u8": np.uint8,
    "u16": np.uint16, "u32": np.uint32, "u64": np.uint64, "f16": np.float16, "f32": np.float32, "f64": np.float64,
    "bf16": ml_dtypes.bfloat16, "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
}


def test_import_brings_no_other_library():
    # How long it takes is measured by `cargo xtask bench-python`.
    code = "import sys; before = set(sys.modules); import {}; print(*sorted(set(sys.modules) - before))"
    for name in ("planaria", "planaria.torch", "planaria.transformers", "planaria.array_api"):
        ran = subprocess.check_output([sys.executable, "-I", "-c", code.format(name)], text=True)
        brought = {module.split(".")[0] for module in ran.split()}
        assert brought - set(sys.stdlib_module_names) == {"planaria"}, brought
        assert "asyncio" not in brought and "unittest" not in brought


def test_a_copy_says_so_over_dlpack():
    x = planaria.array(np.arange(3.0))
    theirs = np.from_dlpack(x, copy=True)
    theirs[0] = 9
    assert x[0].item() == 0 and not np.shares_memory(theirs, x.numpy())
    # Flags lie behind version (two words of 4 bytes), context and deleter.
    flags = ctypes.pythonapi.PyCapsule_GetPointer
    flags.restype, flags.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    for options, expected in [({}, 0), ({"copy": True}, 2), ({"copy": False}, 0)]:
        capsule = x.__dlpack__(max_version=(1, 0), **options)
        at = flags(capsule, b"dltensor_versioned")
        assert ctypes.c_uint64.from_address(at + 24).value == expected


@pytest.mark.parametrize("name", NUMPY)
def test_every_dtype_goes_to_numpy_and_back_without_a_copy(name):
    theirs = np.arange(6).reshape(2, 3).astype(NUMPY[name])
    ours = planaria.array(theirs)
    assert str(ours.dtype) == name and ours.shape == (2, 3) and ours.nbytes == theirs.nbytes
    theirs[1, 2] = 0
    assert ours[1, 2].item() == 0
    back = ours.numpy()
    assert back.dtype == theirs.dtype
    back[0, 0] = 1
    assert theirs[0, 0] == 1 and np.shares_memory(back, theirs)
    assert ours.dtype == theirs.dtype and ours.dtype == name and DType(theirs.dtype) == ours.dtype


def test_lists_and_numbers():
    assert planaria.array([[1, 2], [3, 4]]).dtype == "i64"
    assert planaria.array([1, 2.5]).dtype == "f32"
    assert planaria.array([True, False]).dtype == "bool"
    assert planaria.array(3).shape == () and planaria.array([]).shape == (0,)
    assert planaria.array([[], []]).shape == (2, 0)
    assert planaria.array([1, 2], dtype="u8").tolist() == [1, 2]
    assert planaria.array([2**64 - 1], dtype="u64").tolist() == [2**64 - 1]
    assert planaria.array([planaria.array([1.0]), np.array([2.0], np.float32)]).tolist() == [[1.0], [2.0]]
    for wrong, error in [
        ([[1], [1, 2]], planaria.ShapeError), ([[1], 2], planaria.ShapeError), (["a"], planaria.DTypeError),
        ([None], TypeError), ([2**70], OverflowError), (["a", 1], TypeError), (object(), TypeError), ({1: 2}, TypeError),
    ]:
        with pytest.raises(error):
            planaria.array(wrong)
    with pytest.raises(OverflowError):
        planaria.array([300], dtype="u8")
    with pytest.raises(ValueError):
        planaria.array([1.0], copy=False)


def test_dtypes_of_others_are_refused_by_name():
    for wrong in [np.array([1j]), np.array(["a"]), np.array([object()]), np.array([1, 2], dtype=">i4")]:
        with pytest.raises(planaria.DTypeError):
            planaria.array(wrong)
    with pytest.raises(planaria.DTypeError, match="complex64"):
        planaria.array([1.0], dtype=np.complex64)
    assert DType("float32") == DType("f32") == np.float32 == DType(np.dtype("float32"))
    assert DType("f32") != "f64" and DType("f32") != "nonsense" and hash(DType("f32")) == hash(DType("float32"))
    assert str(DType("bfloat16")) == "bf16" and pickle.loads(pickle.dumps(DType("i8"))) == "i8"


def test_copy_shares_or_not_as_asked():
    theirs = np.zeros(3, np.float32)
    assert np.shares_memory(planaria.array(theirs, copy=False).numpy(), theirs)
    assert not np.shares_memory(planaria.array(theirs, copy=True).numpy(), theirs)
    with pytest.raises(ValueError):
        planaria.array(theirs, dtype="f64", copy=False)
    assert planaria.from_dlpack(theirs, copy=True).tolist() == [0, 0, 0]
    with pytest.raises(TypeError):
        planaria.from_dlpack([1.0])


class Shown:
    """Has ``__array__`` alone; says whether it was asked not to copy."""

    def __init__(self, array):
        self.array, self.asked = array, []

    def __array__(self, dtype=None, copy=None):
        self.asked.append(copy)
        if copy is False and self.array.dtype != np.float32:
            raise ValueError("only f32 is here")
        return self.array


def test_what_cannot_be_shared_is_copied_or_refused_as_asked():
    records = np.zeros(3, np.dtype([("byte", "i1"), ("value", "<f4")]))
    records["value"] = [1, 2, 3]
    odd = records["value"]
    assert odd.strides[0] % odd.itemsize != 0
    for make in (planaria.array, planaria.from_dlpack, planaria.array_api.asarray, planaria.array_api.from_dlpack):
        for copy in (None, True):
            made = make(odd, copy=copy)
            assert made.tolist() == [1, 2, 3] and not np.shares_memory(made.numpy(), records)
        with pytest.raises(ValueError, match="copy=None"):
            make(odd, copy=False)
    buffer = memoryview(odd)
    assert planaria.array(buffer).tolist() == planaria.array(buffer, copy=True).tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="copy=None"):
        planaria.array(buffer, copy=False)


def test_an_object_with_array_is_asked_not_to_copy():
    here, there = Shown(np.zeros(2, np.float32)), Shown(np.zeros(2))
    assert np.shares_memory(planaria.array(here, copy=False).numpy(), here.array) and here.asked == [False]
    planaria.array(here)
    assert here.asked == [False, None]
    with pytest.raises(ValueError, match="only f32"):
        planaria.array(there, copy=False)

    class Old:
        def __array__(self):
            return np.zeros(2)

    assert planaria.array(Old()).shape == (2,)
    with pytest.raises(ValueError, match="not to copy"):
        planaria.array(Old(), copy=False)


def test_modules_are_attributes_imported_when_asked_for():
    code = """
import sys, planaria
assert "planaria.array_api" not in sys.modules and "planaria.torch" not in sys.modules
assert {"array_api", "torch", "transformers", "save"} <= set(dir(planaria))
assert planaria.array_api.sum(planaria.array([1.0, 2.0])).item() == 3.0
assert planaria.torch.__name__ == "planaria.torch" and planaria.transformers.__name__ == "planaria.transformers"
assert "torch" not in sys.modules and not hasattr(planaria, "nonsense")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_odd_geometries_are_shared():
    base = np.arange(24.0).reshape(2, 3, 4)
    for view in [base.T, base[:, ::2], base[::-1], base[:, :, ::-2], base[1, 2, 3:], base[0:0], np.float64(3) * base[0, 0, 0]]:
        view = np.asarray(view)
        ours = planaria.array(view)
        assert ours.tolist() == view.tolist() and ours.shape == view.shape
        if view.size:
            assert ours.strides == tuple(s // 8 for s in view.strides)
            assert np.shares_memory(ours.numpy(), view)
    assert planaria.array(base).T.numpy().strides == base.T.strides
    assert planaria.array(np.frombuffer(b"\0" * 9, np.uint8)[1:].view(np.float32), copy=True).tolist() == [0.0, 0.0]


def test_read_only_memory_stays_so():
    theirs = np.arange(3)
    theirs.flags.writeable = False
    ours = planaria.array(theirs)
    assert ours.readonly and not ours.numpy().flags.writeable
    with pytest.raises(ValueError, match="read-only") as refused:
        ours[0] = 1
    assert isinstance(refused.value, planaria.Error)
    with pytest.raises(ValueError):
        ours += 1
    with pytest.raises(BufferError):
        ours.__dlpack__()
    assert "dltensor_versioned" in repr(ours.__dlpack__(max_version=(1, 0)))
    assert planaria.array(b"abc").readonly and not planaria.array(bytearray(b"abc")).readonly
    assert not ours.copy().readonly


def test_buffers():
    assert planaria.array(stdlib_array.array("i", [1, 2])).dtype == "i32"
    words = planaria.array([[1, 2, 3], [4, 5, 6]], dtype="i16")
    seen = memoryview(words)
    assert seen.format == "h" and seen.shape == (2, 3) and seen.strides == (6, 2) and not seen.readonly
    seen[0, 0] = 9
    assert words[0, 0].item() == 9
    assert memoryview(words.T).strides == (2, 6)
    assert bytes(words) == words.numpy().tobytes()
    with pytest.raises(BufferError):
        memoryview(words.astype("bf16"))
    held = memoryview(planaria.array([1.5]))
    gc.collect()
    assert held.tolist() == [1.5]
    assert planaria.array(memoryview(words.numpy()[1])[::-1]).tolist() == [6, 5, 4]


def test_a_capsule_keeps_memory_alive_and_frees_it():
    seen = np.from_dlpack(planaria.array([1.0, 2.0]))
    gc.collect()
    assert seen.tolist() == [1.0, 2.0]
    assert planaria.array([1.0]).__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError):
        planaria.array([1.0]).__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError):
        planaria.array([1.0]).__dlpack__(stream=1)
    big = planaria.array(np.zeros(1 << 20, np.uint8))
    before = _resident()
    for _ in range(500):
        big.copy().__dlpack__(max_version=(1, 0))
        big.copy().__dlpack__()
        np.from_dlpack(big.copy())
        memoryview(big.copy())
    assert _resident() - before < 100 << 20


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_snapshots_are_apart_although_memory_is_shared():
    ours = planaria.array([1.0, 2.0])
    seen = ours.numpy()
    kept = ours.snapshot()
    seen[0] = 7
    ours[1] = 8
    assert kept.tolist() == [1.0, 2.0] and ours.tolist() == [7.0, 8.0] and seen.tolist() == [7.0, 8.0]


def test_overlapping_views_of_foreign_memory_are_copied_right():
    theirs = np.arange(6)
    ours = planaria.array(theirs)
    ours[1:] = planaria.array(theirs[:-1])
    assert theirs.tolist() == [0, 0, 1, 2, 3, 4]


def test_numbers_and_conversions():
    assert float(planaria.array(2.5)) == 2.5 and int(planaria.array([3])) == 3 and bool(planaria.array(True))
    assert [10, 20][planaria.array(1)] == 20 and complex(planaria.array(1.0)) == 1
    with pytest.raises(ValueError):
        bool(planaria.array([1, 2]))
    with pytest.raises(TypeError):
        len(planaria.array(1))
    with pytest.raises(ValueError):
        planaria.array([1, 2]).item()
    x = planaria.array([1.7, -1.7])
    assert x.astype("i32").tolist() == [1, -1] and x.astype(np.float64).dtype == "f64"
    assert np.asarray(x).dtype == np.float32 and np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.array(x, copy=True).base is None
    assert [row.tolist() for row in planaria.array([[1], [2]])] == [[1], [2]]
    with pytest.raises(TypeError):
        hash(x)


def test_pickle_is_by_value():
    for protocol in range(2, 6):
        for x in [planaria.array([[1, 2], [3, 4]], dtype="bf16").T, planaria.array(5), planaria.array([], dtype="u8")]:
            back = pickle.loads(pickle.dumps(x, protocol))
            assert back.tolist() == x.tolist() and back.dtype == x.dtype and back.shape == x.shape
    buffers = []
    x = planaria.array(np.arange(1000))
    small = pickle.dumps(x, 5, buffer_callback=buffers.append)
    assert len(small) < 300 and pickle.loads(small, buffers=buffers).tolist() == x.tolist()
    shared, deep = copy.copy(x), copy.deepcopy(x)
    x[0] = 5
    assert shared[0].item() == 5 and deep[0].item() == 0


def test_reprs():
    assert repr(planaria.array([[1.0, 2.5]])) == "Array f32[1, 2]\n[[1.0, 2.5]]"
    assert repr(planaria.array(3)) == "Array i64[]\n3"
    assert repr(planaria.array([[1], [2]])) == "Array i64[2, 1]\n[[1],\n [2]]"
    long = repr(planaria.array(np.arange(2000)))
    assert long == "Array i64[2000]\n[0, 1, 2, ..., 1997, 1998, 1999]"
    assert repr(planaria.array(np.arange(1000))).count(",") == 999
    html = planaria.array([[1, 2], [3, 4]])._repr_html_()
    assert "<td>4</td>" in html and "<script" not in html
    assert planaria.array(np.zeros((50, 50)))._repr_html_().count("<tr>") == 7


def test_torch_shares_both_ways():
    torch = pytest.importorskip("torch")
    for name in NUMPY:
        theirs = torch.arange(6).reshape(2, 3).to(getattr(torch, planaria_to_torch(name)))
        ours = planaria.array(theirs)
        assert ours.dtype == theirs.dtype and str(ours.dtype) == name
        assert ours.torch().data_ptr() == theirs.data_ptr()
    with pytest.raises(BufferError, match="detach"):
        planaria.array(torch.ones(2, requires_grad=True))
    ours = planaria.array([1.0, 2.0, 3.0])
    ours.torch()[0] = 9
    assert ours.tolist() == [9.0, 2.0, 3.0]
    assert torch.from_dlpack(ours).data_ptr() == ours.torch().data_ptr()
    with pytest.raises((BufferError, ValueError)):
        planaria.array(torch.ones(2, device="meta"))


def planaria_to_torch(name):
    return {"bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "bool": "bool"}.get(
        name, name.replace("i", "int").replace("uint", "uint").replace("f", "float")
        if not name.startswith("u") else name.replace("u", "uint")
    )


def test_threads_may_share_an_array():
    import threading

    x = planaria.array(np.zeros(10000))
    def work():
        for _ in range(50):
            x[1:] = x[:-1]
            x[0] = x[5] + 1.0
            x.snapshot()
    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert np.isfinite(x.numpy()).all()


def test_scalars_of_numpy_are_numbers_with_a_dtype():
    np = pytest.importorskip("numpy")
    for scalar, dtype in ((np.float64(1.5), "f64"), (np.float32(2), "f32"), (np.int16(3), "i16"), (np.bool_(True), "bool")):
        made = planaria.array(scalar)
        assert (str(made.dtype), made.shape, made.item()) == (dtype, (), scalar.item())
    x = planaria.array([1.0, 2.0], dtype="f32")
    x[0] = np.float32(3)
    x[np.int64(1)] = np.int64(4)
    assert x.tolist() == [3, 4] and (x * np.float32(2)).tolist() == [6, 8]


def test_products_of_integers_are_exact():
    a, b = np.arange(6).reshape(2, 3) + 2**53, np.arange(12).reshape(3, 4) - 5
    assert (planaria.array(a) @ planaria.array(b)).tolist() == (a @ b).tolist()
    assert (planaria.array([1, 2]) @ planaria.array([3, 4])).item() == 11
    assert (a @ planaria.array(b)).dtype == planaria.DType("i64")
    with pytest.raises(ValueError, match="do not agree"):
        planaria.array([1, 2]) @ planaria.array([1, 2, 3])


def test_no_integer_is_nan():
    x = planaria.array([1, 2])
    for value in (float("nan"), float("inf")):
        with pytest.raises((ValueError, OverflowError)):
            x[0] = value
    assert x.tolist() == [1, 2]


def test_names_of_c_are_dtypes():
    assert planaria.DType(np.longlong) == planaria.DType("i64") and planaria.DType(np.ulonglong) == planaria.DType("u64")


def test_lists_of_nothing_choose_nothing():
    x = np.arange(12).reshape(3, 4)
    for index in ([], [[]], [[], []], [[[]]]):
        assert planaria.array(x)[index].shape == x[np.array(index, int)].shape


def test_spread_of_single_elements():
    from planaria import array_api as xp

    x = planaria.array([1.0, 2.0])
    assert xp.var(x, axis=()).tolist() == [0.0, 0.0]
    assert all(value != value for value in xp.std(x, axis=(), correction=1).tolist())
