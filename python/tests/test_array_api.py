"""The namespace of the array API standard against NumPy's, function by function."""

import inspect
import math

import pytest

import planaria
import planaria.array_api as xp

np = pytest.importorskip("numpy")
RNG = np.random.default_rng(3)
FLOATS = RNG.normal(size=(3, 4)).astype(np.float32)
INTS = RNG.integers(-5, 6, size=(3, 4))


def same(got, want, **tolerance):
    want = np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got.numpy(), want, **(tolerance or {"rtol": 1e-5, "atol": 1e-6}))


UNARY = [
    "abs", "asinh", "atan", "ceil", "cos", "cosh", "exp", "expm1", "floor", "isfinite", "isinf", "isnan", "negative", "positive",
    "reciprocal", "round", "sign", "signbit", "sin", "sinh", "square", "tan", "tanh", "trunc",
]


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_array(name):
    same(getattr(xp, name)(planaria.array(FLOATS)), getattr(np, name)(FLOATS))


@pytest.mark.parametrize("name", ["acos", "asin", "atanh", "log", "log10", "log1p", "log2", "sqrt", "acosh"])
def test_functions_with_a_domain(name):
    x = np.abs(FLOATS) % 0.9 + (1.0 if name == "acosh" else 0.05)
    same(getattr(xp, name)(planaria.array(x.astype(np.float32))), getattr(np, name)(x))


BINARY = ["add", "atan2", "copysign", "divide", "equal", "floor_divide", "greater", "greater_equal", "hypot", "less", "less_equal",
          "logaddexp", "maximum", "minimum", "multiply", "nextafter", "not_equal", "remainder", "subtract"]


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_arrays(name):
    x, y = FLOATS, FLOATS[1] + np.float32(0.5)
    same(getattr(xp, name)(planaria.array(x), planaria.array(y)), getattr(np, name)(x, y))
    same(getattr(xp, name)(planaria.array(x), 2.0), getattr(np, name)(x, np.float32(2.0)))
    same(getattr(xp, name)(2.0, planaria.array(x)), getattr(np, name)(np.float32(2.0), x))


