"""Ways to make arrays."""

from __future__ import annotations

from typing import Any

from .. import _planaria
from .._planaria import Array, DType
from ._dtypes import bool as _boolean
from ._dtypes import float32, int64, need

Device = Any


def _check(device: Device) -> None:
    if device is not None and str(device) != "cpu":
        raise ValueError(f"device {device!r} is not here; use 'cpu' or None")


def _shape(shape: int | tuple[int, ...]) -> list[int]:
    sizes = [shape] if isinstance(shape, int) else list(shape)
    if any(n < 0 for n in sizes):
        raise ValueError(f"a shape has no negative extents: {shape}")
    return sizes


def asarray(obj: Any, /, *, dtype: DType | None = None, device: Device = None, copy: bool | None = None) -> Array:
    """An array of nested sequences, numbers, or anything that shares its memory."""
    _check(device)
    return _planaria.array(obj, dtype, copy=copy)


def from_dlpack(x: Any, /, *, device: Device = None, copy: bool | None = None) -> Array:
    """An array over the memory of anything with ``__dlpack__``."""
    _check(device)
    return _planaria.from_dlpack(x, copy=copy)


def empty(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: Device = None) -> Array:
    """An array of unspecified values."""
    _check(device)
    return _planaria.empty(_shape(shape), dtype or float32)


def full(
    shape: int | tuple[int, ...], fill_value: bool | int | float, *, dtype: DType | None = None, device: Device = None
) -> Array:
    """An array of one value."""
    _check(device)
    if dtype is None:
        dtype = _boolean if isinstance(fill_value, bool) else int64 if isinstance(fill_value, int) else float32
    return _planaria.full(_shape(shape), fill_value, dtype)


def zeros(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: Device = None) -> Array:
    """An array of zeros."""
    return full(shape, 0, dtype=dtype or float32, device=device)


def ones(shape: int | tuple[int, ...], *, dtype: DType | None = None, device: Device = None) -> Array:
    """An array of ones."""
    return full(shape, 1, dtype=dtype or float32, device=device)


def empty_like(x: Array, /, *, dtype: DType | None = None, device: Device = None) -> Array:
    """Unspecified values in the shape of ``x``."""
    need(x)
    return empty(x.shape, dtype=dtype or x.dtype, device=device)


def full_like(x: Array, /, fill_value: bool | int | float, *, dtype: DType | None = None, device: Device = None) -> Array:
    """One value in the shape of ``x``."""
    need(x)
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device)


def zeros_like(x: Array, /, *, dtype: DType | None = None, device: Device = None) -> Array:
    """Zeros in the shape of ``x``."""
    need(x)
    return zeros(x.shape, dtype=dtype or x.dtype, device=device)


def ones_like(x: Array, /, *, dtype: DType | None = None, device: Device = None) -> Array:
    """Ones in the shape of ``x``."""
    need(x)
    return ones(x.shape, dtype=dtype or x.dtype, device=device)


def arange(
    start: int | float,
    /,
    stop: int | float | None = None,
    step: int | float = 1,
    *,
    dtype: DType | None = None,
    device: Device = None,
) -> Array:
    """``start, start + step, ...`` without ``stop``."""
    _check(device)
    if stop is None:
        start, stop = 0, start
    if dtype is None:
        dtype = int64 if all(isinstance(n, int) for n in (start, stop, step)) else float32
    return _planaria.arange(start, stop, step, dtype)


def linspace(
    start: int | float,
    stop: int | float,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: Device = None,
    endpoint: bool = True,
) -> Array:
    """``num`` values evenly spaced.

    >>> import planaria.array_api as xp
    >>> xp.linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    _check(device)
    return _planaria.linspace(float(start), float(stop), num, dtype or float32, endpoint)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DType | None = None, device: Device = None
) -> Array:
    """Ones on a diagonal."""
    _check(device)
    columns = n_rows if n_cols is None else n_cols
    # A diagonal outside is nowhere, however far.
    return _planaria.eye(n_rows, columns, min(max(k, -n_rows), columns), dtype or float32)


def _within(x: Array, k: int) -> int:
    """A diagonal no further outside than it can matter."""
    return min(max(k, -max(x.shape, default=0) - 1), max(x.shape, default=0) + 1)


def tril(x: Array, /, *, k: int = 0) -> Array:
    """The elements on and below a diagonal."""
    need(x)
    return _planaria.triangle(x, _within(x, k), False)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """The elements on and above a diagonal."""
    need(x)
    return _planaria.triangle(x, _within(x, k), True)


def meshgrid(*arrays: Array, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinates of a grid.

    >>> import planaria.array_api as xp
    >>> [x.tolist() for x in xp.meshgrid(xp.arange(2), xp.arange(3), indexing="ij")]
    [[[0, 0, 0], [1, 1, 1]], [[0, 1, 2], [0, 1, 2]]]
    """
    need(*arrays)
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing is {indexing!r}; use 'xy' or 'ij'")
    swap = indexing == "xy" and len(arrays) > 1
    order = [arrays[1], arrays[0], *arrays[2:]] if swap else list(arrays)
    shape = [x.size for x in order]
    grid = []
    for at, x in enumerate(order):
        line = _planaria.reshape(x, [-1 if d == at else 1 for d in range(len(order))] if x.size else
                                 [x.size if d == at else 1 for d in range(len(order))])
        grid.append(_planaria.broadcast_to(line, shape).copy())
    if swap:
        grid[0], grid[1] = grid[1], grid[0]
    return tuple(grid)
