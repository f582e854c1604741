"""Shapes, reductions, sorting, sets and products."""

from __future__ import annotations

import builtins
from typing import Any, Literal, NamedTuple

from .. import _planaria
from .._planaria import Array, DType
from ._dtypes import int64, isdtype, need
from ._dtypes import bool as _boolean

Axis = int | tuple[int, ...] | None


def astype(x: Array, dtype: DType, /, *, copy: bool = True, device: Any = None) -> Array:
    """The elements as another dtype."""
    need(x)
    return x.astype(dtype, copy=copy)


def broadcast_to(x: Array, /, shape: tuple[int, ...]) -> Array:
    """Repeated to a shape, as a view."""
    return _planaria.broadcast_to(x, list(shape))


def broadcast_arrays(*arrays: Array) -> tuple[Array, ...]:
    """All arrays in the shape they broadcast to."""
    need(*arrays)
    shape = broadcast_shapes(*[x.shape for x in arrays])
    return tuple(broadcast_to(x, shape) for x in arrays)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that shapes broadcast to."""
    return tuple(_planaria.broadcast_shapes([list(shape) for shape in shapes]))


def reshape(x: Array, /, shape: tuple[int, ...], *, copy: bool | None = None) -> Array:
    """The same elements under another shape."""
    made = _planaria.reshape(x, list(shape) if not isinstance(shape, int) else [shape])
    if copy is True:
        return made.copy()
    return made


def concat(arrays: tuple[Array, ...] | list[Array], /, *, axis: int | None = 0) -> Array:
    """Arrays joined along a dim; with ``axis=None`` flattened first."""
    return _planaria.join(list(arrays), axis, False)


def stack(arrays: tuple[Array, ...] | list[Array], /, *, axis: int = 0) -> Array:
    """Arrays joined along a new dim."""
    return _planaria.join(list(arrays), axis, True)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The slices along a dim."""
    need(x)
    return tuple(moveaxis(x, axis, 0))