def test_signs_of_zeros_and_infinities_are_those_of_the_standard():
    x = planaria.array([1.0, -1.0, 0.0, -0.0, 5.0, float("inf"), -7.0])
    y = planaria.array([-math.inf, math.inf, -math.inf, 2.0, math.inf, 2.0, 2.0])
    want = ["-0.0", "-0.0", "-0.0", "-0.0", "0.0", "inf", "-4.0"]
    assert [str(v) for v in xp.floor_divide(x, y).tolist()] == [str(v) for v in (x // y).tolist()] == want
    z = x.copy()
    z //= y
    assert [str(v) for v in z.tolist()] == want
    assert [str(v) for v in xp.sign(planaria.array([-0.0, 0.0, -3.0])).tolist()] == ["0.0", "0.0", "-1.0"]


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
def test_bits(name):
    same(getattr(xp, name)(planaria.array(INTS), planaria.array(INTS[0])), getattr(np, name)(INTS, INTS[0]))
    same(xp.bitwise_invert(planaria.array(INTS)), ~INTS)
    same(xp.logical_xor(planaria.array(INTS > 0), planaria.array(INTS > 2)), (INTS > 0) ^ (INTS > 2))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std", "any", "all"])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)])
def test_reductions(name, axis):
    for keepdims in (False, True):
        x = FLOATS if name in ("mean", "var", "std", "sum", "prod") else INTS
        same(getattr(xp, name)(planaria.array(x), axis=axis, keepdims=keepdims), getattr(np, name)(x, axis=axis, keepdims=keepdims))
    assert xp.sum(planaria.array(INTS.astype(np.int8))).dtype == "i64"
    assert xp.sum(planaria.array([1], dtype="u8")).dtype == "u64" and xp.sum(planaria.array([1.0]), dtype=xp.float64).dtype == "f64"


def test_shapes():
    x = np.arange(24).reshape(2, 3, 4)
    ours = planaria.array(x)
    same(xp.reshape(ours, (4, -1)), x.reshape(4, 6))
    same(xp.permute_dims(ours, (2, 0, 1)), x.transpose(2, 0, 1))
    same(xp.moveaxis(ours, 0, -1), np.moveaxis(x, 0, -1))
    same(xp.concat([ours, ours], axis=1), np.concatenate([x, x], 1))
    same(xp.concat([ours, ours], axis=None), np.concatenate([x, x], None))
    same(xp.stack([ours, ours], axis=-1), np.stack([x, x], -1))
    same(xp.expand_dims(ours, (0, -1)), x[None, ..., None])
    same(xp.squeeze(xp.expand_dims(ours, 1), 1), x)
    same(xp.flip(ours, axis=1), np.flip(x, 1))
    same(xp.flip(ours), np.flip(x))
    same(xp.roll(ours, 2), np.roll(x, 2))
    same(xp.roll(ours, (1, -1), axis=(0, 2)), np.roll(x, (1, -1), (0, 2)))
    same(xp.tile(ours, (2, 1)), np.tile(x, (2, 1)))
    same(xp.repeat(ours, 2, axis=1), np.repeat(x, 2, 1))
    same(xp.repeat(planaria.array([1, 2]), planaria.array([2, 3])), np.repeat([1, 2], [2, 3]))
    same(xp.broadcast_to(ours[0, :, :1], (3, 5)), np.broadcast_to(x[0, :, :1], (3, 5)))
    assert xp.broadcast_shapes((2, 1), (3,)) == (2, 3)
    assert [a.shape for a in xp.broadcast_arrays(ours[0], ours)] == [(2, 3, 4)] * 2
    assert [part.tolist() for part in xp.unstack(ours, axis=1)] == [x[:, k].tolist() for k in range(3)]
    same(xp.tril(ours, k=-1), np.tril(x, -1))
    same(xp.matrix_transpose(ours), x.swapaxes(1, 2))
    for wrong in [lambda: xp.reshape(ours, (5, -1)), lambda: xp.squeeze(ours, 0), lambda: xp.concat([ours, ours[0]])]:
        with pytest.raises(ValueError):
            wrong()


def test_searching_sorting_sets_products():
    x = planaria.array(INTS)
    for axis in (0, 1, -1):
        same(xp.sort(x, axis=axis), np.sort(INTS, axis))
        same(xp.argsort(x, axis=axis), np.argsort(INTS, axis, stable=True))
        same(xp.argmax(x, axis=axis), np.argmax(INTS, axis))
        same(xp.cumulative_sum(x, axis=axis), np.cumsum(INTS, axis))
        same(xp.diff(x, axis=axis), np.diff(INTS, axis=axis))
        same(xp.take(x, planaria.array([1, 0, 1]), axis=axis), np.take(INTS, [1, 0, 1], axis))
    same(xp.cumulative_sum(x, axis=1, include_initial=True)[:, 0], np.zeros(3))
    same(xp.sort(x, descending=True), -np.sort(-INTS))
    for got, want in zip(xp.nonzero(x), np.nonzero(INTS)):
        same(got, want)
    found, want = xp.unique_all(x), np.unique(INTS, return_index=True, return_inverse=True, return_counts=True)
    for got, expected in zip(found, want):
        same(got, expected.reshape(got.shape))
    same(xp.searchsorted(planaria.array([1, 3, 5]), planaria.array([3, 4])), [1, 2])
    same(xp.where(x > 0, x, 0), np.where(INTS > 0, INTS, 0))
    same(xp.clip(x, -1, 2), np.clip(INTS, -1, 2))
    same(xp.isin(x, planaria.array([1, 2])), np.isin(INTS, [1, 2]))
    same(xp.matmul(x, x.T), INTS @ INTS.T)
    same(xp.tensordot(planaria.array(FLOATS), planaria.array(FLOATS), axes=((0,), (0,))), np.tensordot(FLOATS, FLOATS, ((0,), (0,))))
    same(xp.vecdot(planaria.array(FLOATS), planaria.array(FLOATS)), np.vecdot(FLOATS, FLOATS))
    same(xp.take(x, planaria.array([0, -1]), axis=-1), np.take(INTS, [0, -1], -1))
    same(xp.take_along_axis(x, planaria.array([[0], [1], [2]])), np.take_along_axis(INTS, np.array([[0], [1], [2]]), -1))


def test_creation_and_dtypes():
    same(xp.arange(5), np.arange(5))
    same(xp.arange(1, 2, 0.25), np.arange(1, 2, 0.25))
    assert xp.arange(5, 0).shape == (0,)
    same(xp.linspace(0, 1, 5), np.linspace(0, 1, 5))
    same(xp.linspace(0, 1, 5, endpoint=False), np.linspace(0, 1, 5, endpoint=False))
    same(xp.eye(3, 4, k=1), np.eye(3, 4, 1))
    same(xp.full((2, 2), 7), np.full((2, 2), 7))
    for got, want in zip(xp.meshgrid(xp.arange(2), xp.arange(3)), np.meshgrid(np.arange(2), np.arange(3))):
        same(got, want)
    assert xp.zeros(3).dtype == xp.float32 and xp.ones_like(xp.arange(2)).dtype == xp.int64
    assert xp.result_type(xp.int8, xp.uint8) == xp.int16 and xp.result_type(xp.int8, 1.0) == xp.float32
    assert xp.isdtype(xp.int8, "integral") and not xp.isdtype(xp.bool, "numeric") and xp.isdtype(xp.bool, ("bool", xp.int8))
    assert xp.finfo(xp.float32).eps == np.finfo(np.float32).eps and xp.iinfo(xp.int8).min == -128
    assert xp.can_cast(xp.int8, xp.int16) and not xp.can_cast(xp.float64, xp.float32)
    info = xp.__array_namespace_info__()
    assert info.default_dtypes()["integral"] == xp.int64 and "complex64" not in info.dtypes()
    assert planaria.array([1.0]).__array_namespace__(api_version="2025.12") is xp
    with pytest.raises(ValueError):
        planaria.array([1.0]).__array_namespace__(api_version="1999.12")
    assert xp.pi == math.pi and xp.newaxis is None
    public = [f for n, f in vars(xp).items() if inspect.isfunction(f) and not n.startswith("_")]
    assert all(f.__doc__ for f in public) and len(public) > 120
