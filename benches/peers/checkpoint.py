"""Saves, loads and conversions by other programs: one line on stdin is one sample.

Every answer is a line of JSON. First come the cases with their groups, what is skipped and why, and the versions, then
`"ready"`. A line with the name of a case is answered with `"prepared"`, and the line `go` behind it with `took`: seconds,
CPU seconds, extra memory, and bytes read; or with `failed`. A save ends when its bytes are durable; a load ends when
ready tensors hold them; cold means that the files were put out of the page cache, warm that they were read into it.
Every case runs once with a small model before `"ready"`, so that no import or first use is timed.
"""

import glob
import importlib.metadata
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import FileSystemReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save, torch_save_to_dcp
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard

RANKS = 4
PROCESSORS = len(os.sched_getaffinity(0))


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


def files(path: str) -> list[str]:
    return [path] if os.path.isfile(path) else [f for f in glob.glob(path + "/**", recursive=True) if os.path.isfile(f)]


def sync(path: str) -> None:
    """Makes a file or the files of a folder durable, and their names."""
    for name in files(path) + [path if os.path.isdir(path) else os.path.dirname(path)]:
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def forget(path: str) -> None:
    """Puts the files out of the page cache."""
    for name in files(path):
        fd = os.open(name, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def remember(path: str) -> None:
    """Reads the files, so that the page cache holds them."""
    buffer = bytearray(8 << 20)
    for name in files(path):
        with open(name, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def remove(path: str) -> None:
    for name in files(path):
        os.unlink(name)
    fd = os.open(os.path.dirname(path), os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def counters(path: str) -> dict[str, int]:
    """A file of the kernel with a name and a number in each line."""
    fields = (line.split() for line in open(path))
    return {words[0]: int(words[1]) for words in fields if len(words) > 1 and words[1].isdigit()}


class Meter:
    """Measures this process from its making to `end`."""

    def __init__(self) -> None:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        self.before = self.now()
        self.begin = time.perf_counter()

    @staticmethod
    def now() -> dict[str, float]:
        io, memory = counters("/proc/self/io"), counters("/proc/self/status")
        cpu = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        # Calls that read and pages that were mapped and faulted in are counted apart; nobody here does both.
        return {"cpu": cpu, "calls": io["rchar:"], "storage": io["read_bytes:"], "rss": memory["VmRSS:"], "peak": memory["VmHWM:"]}

    def end(self) -> dict:
        end, after = time.perf_counter(), self.now()
        grown = {name: after[name] - self.before[name] for name in after}
        return {
            "begin": self.begin,
            "end": end,
            "cpu": grown["cpu"],
            "extra": max(0, after["peak"] - self.before["rss"]) * 1024,
            "read": max(grown["calls"], grown["storage"]),
        }


def joined(parts: list[dict], reads: bool) -> dict:
    """The sample of several processes together; the clock is the same for all of them."""
    total = {name: sum(part[name] for part in parts) for name in ("cpu", "extra", "read")}
    # A warm map is read from nowhere.
    total["read"] = total["read"] if reads and total["read"] > 1 << 20 else None
    return {"seconds": max(p["end"] for p in parts) - min(p["begin"] for p in parts), **total}


class Place:
    """A folder, and the model in memory: what is saved, and ready tensors to load into."""

    def __init__(self, folder: str, gib: float) -> None:
        self.folder, self.gib = folder, gib
        self.state = {name: torch.full(shape, i + 0.25) for i, (name, shape) in enumerate(shapes(gib).items())}
        self.target = {name: torch.full(shape, -1.0) for name, shape in shapes(gib).items()}

    def path(self, name: str) -> str:
        return os.path.join(self.folder, "peer-" + name)

    def copy(self, found) -> None:
        for name, tensor in found:
            self.target[name].copy_(tensor)

    def blank(self) -> None:
        for tensor in self.target.values():
            tensor.fill_(-1.0)

    def check(self, found: dict) -> None:
        """The last row of every tensor is the model's."""
        wrong = [n for i, n in enumerate(self.state) if not bool((found[n][-1] == i + 0.25).all())]
        assert not wrong, f"wrong values: {wrong[:3]}"


@dataclass(frozen=True)
class Order:
    """Work for the ranks: `save`, `load` or `save-hf`, how many, and how matrices are cut."""

    what: str
    ranks: int
    kind: str = "rows"


@dataclass(frozen=True)
class Case:
    """One measurement: its group, the work, the file or folder it writes or reads, and the case that makes what it reads."""

    group: str
    work: Callable[[Place], None] | Order
    writes: str = ""
    reads: str = ""
    maker: str = ""
    check: Callable[[Place], None] | None = None
    loaded: bool = False


SAFETENSORS, TORCH = "safetensors.safetensors", "torch.pt"
SAVE_SAFETENSORS, SAVE_TORCH = "safetensors save_file + fsync", "torch.save + fsync"


def loads(name: str, work: Callable[[Place], None], reads: str, maker: str, loaded: bool = False) -> dict[str, Case]:
    """A load with cold and with warm cache."""
    check = lambda place: place.check(place.target)
    return {
        f"{name}, {cache}": Case(f"load-{cache}", work, reads=reads, maker=maker, check=check, loaded=loaded and cache == "cold")
        for cache in ("cold", "warm")
    }


def torch_save() -> dict[str, Case]:
    load = lambda mmap: lambda place: place.copy(torch.load(place.path(TORCH), mmap=mmap, weights_only=True).items())
    save = lambda place: torch.save(place.state, place.path(TORCH))
    cases = {SAVE_TORCH: Case("save", save, writes=TORCH, loaded=True)}
    cases |= loads("torch.load + copy", load(False), TORCH, SAVE_TORCH)
    return cases | loads("torch.load(mmap) + copy", load(True), TORCH, SAVE_TORCH)


def safetensors() -> dict[str, Case]:
    from safetensors import safe_open
    from safetensors.torch import save_file

    def load(place: Place) -> None:
        with safe_open(place.path(SAFETENSORS), "pt") as file:
            place.copy((name, file.get_tensor(name)) for name in file.keys())

    save = lambda place: save_file(place.state, place.path(SAFETENSORS))
    cases = {SAVE_SAFETENSORS: Case("save", save, writes=SAFETENSORS, loaded=True)}
    return cases | loads("safetensors load + copy", load, SAFETENSORS, SAVE_SAFETENSORS, loaded=True)


def fastsafetensors() -> dict[str, Case]:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup
    from safetensors import safe_open  # its source is made with it

    def load(place: Place) -> None:
        loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cpu"), nogds=True)
        loader.add_filenames({0: [place.path(SAFETENSORS)]})
        try:
            buffer = loader.copy_files_to_device()
            place.copy((name, buffer.get_tensor(name)) for name in place.target)
            buffer.close()
        finally:
            loader.close()

    return loads("fastsafetensors load + copy", load, SAFETENSORS, SAVE_SAFETENSORS)


def torch_checkpointing() -> dict[str, Case]:
    from torch_checkpointing import CheckpointManager
    from torch_checkpointing.config import SyncCheckpointSaverConfig
    from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

    # Direct writes, its default, fail on ext4 with EINVAL.
    storage = LocalFileSystemStorageConfig(use_direct_io=False)
    manager = CheckpointManager(CheckpointManager.Config(save=SyncCheckpointSaverConfig(), storage_config=storage))
    name, folder = "torch_checkpointing save + fsync", "torch_checkpointing"
    save = lambda place: manager.save(place.path(folder), {"model": place.state})
    load = lambda place: manager.load(place.path(folder), into={"model": place.target})
    return {name: Case("save", save, writes=folder)} | loads("torch_checkpointing load", load, folder, name)


def distributed() -> dict[str, Case]:
    many = lambda n: f"{n} rank" + "s" * (n > 1)
    cases = {}
    for n in (1, 2, 4):
        folder, save = f"dcp-{n}", f"DCP save, {many(n)}"
        cases[save] = Case("save", Order("save", n), writes=folder, loaded=n != 2)
        for cache in ("cold", "warm"):
            loaded = n == 4 and cache == "cold"
            cases[f"DCP load {cache}, {many(n)}"] = Case(f"load-{cache}", Order("load", n), reads=folder, maker=save, loaded=loaded)
    reshard = lambda saved, order: Case("reshard", order, reads=f"dcp-{saved}", maker=f"DCP save, {many(saved)}")
    cases["DCP reshard 4 -> 2"] = reshard(4, Order("load", 2))
    cases["DCP reshard 2 -> 3"] = reshard(2, Order("load", 3))
    cases["DCP reshard 4 rows -> 2 columns"] = reshard(4, Order("load", 2, "columns"))
    return cases


def read_dcp(path: str) -> dict:
    state: dict = {}
    _load_state_dict(state, storage_reader=FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def check_dcp(name: str) -> Callable[[Place], None]:
    """The vectors of a DCP folder are the model's, and every tensor is there."""

    def check(place: Place) -> None:
        path = place.path(name)
        assert set(FileSystemReader(path).read_metadata().state_dict_metadata) == set(place.state)
        found = {name: torch.full_like(t, -1.0) for name, t in place.state.items() if t.dim() == 1}
        dcp.load(found, checkpoint_id=path, no_dist=True)
        place.check({**place.state, **found})

    return check


def torch_conversions() -> dict[str, Case]:
    """DCP and torch.save, with torch's own functions."""
    to_torch = lambda place: dcp_to_torch_save(place.path("dcp-4"), place.path("converted.pt"))
    check = lambda place: place.check(torch.load(place.path("converted.pt"), mmap=True, weights_only=True))
    to_dcp = lambda place: torch_save_to_dcp(place.path(TORCH), place.path("converted-dcp"))
    dcp_4 = dict(reads="dcp-4", maker="DCP save, 4 ranks")
    torch_pt = dict(reads=TORCH, maker=SAVE_TORCH)
    return {
        "dcp_to_torch_save": Case("convert", to_torch, writes="converted.pt", check=check, **dcp_4),
        "torch_save_to_dcp": Case("convert", to_dcp, writes="converted-dcp", check=check_dcp("converted-dcp"), **torch_pt),
    }


def safetensors_conversions() -> dict[str, Case]:
    """DCP and safetensors: for the first two torch has no function, so they are a load and a save."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files

    one, many, shards = "converted.safetensors", "converted-hf", "hf-shards-4"

    def consolidate(place: Place) -> None:
        os.makedirs(place.path(many), exist_ok=True)
        whole = dict.fromkeys(place.state, 1)
        consolidate_safetensors_files(place.path(shards), place.path(many), whole, num_threads=PROCESSORS)

    def check(name: str) -> Callable[[Place], None]:
        def check(place: Place) -> None:
            (path,) = [path for path in files(place.path(name)) if path.endswith(".safetensors")]
            with safe_open(path, "pt") as file:
                place.check({name: file.get_slice(name)[-1:] for name in file.keys()})

        return check

    to_safetensors = lambda place: save_file(read_dcp(place.path("dcp-4")), place.path(one))
    to_dcp = lambda place: dcp.save(load_file(place.path(SAFETENSORS)), checkpoint_id=place.path("converted-dcp"), no_dist=True)
    save_shards = "DCP save as safetensors shards, 4 ranks"
    return {
        save_shards: Case("save", Order("save-hf", 4), writes=shards),
        "DCP load + safetensors save_file": Case(
            "convert", to_safetensors, writes=one, reads="dcp-4", maker="DCP save, 4 ranks", check=check(one)
        ),
        "safetensors load_file + DCP save": Case(
            "convert", to_dcp, writes="converted-dcp", reads=SAFETENSORS, maker=SAVE_SAFETENSORS, check=check_dcp("converted-dcp")
        ),
        "consolidate_safetensors_files, 4 shards": Case(
            "convert", consolidate, writes=many, reads=shards, maker=save_shards, check=check(many)
        ),
    }


def cut(shape: list[int], kind: str, rank: int, ranks: int):
    """The part of a tensor that a rank holds, and how it is placed."""
    dim = 1 if kind == "columns" else 0
    if dim >= len(shape):
        return shape, Replicate()
    step = -(-shape[dim] // ranks)
    part = list(shape)
    part[dim] = max(0, min(step, shape[dim] - rank * step))
    return part, Shard(dim)


class Rank:
    """One process of torch DCP."""

    def __init__(self, rank: int, meeting: str) -> None:
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
        self.rank = rank
        self.meshes = {n: DeviceMesh("cpu", torch.arange(n)) for n in (2, 3, 4)}
        self.held, self.state = None, {}

    def prepare(self, order: Order, gib: float) -> None:
        """Tensors with the values of the model or, for a load, others. They are kept for the next order of the same kind."""
        key = (order.ranks, order.kind, gib)
        if key != self.held:
            self.held, self.state = key, {}
            if self.rank < order.ranks:
                self.state = {name: self.part(order, shape) for name, shape in shapes(gib).items()}
        for i, tensor in enumerate(self.state.values()):
            self.local(tensor).fill_(-1.0 if order.what == "load" else i + 0.25)
        torch.set_num_threads(max(1, PROCESSORS // order.ranks))

    def part(self, order: Order, shape: list[int]) -> torch.Tensor:
        part, placement = cut(shape, order.kind, self.rank, order.ranks)
        tensor = torch.empty(part)
        if order.ranks == 1:
            return tensor
        stride = (shape[1], 1) if len(shape) == 2 else (1,)
        mesh = self.meshes[order.ranks]
        return DTensor.from_local(tensor, mesh, [placement], run_check=False, shape=torch.Size(shape), stride=stride)

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def work(self, order: Order, path: str) -> dict:
        meter = Meter()
        if self.rank < order.ranks:
            group = self.meshes[order.ranks].get_group() if order.ranks > 1 else None
            how = dict(process_group=group, no_dist=order.ranks == 1)
            if order.what == "save-hf":
                dcp.save(self.state, storage_writer=HuggingFaceStorageWriter(path, save_distributed=True), **how)
            else:
                (dcp.save if order.what == "save" else dcp.load)(self.state, checkpoint_id=path, **how)
            if group is not None:
                dist.barrier(group)
            if self.rank == 0 and order.what == "save-hf":
                sync(path)
        took = meter.end()
        if order.what == "load":
            for i, (name, tensor) in enumerate(self.state.items()):
                assert bool((self.local(tensor)[-1] == i + 0.25).all()), name
        return took

    def serve(self, orders, answers) -> None:
        for order, path, gib in iter(orders.get, None):
            self.prepare(order, gib)
            dist.barrier()
            answers.put(None)
            orders.get()
            dist.barrier()
            try:
                answers.put(self.work(order, path))
            except Exception as error:
                answers.put(f"{type(error).__name__}: {error}")
            dist.barrier()
        dist.destroy_process_group()


def rank_main(rank: int, meeting: str, orders, answers) -> None:
    Rank(rank, meeting).serve(orders, answers)


class Ranks:
    """torch DCP on processes of one machine."""

    def __init__(self) -> None:
        context = mp.get_context("spawn")
        meeting = os.path.join(tempfile.mkdtemp(), "meeting")
        self.orders = [context.Queue() for _ in range(RANKS)]
        self.answers = context.Queue()
        each = enumerate(self.orders)
        self.processes = [context.Process(target=rank_main, args=(rank, meeting, orders, self.answers)) for rank, orders in each]
        for process in self.processes:
            process.start()

    def tell(self, what) -> None:
        for orders in self.orders:
            orders.put(what)

    def heard(self) -> list:
        return [self.answers.get(timeout=600) for _ in self.orders]

    def prepare(self, order: Order, path: str, gib: float) -> None:
        self.tell((order, path, gib))
        self.heard()

    def work(self) -> list[dict]:
        self.tell("go")
        answers = self.heard()
        failed = [answer for answer in answers if isinstance(answer, str)]
        if failed:
            raise RuntimeError(failed[0])
        return answers

    def end(self) -> None:
        self.tell(None)
        for process in self.processes:
            process.join()


class Peers:
    """All cases that can run here."""

    def __init__(self) -> None:
        self.ranks = Ranks()
        self.cases: dict[str, Case] = {}
        self.skipped: list[str] = []
        self.checked: set[tuple[Case, str]] = set()
        makers = (safetensors, torch_save, fastsafetensors, torch_checkpointing, distributed, torch_conversions, safetensors_conversions)
        for maker in makers:
            try:
                self.cases |= maker()
            except Exception as error:
                self.skipped.append(f"{maker.__name__}: {type(error).__name__}: {error}")

    def warm_up(self, folder: str) -> None:
        """Runs everything once with the smallest model; what fails is skipped."""
        os.makedirs(folder)
        place = Place(folder, 0.0)
        for name, case in list(self.cases.items()):
            try:
                self.prepare(case, place)
                self.work(case, place)
            except Exception as error:
                self.skipped.append(f"{name}: {type(error).__name__}: {error}")
                del self.cases[name]
        shutil.rmtree(folder)

    def prepare(self, case: Case, place: Place) -> None:
        if case.reads and not files(place.path(case.reads)):
            maker = self.cases[case.maker]
            self.prepare(maker, place)
            self.work(maker, place)
        if case.writes:
            remove(place.path(case.writes))
        if case.reads:
            (remember if case.group == "load-warm" else forget)(place.path(case.reads))
        if isinstance(case.work, Order):
            self.ranks.prepare(case.work, place.path(case.reads or case.writes), place.gib)
        elif not case.writes:
            place.blank()

    def work(self, case: Case, place: Place) -> dict:
        if isinstance(case.work, Order):
            return joined(self.ranks.work(), bool(case.reads))
        meter = Meter()
        case.work(place)
        if case.writes:
            sync(place.path(case.writes))
        took = joined([meter.end()], bool(case.reads))
        # Looking at the result takes long, and it is the same every time.
        if case.check and (case, place.folder) not in self.checked:
            case.check(place)
            self.checked.add((case, place.folder))
        return took


def versions() -> list[str]:
    found = []
    for name in ("torch", "safetensors", "fastsafetensors", "torch_checkpointing"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def main() -> None:
    folder, gib = sys.argv[1], float(sys.argv[2])
    # Only answers go to standard output, whatever a library prints.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    say = lambda what: print(json.dumps(what), file=out, flush=True)
    peers = Peers()
    peers.warm_up(os.path.join(folder, "peer-warm-up"))
    place = Place(folder, gib)
    for name, case in peers.cases.items():
        say({"case": {"name": name, "group": case.group, "loaded": case.loaded}})
    for why in peers.skipped:
        say({"skip": why})
    for version in versions():
        say({"version": version})
    say("ready")
    lines = (line.strip() for line in iter(sys.stdin.readline, ""))
    for name in lines:
        if name == "end":
            break
        try:
            peers.prepare(peers.cases[name], place)
            say("prepared")
            assert next(lines) == "go"
            say({"took": peers.work(peers.cases[name], place)})
        except Exception as error:
            say({"failed": f"{type(error).__name__}: {error}"})
    peers.ranks.end()


if __name__ == "__main__":
    main()
