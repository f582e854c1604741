"""Checkpoints: any format that is read, and folders of our own that appear whole or not at all."""

from __future__ import annotations

import atexit
import fnmatch
import html
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Literal

from . import _planaria, _progress
from ._errors import CheckpointError, MismatchError
from ._planaria import Comm, Stored
from ._reports import ConvertReport, Damage, DiffReport, InspectReport, LoadReport, SaveReport, VerifyReport
from ._state import Flat, build, find, leaves, nest, replace

Progress = None | bool | Callable[[int, int, str], None]
Format = Literal["planaria", "hf", "dcp", "paddle-unified"]
Framework = Literal["planaria", "numpy", "torch"]


def _url(url: str | os.PathLike[str]) -> str:
    text = os.fspath(url)
    if not isinstance(text, str):
        raise TypeError(f"a place is text or a path, not {type(text).__name__}")
    return text


def _mapping(mapping: str | Iterable[str] | None) -> str | None:
    if mapping is None or isinstance(mapping, str):
        return mapping
    return "\n".join(mapping)


def _given(
    flat: Flat,
    state: Any,
    url: str | os.PathLike[str],
    comm: Comm | None,
    format: str,
    step: int | None,
    mapping: str | Iterable[str] | None,
    max_file_size: str | int,
    overwrite: bool,
) -> dict[str, Any]:
    if step is None:
        found = state.get("step") if isinstance(state, Mapping) else None
        step = found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else 0
    if not flat.tensors:
        raise ValueError("the state has no tensors; a checkpoint needs at least one")
    return {
        "tied": flat.tied,
        "about": json.dumps({"python": flat.tree}),
        "step": step,
        "url": _url(url),
        "comm": comm,
        "format": format,
        "overwrite": overwrite,
        "mapping": _mapping(mapping),
        "max_file_size": max_file_size,
    }


def save(
    state: Any,
    url: str | os.PathLike[str],
    *,
    comm: Comm | None = None,
    format: Format = "planaria",
    step: int | None = None,
    mapping: str | Iterable[str] | None = None,
    max_file_size: str | int = "5GB",
    overwrite: bool = False,
    progress: Progress = None,
) -> SaveReport:
    """Save a state as one checkpoint that counts only once it is whole.

    The state is nested dicts, lists and tuples; its leaves are arrays of ours, NumPy or torch, plain values, and objects
    with ``state_dict`` and ``load_state_dict``. Names join with ``.``.

    >>> import planaria, tempfile
    >>> place = tempfile.mkdtemp() + "/step-7"
    >>> planaria.save({"weight": planaria.array([1.0, 2.0]), "step": 7}, place).tensors
    1
    >>> planaria.load(place)["weight"].tolist()
    [1.0, 2.0]
    """
    flat = Flat(state)
    given = _given(flat, state, url, comm, format, step, mapping, max_file_size, overwrite)
    with _progress.bar(progress, "save") as shown:
        wrote, tensors, seconds = _planaria.save_state(list(flat.tensors.items()), given)
        shown.end(wrote)
    return SaveReport(_url(url), wrote, tensors, seconds)


