"""Checkpoints of any format that is read: opened, examined, converted."""

from __future__ import annotations

import builtins
import html
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from . import _planaria, _progress
from ._place import Format, Progress, Url, address, statements, whole
from ._planaria import Stored
from ._reports import ConvertReport, Damage, DiffReport, InspectReport, VerifyReport
from ._state import decoded, leaves, same

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
        self._kept: dict[str, Any] = kept
        self._tree = kept.get("python")
        self._loose: dict[str, Any] = {name: decoded(tree) for name, tree in (kept.get("dcp") or {}).items()}
        self._kinds: dict[str, str] = kept.get("kinds") or {}
        self._step: int | None = kept["step"] if "step" in kept and self._tree is not None else self._about.get("step")
        self._tied: dict[str, str] = self._about.get("tied") or {}
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
        """The step it was saved at; ``None`` where none was given, or the format has no place for it."""
        return self._step

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

    @property
    def _has_values(self) -> bool:
        """Whether it was written with what is not a tensor."""
        return self._tree is not None or "dcp" in self._kept

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
        """The names of tensors; those that stand for others come last."""
        yield from self._names
        yield from self._tied

    def __len__(self) -> int:
        return len(self._names) + len(self._tied)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return (Checkpoint, (self._url,))

    def __repr__(self) -> str:
        rows = [f"  {self[name]!r}" for name in self._names[:20]]
        rows += [f"  '{name}' is '{to}'" for name, to in self._tied.items()][: 20 - len(rows)]
        shown = "\n".join(rows)
        more = f"\n  ... {len(self) - 20} more" if len(self) > 20 else ""
        return f"Checkpoint '{self._url}' {self.format}, {len(self)} tensors, {self.nbytes} bytes\n{shown}{more}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{self[name].dtype}</td><td>{self[name].shape}</td></tr>"
            for name in list(self)[:200]
        )
        head = f"<b>Checkpoint</b> <code>{html.escape(self._url)}</code> {html.escape(self.format)}"
        return f"<div>{head}<table>{rows}</table></div>"


def open(url: Url) -> Checkpoint:
    """Open a checkpoint of any format that is read; no tensor data is read yet.

    >>> import planaria, tempfile
    >>> place = tempfile.mkdtemp() + "/c"
    >>> _ = planaria.save({"a": planaria.array([1.0]), "step": 7}, place)
    >>> with planaria.open(place) as ckpt:
    ...     list(ckpt), ckpt.format, ckpt.step, ckpt.values
    (['a'], 'planaria', 7, {'step': 7})
    """
    return Checkpoint(url)


def inspect(url: Url) -> InspectReport:
    """What a checkpoint holds, without reading tensors.

    >>> import planaria, tempfile
    >>> place = tempfile.mkdtemp() + "/c"
    >>> _ = planaria.save({"a": planaria.array([[1.0, 2.0]])}, place)
    >>> planaria.inspect(place).shapes
    {'a': (1, 2)}
    """
    with open(url) as ckpt:
        shapes = {name: stored.shape for name, stored in ckpt.items()}
        dtypes = {name: str(stored.dtype) for name, stored in ckpt.items()}
        return InspectReport(ckpt.url, ckpt.format, ckpt.step, ckpt.nbytes, shapes, dtypes, ckpt.files, ckpt.values)


def verify(url: Url) -> VerifyReport:
    """Compare every byte with its checksum, and check that the checkpoint is whole.

    >>> import planaria, tempfile
    >>> place = tempfile.mkdtemp() + "/c"
    >>> _ = planaria.save({"a": planaria.array([1.0])}, place)
    >>> report = planaria.verify(place)
    >>> report.ok, report.damaged
    (True, [])
    """
    checked, files, tensors, summed, damaged, warnings = _planaria.verify_checkpoint(address(url))
    found = [Damage(*one) for one in damaged]
    return VerifyReport(not found, checked, found, files, tensors, summed, warnings)


