"""The warpgroup kernels of attention: checked against f64, timed on the shapes of attention.py."""
import torch

from attention import SHAPES, Case, Mma, cdiv, check_case, flops, small_cases
from device import Kernel, tensor_map
from timing import error, median_ms, same_bits
from variants import FORWARD_TMA, KEYS_TMA, QUERIES_TMA, forward_tma_options, keys_tma_options, queries_tma_options

MULTIPROCESSORS = 132


def map_of(x, rows):
    """Boxes of 64 columns, one head and `rows` rows of [batch, rows, heads, dim]."""
    batch, length, heads, dim = x.shape
    return tensor_map(x, (dim, heads, length, batch), (x.stride(2), x.stride(1), x.stride(0)), (64, 1, rows, 1))


def maps_of(c, rows):
    """Maps of a case's operands by name and rows of a box, made once."""
    known = c.__dict__.setdefault("known_maps", {})
    for name, n in rows:
        if (name, n) not in known:
            known[name, n] = map_of(getattr(c, name), n)
    return [known[key] for key in rows]


class Forward:
    def __init__(self, dim, v, element="bf16"):
        self.dim, (self.groups, self.bn, self.stages, *_) = dim, v
        self.kernel = Kernel("attention_forward_tma.cu", forward_tma_options(dim, v, element), "attention_forward_tma")

    def __call__(self, c):
        s, bm = c.s, 64 * self.groups
        maps = maps_of(c, [("q", 64), ("k", self.bn), ("v", self.bn)])
        tiles = cdiv(s.q_len, bm) * s.batch * s.q_heads
        room = 1024 + (2 * bm + 2 * self.stages * self.bn) * self.dim * 2 + 256
        self.kernel(min(tiles, MULTIPROCESSORS), 128 * (self.groups + 1), s, *maps, shared=room)


class Keys:
    def __init__(self, dim, v, element="bf16"):
        self.dim, (self.groups, self.bm, self.stages) = dim, v
        self.kernel = Kernel("attention_grad_keys_tma.cu", keys_tma_options(dim, v, element), "attention_grad_keys_tma")
        self.fold = Mma(dim, element).fold_kernel

    def __call__(self, c):
        s, bn = c.s, 64 * self.groups
        maps = maps_of(c, [("q", self.bm), ("k", bn), ("v", bn), ("dout", self.bm)])
        tiles = cdiv(s.k_len, bn) * s.batch * s.kv_heads * s.parts
        room = 1024 + (2 * bn + 2 * self.stages * self.bm) * self.dim * 2 + self.stages * 3 * self.bm * 4 + 256
        self.kernel(min(tiles, MULTIPROCESSORS), 128 * (self.groups + 1), s, *maps, shared=room)
        if s.parts > 1:
            self.fold(MULTIPROCESSORS * 8, 256, s)


class Queries:
    def __init__(self, dim, v, element="bf16"):
        self.dim, (self.groups, self.bn, self.stages) = dim, v
        self.kernel = Kernel("attention_grad_queries_tma.cu", queries_tma_options(dim, v, element), "attention_grad_queries_tma")

    def __call__(self, c):
        s, bm = c.s, 64 * self.groups
        maps = maps_of(c, [("q", bm), ("k", self.bn), ("v", self.bn), ("dout", bm)])
        tiles = cdiv(s.q_len, bm) * s.batch * s.q_heads
        room = 1024 + (2 * bm + 2 * self.stages * self.bn) * self.dim * 2 + 256
        self.kernel(min(tiles, MULTIPROCESSORS), 128 * (self.groups + 1), s, *maps, shared=room)


def check_one(record, name, case, run, which):
    """One kernel twice, with everything before it from the warp-wide kernels."""
    mma, found, want = Mma(case.dim, case.element), [], case.reference()
    labels = ("out", "lse", "dq", "dk", "dv")
    for _ in range(2):
        case.poison()
        mma.forward(case), mma.delta(case)
        for label in which:
            {"out": case.out, "lse": case.lse, "dq": case.dq, "dk": case.dk, "dv": case.dv}[label].fill_(float("nan"))
        run(case)
        torch.cuda.synchronize()
        found.append(dict(zip(labels, case.results())))
    for label in which:
        limit = {"out": 5e-3, "lse": 1e-5}.get(label, 1e-2)
        a, b = found[0][label], found[1][label]
        record.check(f"{name}: {label}", error(a, want[labels.index(label)]), limit, same_bits(a, b))


KINDS = (("forward", Forward, FORWARD_TMA, ("out", "lse")), ("keys", Keys, KEYS_TMA, ("dk", "dv")), ("queries", Queries, QUERIES_TMA, ("dq",)))


def check(record):
    for dim in (64, 128):
        for kind, make, variants, which in KINDS:
            for i, v in enumerate(variants[dim]):
                for name, case_of in small_cases(dim).items():
                    def work():
                        case = case_of()
                        if case.mask_kind or (i > 0 and (case.element != "bf16" or name not in ("causal", "documents", "queries that see nothing"))):
                            return
                        check_one(record, f"tma {dim} {kind} {v} {name}", case, make(dim, v, case.element), which)
                    record.guard(f"tma {dim} {kind} {v} {name}", work)


def time_all(record):
    for label, shape in SHAPES.items():
        batch, heads, kv_heads, length, dim = shape
        cases = [Case(batch, heads, kv_heads, length, length, dim) for _ in range(3)]
        for c in cases:
            Mma(dim).forward(c), Mma(dim).delta(c)
        for (kind, make, variants, _), work_share in zip(KINDS, (1, 2, 1.5)):
            for v in variants[dim]:
                def work():
                    run = make(dim, v)
                    ms = median_ms([lambda c=c: run(c) for c in cases])
                    record.time(f"{label} tma {kind} {v}", ms, tflops=work_share * flops(shape) / 1e9 / ms, registers=str(run.kernel.report))
                record.guard(f"{label} tma {kind} {v}", work)


def sanitize(_record):
    for dim in (64, 128):
        case = Case(1, 4, 2, 300, 300, dim)
        Mma(dim).forward(case), Mma(dim).delta(case)
        for _, make, variants, _ in KINDS:
            make(dim, variants[dim][0])(case)
    torch.cuda.synchronize()


def profile(_record):
    for batch, heads, kv_heads, length, dim in SHAPES.values():
        case = Case(batch, heads, kv_heads, length, length, dim)
        for _, make, variants, _ in KINDS:
            make(dim, variants[dim][0])(case)
    torch.cuda.synchronize()