class SaveHandle:
    """A save in the background. It can be waited for, awaited, or asked to stop."""

    def __init__(self, job: _planaria.SaveJob, url: str) -> None:
        self._job = job
        self._url = url
        self._callbacks: list[Callable[[SaveHandle], object]] | None = []
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None
        self._process = os.getpid()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._job.done()

    def wait_snapshot(self, timeout: float | None = None) -> None:
        """Wait until the state may change; raises ``TimeoutError`` when that takes longer."""
        if not self._job.wait_snapshot(timeout):
            raise TimeoutError(f"the snapshot took longer than {timeout} s")

    def result(self, timeout: float | None = None) -> SaveReport:
        """Wait for the end; raises what went wrong."""
        if not self._job.wait_end(timeout):
            raise TimeoutError(f"the save took longer than {timeout} s")
        answer = self._job.answer()
        assert answer is not None
        return SaveReport(self._url, *answer)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end; what went wrong, or ``None``."""
        try:
            self.result(timeout)
        except TimeoutError:
            if not self.done():
                raise
            raise
        except Exception as error:
            return error
        return None

    def cancel(self) -> bool:
        """Ask the save to stop and remove what it left; false when it has already ended."""
        return self._job.cancel()

    def add_done_callback(self, f: Callable[[SaveHandle], object]) -> None:
        """Call ``f(handle)`` when the save has ended; at once when it has."""
        with self._lock:
            if self._callbacks is not None:
                self._callbacks.append(f)
                if self._watcher is None:
                    self._watcher = threading.Thread(target=self._watch, name="planaria-callbacks", daemon=True)
                    self._watcher.start()
                return
        f(self)

    def _watch(self) -> None:
        self._job.wait_end(None)
        with self._lock:
            waiting, self._callbacks = self._callbacks or [], None
        for f in waiting:
            f(self)

    def __await__(self) -> Generator[Any, None, SaveReport]:
        import asyncio

        loop = asyncio.get_running_loop()
        return loop.run_in_executor(None, self.result).__await__()

    def __repr__(self) -> str:
        return f"SaveHandle '{self._url}' {'ended' if self.done() else 'running'}"

    def __reduce__(self) -> Any:
        raise TypeError("a SaveHandle cannot be pickled; wait for its result")


_PENDING: weakref.WeakSet[SaveHandle] = weakref.WeakSet()
_ALIVE: set[SaveHandle] = set()


def _finish_pending() -> None:
    for handle in list(_ALIVE):
        if handle._process == os.getpid():
            handle._job.wait_end(None)


atexit.register(_finish_pending)


def async_save(
    state: Any,
    url: str | os.PathLike[str],
    *,
    comm: Comm | None = None,
    format: Format = "planaria",
    step: int | None = None,
    mapping: str | Iterable[str] | None = None,
    max_file_size: str | int = "5GB",
    overwrite: bool = False,
    progress: Progress = None,
) -> SaveHandle:
    """Begin a save and return at once; native threads do the rest.

    The state may change as soon as ``handle.wait_snapshot()`` has returned. Takes what ``save`` takes, and refuses what
    it refuses, at the call.
    """
    flat = Flat(state)
    given = _given(flat, state, url, comm, format, step, mapping, max_file_size, overwrite)
    handle = SaveHandle(_planaria.start_save(list(flat.tensors.items()), given), _url(url))
    for ended in [other for other in _ALIVE if other._process == os.getpid() and other.done()]:
        _ALIVE.discard(ended)
    _ALIVE.add(handle)
    if callable(progress):
        report = progress
        handle.add_done_callback(
            lambda h: None if h.exception() else report(h.result().bytes, h.result().bytes, "save")
        )
    return handle


class Checkpoint(Mapping[str, Stored]):
    """An open checkpoint: names of tensors and what is stored under them. Indexing a ``Stored`` reads what it needs.

    >>> import planaria, tempfile
    >>> place = tempfile.mkdtemp() + "/c"
    >>> _ = planaria.save({"w": planaria.array([[1, 2], [3, 4]])}, place)
    >>> with planaria.open(place) as ckpt:
    ...     ckpt["w"][1].tolist()
    [3, 4]
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._url = _url(url)
        self._source = _planaria.open_source(self._url)
        extra = json.loads(self._source.extra())
        self._about = extra.get("planaria") or {}
        self._tree = ((self._about.get("extra") or {}) if isinstance(self._about, dict) else {}).get("python")
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
        return dict(self._extra)

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