def expand_dims(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """New dims of extent 1 at these places of the result."""
    need(x)
    axes = [axis] if isinstance(axis, int) else list(axis)
    ndim = x.ndim + len(axes)
    for at in axes:
        if not -ndim <= at < ndim:
            raise _index_error(f"axis {at} is out of range for {ndim} dims")
    places = sorted(at % ndim for at in axes)
    if len(set(places)) != len(places):
        raise ValueError(f"axes {axes} name one place twice")
    for at in places:
        x = _planaria.unsqueeze(x, at)
    return x


def _index_error(what: str) -> Exception:
    from .._errors import ArrayIndexError

    return ArrayIndexError(what)


def squeeze(x: Array, /, axis: int | tuple[int, ...]) -> Array:
    """Dims of extent 1 removed."""
    return _planaria.squeeze(x, [axis] if isinstance(axis, int) else list(axis))


def permute_dims(x: Array, /, axes: tuple[int, ...]) -> Array:
    """Dims in another order."""
    return _planaria.permute(x, list(axes))


def moveaxis(x: Array, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Array:
    """Some dims moved, the others in their order."""
    need(x)
    froms = [source] if isinstance(source, int) else list(source)
    tos = [destination] if isinstance(destination, int) else list(destination)
    for at in froms + tos:
        if not -x.ndim <= at < x.ndim:
            raise _index_error(f"axis {at} is out of range for {x.ndim} dims")
    moved = {to % x.ndim: at % x.ndim for at, to in zip(froms, tos, strict=True)}
    rest = iter([d for d in range(x.ndim) if d not in moved.values()])
    return _planaria.permute(x, [moved[d] if d in moved else next(rest) for d in range(x.ndim)])


def matrix_transpose(x: Array, /) -> Array:
    """The last two dims swapped."""
    need(x)
    return x.mT


def flip(x: Array, /, *, axis: Axis = None) -> Array:
    """Elements in reverse along dims."""
    need(x)
    axes = list(range(x.ndim)) if axis is None else [axis] if isinstance(axis, int) else list(axis)
    return _planaria.flip(x, axes)


def roll(x: Array, /, shift: int | tuple[int, ...], *, axis: Axis = None) -> Array:
    """Elements shifted, around the end."""
    need(x)
    shifts = [shift] if isinstance(shift, int) else list(shift)
    if axis is None:
        return _planaria.reshape(_planaria.roll(_flat(x), [builtins.sum(shifts)], [0]), list(x.shape))
    axes = [axis] * len(shifts) if isinstance(axis, int) else list(axis)
    if len(shifts) == 1:
        shifts = shifts * len(axes)
    for by, at in zip(shifts, axes, strict=True):
        x = _planaria.roll(x, [by], [at])
    return x


def tile(x: Array, repetitions: tuple[int, ...], /) -> Array:
    """Copies side by side."""
    need(x)
    times = list(repetitions)
    times = [1] * (x.ndim - len(times)) + times
    return _planaria.tile(x, times)


def repeat(x: Array, repeats: int | Array, /, *, axis: int | None = None) -> Array:
    """Elements repeated one by one."""
    need(x)
    if axis is None:
        x, axis = _flat(x), 0
    count = x.shape[axis]
    if isinstance(repeats, Array):
        listed = repeats.tolist()
        times = [listed] * count if repeats.ndim == 0 else listed * count if len(listed) == 1 else listed
    else:
        times = [repeats] * count
    return _planaria.repeat(x, times, axis)


def _flat(x: Array) -> Array:
    return _planaria.reshape(x, [x.size])


def take(x: Array, indices: Array, /, *, axis: int | None = None) -> Array:
    """Elements at positions along a dim."""
    need(x)
    if axis is None:
        if x.ndim != 1:
            raise ValueError("take needs an axis for more than one dim")
        axis = 0
    if not -x.ndim <= axis < x.ndim:
        raise _index_error(f"axis {axis} is out of range for {x.ndim} dims")
    # The index language, in which positions may count from the end.
    return x[(slice(None),) * (axis % x.ndim) + (indices,)]


def take_along_axis(x: Array, indices: Array, /, *, axis: int = -1) -> Array:
    """For every line along a dim, elements at positions of its own."""
    return _planaria.take_along(x, indices, axis)


def nonzero(x: Array, /) -> tuple[Array, ...]:
    """Positions of elements that are not zero, one array for each dim."""
    need(x)
    if x.ndim == 0:
        raise ValueError("nonzero needs at least one dim")
    found = _planaria.nonzero(x)
    return tuple(found[:, d] for d in range(x.ndim))


def _reduce(name: str, x: Array, axis: Axis, keepdims: bool, dtype: DType | None = None, correction: float = 0.0) -> Array:
    over = list(axis) if isinstance(axis, tuple) else axis
    return _planaria.reduce(name, x, over, keepdims, dtype, correction)


def sum(x: Array, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False) -> Array:
    """Sum over dims."""
    return _reduce("sum", x, axis, keepdims, dtype)


def prod(x: Array, /, *, axis: Axis = None, dtype: DType | None = None, keepdims: bool = False) -> Array:
    """Product over dims."""
    return _reduce("prod", x, axis, keepdims, dtype)


def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Largest element over dims."""
    return _reduce("max", x, axis, keepdims)


def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Smallest element over dims."""
    return _reduce("min", x, axis, keepdims)


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Mean over dims."""
    return _reduce("mean", x, axis, keepdims)


def var(x: Array, /, *, axis: Axis = None, correction: int | float = 0.0, keepdims: bool = False) -> Array:
    """Variance over dims."""
    return _reduce("var", x, axis, keepdims, None, float(correction))


def std(x: Array, /, *, axis: Axis = None, correction: int | float = 0.0, keepdims: bool = False) -> Array:
    """Standard deviation over dims."""
    return _reduce("std", x, axis, keepdims, None, float(correction))


def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether some element over dims is true."""
    return _reduce("any", x, axis, keepdims)


def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Whether every element over dims is true."""
    return _reduce("all", x, axis, keepdims)


def count_nonzero(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """How many elements over dims are not zero."""
    return _reduce("count_nonzero", x, axis, keepdims)


def cumulative_sum(
    x: Array, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Array:
    """Running sum along a dim."""
    need(x)
    return _planaria.scan("cumulative_sum", x, _only(x, axis), dtype, include_initial)


def cumulative_prod(
    x: Array, /, *, axis: int | None = None, dtype: DType | None = None, include_initial: bool = False
) -> Array:
    """Running product along a dim."""
    need(x)
    return _planaria.scan("cumulative_prod", x, _only(x, axis), dtype, include_initial)


def _only(x: Array, axis: int | None) -> int:
    if axis is None and x.ndim != 1:
        raise ValueError("more than one dim needs an axis")
    return 0 if axis is None else axis


def diff(x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None) -> Array:
    """Differences of neighbours along a dim, ``n`` times."""
    need(x)
    parts = [part for part in (prepend, x, append) if part is not None]
    x = concat(parts, axis=axis) if len(parts) > 1 else x
    at = axis % x.ndim
    for _ in range(n):
        ahead = (slice(None),) * at + (slice(1, None),)
        behind = (slice(None),) * at + (slice(None, -1),)
        x = x[ahead] ^ x[behind] if x.dtype == _boolean else x[ahead] - x[behind]
    return x


def argmax(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the largest element."""
    return _planaria.arg("argmax", x, axis, keepdims)


def argmin(x: Array, /, *, axis: int | None = None, keepdims: bool = False) -> Array:
    """Position of the smallest element."""
    return _planaria.arg("argmin", x, axis, keepdims)


def sort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Elements in order along a dim."""
    return _planaria.sort(x, axis, descending, False)


def argsort(x: Array, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Array:
    """Positions that put elements in order."""
    return _planaria.sort(x, axis, descending, True)


def searchsorted(
    x1: Array, x2: Array | int | float, /, *, side: Literal["left", "right"] = "left", sorter: Array | None = None
) -> Array:
    """Where values would stand among sorted ones."""
    need(x1)
    if side not in ("left", "right"):
        raise ValueError(f"side is {side!r}; use 'left' or 'right'")
    if sorter is not None:
        x1 = take(x1, sorter, axis=0)
    values = x2 if isinstance(x2, Array) else _planaria.full([], x2, x1.dtype)
    joined = _planaria.promoted(x1.dtype, values.dtype)
    return _planaria.searchsorted(x1.astype(joined, copy=False), values.astype(joined, copy=False), side == "right")


class UniqueAll(NamedTuple):
    """Values, first positions, inverse and counts."""

    values: Array
    indices: Array
    inverse_indices: Array
    counts: Array


class UniqueCounts(NamedTuple):
    """Values and counts."""

    values: Array
    counts: Array


class UniqueInverse(NamedTuple):
    """Values and inverse."""

    values: Array
    inverse_indices: Array


def unique_values(x: Array, /) -> Array:
    """Every value once."""
    need(x)
    return _planaria.unique(_flat(x))[0]


def unique_counts(x: Array, /) -> UniqueCounts:
    """Every value once, and how often it occurs."""
    need(x)
    values, _, counts = _planaria.unique(_flat(x))
    return UniqueCounts(values, counts)


def unique_inverse(x: Array, /) -> UniqueInverse:
    """Every value once, and where each element's value stands."""
    values, inverse, _ = _planaria.unique(x)
    return UniqueInverse(values, _planaria.reshape(inverse, list(x.shape)))


def unique_all(x: Array, /) -> UniqueAll:
    """Every value once, where it first occurs, where each element's value stands, and how often it occurs."""
    values, inverse, counts = _planaria.unique(x)
    flat = _flat(inverse)
    order = _planaria.sort(flat, 0, False, True)
    starts = cumulative_sum(counts, include_initial=True)[:-1]
    first = _planaria.take(order, starts, 0) if values.size else _planaria.empty([0], int64)
    return UniqueAll(values, first, _planaria.reshape(inverse, list(x.shape)), counts)


def isin(x1: Array | int | float, x2: Array | int | float, /, *, invert: bool = False) -> Array:
    """Whether elements of ``x1`` are among those of ``x2``."""
    if not isinstance(x1, Array):
        need(x2)
    left = x1 if isinstance(x1, Array) else _planaria.full([], x1, x2.dtype)  # type: ignore[union-attr]
    right = x2 if isinstance(x2, Array) else _planaria.full([], x2, left.dtype)
    found = _reduce("any", _planaria.unsqueeze(left, left.ndim) == _flat(right), (left.ndim,), False)
    return ~found if invert else found


def matmul(x1: Array, x2: Array, /) -> Array:
    """Matrix product."""
    need(x1, x2)
    return _planaria.binary("matmul", x1, x2)


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Any, Any] = 2) -> Array:
    """Sums of products over some dims of both."""
    need(x1, x2)
    if isinstance(axes, int):
        left, right = list(range(x1.ndim - axes, x1.ndim)), list(range(axes))
    else:
        left, right = [a % x1.ndim for a in axes[0]], [a % x2.ndim for a in axes[1]]
    if len(left) != len(right) or [x1.shape[a] for a in left] != [x2.shape[b] for b in right]:
        raise ValueError(f"tensordot: dims {left} of {x1.shape} and {right} of {x2.shape} do not agree")
    outer = [d for d in range(x1.ndim) if d not in left]
    inner = [d for d in range(x2.ndim) if d not in right]
    rows = _size(x1.shape, outer)
    columns, shared = _size(x2.shape, inner), _size(x1.shape, left)
    a = _planaria.reshape(_planaria.permute(x1, outer + left), [rows, shared])
    b = _planaria.reshape(_planaria.permute(x2, right + inner), [shared, columns])
    return _planaria.reshape(matmul(a, b), [x1.shape[d] for d in outer] + [x2.shape[d] for d in inner])


def _size(shape: tuple[int, ...], dims: list[int]) -> int:
    size = 1
    for d in dims:
        size *= shape[d]
    return size


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Sum of products along one dim of both."""
    need(x1, x2)
    if not -x1.ndim <= axis < x1.ndim or x1.shape[axis] != x2.shape[axis]:
        raise ValueError(f"vecdot: shapes {x1.shape} and {x2.shape} do not agree along {axis}")
    joined = _planaria.promoted(x1.dtype, x2.dtype)
    product = moveaxis(x1, axis, -1) * moveaxis(x2, axis, -1)
    return _reduce("sum", product, (-1,), False, joined)

