"""Saves and loads by other programs: one line on stdin is one sample, answered with its seconds and CPU seconds.

First the names of the cases are printed, with what is skipped and why, then `ready`. A save ends when its bytes are
durable; a load ends when ready tensors hold them; cold means that the files were put out of the page cache.
"""

import glob
import os
import resource
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

RANKS = 4


def shapes(gib: float) -> dict[str, list[int]]:
    hidden, inner = 1280, 3456
    found = {"model.embed_tokens.weight": [max(int(gib * 32000), 64), hidden]}
    for layer in range(max(round(gib * 11.5), 1)):
        at = f"model.layers.{layer}."
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            found[f"{at}self_attn.{part}.weight"] = [hidden, hidden]
        found[f"{at}mlp.gate_proj.weight"] = [inner, hidden]
        found[f"{at}mlp.up_proj.weight"] = [inner, hidden]
        found[f"{at}mlp.down_proj.weight"] = [hidden, inner]
        found[f"{at}input_layernorm.weight"] = [hidden]
        found[f"{at}post_attention_layernorm.weight"] = [hidden]
    found["model.norm.weight"] = [hidden]
    return found


def cpu() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def files(path: str) -> list[str]:
    return [path] if os.path.isfile(path) else [f for f in glob.glob(path + "/**", recursive=True) if os.path.isfile(f)]


def sync(path: str) -> None:
    """Makes a file or the files of a folder durable, and their names."""
    for name in files(path) + [path if os.path.isdir(path) else os.path.dirname(path)]:
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def forget(path: str) -> None:
    for name in files(path):
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def remove(path: str) -> None:
    for name in files(path):
        os.unlink(name)


class Single:
    """Programs of one process."""

    def __init__(self, folder: str, gib: float) -> None:
        self.folder = folder
        self.state = {name: torch.full(shape, i + 0.25) for i, (name, shape) in enumerate(shapes(gib).items())}
        self.target = {name: torch.full(shape, -1.0) for name, shape in shapes(gib).items()}
        self.cases, self.skipped = {}, []
        self.safetensors()
        self.torch_save()
        self.fastsafetensors()
        self.torch_checkpointing()

    def path(self, name: str) -> str:
        return os.path.join(self.folder, "peer-" + name)

    def copy(self, found) -> None:
        for name, tensor in found:
            self.target[name].copy_(tensor)

    def add(self, name: str, path: str, work, save: bool = False) -> None:
        self.cases[name] = (path, work, save)

    def run(self, name: str) -> tuple[float, float]:
        path, work, save = self.cases[name]
        remove(path) if save else forget(path)
        if not save:
            for tensor in self.target.values():
                tensor.fill_(-1.0)
        begin, used = time.perf_counter(), cpu()
        work()
        if save:
            sync(path)
        took = time.perf_counter() - begin, cpu() - used
        if not save:
            wrong = [n for i, (n, t) in enumerate(self.target.items()) if not bool((t[-1] == i + 0.25).all())]
            assert not wrong, f"{name}: {wrong[:3]}"
        return took

    def safetensors(self) -> None:
        try:
            import safetensors.torch
            from safetensors import safe_open
        except ImportError as error:
            self.skipped.append(f"safetensors: {error}")
            return
        path = self.path("safetensors.safetensors")

        def load() -> None:
            with safe_open(path, "pt") as file:
                self.copy((name, file.get_tensor(name)) for name in file.keys())

        self.add("safetensors save_file + fsync", path, lambda: safetensors.torch.save_file(self.state, path), True)
        self.add("safetensors load + copy, cold", path, load)

    def torch_save(self) -> None:
        path = self.path("torch.pt")
        load = lambda mmap: self.copy(torch.load(path, mmap=mmap, weights_only=True).items())
        self.add("torch.save + fsync", path, lambda: torch.save(self.state, path), True)
        self.add("torch.load + copy, cold", path, lambda: load(False))
        self.add("torch.load(mmap) + copy, cold", path, lambda: load(True))

    def fastsafetensors(self) -> None:
        try:
            from fastsafetensors import SafeTensorsFileLoader, SingleGroup
        except ImportError as error:
            self.skipped.append(f"fastsafetensors: {error}")
            return
        path = self.path("safetensors.safetensors")

        def load() -> None:
            loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cpu"), nogds=True)
            loader.add_filenames({0: [path]})
            try:
                buffer = loader.copy_files_to_device()
                self.copy((name, buffer.get_tensor(name)) for name in self.target)
                buffer.close()
            finally:
                loader.close()

        self.add("fastsafetensors load + copy, cold", path, load)

    def torch_checkpointing(self) -> None:
        try:
            from torch_checkpointing import CheckpointManager
            from torch_checkpointing.config import SyncCheckpointSaverConfig
            from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

            # Direct writes, its default, fail on ext4 with EINVAL.
            config = CheckpointManager.Config(
                save=SyncCheckpointSaverConfig(), storage_config=LocalFileSystemStorageConfig(use_direct_io=False)
            )
            manager = CheckpointManager(config)
        except Exception as error:
            self.skipped.append(f"torch_checkpointing: {type(error).__name__}: {error}")
            return
        path = self.path("torch_checkpointing")
        self.add("torch_checkpointing save + fsync", path, lambda: manager.save(path, {"model": self.state}), True)
        self.add("torch_checkpointing load, cold", path, lambda: manager.load(path, into={"model": self.target}))