def open(url: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint of any format that is read; no tensor data is read yet."""
    return Checkpoint(url)


def _as(framework: str, array: Any) -> Any:
    if framework == "planaria":
        return array
    return array.numpy() if framework == "numpy" else array.torch()


def load(
    url: str | os.PathLike[str],
    into: Any = None,
    *,
    keys: str | Iterable[str] | None = None,
    strict: bool = True,
    casts: Literal["none", "floats", "any"] = "none",
    ignore: str | Iterable[str] = (),
    mapping: str | Iterable[str] | None = None,
    comm: Comm | None = None,
    framework: Framework = "planaria",
    progress: Progress = None,
) -> Any:
    """Load a checkpoint: into a state, in place, or as a new nested dict.

    With ``into`` its tensors keep their addresses, other leaves are replaced, and a ``LoadReport`` comes back. Names,
    shapes and dtypes are compared before anything is written: a ``MismatchError`` leaves the state as it was.
    """
    if framework not in ("planaria", "numpy", "torch"):
        raise ValueError(f"framework is {framework!r}; use 'planaria', 'numpy' or 'torch'")
    if casts not in ("none", "floats", "any"):
        raise ValueError(f"casts is {casts!r}; use 'none', 'floats' or 'any'")
    patterns = [keys] if isinstance(keys, str) else None if keys is None else list(keys)
    skipped = [ignore] if isinstance(ignore, str) else list(ignore)
    with open(url) as ckpt, _progress.bar(progress, "load") as shown:
        if into is None:
            made, read = _load_new(ckpt, patterns, skipped, mapping, comm, framework)
            shown.end(read)
            return made
        report = _Into(ckpt, into, patterns, skipped, strict, casts).load(mapping, comm)
        shown.end(report.bytes_read)
        return report


def _chosen(name: str, patterns: list[str] | None, skipped: list[str]) -> bool:
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in skipped):
        return False
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _load_new(
    ckpt: Checkpoint,
    patterns: list[str] | None,
    skipped: list[str],
    mapping: str | Iterable[str] | None,
    comm: Comm | None,
    framework: str,
) -> tuple[Any, int]:
    if mapping is not None:
        raise ValueError("a mapping needs to know what it makes; give the state to fill as into=")
    wanted = {name: ckpt[name] for name in ckpt if _chosen(name, patterns, skipped)}
    tied = {name: to for name, to in ckpt._tied.items() if _chosen(name, patterns, skipped)}
    for to in tied.values():
        wanted.setdefault(to, ckpt[to])
    if patterns is not None:
        for pattern in patterns:
            known = list(ckpt) + list(ckpt._tied) + list(ckpt.values)
            if "*" not in pattern and pattern not in known:
                raise _planaria_not_found(pattern, ckpt)
    arrays, read = {}, 0
    plain = [name for name in wanted if ":" not in name]
    if plain:
        empty = [(name, _planaria.empty(wanted[name].shape, wanted[name].dtype)) for name in plain]
        answer = _planaria.load_tensors(ckpt._source, empty, "none", [], None, comm)
        arrays, read = dict(empty), answer[4]
    for name in wanted:
        if name not in arrays:
            arrays[name] = wanted[name].read()
            read += arrays[name].nbytes
    made = {name: _as(framework, array) for name, array in arrays.items()}
    for name, to in tied.items():
        made[name] = made[to]
    if ckpt._tree is None:
        return nest({name: made[name] for name in made if _chosen(name, patterns, skipped)}), read
    values = {name for name in ckpt.values if _chosen(name, patterns, skipped)}
    tree = _pruned(ckpt._tree, {n for n in made if _chosen(n, patterns, skipped)} | values)
    return ({} if tree is None else build(tree, made.__getitem__)), read


def _planaria_not_found(name: str, ckpt: Checkpoint) -> Exception:
    import difflib

    from ._errors import NotFoundError

    near = difflib.get_close_matches(name, list(ckpt), 1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return NotFoundError(f"'{ckpt.url}' has no tensor '{name}'{hint}")


def _pruned(tree: Any, names: set[str], path: str = "") -> Any:
    """The part of a stored tree that has one of the names; ``None`` when there is none."""
    if tree == "tensor" or "value" in tree:
        return tree if path in names else None
    if "dict" in tree:
        kept = [(k, _pruned(c, names, f"{path}.{k}" if path else str(k))) for k, c in tree["dict"]]
        kept = [(k, c) for k, c in kept if c is not None]
        return {"dict": kept} if kept or not tree["dict"] else None
    kind = "tuple" if "tuple" in tree else "list"
    items = [_pruned(c, names, f"{path}.{at}" if path else str(at)) for at, c in enumerate(tree[kind])]
    items = [c for c in items if c is not None]
    return {kind: items} if items or not tree[kind] else None


class _Into:
    """A load into a state."""

    def __init__(
        self, ckpt: Checkpoint, into: Any, patterns: list[str] | None, skipped: list[str], strict: bool, casts: str
    ) -> None:
        self.ckpt, self.into, self.strict, self.casts = ckpt, into, strict, casts
        self.patterns, self.skipped = patterns, skipped
        self.flat = Flat(into)
        stored = set(ckpt) | set(ckpt._tied)
        self.renewed = self._renewed()
        inside = tuple(path + "." if path else "" for path, _, _ in self.renewed)

        def mine(name: str) -> bool:
            return _chosen(name, patterns, skipped) and not (inside and name.startswith(inside))

        self.wanted = {n: t for n, t in {**self.flat.tensors}.items() if mine(n)}
        for name, to in self.flat.tied.items():
            if mine(name) and to not in self.wanted and to in self.flat.tensors and name in stored and to not in stored:
                self.wanted[name] = self.flat.tensors[to]
        tied = {n for n in self.flat.tied if mine(n)}
        self.values = {n: v for n, v in ckpt.values.items() if mine(n) and n in self.flat.values}
        known = set(self.wanted) | tied
        self.missing = sorted(
            [n for n in self.wanted if n not in stored and not any(a in stored for a, b in self.flat.tied.items() if b == n)]
            + [n for n in self.flat.values if mine(n) and ckpt._tree is not None and n not in ckpt.values]
        )
        self.unexpected = sorted(
            [n for n in stored if mine(n) and n not in known]
            + [n for n in ckpt.values if mine(n) and ckpt._tree is not None and n not in self.flat.values]
        )

    def _renewed(self) -> list[tuple[str, Any, Any]]:
        """Objects that take their state from the checkpoint as it is there: optimizers, schedules, loaders."""
        tree = self.ckpt._tree
        if tree is None:
            return []
        found = []
        for path, target, inner in self.flat.objects:
            stored = find(tree, path)
            if stored is not None and not hasattr(target, "named_parameters"):
                found.append((path, target, stored))
        return found

    def check(self) -> None:
        """Refuse what does not fit, before anything is written."""
        shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        dtypes: dict[str, tuple[str, str]] = {}
        for name, tensor in self.wanted.items():
            try:
                stored = self.ckpt[name]
            except KeyError:
                continue
            shape = tuple(int(n) for n in tensor.shape)
            if stored.shape != shape:
                shapes[name] = (stored.shape, shape)
            have, want = str(stored.dtype), str(_planaria.DType(tensor.dtype))
            floats = "f" in have and "f" in want
            if have != want and not (self.casts == "any" or (self.casts == "floats" and floats)):
                dtypes[name] = (have, want)
        names = self.strict and (self.missing or self.unexpected)
        if not (names or shapes or dtypes):
            return
        parts = []
        if self.strict and self.missing:
            parts.append(f"the checkpoint lacks {_few(self.missing)}")
        if self.strict and self.unexpected:
            parts.append(f"nobody asked for {_few(self.unexpected)}")
        parts += [f"'{n}' has shape {a} in the checkpoint, {b} in the state" for n, (a, b) in list(shapes.items())[:4]]
        parts += [f"'{n}' has dtype {a} in the checkpoint, {b} in the state" for n, (a, b) in list(dtypes.items())[:4]]
        hint = "pass casts='floats' or 'any'" if dtypes and not shapes and not names else "pass strict=False or ignore="
        error = MismatchError("; ".join(parts) + f"; {hint}")
        error.missing, error.unexpected = list(self.missing), list(self.unexpected)
        error.shapes, error.dtypes = shapes, dtypes
        raise error

    def load(self, mapping: str | Iterable[str] | None, comm: Comm | None) -> LoadReport:
        begun = time.perf_counter()
        if mapping is None:
            self.check()
        tensors = list(self.wanted.items())
        fresh = self._room()
        answer = _planaria.load_tensors(
            self.ckpt._source, tensors + list(fresh.items()), self.casts, self.skipped, _mapping(mapping), comm
        )
        loaded = sorted(set(answer[0]) | set(self.values))
        replace(self.into, self.values)
        for path, target, tree in self.renewed:
            target.load_state_dict(build(tree, lambda name: fresh[name].torch(), path))
        renewed = {path for path, _, _ in self.renewed}
        for path, target, inner in self.flat.objects:
            if path not in renewed:
                target.load_state_dict(replace(inner, {n: v for n, v in self.ckpt.values.items()}, path))
        unexpected = self.unexpected if mapping is None else answer[2]
        missing = self.missing if mapping is None else answer[1]
        return LoadReport(loaded, missing, unexpected, answer[3], answer[4], time.perf_counter() - begun)

    def _room(self) -> dict[str, Any]:
        room = {}
        for path, _, tree in self.renewed:
            for name, value in leaves(tree, path):
                if value is ...:
                    stored = self.ckpt[name]
                    room[name] = _planaria.empty(stored.shape, stored.dtype)
        return room


def _few(names: list[str]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def inspect(url: str | os.PathLike[str]) -> InspectReport:
    """What a checkpoint holds, without reading tensors."""
    with open(url) as ckpt:
        shapes = {name: stored.shape for name, stored in ckpt.items()}
        dtypes = {name: str(stored.dtype) for name, stored in ckpt.items()}
        return InspectReport(ckpt.url, ckpt.format, ckpt.step, ckpt.nbytes, shapes, dtypes, ckpt.files, ckpt.values)


def verify(url: str | os.PathLike[str]) -> VerifyReport:
    """Compare every byte with its checksum, and check that the checkpoint is whole."""
    checked, files, tensors, summed, damaged, warnings = _planaria.verify_checkpoint(_url(url))
    found = [Damage(*one) for one in damaged]
    return VerifyReport(not found, checked, found, files, tensors, summed, warnings)


def diff(a: str | os.PathLike[str], b: str | os.PathLike[str], *, tolerance: float = 0.0) -> DiffReport:
    """Compare two checkpoints tensor by tensor, whatever their formats."""
    left, right, changed = _planaria.diff_checkpoints(_url(a), _url(b), tolerance)
    return DiffReport(not (left or right or changed), left, right, changed)


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    to: Format = "hf",
    dtype: Any = None,
    mapping: str | Iterable[str] | None = None,
    max_memory: str | int | None = None,
    progress: Progress = None,
) -> ConvertReport:
    """Write a checkpoint in another format, in bounded memory; the target appears whole or not at all."""
    with _progress.bar(progress, "convert") as shown:
        answer = _planaria.convert_checkpoint(_url(src), _url(dst), to, dtype, _mapping(mapping), max_memory)
        shown.end(answer[0])
    return ConvertReport(_url(dst), *answer)


__all__ = [
    "Checkpoint", "CheckpointError", "SaveHandle", "async_save", "convert", "diff", "inspect", "load", "open", "save", "verify",
]
