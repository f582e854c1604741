"""Arguments that several verbs take: places, mappings, formats."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterable
from typing import Literal, SupportsIndex

from ._errors import ArgumentError

Url = str | os.PathLike[str]
Progress = None | bool | Callable[[int, int, str], None]
Format = Literal["planaria", "hf", "dcp", "paddle-unified"]
Framework = Literal["planaria", "numpy", "torch"]


def address(url: Url) -> str:
    """A place as text."""
    text = os.fspath(url)
    if not isinstance(text, str):
        raise TypeError(f"a place is text or a path, not {type(text).__name__}")
    return text


def whole(value: SupportsIndex, name: str) -> int:
    """An argument that is a number of things, as files have place for it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; use an integer") from None
    if not 0 <= number < 2**64:
        raise ArgumentError(f"{name} is {number}; use an integer of 0 to 2**64 - 1")
    return number


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of the patterns, in which ``*`` stands for anything and every other letter for itself."""
    parts = ([re.escape(part) for part in pattern.split("*")] for pattern in patterns)
    return any(re.fullmatch(".*".join(pieces), name, re.S) for pieces in parts)


def statements(mapping: str | Iterable[str] | None) -> str | None:
    """The statements of a mapping, one per line."""
    if mapping is None or isinstance(mapping, str):
        return mapping
    return "\n".join(mapping)