def cut(shape: list[int], kind: str, rank: int, ranks: int):
    """The part of a tensor that a rank holds, and how it is placed."""
    dim = 1 if kind == "columns" else 0
    if dim >= len(shape):
        return shape, Replicate()
    step = -(-shape[dim] // ranks)
    part = list(shape)
    part[dim] = max(0, min(step, shape[dim] - rank * step))
    return part, Shard(dim)


def rank_main(rank: int, meeting: str, folder: str, gib: float, orders, answers) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    meshes = {n: DeviceMesh("cpu", torch.arange(n)) for n in (2, 3, 4)}
    for order in iter(orders.get, None):
        what, ranks, kind, path = order
        path = os.path.join(folder, path)
        if rank < ranks:
            state = {}
            for i, (name, shape) in enumerate(shapes(gib).items()):
                part, placement = cut(shape, kind, rank, ranks)
                tensor = torch.full(part, i + 0.25 if what == "save" else -1.0)
                if ranks > 1:
                    stride = (shape[1], 1) if len(shape) == 2 else (1,)
                    tensor = DTensor.from_local(
                        tensor, meshes[ranks], [placement], run_check=False, shape=torch.Size(shape), stride=stride
                    )
                state[name] = tensor
        if rank == 0:
            remove(path) if what == "save" else forget(path)
        dist.barrier()
        begin, used = time.perf_counter(), cpu()
        if rank < ranks:
            group = meshes[ranks].get_group() if ranks > 1 else None
            work = dcp.save if what == "save" else dcp.load
            work(state, checkpoint_id=path, process_group=group, no_dist=ranks == 1)
            if ranks > 1:
                dist.barrier(group)
        took = time.perf_counter() - begin, cpu() - used
        if rank < ranks and what == "load":
            for i, tensor in enumerate(state.values()):
                local = tensor.to_local() if ranks > 1 else tensor
                assert bool((local[-1] == i + 0.25).all()), list(state)[i]
        answers.put(took)
        state = None
        dist.barrier()
    dist.destroy_process_group()


class Distributed:
    """torch DCP on processes of one machine."""

    def __init__(self, folder: str, gib: float) -> None:
        context = mp.get_context("spawn")
        meeting = os.path.join(tempfile.mkdtemp(), "meeting")
        self.orders = [context.Queue() for _ in range(RANKS)]
        self.answers = context.Queue()
        self.processes = [
            context.Process(target=rank_main, args=(rank, meeting, folder, gib, self.orders[rank], self.answers))
            for rank in range(RANKS)
        ]
        for process in self.processes:
            process.start()
        self.cases = {f"DCP save, {n} rank" + "s" * (n > 1): ("save", n, "rows", f"peer-dcp-{n}") for n in (1, 2, 4)}
        self.cases |= {f"DCP load cold, {n} rank" + "s" * (n > 1): ("load", n, "rows", f"peer-dcp-{n}") for n in (1, 2, 4)}
        self.cases["DCP reshard 4 -> 2"] = ("load", 2, "rows", "peer-dcp-4")
        self.cases["DCP reshard 2 -> 3"] = ("load", 3, "rows", "peer-dcp-2")
        self.cases["DCP reshard 4 rows -> 2 columns"] = ("load", 2, "columns", "peer-dcp-4")

    def run(self, name: str) -> tuple[float, float]:
        for orders in self.orders:
            orders.put(self.cases[name])
        answers = [self.answers.get(timeout=600) for _ in self.orders]
        return max(a[0] for a in answers), sum(a[1] for a in answers)

    def end(self) -> None:
        for orders in self.orders:
            orders.put(None)
        for process in self.processes:
            process.join()


def main() -> None:
    folder, gib = sys.argv[1], float(sys.argv[2])
    torch.set_num_threads(1)
    # Only answers go to standard output, whatever a library prints.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    single, ranks = Single(folder, gib), Distributed(folder, gib)
    for name in [*single.cases, *ranks.cases]:
        print("case", name, file=out)
    for why in single.skipped:
        print("skip", why, file=out)
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        name = line.strip()
        if name == "end":
            break
        took = (single if name in single.cases else ranks).run(name)
        print(*took, file=out, flush=True)
    ranks.end()


if __name__ == "__main__":
    main()
