"""Storage for torch.distributed.checkpoint: its saves become our folders, its loads read any format we read."""

from __future__ import annotations

import io
import json
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from . import _planaria
from ._checkpoint import Checkpoint
from ._place import Url, address
from ._planaria import Comm
from ._state import Place, Room, encoded, is_tensor


def gathered(comm: Comm | None, mine: dict[str, Any]) -> dict[str, Any]:
    """The values of all ranks. Collective."""
    if comm is None or comm.size == 1:
        return mine
    text = json.dumps(mine).encode()
    sizes = comm.all_gather(_planaria.array([len(text)])).tolist()
    joined = bytes(comm.all_gather(_planaria.array(list(text), dtype="u8")).tolist())
    every: dict[str, Any] = {}
    at = 0
    for size in sizes:
        every.update(json.loads(joined[at : at + size]))
        at += size
    return every


def ranks() -> Comm | None:
    """The communicator of the program's ranks; ``None`` where there is one process."""
    from .torch import comm

    alone = not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)
    return None if alone else comm()


def done(value: Any) -> Any:
    """A future that has come."""
    future: Any = Future()
    future.set_result(value)
    return future


class Writer(StorageWriter):
    """Writes what ``torch.distributed.checkpoint.save`` is given as a committed folder of ours. Collective to make.

    >>> import planaria, tempfile, torch, torch.distributed.checkpoint as dcp
    >>> place = tempfile.mkdtemp() + "/c"
    >>> _ = dcp.save({"w": torch.ones(2)}, storage_writer=planaria.torch.Writer(place), no_dist=True)
    >>> planaria.load(place)["w"].tolist()
    [1.0, 1.0]
    """

    def __init__(self, url: Url, *, overwrite: bool = False, max_file_size: str | int = "5GB") -> None:
        self.url: str = address(url)
        self.overwrite: bool = overwrite
        self.max_file_size: str | int = max_file_size
        self.comm: Comm | None = ranks()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.url = address(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """There is nothing to prepare: a save refuses a place that is taken."""

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        return plans

    def write_data(self, plan: Any, planner: Any) -> Any:
        tensors: list[tuple[str, Any, Place]] = []
        values: dict[str, Any] = {}
        results = []
        for item in plan.items:
            name = item.index.fqn
            if item.type == WriteItemType.BYTE_IO:
                values[name] = encoded(self._value(planner, item), name)
                results.append(WriteResult(item.index, 0, None))
                continue
            about = item.tensor_data
            memory = Room(planner.resolve_data(item).detach()).memory
            tensors.append((name, memory, (list(about.size), list(about.chunk.offsets))))
            results.append(WriteResult(item.index, memory.numel() * memory.element_size(), None))
        self._save(tensors, gathered(self.comm, values))
        return done(results)

    def _value(self, planner: Any, item: Any) -> Any:
        if hasattr(planner, "lookup_object"):
            found = planner.lookup_object(item.index)
            if not is_tensor(found):
                return found
        data = planner.resolve_data(item)
        return torch.load(data, weights_only=True) if isinstance(data, io.BytesIO) else data

    def _save(self, tensors: list[tuple[str, Any, Place]], values: dict[str, Any]) -> None:
        steps = (v["value"] for k, v in values.items() if k.split(".")[-1] == "step" and "value" in v)
        step = next(steps, 0)
        given = {
            "tied": {},
            "about": json.dumps({"dcp": values}),
            "step": step if isinstance(step, int) and step >= 0 else 0,
            "url": self.url,
            "comm": self.comm,
            "format": "planaria",
            "overwrite": self.overwrite,
            "mapping": None,
            "max_file_size": self.max_file_size,
        }
        _planaria.save_state(tensors, given, None)

    def finish(self, metadata: Any, results: Any) -> None:
        """The folder was committed by all ranks together."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(os.fspath(checkpoint_id), str)


class Reader(StorageReader):
    """Reads a checkpoint of any format for ``torch.distributed.checkpoint.load``: only the slices that are asked for.

    >>> import planaria, tempfile, torch, torch.distributed.checkpoint as dcp
    >>> place, room = tempfile.mkdtemp() + "/c", {"w": torch.zeros(2)}
    >>> _ = planaria.save({"w": torch.ones(2)}, place)
    >>> dcp.load(room, storage_reader=planaria.torch.Reader(place), no_dist=True)
    >>> room["w"]
    tensor([1., 1.])
    """

    def __init__(self, url: Url) -> None:
        self.url: str = address(url)
        self._ckpt: Checkpoint | None = None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.url = address(checkpoint_id)
        self._ckpt = None

    @property
    def checkpoint(self) -> Checkpoint:
        """What is read, opened when it is first asked for."""
        if self._ckpt is None:
            self._ckpt = Checkpoint(self.url)
        return self._ckpt

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        from .torch import _TORCH

        found: dict[str, Any] = {}
        ckpt = self.checkpoint
        for name in ckpt:
            stored = ckpt[name]
            size = torch.Size(stored.shape)
            whole = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
            properties = TensorProperties(dtype=getattr(torch, _TORCH.get(str(stored.dtype), str(stored.dtype))))
            found[name] = TensorStorageMetadata(properties, size, [whole])
        for name in self._values():
            found.setdefault(name, BytesStorageMetadata())
        return Metadata(found)

    def _values(self) -> dict[str, Any]:
        return self.checkpoint.values

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """There is nothing to prepare."""

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: Any) -> Any:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                data = io.BytesIO()
                torch.save(self._values()[name], data)
                data.seek(0)
                planner.load_bytes(item, data)
                continue
            box = tuple(slice(at, at + size) for at, size in zip(item.storage_offsets, item.lengths))
            read = self.checkpoint[name][box].torch()
            target = planner.resolve_tensor(item).detach()
            if target.size() != read.size():
                raise ValueError(f"'{name}' has {tuple(target.size())} elements to fill, {tuple(read.size())} were read")
            target.copy_(read)
            planner.commit_tensor(item, target)
        return done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(os.fspath(checkpoint_id), str)
