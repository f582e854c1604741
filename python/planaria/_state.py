"""States as trees: names of leaves, and the tree as JSON so that it can be made again.

A state is nested dicts, lists and tuples; names join with ``.``. Nothing is pickled.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from . import _planaria
from ._errors import DTypeError
from ._planaria import Array, Comm, Layout, Tensor

_PLAIN = (bool, int, float, str, bytes, type(None))

_DEPTH = 40
"""How deep a state may nest: readers of JSON stop at 128 brackets, and a dict is three."""

Place = tuple[Layout, int] | tuple[list[int], list[int]] | None
"""Where elements lie in a larger tensor: a layout and a rank, or its extents and where a box begins."""


def is_tensor(leaf: Any) -> bool:
    """Whether a leaf has elements: ours, NumPy's, torch's, or anything with ``__dlpack__``."""
    return isinstance(leaf, (Array, Tensor)) or hasattr(leaf, "__dlpack__")


def is_dtensor(leaf: Any) -> bool:
    """Whether a leaf is a tensor of torch that is cut over ranks."""
    return hasattr(leaf, "device_mesh") and hasattr(leaf, "placements")


def is_on_device(leaf: Any) -> bool:
    """Whether a leaf is a tensor of torch that the processor cannot read."""
    kind = getattr(getattr(leaf, "device", None), "type", None)
    return isinstance(kind, str) and kind != "cpu"


class Room:
    """Memory of ours for the elements of a leaf, and the way back where they are not in it."""

    def __init__(self, leaf: Any) -> None:
        self.place: Place = None
        self._back: Any = None
        if isinstance(leaf, Tensor):
            self.memory: Any = leaf.local()
            if leaf.layout is not None and leaf.comm is not None:
                self.place = (leaf.layout, leaf.comm.rank)
            return
        if is_dtensor(leaf):
            from .torch import _placed

            leaf, self.place = _placed(leaf)
        self.memory = leaf
        if is_on_device(leaf):
            self.memory, self._back = leaf.to("cpu"), leaf

    def give_back(self) -> None:
        """What was loaded, on the device it belongs to."""
        if self._back is not None:
            self._back.copy_(self.memory)


def rooms(tensors: Mapping[str, Any]) -> dict[str, Room]:
    """The memory of each tensor."""
    return {name: Room(tensor) for name, tensor in tensors.items()}


def named(made: Mapping[str, Room]) -> list[tuple[str, Any, Place]]:
    """Tensors as the native module takes them."""
    return [(name, room.memory, room.place) for name, room in made.items()]


def group_of(tensors: Mapping[str, Any]) -> Comm | None:
    """The ranks that hold the pieces of these tensors, where they say so."""
    for tensor in tensors.values():
        if isinstance(tensor, Tensor) and tensor.comm is not None:
            return tensor.comm
        if is_dtensor(tensor):
            from .torch import _default_comm

            return _default_comm()
    return None


def detached(tensor: Any) -> Any:
    """A torch tensor without its history; anything else as it is."""
    return tensor.detach() if hasattr(tensor, "detach") and not isinstance(tensor, Tensor) else tensor


class Flat:
    """The leaves of a state by name, and its tree."""

    def __init__(self, state: Any) -> None:
        self.tensors: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.tied: dict[str, str] = {}
        self.objects: list[tuple[str, Any, Any]] = []
        # Whose tensors objects hold, where they are not torch's.
        self.kinds: dict[str, str] = {}
        self._seen: dict[Any, str] = {}
        self._above: list[Any] = []
        self._objects_above = 0
        self.tree = self._walk(state, "")

    def _name(self, path: str, key: Any) -> str:
        return f"{path}.{key}" if path else str(key)

    def _walk(self, node: Any, path: str) -> Any:
        node = plain(node)
        if is_tensor(node):
            return self._tensor(node, path)
        if isinstance(node, _PLAIN):
            self._claim(path)
            check_text(node, path)
            self.values[path] = node
            return {"value": encode(node)}
        check_above(node, path, self._above)
        self._above.append(node)
        tree = self._below(node, path)
        self._above.pop()
        return tree

    def _below(self, node: Any, path: str) -> Any:
        """What holds other leaves."""
        if isinstance(node, Mapping):
            names = [(key, self._name(path, _key(key, path))) for key in node]
            return {"dict": [[encode(key), self._walk(node[key], name)] for key, name in names]}
        if isinstance(node, (list, tuple)):
            kind = "tuple" if isinstance(node, tuple) else "list"
            return {kind: [self._walk(child, self._name(path, at)) for at, child in enumerate(node)]}
        if hasattr(node, "state_dict") and hasattr(node, "load_state_dict") and not isinstance(node, type):
            inner = node.state_dict()
            self.objects.append((path, node, inner))
            self._objects_above += 1
            tree = self._walk(inner, path)
            self._objects_above -= 1
            return tree
        raise TypeError(
            f"'{path or 'the state'}' is a {type(node).__name__}, which cannot be saved; "
            "give tensors, numbers, text, bytes, None, or objects with state_dict and load_state_dict"
        )

    def _claim(self, path: str) -> None:
        if path in self.tensors or path in self.values or path in self.tied:
            raise ValueError(f"two leaves have the name '{path}'; rename one of them")

    def _tensor(self, node: Any, path: str) -> Any:
        self._claim(path)
        if not path:
            raise TypeError("the state is a single tensor; give it a name, as in {'weight': tensor}")
        _check_elements(node, path)
        node = detached(node)
        _check_dtype(node, path)
        if self._objects_above and (kind := framework_of(node)) != "torch":
            self.kinds[path] = kind
        same = self._seen.setdefault(_memory(node), path)
        if same == path or _is_snapshot(node, self.tensors[same]):
            self.tensors[path] = node
        else:
            self.tied[path] = same
        return "tensor"


def few(names: list[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(f"'{name}'" for name in names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def framework_of(tensor: Any) -> str:
    """Whose tensor a leaf is; what only has ``__dlpack__`` is taken for one of torch's."""
    if isinstance(tensor, (Array, Tensor)):
        return "planaria"
    is_numpy = hasattr(tensor, "__array_interface__") and not hasattr(tensor, "data_ptr")
    return "numpy" if is_numpy else "torch"


