"""The Python package against its bars: saves and loads of a 2 GiB state beside torch DCP, safetensors and our own Rust figures.

    python benches/peers/package.py --folder DISK [--rust target/release/checkpoint] [--gib 2] [--rounds 5] [--only reads] > RECORD.md

`cargo xtask bench-python` builds what it needs and writes the record. Rows that are compared run one after the other inside
a round, from another one on in every round; a ratio is taken inside a round, and the table has the median with the least
and the most. Cold: the files were put out of the page cache; warm: they were read into it. A save ends when its bytes are
durable; a load ends when ready tensors hold them.
"""

import argparse
import contextlib
import datetime
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from checkpoint import forget, remember, shapes, sync

import planaria
import planaria.torch

BARS = [
    # Row, what it is held against, the most it may take of it.
    ("planaria.save, torch tensors", "Rust save, 1 rank", 1.05),
    ("planaria.load into torch tensors, cold", "Rust load cold, 1 rank", 1.05),
    ("planaria.save, torch tensors", "dcp.save", 1 / 1.5),
    ("planaria.load into torch tensors, cold", "dcp.load, cold", 1 / 1.5),
    ("planaria.open and read, warm", "safetensors load_file, warm", 1.0),
    ("planaria.open, read and sum, warm", "safetensors load_file and sum, warm", 1.0),
    ("planaria.torch.load_file, warm", "safetensors load_file, warm", 1.0),
    ("async_save call, torch tensors", "a copy of the tensors", 1.0),
]
LIMITS = [
    # Row, seconds it may take.
    ("async_save call, our arrays", 0.005),
    ("import planaria", 0.1),
]


