"""Checkpoints of any format that is read: opened, examined, converted."""

from __future__ import annotations

import html
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from . import _planaria, _progress
from ._place import Format, Progress, Url, address, statements
from ._planaria import Stored
from ._reports import ConvertReport, Damage, DiffReport, InspectReport, VerifyReport
from ._state import decoded, leaves

LOG = logging.getLogger("planaria")


class Checkpoint(Mapping[str, Stored]):
    """An open checkpoint: names of tensors and what is stored under them. Indexing a ``Stored`` reads what it needs.

    >>> import planaria, tempfile
    >>> place = tempfile.mkdtemp() + "/c"
    >>> _ = planaria.save({"w": planaria.array([[1, 2], [3, 4]])}, place)
    >>> with planaria.open(place) as ckpt:
    ...     ckpt["w"][1].tolist()
    [3, 4]
    """

    def __init__(self, url: Url) -> None:
        self._url = address(url)
        self._source = _planaria.open_source(self._url)
        extra = json.loads(self._source.extra())
        self._about = extra.get("planaria") or {}
        kept = (self._about.get("extra") or {}) if isinstance(self._about, dict) else {}
        self._tree = kept.get("python")
        self._loose: dict[str, Any] = {name: decoded(tree) for name, tree in (kept.get("dcp") or {}).items()}
        self._tied = self._about.get("tied") or {}
        self._extra = {name: value for name, value in extra.items() if name != "planaria"}
        self._names = self._source.names()

    @property
    def url(self) -> str:
        """Where it lies."""
        return self._url

    @property
    def format(self) -> str:
        """Who wrote it."""
        return self._source.format

    @property
    def step(self) -> int | None:
        """The step it was saved at, where the format says."""
        return self._about.get("step")

    @property
    def files(self) -> list[str]:
        """The files that hold tensors."""
        return self._source.files

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self._source.nbytes

    @property
    def values(self) -> dict[str, Any]:  # type: ignore[override]
        """What is not a tensor, by name."""
        if self._tree is not None:
            return {name: value for name, value in leaves(self._tree) if value is not ...}
        return self._loose or dict(self._extra)

    def close(self) -> None:
        """Refuse further reads."""
        self._source.close()

    def __getitem__(self, name: str) -> Stored:
        if not isinstance(name, str):
            raise KeyError(name)
        if name in self._tied:
            name = self._tied[name]
        return self._source.stored(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return (Checkpoint, (self._url,))

    def __repr__(self) -> str:
        shown = "\n".join(f"  {self[name]!r}" for name in self._names[:20])
        more = f"\n  ... {len(self) - 20} more" if len(self) > 20 else ""
        return f"Checkpoint '{self._url}' {self.format}, {len(self)} tensors, {self.nbytes} bytes\n{shown}{more}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{self[name].dtype}</td><td>{self[name].shape}</td></tr>"
            for name in self._names[:200]
        )
        head = f"<b>Checkpoint</b> <code>{html.escape(self._url)}</code> {html.escape(self.format)}"
        return f"<div>{head}<table>{rows}</table></div>"


def open(url: Url) -> Checkpoint:
    """Open a checkpoint of any format that is read; no tensor data is read yet."""
    return Checkpoint(url)


def inspect(url: Url) -> InspectReport:
    """What a checkpoint holds, without reading tensors."""
    with open(url) as ckpt:
        shapes = {name: stored.shape for name, stored in ckpt.items()}
        dtypes = {name: str(stored.dtype) for name, stored in ckpt.items()}
        return InspectReport(ckpt.url, ckpt.format, ckpt.step, ckpt.nbytes, shapes, dtypes, ckpt.files, ckpt.values)


def verify(url: Url) -> VerifyReport:
    """Compare every byte with its checksum, and check that the checkpoint is whole."""
    checked, files, tensors, summed, damaged, warnings = _planaria.verify_checkpoint(address(url))
    found = [Damage(*one) for one in damaged]
    return VerifyReport(not found, checked, found, files, tensors, summed, warnings)


def diff(a: Url, b: Url, *, tolerance: float = 0.0) -> DiffReport:
    """Compare two checkpoints tensor by tensor, whatever their formats."""
    left, right, changed = _planaria.diff_checkpoints(address(a), address(b), tolerance)
    return DiffReport(not (left or right or changed), left, right, changed)


def convert(
    src: Url,
    dst: Url,
    *,
    to: Format = "hf",
    dtype: Any = None,
    mapping: str | Iterable[str] | None = None,
    max_memory: str | int | None = None,
    progress: Progress = None,
) -> ConvertReport:
    """Write a checkpoint in another format, in bounded memory; the target appears whole or not at all."""
    with _progress.bar(progress, "convert") as shown:
        answer = _planaria.convert_checkpoint(
            address(src), address(dst), to, dtype, statements(mapping), max_memory, shown.step
        )
        shown.end(answer[0])
    LOG.info("converted %d tensors, %d bytes from %s to %s", answer[1], answer[0], address(src), address(dst))
    for warning in answer[3]:
        LOG.warning("%s: %s", address(src), warning)
    return ConvertReport(address(dst), *answer)


__all__ = ["Checkpoint", "convert", "diff", "inspect", "open", "verify"]