def plain(leaf: Any) -> Any:
    """A scalar of NumPy's as the number of Python's that it is; anything else as it is."""
    scalars = getattr(sys.modules.get("numpy"), "generic", None)
    if scalars is None or not isinstance(leaf, scalars):
        return leaf
    value = leaf.item()
    return value if isinstance(value, _PLAIN) else leaf


def check_text(value: Any, path: str) -> None:
    """Refuses text that no file can hold."""
    if not isinstance(value, str):
        return
    try:
        value.encode()
    except UnicodeEncodeError as error:
        what = f"{path or 'the state'!a} has the text {value[error.start]!a}, half of a surrogate pair, which UTF-8 cannot hold"
        raise TypeError(f"{what}; save it as bytes") from None


def check_above(node: Any, path: str, above: list[Any]) -> None:
    """Refuses what holds itself, and what nests too deep to be read again."""
    if any(node is one for one in above):
        raise ValueError(f"'{path}' holds itself; a state is a tree")
    if len(above) > 2 * _DEPTH or sum(isinstance(one, (Mapping, list, tuple)) for one in above) >= _DEPTH:
        raise ValueError(f"'{path[:200]}' nests deeper than {_DEPTH}; flatten the state")


def _check_elements(tensor: Any, path: str) -> None:
    """Refuses tensors of torch's that have no elements side by side in memory."""
    if str(getattr(tensor, "layout", "")).startswith("torch.sparse"):
        raise TypeError(f"'{path}' is sparse, which cannot be saved; save to_dense(), or its indices() and values()")
    if getattr(tensor, "is_meta", False) is True:
        raise TypeError(f"'{path}' is on the device meta and has no values; materialise it before saving")


def _check_dtype(tensor: Any, path: str) -> None:
    """Refuses strings, objects and complex numbers by the name of the leaf."""
    try:
        if hasattr(tensor, "dtype"):
            _planaria.DType(tensor.dtype)
    except DTypeError as error:
        raise DTypeError(f"'{path}' cannot be saved: {error}") from None


def _key(key: Any, path: str) -> Any:
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise TypeError(f"'{path or 'the state'}' has the key {key!r}; keys are text or integers")
    check_text(key, path)
    return key


def _memory(tensor: Any) -> Any:
    """What tells tensors of one memory from others; views of different extents are different tensors."""
    piece = is_dtensor(tensor) or isinstance(tensor, Tensor)
    local = tensor.to_local() if is_dtensor(tensor) else tensor.local() if piece else tensor
    at = _address(local)
    if at is None:
        # The leaf itself, which its state keeps alive: a piece is made anew each time.
        return ("object", id(tensor))
    address, strides = at
    return (piece, address, tuple(local.shape), strides, str(_planaria.DType(local.dtype)))


def _is_snapshot(a: Any, b: Any) -> bool:
    """Whether two leaves of ours have their bytes in common only until one of them is written."""
    both = [leaf.local() if isinstance(leaf, Tensor) else leaf for leaf in (a, b)]
    return all(isinstance(leaf, Array) for leaf in both) and not _planaria.shares(*both)