def diff(a: Url, b: Url, *, tolerance: float = 0.0) -> DiffReport:
    """Compare two checkpoints tensor by tensor, whatever their formats, and value by value where both have them.

    >>> import planaria, tempfile
    >>> place = tempfile.mkdtemp()
    >>> for name, value in (("a", 1.0), ("b", 1.5)):
    ...     _ = planaria.save({"w": planaria.array([value])}, f"{place}/{name}")
    >>> planaria.diff(f"{place}/a", f"{place}/b").equal, planaria.diff(f"{place}/a", f"{place}/b", tolerance=0.5).equal
    (False, True)
    """
    left, right, changed = _planaria.diff_checkpoints(address(a), address(b), tolerance)
    with open(a) as first, open(b) as second:
        # Formats of others have no place for values.
        if first._has_values and second._has_values:
            ours, theirs = first.values, second.values
            left += [name for name in ours if name not in theirs]
            right += [name for name in theirs if name not in ours]
            both = [name for name in ours if name in theirs and not same(ours[name], theirs[name], tolerance)]
            changed |= {name: f"{_brief(ours[name])} against {_brief(theirs[name])}" for name in both}
    return DiffReport(not (left or right or changed), left, right, changed)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def convert(
    src: Url,
    dst: Url,
    *,
    to: Format = "hf",
    dtype: Any = None,
    mapping: str | Iterable[str] | None = None,
    max_memory: str | int | None = None,
    max_file_size: str | int = "5GB",
    overwrite: bool = False,
    progress: Progress = None,
) -> ConvertReport:
    """Write a checkpoint in another format, in bounded memory; the target appears whole or not at all.

    >>> import planaria, tempfile
    >>> place = tempfile.mkdtemp()
    >>> _ = planaria.save({"w": planaria.array([1.0, 2.0])}, place + "/ours")
    >>> planaria.convert(place + "/ours", place + "/theirs", to="dcp").tensors
    1
    >>> planaria.inspect(place + "/theirs").format
    'torch-dcp'
    """
    with _progress.bar(progress, "convert") as shown:
        asked = _asked(dst, to, max_memory, max_file_size, overwrite, shown)
        answer = _planaria.convert_checkpoint(address(src), dtype, statements(mapping), asked)
        shown.end(answer[0])
    LOG.info("converted %d tensors, %d bytes from %s to %s", answer[1], answer[0], address(src), address(dst))
    return _written(dst, answer)


def merge(
    recipe: str | os.PathLike[str] | Mapping[str, Any],
    dst: Url,
    *,
    to: Format = "hf",
    inputs: Literal["models", "tensors"] = "models",
    missing: Literal["refuse", "skip", "take"] = "refuse",
    seed: int = 0,
    keep: str | Iterable[str] = (),
    drop: str | Iterable[str] = (),
    keep_extra: bool = False,
    allow_crimes: bool = False,
    truncate_embeddings: bool = False,
    strict: bool = False,
    max_memory: str | int | None = None,
    max_file_size: str | int = "5GB",
    overwrite: bool = False,
    progress: Progress = None,
) -> ConvertReport:
    """Merge models by a recipe, in bounded memory; the target appears whole or not at all.

    The recipe is a dict, the path of a file, or the text itself when it has more than one line: mergekit's YAML, a mixture of
    experts, or Paddle's JSON. ``inputs="tensors"`` merges files without a model, name by name. Paths in it are relative to
    the current folder.

    >>> import planaria, tempfile
    >>> place = tempfile.mkdtemp()
    >>> for name, value in (("a", 1.0), ("b", 3.0)):
    ...     _ = planaria.save({"w": planaria.array([value])}, f"{place}/{name}", format="hf")
    >>> files = [{"model": f"{place}/{name}/model.safetensors", "parameters": {"weight": 0.5}} for name in "ab"]
    >>> _ = planaria.merge({"merge_method": "linear", "models": files}, place + "/out", inputs="tensors")
    >>> planaria.load(place + "/out")["w"].tolist()
    [2.0]
    """
    given = {
        "recipe": _recipe(recipe),
        "inputs": inputs,
        "missing": missing,
        "seed": whole(seed, "seed"),
        "keep": [keep] if isinstance(keep, str) else list(keep),
        "drop": [drop] if isinstance(drop, str) else list(drop),
        "keep_extra": keep_extra,
        "allow_crimes": allow_crimes,
        "truncate_embeddings": truncate_embeddings,
        "strict": strict,
    }
    with _progress.bar(progress, "merge") as shown:
        answer = _planaria.merge_models(given, _asked(dst, to, max_memory, max_file_size, overwrite, shown))
        shown.end(answer[0])
    LOG.info("merged %d tensors, %d bytes to %s", answer[1], answer[0], address(dst))
    return _written(dst, answer)


def _recipe(recipe: str | os.PathLike[str] | Mapping[str, Any]) -> str:
    """The text of a recipe; JSON is YAML as well, in one line per key."""
    if isinstance(recipe, Mapping):
        return "".join(f"{key}: {json.dumps(value)}\n" for key, value in recipe.items())
    if isinstance(recipe, str) and "\n" in recipe.strip():
        return recipe
    with builtins.open(address(recipe), encoding="utf-8") as file:
        return file.read()


def _asked(
    dst: Url, to: str, max_memory: str | int | None, max_file_size: str | int, overwrite: bool, shown: _progress.Shown
) -> dict[str, Any]:
    return {
        "target": address(dst),
        "to": to,
        "max_memory": max_memory,
        "max_file_size": max_file_size,
        "overwrite": overwrite,
        "progress": shown.step,
    }


def _written(dst: Url, answer: tuple[int, int, list[str], list[str]]) -> ConvertReport:
    for warning in answer[3]:
        LOG.warning("%s: %s", address(dst), warning)
    return ConvertReport(address(dst), *answer)


__all__ = ["Checkpoint", "convert", "diff", "inspect", "merge", "open", "verify"]
