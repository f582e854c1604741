"""The Python array API standard, version 2025.12, without complex dtypes and without ``fft`` and ``linalg``."""

from __future__ import annotations

from typing import Any

from . import _dtypes
from ._creation import (
    arange,
    asarray,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    meshgrid,
    ones,
    ones_like,
    tril,
    triu,
    zeros,
    zeros_like,
)
from ._dtypes import (
    bool,
    can_cast,
    e,
    finfo,
    float32,
    float64,
    iinfo,
    inf,
    int8,
    int16,
    int32,
    int64,
    isdtype,
    nan,
    newaxis,
    pi,
    result_type,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ._elementwise import *  # noqa: F403
from ._functions import (
    all,
    any,
    argmax,
    argmin,
    argsort,
    astype,
    broadcast_arrays,
    broadcast_shapes,
    broadcast_to,
    concat,
    count_nonzero,
    cumulative_prod,
    cumulative_sum,
    diff,
    expand_dims,
    flip,
    isin,
    matmul,
    matrix_transpose,
    max,
    mean,
    min,
    moveaxis,
    nonzero,
    permute_dims,
    prod,
    repeat,
    reshape,
    roll,
    searchsorted,
    sort,
    squeeze,
    stack,
    std,
    sum,
    take,
    take_along_axis,
    tensordot,
    tile,
    unique_all,
    unique_counts,
    unique_inverse,
    unique_values,
    unstack,
    var,
    vecdot,
)

__array_api_version__ = "2025.12"
_VERSIONS = ["2021.12", "2022.12", "2023.12", "2024.12", "2025.12"]


class Info:
    """What the namespace can do."""

    def capabilities(self) -> dict[str, Any]:
        """Features that depend on data, and limits."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        """Where arrays are made."""
        return "cpu"

    def devices(self) -> tuple[str, ...]:
        """Where arrays can be."""
        return ("cpu",)

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The dtypes of Python's numbers."""
        return {"real floating": float32, "integral": int64, "indexing": int64}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """The dtypes by name."""
        if kind is None:
            return dict(_dtypes.ALL)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        return {name: d for one in kinds for name, d in _dtypes.KINDS[one].items()}


def __array_namespace_info__() -> Info:
    """What the namespace can do."""
    return Info()