def _address(tensor: Any) -> tuple[int, tuple[int, ...]] | None:
    """Where the first element lies, and the strides in elements; nothing for what does not say."""
    if isinstance(tensor, Array):
        at = _planaria.address(tensor)
        return None if at is None else (at, tensor.strides)
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "stride"):
        on_host = tensor.device.type == "cpu" and tensor.numel() > 0
        return (tensor.data_ptr(), tuple(tensor.stride())) if on_host else None
    if hasattr(tensor, "__array_interface__") and getattr(tensor, "size", 0) > 0:
        size = tensor.itemsize
        if all(step % size == 0 for step in tensor.strides):
            return tensor.__array_interface__["data"][0], tuple(step // size for step in tensor.strides)
    return None


def encode(value: Any) -> Any:
    """A leaf as JSON."""
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": float.__repr__(value)}
    # Readers of JSON know integers of 64 bits; hexadecimal has no limit to its digits.
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return {"int": hex(value)}
    return value


def decode(value: Any) -> Any:
    """The leaf that ``encode`` was given."""
    if not isinstance(value, dict):
        return value
    if "int" in value:
        return int(value["int"], 16)
    return base64.b64decode(value["bytes"]) if "bytes" in value else float(value["float"])


def encoded(value: Any, name: str, above: tuple[Any, ...] = ()) -> Any:
    """A value as a tree of JSON; nothing is pickled."""
    value = plain(value)
    if isinstance(value, _PLAIN):
        check_text(value, name)
        return {"value": encode(value)}
    check_above(value, name, list(above))
    above = (*above, value)
    if isinstance(value, dict):
        items = [(_key(key, name), child) for key, child in value.items()]
        return {"dict": [[encode(key), encoded(child, f"{name}.{key}", above)] for key, child in items]}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [encoded(child, f"{name}.{at}", above) for at, child in enumerate(value)]}
    raise TypeError(f"'{name}' is a {type(value).__name__}, which cannot be saved; give tensors, numbers, text or bytes")


def decoded(tree: Any) -> Any:
    """The value that ``encoded`` was given."""
    if "value" in tree:
        return decode(tree["value"])
    if "dict" in tree:
        return {decode(key): decoded(child) for key, child in tree["dict"]}
    values = [decoded(child) for child in tree["tuple" if "tuple" in tree else "list"]]
    return tuple(values) if "tuple" in tree else values


def same(a: Any, b: Any, tolerance: float) -> bool:
    """Whether two values are equal, numbers within a tolerance; nan equals itself."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], tolerance) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b))
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if a == b or (a != a and b != b):
        return True
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        try:
            return abs(a - b) <= tolerance
        except OverflowError:
            # An integer that no float holds is far from any.
            return False
    return False


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of a stored tree; a tensor's value is ``...``."""
    if tree == "tensor":
        yield path, ...
    elif "value" in tree:
        yield path, decode(tree["value"])
    else:
        for key, child in _children(tree):
            yield from leaves(child, f"{path}.{key}" if path else str(key))


def _children(tree: Any) -> list[tuple[Any, Any]]:
    if "dict" in tree:
        return [(decode(key), child) for key, child in tree["dict"]]
    return list(enumerate(tree["tuple"] if "tuple" in tree else tree["list"]))


def find(tree: Any, path: str) -> Any:
    """The part of a stored tree below ``path``; ``None`` where there is none."""
    if not path:
        return tree
    if tree == "tensor" or "value" in tree:
        return None
    for key, child in _children(tree):
        name = str(key)
        if path == name:
            return child
        if path.startswith(name + "."):
            found = find(child, path[len(name) + 1 :])
            if found is not None:
                return found
    return None


def build(tree: Any, tensor: Callable[[str], Any], path: str = "") -> Any:
    """The state a stored tree stands for; ``tensor`` gives the tensor of a name, or raises ``KeyError`` to leave it out."""
    if tree == "tensor":
        return tensor(path)
    if "value" in tree:
        return decode(tree["value"])
    made = []
    for key, child in _children(tree):
        try:
            made.append((key, build(child, tensor, f"{path}.{key}" if path else str(key))))
        except KeyError:
            continue
    if "dict" in tree:
        if tree["dict"] and not made:
            raise KeyError(path)
        return dict(made)
    values = [value for _, value in made]
    return tuple(values) if "tuple" in tree else values


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names as nested dicts; a name that is also the start of another keeps its dots."""
    out: dict[str, Any] = {}
    names = set(flat)
    for name, value in flat.items():
        parts = name.split(".")
        if any(".".join(parts[:n]) in names for n in range(1, len(parts))):
            out[name] = value
            continue
        at = out
        for part in parts[:-1]:
            at = at.setdefault(part, {})
        at[parts[-1]] = value
    return out


def replace(node: Any, values: Mapping[str, Any], path: str = "") -> Any:
    """Puts new values into the plain leaves of a state, in place where it can change."""
    if isinstance(node, Mapping):
        for key in list(node):
            name = f"{path}.{key}" if path else str(key)
            new = replace(node[key], values, name)
            if new is not node[key]:
                node[key] = new  # type: ignore[index]
        return node
    if isinstance(node, (list, tuple)):
        new = [replace(child, values, f"{path}.{at}" if path else str(at)) for at, child in enumerate(node)]
        if isinstance(node, list):
            node[:] = new
            return node
        same = all(a is b for a, b in zip(node, new))
        return node if same else (type(node)(*new) if hasattr(node, "_fields") else type(node)(new))
    return values.get(path, node) if isinstance(plain(node), _PLAIN) else node
