"""For programs of torch: ranks of torch.distributed, DTensors, storage for its checkpoints, safetensors files.

torch is imported on first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _carrier, _planaria
from ._checkpoint import open as _open
from ._errors import LayoutError
from ._place import Url, address
from ._planaria import Comm, Layout
from ._state import Room, is_dtensor

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from ._dcp import Reader, Writer


def comm(group: ProcessGroup | None = None) -> Comm:
    """The ranks of a group of torch.distributed, all by default. Collective to make.

    Letters travel over a gloo group of their own, so that a save in the background never meets the program's collectives.

    >>> import planaria, tempfile, torch.distributed as dist
    >>> dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
    >>> planaria.torch.comm().all_reduce([1.0]).tolist()
    [1.0]
    >>> dist.destroy_process_group()
    """
    return _carrier.connect(group)


_made: dict[int, Comm] = {}


def _default_comm() -> Comm | None:
    """The communicator of all ranks, made once per process group; ``None`` where torch.distributed does not run."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return None
    world = dist.group.WORLD
    if id(world) not in _made:
        _made.clear()
        _made[id(world)] = comm()
    return _made[id(world)]


def layout(tensor: torch.Tensor) -> Layout:
    """The layout of a DTensor: ``Replicate`` is ``R``, ``Shard(d)`` is ``Sd``; of several cuts of one dim, the later ones
    have an order, as in ``S0.1``.

    >>> import planaria, tempfile, torch, torch.distributed as dist
    >>> from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    >>> dist.init_process_group("gloo", init_method=f"file://{tempfile.mkdtemp()}/meet", rank=0, world_size=1)
    >>> mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    >>> planaria.torch.layout(distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])).placements
    'tp:S0'
    >>> dist.destroy_process_group()
    """
    if not is_dtensor(tensor):
        raise TypeError(f"a layout is that of a DTensor, not of {type(tensor).__name__}")
    mesh: DeviceMesh = tensor.device_mesh  # type: ignore[attr-defined]
    names = mesh.mesh_dim_names or tuple(f"d{at}" for at in range(mesh.ndim))
    placements = tensor.placements  # type: ignore[attr-defined]
    # A strided shard was cut after as many pieces were made as it says.
    before = [getattr(placement, "split_factor", 1) for placement in placements]
    words = []
    for name, placement, pieces in zip(names, placements, before):
        if placement.is_partial():
            raise LayoutError(
                f"the tensor is {placement} along '{name}': each rank holds a summand, not the value; "
                "redistribute it to Replicate() or Shard(dim) first"
            )
        if placement.is_replicate():
            words.append(f"{name}:R")
            continue
        same = {b for p, b in zip(placements, before) if getattr(p, "dim", None) == placement.dim}
        order = sorted(same).index(pieces)
        words.append(f"{name}:S{placement.dim}" + (f".{order}" if order else ""))
    axes = list(zip(names, mesh.mesh.shape))
    return _planaria.placed(axes, mesh.mesh.flatten().tolist(), list(tensor.shape), " ".join(words))


def _placed(tensor: Any) -> tuple[Any, tuple[Layout, int] | tuple[list[int], list[int]]]:
    """The piece of a DTensor that this rank holds, and where it lies."""
    import torch.distributed as dist

    local = tensor.detach().to_local()
    if tensor.device_mesh.get_coordinate() is None:
        # Not of the mesh: an empty box, of as many dims.
        extents = list(tensor.shape)
        return local.new_empty([0] * len(extents)), (extents, [0] * len(extents))
    return local, (layout(tensor), dist.get_rank())


def _like(owner: Any, dtype: Any) -> Any:
    """A new DTensor that is cut as another is."""
    import torch
    from torch.distributed.tensor import DTensor

    local = torch.empty_like(owner.detach().to_local(), dtype=getattr(torch, _TORCH[str(dtype)]))
    return DTensor.from_local(
        local, owner.device_mesh, owner.placements, run_check=False, shape=owner.shape, stride=owner.stride()
    )


_TORCH = {
    "bool": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}


def save_file(
    tensors: dict[str, torch.Tensor], filename: Url, metadata: dict[str, str] | None = None
) -> None:
    """Write tensors to one safetensors file, which appears whole or not at all. Mirrors ``safetensors.torch.save_file``.

    >>> import planaria.torch, tempfile, torch
    >>> place = tempfile.mkdtemp() + "/w.safetensors"
    >>> planaria.torch.save_file({"w": torch.ones(2)}, place, metadata={"format": "pt"})
    >>> planaria.torch.load_file(place)
    {'w': tensor([1., 1.])}
    """
    given = []
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors are a dict of names and tensors, not {type(tensors).__name__}")
    for name, tensor in tensors.items():
        if not isinstance(name, str):
            raise TypeError(f"names of tensors are text, not {type(name).__name__}")
        if not hasattr(tensor, "data_ptr"):
            raise TypeError(f"'{name}' is a {type(tensor).__name__}, not a tensor of torch")
        room = Room(tensor.detach())
        if room.place is not None:
            raise LayoutError(f"'{name}' is cut over ranks; pass its full_tensor()")
        given.append((name, room.memory, room.place))
    _planaria.write_file(address(filename), given, dict(metadata or {}))


def load_file(filename: Url, device: str | int = "cpu") -> dict[str, torch.Tensor]:
    """Read all tensors of a file, or of a checkpoint of any format. Mirrors ``safetensors.torch.load_file``.

    >>> import planaria.torch, tempfile, torch
    >>> place = tempfile.mkdtemp() + "/c"
    >>> _ = planaria.save({"w": torch.arange(3)}, place)
    >>> planaria.torch.load_file(place)["w"]
    tensor([0, 1, 2])
    """
    with _open(os.fspath(filename)) as ckpt:
        made = {name: ckpt[name].torch() for name in ckpt._names}
        made |= {name: made[to] for name, to in ckpt._tied.items()}
    return made if device == "cpu" else {name: tensor.to(device) for name, tensor in made.items()}


def __getattr__(name: str) -> Any:
    # Their base classes are torch's, which is imported when they are asked for.
    if name in ("Writer", "Reader"):
        from . import _dcp

        return getattr(_dcp, name)
    raise AttributeError(f"module 'planaria.torch' has no attribute '{name}'")


__all__ = ["Reader", "Writer", "comm", "layout", "load_file", "save_file"]