class Field:
    """The state, the places, and what every row took."""

    def __init__(self, args: argparse.Namespace, folder: str) -> None:
        self.folder, self.rust, self.gib = folder, args.rust, args.gib
        torch.manual_seed(1)
        self.state = {name: torch.randn(shape) for name, shape in shapes(args.gib).items()}
        self.bytes = sum(t.numel() * 4 for t in self.state.values())
        self.room = {name: torch.zeros_like(t) for name, t in self.state.items()}
        self.ours = {name: planaria.array(t.numpy().copy(), copy=True) for name, t in self.state.items()}
        self.took: dict[str, list[float]] = {}
        planaria.save(self.state, self.at("ours"))
        safetensors.torch.save_file(self.state, self.at("one.safetensors"))
        if loads in args.groups:
            with quiet():
                dcp.save(self.state, checkpoint_id=self.at("dcp"))

    def at(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def time(self, row: str, work, before=lambda: None, after=lambda: None) -> None:
        before()
        begun = time.perf_counter()
        work()
        took = time.perf_counter() - begun
        after()
        self.took.setdefault(row, []).append(took)
        print(f"{row}: {took:.3f} s", file=sys.stderr)

    def check(self) -> None:
        """What was loaded is what was saved, bit for bit."""
        assert all(torch.equal(self.state[name], self.room[name]) for name in self.state)
        for tensor in self.room.values():
            tensor.zero_()


@contextlib.contextmanager
def quiet():
    """Without the warnings of torch about one process."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def saves(field: Field) -> list:
    def gone():
        shutil.rmtree(field.at("new"), ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.remove(field.at("new.safetensors"))
        os.sync()

    def theirs():
        with quiet():
            dcp.save(field.state, checkpoint_id=field.at("new"))
        sync(field.at("new"))

    def single():
        safetensors.torch.save_file(field.state, field.at("new.safetensors"))
        sync(field.at("new.safetensors"))

    return [
        lambda: field.time("planaria.save, torch tensors", lambda: planaria.save(field.state, field.at("new")), gone, gone),
        lambda: field.time("planaria.save, our arrays", lambda: planaria.save(field.ours, field.at("new")), gone, gone),
        lambda: field.time("dcp.save", theirs, gone, gone),
        lambda: field.time("safetensors save_file and fsync", single, gone, gone),
    ]


def loads(field: Field) -> list:
    def theirs():
        with quiet():
            dcp.load(field.room, checkpoint_id=field.at("dcp"))

    def single():
        for name, tensor in safetensors.torch.load_file(field.at("one.safetensors")).items():
            field.room[name].copy_(tensor)

    return [
        lambda: field.time(
            "planaria.load into torch tensors, cold",
            lambda: planaria.load(field.at("ours"), into=field.room),
            lambda: forget(field.at("ours")),
            field.check,
        ),
        lambda: field.time("dcp.load, cold", theirs, lambda: forget(field.at("dcp")), field.check),
        lambda: field.time(
            "safetensors load_file and copy, cold", single, lambda: forget(field.at("one.safetensors")), field.check
        ),
    ]


def reads(field: Field) -> list:
    one, folder = field.at("one.safetensors"), field.at("ours")

    def total(tensors) -> float:
        return sum(float(tensor.sum()) for tensor in tensors.values())

    def opened():
        with planaria.open(folder) as ckpt:
            total({name: stored.torch() for name, stored in ckpt.items()})

    def untouched():
        with planaria.open(folder) as ckpt:
            return {name: stored.torch() for name, stored in ckpt.items()}

    def warm(place):
        return lambda: remember(place)

    def as_new():
        # A process compares a file once, as long as it does not change.
        for file in pathlib.Path(folder).rglob("*"):
            os.utime(file)
        remember(folder)

    return [
        lambda: field.time("planaria.open and read, for the first time, warm", untouched, as_new),
        lambda: field.time("planaria.open, read and sum, warm", opened, warm(folder)),
        lambda: field.time("planaria.open and read, warm", untouched, warm(folder)),
        lambda: field.time("safetensors load_file and sum, warm", lambda: total(safetensors.torch.load_file(one)), warm(one)),
        lambda: field.time("planaria.torch.load_file, warm", lambda: planaria.torch.load_file(one), warm(one)),
        lambda: field.time("safetensors load_file, warm", lambda: safetensors.torch.load_file(one), warm(one)),
    ]


def background(field: Field) -> list:
    def gone():
        shutil.rmtree(field.at("new"), ignore_errors=True)

    def call(row: str, state, until):
        handle = []

        def begin():
            handle.append(planaria.async_save(state, field.at("new")))
            until(handle[0])

        def end():
            handle[0].result()
            gone()

        return lambda: field.time(row, begin, gone, end)

    copies = {name: torch.zeros_like(t) for name, t in field.state.items()}

    def copy():
        for name, tensor in field.state.items():
            copies[name].copy_(tensor)

    return [
        call("async_save call, our arrays", field.ours, lambda handle: None),
        call("async_save call, torch tensors", field.state, lambda handle: None),
        call("async_save until wait_snapshot, torch tensors", field.state, lambda handle: handle.wait_snapshot()),
        lambda: field.time("a copy of the tensors", copy),
    ]


def imports(field: Field) -> None:
    code = "import time; t = time.perf_counter(); import planaria; print(time.perf_counter() - t)"
    field.took.setdefault("import planaria", []).append(float(subprocess.check_output([sys.executable, "-c", code])))


def rust(field: Field) -> None:
    """The same state saved and loaded by the benchmark of the core."""
    if field.rust is None:
        return
    rows = {"save, 1 rank": "Rust save, 1 rank", "load cold, 1 rank": "Rust load cold, 1 rank"}
    command = [field.rust, "--gib", str(field.gib), "--rounds", "1", "--busy", "0", "--folder", field.folder]
    for row in rows:
        command += ["--only", row]
    # It ends with an error where one of its own bars is missed; the figures are the same.
    said = subprocess.run(command, capture_output=True, text=True).stdout
    for row, name in rows.items():
        found = re.search(rf"^\| {re.escape(row)} \| ([0-9.]+) \|", said, re.M)
        if found:
            field.took.setdefault(name, []).append(float(found[1]))
            print(f"{name}: {found[1]} s", file=sys.stderr)


def report(field: Field, rounds: int) -> bool:
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if "model name" in line), platform.machine())
    print(f"# The Python package against its bars, {datetime.date.today()}\n")
    print("| | |\n|---|---|")
    print(f"| CPU | {cpu}, {os.cpu_count()} logical |\n| kernel | {platform.release()} |\n| Python | {platform.python_version()} |")
    print(f"| peers | torch {torch.__version__}, safetensors {safetensors.__version__} |")
    print(f"| load average after | {os.getloadavg()[0]:.2f} |\n")
    print(f"{len(field.state)} f32 tensors, {field.bytes / 2**30:.3f} GiB; medians of {rounds} rounds.\n")
    print("| | s | least..most | GiB/s |\n|---|---|---|---|")
    for row, took in field.took.items():
        rate = "" if row.startswith(("import", "async_save call")) else f"{field.bytes / 2**30 / statistics.median(took):.2f}"
        print(f"| {row} | {statistics.median(took):.4f} | {min(took):.4f}..{max(took):.4f} | {rate} |")
    print("\n| row | against | ratio | least..most | bar | |\n|---|---|---|---|---|---|")
    held = True
    for row, other, bar in BARS:
        pairs = [a / b for a, b in zip(field.took.get(row, []), field.took.get(other, []))]
        if not pairs:
            print(f"| {row} | {other} | not measured | | {bar:.2f} | |")
            continue
        ratio = statistics.median(pairs)
        held &= ratio <= bar
        verdict = "held" if ratio <= bar else "missed"
        print(f"| {row} | {other} | {ratio:.2f} | {min(pairs):.2f}..{max(pairs):.2f} | {bar:.2f} | {verdict} |")
    for row, limit in LIMITS:
        if row not in field.took:
            print(f"| {row} | | not measured | | {limit * 1e3:.0f} ms | |")
            continue
        took = statistics.median(field.took[row])
        held &= took <= limit
        verdict = "held" if took <= limit else "missed"
        print(f"| {row} | | {took * 1e3:.2f} ms | | {limit * 1e3:.0f} ms | {verdict} |")
    return held


GROUPS = {"saves": saves, "loads": loads, "reads": reads, "background": background}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", choices=GROUPS, help="a group of rows, all by default; may be given again")
    parser.add_argument("--folder", default=".")
    parser.add_argument("--rust")
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    args.groups = [GROUPS[name] for name in args.only or GROUPS]
    with tempfile.TemporaryDirectory(prefix="package-bench-", dir=args.folder) as folder:
        field = Field(args, folder)
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr)
            for group in (rows(field) for rows in args.groups):
                turn = number % len(group)
                for row in group[turn:] + group[:turn]:
                    row()
            if not args.only:
                imports(field)
            if saves in args.groups or loads in args.groups:
                rust(field)
        sys.exit(0 if report(field, args.rounds) else 1)


if __name__ == "__main__":
    main()
