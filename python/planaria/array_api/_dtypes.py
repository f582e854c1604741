"""Dtypes of the standard and what is known about them."""

from __future__ import annotations

import builtins
import math
from typing import Any, NamedTuple

from .. import _planaria
from .._planaria import Array, DType

bool: DType = DType("bool")
int8: DType = DType("i8")
int16: DType = DType("i16")
int32: DType = DType("i32")
int64: DType = DType("i64")
uint8: DType = DType("u8")
uint16: DType = DType("u16")
uint32: DType = DType("u32")
uint64: DType = DType("u64")
float32: DType = DType("f32")
float64: DType = DType("f64")

SIGNED = {"int8": int8, "int16": int16, "int32": int32, "int64": int64}
UNSIGNED = {"uint8": uint8, "uint16": uint16, "uint32": uint32, "uint64": uint64}
FLOATS = {"float32": float32, "float64": float64}
INTEGERS = {**SIGNED, **UNSIGNED}
ALL = {"bool": bool, **INTEGERS, **FLOATS}
KINDS: dict[str, dict[str, DType]] = {
    "bool": {"bool": bool},
    "signed integer": SIGNED,
    "unsigned integer": UNSIGNED,
    "integral": INTEGERS,
    "real floating": FLOATS,
    "complex floating": {},
    "numeric": {**INTEGERS, **FLOATS},
}


class FInfo(NamedTuple):
    """Limits of a float dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


class IInfo(NamedTuple):
    """Limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


_FLOAT_LIMITS = {
    "f64": (2.0**-52, (2 - 2.0**-52) * 2.0**1023, 2.0**-1022),
    "f32": (2.0**-23, (2 - 2.0**-23) * 2.0**127, 2.0**-126),
    "f16": (2.0**-10, 65504.0, 2.0**-14),
    "bf16": (2.0**-7, (2 - 2.0**-7) * 2.0**127, 2.0**-126),
    "f8e4m3": (2.0**-3, 448.0, 2.0**-6),
    "f8e5m2": (2.0**-2, 57344.0, 2.0**-14),
}


def need(*given: Any) -> None:
    """Refuses what is no array of ours, before anything is asked of it."""
    for x in given:
        if not isinstance(x, Array):
            raise TypeError(f"an array is needed, not {type(x).__name__}; use asarray")


def _dtype(x: Any) -> DType:
    return x.dtype if isinstance(x, Array) else DType(x)


def finfo(type: Any, /) -> FInfo:
    """Limits of a float dtype, or of an array's."""
    dtype = _dtype(type)
    if str(dtype) not in _FLOAT_LIMITS:
        raise TypeError(f"{dtype} is not a float dtype")
    eps, largest, normal = _FLOAT_LIMITS[str(dtype)]
    return FInfo(8 * dtype.itemsize, eps, largest, -largest, normal, dtype)


def iinfo(type: Any, /) -> IInfo:
    """Limits of an integer dtype, or of an array's."""
    dtype = _dtype(type)
    if dtype not in INTEGERS.values():
        raise TypeError(f"{dtype} is not an integer dtype")
    bits = 8 * dtype.itemsize
    if dtype in UNSIGNED.values():
        return IInfo(bits, 2**bits - 1, 0, dtype)
    return IInfo(bits, 2 ** (bits - 1) - 1, -(2 ** (bits - 1)), dtype)


def isdtype(dtype: DType, kind: DType | str | tuple[DType | str, ...]) -> builtins.bool:
    """Whether a dtype is of a kind, or one of several."""
    if isinstance(kind, tuple):
        return any(isdtype(dtype, one) for one in kind)
    if isinstance(kind, str) and kind in KINDS:
        return dtype in KINDS[kind].values()
    if isinstance(kind, str):
        raise ValueError(f"{kind!r} is not a kind of dtypes; use one of {', '.join(KINDS)}")
    return dtype == kind


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype that arrays, dtypes and Python numbers meet in."""
    fixed = [_dtype(x) for x in arrays_and_dtypes if isinstance(x, (Array, DType))]
    numbers = [x for x in arrays_and_dtypes if not isinstance(x, (Array, DType))]
    if not fixed:
        raise ValueError("result_type needs at least one array or dtype")
    out = fixed[0]
    for other in fixed[1:]:
        out = _planaria.promoted(out, other)
    for number in numbers:
        if isinstance(number, builtins.bool):
            continue
        if isinstance(number, int) and out == bool:
            out = int64
        if isinstance(number, float) and out not in FLOATS.values():
            out = float32
    return out


def can_cast(from_: Any, to: DType, /) -> builtins.bool:
    """Whether every promotion keeps to ``to``: a cast that the standard's rules make by themselves."""
    try:
        return _planaria.promoted(_dtype(from_), DType(to)) == to
    except TypeError:
        return False


pi: float = math.pi
e: float = math.e
inf: float = math.inf
nan: float = math.nan
newaxis: None = None
