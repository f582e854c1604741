"""What operations answer: attributes, ``to_dict()``, and a table as ``repr``."""

from __future__ import annotations

import dataclasses
import html
from typing import Any, NoReturn


class Report:
    """An answer that has attributes. It is neither true nor false: ask the attribute that you mean."""

    def to_dict(self) -> dict[str, Any]:
        """The attributes as a dict of plain values."""
        made: dict[str, Any] = dataclasses.asdict(self)  # type: ignore[call-overload]
        return made

    def __bool__(self) -> NoReturn:
        asked = next((n for n in ("ok", "equal") if hasattr(self, n)), None)
        hint = f"ask .{asked}" if asked else "look at its attributes"
        raise TypeError(f"a {type(self).__name__} is neither true nor false; {hint}")

    def _rows(self) -> list[tuple[str, str]]:
        return [(name, _short(value)) for name, value in self.to_dict().items()]

    def __repr__(self) -> str:
        rows = self._rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join([type(self).__name__] + [f"  {name:<{width}}  {value}" for name, value in rows])

    def _repr_html_(self) -> str:
        cells = "".join(f"<tr><td>{html.escape(n)}</td><td>{html.escape(v)}</td></tr>" for n, v in self._rows())
        return f"<div><b>{type(self).__name__}</b><table>{cells}</table></div>"


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        shown = ", ".join(str(v) for v in value[:4])
        return f"{len(value)}: {shown}{', ...' if len(value) > 4 else ''}" if value else "none"
    if isinstance(value, dict):
        return _short([f"{k} ({v})" for k, v in value.items()])
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)


@dataclasses.dataclass(repr=False, frozen=True)
class SaveReport(Report):
    """What a save wrote."""

    url: str
    bytes: int
    tensors: int
    seconds: float


@dataclasses.dataclass(repr=False, frozen=True)
class LoadReport(Report):
    """What a load found. ``cast`` has ``(name, from, to)`` of every tensor whose dtype was changed."""

    loaded: list[str]
    missing: list[str]
    unexpected: list[str]
    cast: list[tuple[str, str, str]]
    bytes_read: int
    seconds: float


@dataclasses.dataclass(repr=False, frozen=True)
class Damage(Report):
    """A piece of a checkpoint that is not what was written."""

    tensor: str
    file: str
    start: int
    stop: int
    what: str


@dataclasses.dataclass(repr=False, frozen=True)
class VerifyReport(Report):
    """What a check of every byte found. Formats without checksums have ``summed`` false: only their structure is checked."""

    ok: bool
    checked_bytes: int
    damaged: list[Damage]
    files: int
    tensors: int
    summed: bool
    warnings: list[str]


@dataclasses.dataclass(repr=False, frozen=True)
class DiffReport(Report):
    """How two checkpoints differ; ``changed`` says by name what does."""

    equal: bool
    only_left: list[str]
    only_right: list[str]
    changed: dict[str, str]


@dataclasses.dataclass(repr=False, frozen=True)
class ConvertReport(Report):
    """What a conversion wrote, and what the format has no place for."""

    url: str
    bytes: int
    tensors: int
    left_out: list[str]
    warnings: list[str]


@dataclasses.dataclass(repr=False, frozen=True)
class InspectReport(Report):
    """What a checkpoint holds; ``shapes`` and ``dtypes`` by name of tensor."""

    url: str
    format: str
    step: int | None
    bytes: int
    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, str]
    files: list[str]
    values: dict[str, Any]
