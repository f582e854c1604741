"""Loading: into a state in place, or as a new nested dict."""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Iterable
from typing import Any, Literal

from . import _planaria, _progress
from ._checkpoint import Checkpoint
from ._errors import DTypeError, MismatchError, NotFoundError
from ._place import Framework, Progress, Url, matches, statements
from ._planaria import Comm, Stored, Tensor
from ._reports import LoadReport
from ._state import Flat, build, decode, few, find, framework_of, group_of, is_dtensor, leaves, named, nest, replace, rooms

LOG = logging.getLogger("planaria")


def _as(framework: str, array: Any) -> Any:
    if framework == "planaria":
        return array
    return array.numpy() if framework == "numpy" else array.torch()


def _as_it_was(framework: str, array: Any) -> Any:
    """An array as a library's, where it is installed."""
    try:
        return _as(framework, array)
    except ImportError:
        return array


def load(
    url: Url,
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

    >>> import planaria, tempfile
    >>> place = tempfile.mkdtemp() + "/c"
    >>> _ = planaria.save({"model": {"w": planaria.array([1.0, 2.0])}, "lr": 0.1}, place)
    >>> state = {"model": {"w": planaria.array([0.0, 0.0])}, "lr": None}
    >>> planaria.load(place, into=state).loaded
    ['lr', 'model.w']
    >>> state["model"]["w"].tolist(), planaria.load(place, keys="model.*")
    ([1.0, 2.0], {'model': {'w': Array f32[2]
    [1.0, 2.0]}})
    """
    if framework not in ("planaria", "numpy", "torch"):
        raise ValueError(f"framework is {framework!r}; use 'planaria', 'numpy' or 'torch'")
    if casts not in ("none", "floats", "any"):
        raise ValueError(f"casts is {casts!r}; use 'none', 'floats' or 'any'")
    patterns = [keys] if isinstance(keys, str) else None if keys is None else list(keys)
    skipped = [ignore] if isinstance(ignore, str) else list(ignore)
    with Checkpoint(url) as ckpt, _progress.bar(progress, "load") as shown:
        if into is None:
            made, read = _load_new(ckpt, patterns, skipped, mapping, comm, framework, shown)
            shown.end(read)
            LOG.info("loaded %d bytes from %s", read, ckpt.url)
            return made
        report = _Into(ckpt, into, patterns, skipped, strict, casts, statements(mapping)).load(comm, shown)
        shown.end(report.bytes_read)
        LOG.info("loaded %d tensors in %.3f s from %s", len(report.loaded), report.seconds, ckpt.url)
        return report


def _chosen(name: str, patterns: list[str] | None, skipped: list[str]) -> bool:
    return not matches(name, skipped) and (patterns is None or matches(name, patterns))


def _load_new(
    ckpt: Checkpoint,
    patterns: list[str] | None,
    skipped: list[str],
    mapping: str | Iterable[str] | None,
    comm: Comm | None,
    framework: str,
    shown: _progress.Shown,
) -> tuple[Any, int]:
    if mapping is not None:
        return _load_mapped(ckpt, patterns, skipped, statements(mapping) or "", comm, framework, shown)
    wanted = {name: ckpt[name] for name in ckpt._names if _chosen(name, patterns, skipped)}
    tied = {name: to for name, to in ckpt._tied.items() if _chosen(name, patterns, skipped)}
    for to in tied.values():
        wanted.setdefault(to, ckpt[to])
    _check_keys(patterns, {*ckpt, *ckpt.values}, ckpt)
    arrays: dict[str, Any] = {}
    read = 0
    plain = [name for name in wanted if ":" not in name]
    if plain:
        arrays = {name: empty(wanted[name]) for name in plain}
        room = [(name, array, None) for name, array in arrays.items()]
        read = _planaria.load_tensors(ckpt._source, room, "none", [], None, comm, shown.step)[4]
    for name in wanted:
        if name not in arrays:
            arrays[name] = wanted[name].read()
            read += arrays[name].nbytes
    made = {name: _as(framework, array) for name, array in arrays.items()}
    for name, to in tied.items():
        made[name] = made[to]
    if ckpt._tree is None:
        found = {**made, **ckpt._loose}
        return nest({name: found[name] for name in found if _chosen(name, patterns, skipped)}), read
    values = {name for name in ckpt.values if _chosen(name, patterns, skipped)}
    tree = _pruned(ckpt._tree, {n for n in made if _chosen(n, patterns, skipped)} | values)
    return ({} if tree is None else build(tree, made.__getitem__)), read


def _load_mapped(
    ckpt: Checkpoint,
    patterns: list[str] | None,
    skipped: list[str],
    mapping: str,
    comm: Comm | None,
    framework: str,
    shown: _progress.Shown,
) -> tuple[Any, int]:
    """What a mapping makes of the tensors; other values have no place in it."""
    made = _planaria.mapped_tensors(ckpt._source, mapping)
    _check_keys(patterns, {name for name, _, _ in made}, ckpt)
    arrays = {name: _planaria.empty(shape, dtype) for name, shape, dtype in made if _chosen(name, patterns, skipped)}
    room = [(name, array, None) for name, array in arrays.items()]
    read = _planaria.load_tensors(ckpt._source, room, "none", [], mapping, comm, shown.step)[4]
    return nest({name: _as(framework, array) for name, array in arrays.items()}), read


def _check_keys(patterns: list[str] | None, known: set[str], ckpt: Checkpoint) -> None:
    """Refuses a name, which is a pattern without a star, that nothing has."""
    for pattern in patterns or ():
        if "*" not in pattern and pattern not in known:
            near = difflib.get_close_matches(pattern, list(known), 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            raise NotFoundError(f"'{ckpt.url}' has no tensor '{pattern}'{hint}")


def _pruned(tree: Any, names: set[str], path: str = "") -> Any:
    """The part of a stored tree that has one of the names; ``None`` when there is none."""
    if tree == "tensor" or "value" in tree:
        return tree if path in names else None
    if "dict" in tree:
        name = f"{path}." if path else ""
        kept = [(k, _pruned(c, names, f"{name}{decode(k)}")) for k, c in tree["dict"]]
        kept = [(k, c) for k, c in kept if c is not None]
        return {"dict": kept} if kept or not tree["dict"] else None
    kind = "tuple" if "tuple" in tree else "list"
    items = [_pruned(c, names, f"{path}.{at}" if path else str(at)) for at, c in enumerate(tree[kind])]
    items = [c for c in items if c is not None]
    return {kind: items} if items or not tree[kind] else None


class _Into:
    """A load into a state."""

    def __init__(
        self,
        ckpt: Checkpoint,
        into: Any,
        patterns: list[str] | None,
        skipped: list[str],
        strict: bool,
        casts: str,
        mapping: str | None,
    ) -> None:
        self.ckpt, self.into, self.strict, self.casts, self.mapping = ckpt, into, strict, casts, mapping
        self.patterns, self.skipped = patterns, skipped
        self.flat = Flat(into)
        self.mapped: dict[str, tuple[tuple[int, ...], str]] | None = None
        if mapping is not None:
            made = _planaria.mapped_tensors(ckpt._source, mapping)
            self.mapped = {name: (tuple(shape), str(dtype)) for name, shape, dtype in made}
        stored = set(ckpt) if self.mapped is None else set(self.mapped)
        _check_keys(patterns, stored | set(ckpt.values), ckpt)
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
            if stored is None or hasattr(target, "named_parameters"):
                continue
            if self._has_chosen(name for name, _ in leaves(stored, path)):
                found.append((path, target, stored))
        return found

    def _has_chosen(self, names: Iterable[str]) -> bool:
        """Whether any of the leaves of an object is asked for; all are, where nothing is said."""
        if self.patterns is None and not self.skipped:
            return True
        return any(_chosen(name, self.patterns, self.skipped) for name in names)

    def _stored(self, name: str) -> tuple[tuple[int, ...], str] | None:
        """Shape and dtype of what the checkpoint, or the mapping over it, has under a name."""
        if self.mapped is not None:
            return self.mapped.get(name)
        try:
            stored = self.ckpt[name]
        except KeyError:
            return None
        return stored.shape, str(stored.dtype)

    def check(self) -> None:
        """Refuse what does not fit, before anything is written."""
        shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        dtypes: dict[str, tuple[str, str]] = {}
        for name, tensor in self.wanted.items():
            stored = self._stored(name)
            if stored is None:
                continue
            shape = tuple(int(n) for n in tensor.shape)
            if stored[0] != shape:
                shapes[name] = (stored[0], shape)
            have, want = stored[1], str(_planaria.DType(tensor.dtype))
            floats = "f" in have and "f" in want
            if have != want and not (self.casts == "any" or (self.casts == "floats" and floats)):
                dtypes[name] = (have, want)
        names = self.strict and (self.missing or self.unexpected)
        if not (names or shapes or dtypes):
            return
        parts = []
        if self.strict and self.missing:
            parts.append(f"the checkpoint is missing {few(self.missing)}")
        if self.strict and self.unexpected:
            parts.append(f"it has unexpected {few(self.unexpected)}")
        parts += [f"'{n}' has shape {a} in the checkpoint, {b} in the state" for n, (a, b) in list(shapes.items())[:4]]
        parts += [f"'{n}' has dtype {a} in the checkpoint, {b} in the state" for n, (a, b) in list(dtypes.items())[:4]]
        if shapes or (names and dtypes):
            hint = "pass ignore= with what is not to be loaded"
        else:
            hint = "pass strict=False or ignore=" if names else "pass casts='floats' or 'any'"
        error = MismatchError("; ".join(parts) + f"; {hint}")
        error.missing, error.unexpected = list(self.missing), list(self.unexpected)
        error.shapes, error.dtypes = shapes, dtypes
        raise error

    def load(self, comm: Comm | None, shown: _progress.Shown) -> LoadReport:
        """Fill tensors, replace values, and hand objects their state, in this order."""
        begun = time.perf_counter()
        self.check()
        fresh = self._fresh()
        if comm is None:
            comm = group_of({**self.wanted, **fresh})
        made = rooms({**self.wanted, **fresh})
        answer = _planaria.load_tensors(
            self.ckpt._source, named(made), self.casts, self.skipped, self.mapping, comm, shown.step
        )
        for room in made.values():
            room.give_back()
        loaded = sorted(set(answer[0]) | set(self.values))
        replace(self.into, self.values)
        for path, target, tree in self.renewed:
            target.load_state_dict(build(tree, fresh.__getitem__, path))
        renewed = {path for path, _, _ in self.renewed}
        chosen = {n: v for n, v in self.ckpt.values.items() if _chosen(n, self.patterns, self.skipped)}
        for path, target, inner in self.flat.objects:
            start = path + "." if path else ""
            named_in = (n for n in [*self.flat.tensors, *self.flat.tied, *self.flat.values] if n.startswith(start))
            if path not in renewed and self._has_chosen(named_in):
                target.load_state_dict(replace(inner, chosen, path))
        return LoadReport(loaded, self.missing, self.unexpected, answer[3], answer[4], time.perf_counter() - begun)

    def _fresh(self) -> dict[str, Any]:
        """New tensors for objects that make theirs of what is stored: cut as the parameter is that they belong to."""
        made: dict[str, Any] = {}
        for path, target, tree in self.renewed:
            owners = parameters(target, path)
            for name, value in leaves(tree, path):
                if value is not ...:
                    continue
                stored = self.ckpt[name]
                owner = next((p for start, p in owners.items() if name.startswith(start)), None)
                if owner is not None and is_dtensor(owner) and tuple(owner.shape) == stored.shape:
                    from .torch import _like

                    made[name] = _like(owner, stored.dtype)
                else:
                    made[name] = self._room(name, stored)
        return made

    def _room(self, name: str, stored: Stored) -> Any:
        """A new tensor of the library whose tensor is there now, else of the one it was saved from."""
        there: Any = self.flat.tensors.get(self.flat.tied.get(name, name))
        if isinstance(there, Tensor) and tuple(there.shape) == stored.shape and there.dtype == stored.dtype:
            # Filled as it is: it knows its layout.
            return there
        if is_dtensor(there) and tuple(there.shape) == stored.shape:
            from .torch import _like

            return _like(there, stored.dtype)
        kind = self.ckpt._kinds.get(name, "torch") if there is None else framework_of(there)
        return _as_it_was(kind, empty(stored))


def parameters(target: Any, path: str) -> dict[str, Any]:
    """The parameters of an optimizer by the beginning of the names of their state."""
    groups = getattr(target, "param_groups", None)
    if not isinstance(groups, list):
        return {}
    every = [parameter for group in groups for parameter in group.get("params", ())]
    start = f"{path}.state." if path else "state."
    return {f"{start}{at}.": parameter for at, parameter in enumerate(every)}


def empty(stored: Stored) -> Any:
    """Room for a stored tensor."""
    if isinstance(stored.dtype, str):
        what = f"tensor '{stored.name}' has dtype {stored.dtype}, which arrays do not have; pass ignore="
        raise DTypeError(what)
    return _planaria.empty(stored.shape, stored.dtype)


__all__ = ["load"]
