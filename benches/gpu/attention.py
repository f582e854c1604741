"""Attention: every variant against f64 on small odd shapes, then timed beside torch's own kernels."""
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from device import F32, I32, I64, Kernel, P, Struct
from timing import error, median_ms, same_bits
from variants import FORWARD, KEYS, QUERIES, forward_options, keys_options, queries_options

DEV = "cuda"
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16"}


class Attention(Struct):
    _fields_ = (
        [(n, P) for n in "q k v out lse dout delta dq dk dv dk_parts dv_parts first end mask".split()]
        + [(n + "_stride", I64 * 3) for n in "q k v out dout dq dk dv".split()]
        + [("mask_stride", I64 * 4), ("first_stride", I64), ("end_stride", I64)]
        + [(n, I32) for n in "batch q_heads kv_heads q_len k_len parts causal shift window".split()]
        + [("scale", F32)]
    )


def strides(x):
    """Batch, head and row stride of [batch, rows, heads, dim]."""
    return [x.stride(0), x.stride(2), x.stride(1)]


class Case:
    """Operands as views of one fused array, as the product with the joined weights leaves them."""

    def __init__(self, batch, q_heads, kv_heads, q_len, k_len, dim, dtype=torch.bfloat16, causal=1, shift=0, window=0, documents=None,
                 mask=0, parts=1, scale=None, device=DEV):
        self.dim, self.dtype, self.mask_kind = dim, dtype, mask
        self.element = NAMES[dtype]
        width = (q_heads + 2 * kv_heads) * dim
        rows = max(q_len, k_len)
        qkv = torch.randn(batch, rows, q_heads + 2 * kv_heads, dim).to(dtype).to(device)
        assert qkv.stride(1) == width
        self.q, self.k, self.v = qkv[:, :q_len, :q_heads], qkv[:, :k_len, q_heads:q_heads + kv_heads], qkv[:, :k_len, q_heads + kv_heads:]
        self.dout = torch.randn(batch, q_len, q_heads, dim).to(dtype).to(device)
        self.out = torch.empty_like(self.dout)
        self.dqkv = torch.empty_like(qkv)
        self.dq = self.dqkv[:, :q_len, :q_heads]
        self.dk, self.dv = self.dqkv[:, :k_len, q_heads:q_heads + kv_heads], self.dqkv[:, :k_len, q_heads + kv_heads:]
        self.lse = torch.empty(batch, q_heads, q_len, device=device)
        self.delta = torch.empty_like(self.lse)
        self.parts = torch.empty(2, parts, batch, kv_heads, k_len, dim, device=device)
        self.first = self.end = self.mask = None
        if documents:
            first, end = torch.zeros(batch, q_len, dtype=torch.int32), torch.zeros(batch, k_len, dtype=torch.int32)
            for b in range(batch):
                cuts = [0] + sorted(torch.randint(1, q_len, (documents,)).tolist()) + [q_len]
                for lo, hi in zip(cuts, cuts[1:]):
                    first[b, lo:hi], end[b, lo:hi] = lo, hi
            self.first, self.end = first.to(device), end.to(device)
        if mask == 1:
            self.mask = (torch.rand(batch, 1, q_len, k_len) < 0.7).to(device)
            self.mask[:, :, 3] = False
        if mask == 2:
            self.mask = torch.randn(1, q_heads, q_len, k_len).to(dtype).to(device)
        s = Attention()
        s.fill(q=self.q, k=self.k, v=self.v, out=self.out, lse=self.lse, dout=self.dout, delta=self.delta, dq=self.dq, dk=self.dk,
               dv=self.dv, dk_parts=self.parts[0], dv_parts=self.parts[1], batch=batch, q_heads=q_heads, kv_heads=kv_heads,
               q_len=q_len, k_len=k_len, parts=parts, causal=causal, shift=shift, window=window,
               scale=scale if scale is not None else 1 / math.sqrt(dim))
        for name in "q k v out dout dq dk dv".split():
            s.fill(**{name + "_stride": strides(getattr(self, name))})
        if self.first is not None:
            s.fill(first=self.first, end=self.end, first_stride=q_len, end_stride=k_len)
        if self.mask is not None:
            wide = self.mask.expand(batch, q_heads, q_len, k_len)
            s.fill(mask=self.mask, mask_stride=list(wide.stride()))
        self.s = s

    def poison(self):
        for x in (self.out, self.lse, self.delta, self.dqkv, self.parts):
            x.fill_(float("nan"))

    def results(self):
        return [x.clone() for x in (self.out, self.lse, self.dq, self.dk, self.dv)]

    def reference(self):
        """out, lse, dq, dk, dv in f64, rows seeing nothing as zeros and -inf."""
        s = self.s
        group = s.q_heads // s.kv_heads
        q, k, v = (x.double().transpose(1, 2) for x in (self.q, self.k, self.v))
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        scores = q @ k.transpose(2, 3) * s.scale
        i, j = torch.arange(s.q_len, device=DEV)[:, None], torch.arange(s.k_len, device=DEV)[None]
        seen = torch.ones(s.batch, 1, s.q_len, s.k_len, dtype=torch.bool, device=DEV)
        if s.causal:
            seen &= j <= i + s.shift
        if s.window:
            seen &= j > i + s.shift - s.window
        if self.first is not None:
            seen &= j >= self.first[:, None, :, None]
        if self.mask_kind == 1:
            seen = seen & self.mask
        if self.mask_kind == 2:
            scores = scores + self.mask.double()
        scores = scores.masked_fill(~seen, -math.inf)
        lse = scores.logsumexp(-1)
        p = (scores - lse.masked_fill(lse == -math.inf, 0)[..., None]).exp()
        out = p @ v
        dout = self.dout.double().transpose(1, 2)
        dv = p.transpose(2, 3) @ dout
        ds = p * (dout @ v.transpose(2, 3) - (dout * out).sum(-1, keepdim=True)) * s.scale
        dq, dk = ds @ k, ds.transpose(2, 3) @ q
        dk, dv = (x.view(s.batch, s.kv_heads, group, s.k_len, self.dim).sum(2) for x in (dk, dv))
        return [out.transpose(1, 2), lse, dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)]


def cdiv(a, b):
    return -(-a // b)


class Mma:
    """The warp-wide kernels: how each is launched."""

    def __init__(self, dim, element="bf16", mask=0, forward=None, keys=None, queries=None):
        self.dim = dim
        self.f, self.k, self.q = forward or FORWARD[dim][0], keys or KEYS[dim][0], queries or QUERIES[dim][0]
        self.forward_kernel = Kernel("attention_forward.cu", forward_options(dim, self.f, element, mask), "attention_forward")
        self.keys_kernel = Kernel("attention_grad_keys.cu", keys_options(dim, self.k, element, mask), "attention_grad_keys")
        self.fold_kernel = Kernel("attention_grad_keys.cu", keys_options(dim, self.k, element, mask), "attention_fold")
        options = queries_options(dim, self.q, element, mask)
        self.queries_kernel = Kernel("attention_grad_queries.cu", options, "attention_grad_queries")
        self.delta_kernel = Kernel("attention_grad_queries.cu", options, "attention_delta")

    def forward(self, c):
        bm, bn, warps, *_ = self.f
        s = c.s
        self.forward_kernel((s.batch * s.q_heads, cdiv(s.q_len, bm)), 32 * warps, s, shared=(bm + 4 * bn) * self.dim * 2)

    def delta(self, c):
        self.delta_kernel(132 * 8, 256, c.s)

    def keys(self, c):
        bm, warps, *_ = self.k
        bn, s = 16 * warps, c.s
        self.keys_kernel((s.batch * s.kv_heads, cdiv(s.k_len, bn), s.parts), 32 * warps, s,
                         shared=(2 * bn + 4 * bm) * self.dim * 2 + 6 * bm * 4)
        if s.parts > 1:
            self.fold_kernel(132 * 8, 256, s)

    def queries(self, c):
        bn, warps, *_ = self.q
        bm, s = 16 * warps, c.s
        self.queries_kernel((s.batch * s.q_heads, cdiv(s.q_len, bm)), 32 * warps, s, shared=(2 * bm + 4 * bn) * self.dim * 2)

    def grad(self, c):
        self.delta(c), self.keys(c), self.queries(c)


def small_cases(dim):
    bf, hf = torch.bfloat16, torch.float16
    return {
        "causal": lambda: Case(2, 4, 2, 333, 333, dim),
        "causal, 7 heads in 3 parts": lambda: Case(1, 14, 2, 200, 200, dim, parts=3),
        "documents": lambda: Case(2, 4, 2, 777, 777, dim, documents=6),
        "window": lambda: Case(1, 4, 4, 600, 600, dim, window=100),
        "documents and window": lambda: Case(2, 2, 1, 520, 520, dim, documents=3, window=77),
        "all keys, other length": lambda: Case(2, 4, 2, 130, 259, dim, causal=0),
        "causal after a cache": lambda: Case(1, 4, 2, 65, 400, dim, shift=335),
        "queries that see nothing": lambda: Case(1, 2, 1, 200, 90, dim, shift=-70),
        "scale below zero": lambda: Case(1, 2, 2, 140, 140, dim, scale=-0.2),
        "one query": lambda: Case(2, 2, 1, 1, 300, dim, shift=299),
        "f16": lambda: Case(2, 4, 2, 300, 300, dim, dtype=hf),
        "mask of bools": lambda: Case(2, 4, 2, 150, 170, dim, causal=0, mask=1),
        "mask added": lambda: Case(2, 4, 2, 150, 150, dim, mask=2),
    }


def check_case(record, name, case, runs, limits=None):
    """Runs forward and gradients twice with poisoned outputs and compares with f64."""
    found = []
    for _ in range(2):
        case.poison()
        for run in runs:
            run(case)
        torch.cuda.synchronize()
        found.append(case.results())
    limits = limits or (5e-3, 1e-5, 1e-2, 1e-2, 1e-2)
    for label, limit, a, b, r in zip(("out", "lse", "dq", "dk", "dv"), limits, *found, case.reference()):
        record.check(f"{name}: {label}", error(a, r), limit, same_bits(a, b))


def check(record):
    for dim in (64, 128):
        for name, make in small_cases(dim).items():
            def work():
                case = make()
                mma = Mma(dim, case.element, case.mask_kind)
                check_case(record, f"mma {dim} {name}", case, [mma.forward, mma.grad])
            record.guard(f"mma {dim} {name}", work)
        # Every variant on one case with documents, parts and odd lengths.
        n = max(len(FORWARD[dim]), len(KEYS[dim]), len(QUERIES[dim]))
        for i in range(n):
            def work():
                pick = lambda options: options[dim][i % len(options[dim])]
                mma = Mma(dim, forward=pick(FORWARD), keys=pick(KEYS), queries=pick(QUERIES))
                check_case(record, f"mma {dim} variant {i}", Case(2, 6, 2, 450, 450, dim, documents=2, parts=2), [mma.forward, mma.grad])
            record.guard(f"mma {dim} variant {i}", work)


SHAPES = {"0.5B 8x2048 14/2x64": (8, 14, 2, 2048, 64), "7B 4x4096 28/4x128": (4, 28, 4, 4096, 128)}


def flops(shape):
    batch, heads, _, length, dim = shape
    return 4 * batch * heads * length * length * dim / 2


def torch_peers(record, label, shape):
    """Forward and backward of torch's kernels: {backend: (forward ms, backward ms)}."""
    batch, heads, kv_heads, length, dim = shape
    found = {}
    sets = []
    for _ in range(3):
        q, k, v = (torch.randn(batch, h, length, dim, device=DEV, dtype=torch.bfloat16, requires_grad=True)
                   for h in (heads, kv_heads, kv_heads))
        sets.append((q, k, v, torch.randn_like(q)))
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        for grouped in (True, False):
            try:
                with sdpa_kernel(backend):
                    def forward(q, k, v):
                        if not grouped:
                            k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
                        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
                    if not grouped:
                        wide = [(q, *(x.detach().repeat_interleave(heads // kv_heads, 1).requires_grad_() for x in (k, v)), g)
                                for q, k, v, g in sets]
                        run = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    else:
                        wide, run = sets, forward
                    with torch.no_grad():
                        f = median_ms([lambda s=s: run(*s[:3]) for s in wide])
                    outs = [run(*s[:3]) for s in wide]
                    b = median_ms([lambda s=s, o=o: torch.autograd.grad(o, s[:3], s[3], retain_graph=True) for s, o in zip(wide, outs)])
                name = backend.name.split("_")[0].lower()
                found[name] = (f, b)
                rate = flops(shape) / 1e9
                record.time(f"{label} torch {name}{'' if grouped else ' (heads repeated)'} forward", f, tflops=rate / f)
                record.time(f"{label} torch {name}{'' if grouped else ' (heads repeated)'} backward", b, tflops=2.5 * rate / b)
                break
            except Exception as e:  # noqa: BLE001: a backend may refuse a form
                print(f"{backend.name} grouped={grouped}: {e!r}"[:300], flush=True)
    return found


def time_all(record):
    for label, shape in SHAPES.items():
        batch, heads, kv_heads, length, dim = shape
        peers = {}
        record.guard(f"{label} torch", lambda: peers.update(torch_peers(record, label, shape)))
        flash = peers.get("flash", (None, None))
        cases = [Case(batch, heads, kv_heads, length, length, dim, parts=2) for _ in range(3)]
        rate = flops(shape) / 1e9
        for v in FORWARD[dim]:
            def work():
                mma = Mma(dim, forward=v)
                ms = median_ms([lambda c=c: mma.forward(c) for c in cases])
                record.time(f"{label} mma forward {v}", ms, flash[0], tflops=rate / ms, registers=str(mma.forward_kernel.report))
            record.guard(f"{label} forward {v}", work)
        for c in cases:
            Mma(dim).forward(c), Mma(dim).delta(c)
        ms = median_ms([lambda c=c: Mma(dim).delta(c) for c in cases])
        record.time(f"{label} delta", ms)
        for v in KEYS[dim]:
            for parts in (1, 2):
                def work():
                    mma = Mma(dim, keys=v)
                    for c in cases:
                        if parts > c.parts.shape[1]:
                            c.parts = torch.empty(2, parts, batch, kv_heads, length, dim, device=DEV)
                        c.s.fill(parts=parts, dk_parts=c.parts[0], dv_parts=c.parts[1])
                    ms = median_ms([lambda c=c: mma.keys(c) for c in cases])
                    record.time(f"{label} mma keys {v} parts {parts}", ms, tflops=2 * rate / ms, registers=str(mma.keys_kernel.report))
                record.guard(f"{label} keys {v}", work)
        for v in QUERIES[dim]:
            def work():
                mma = Mma(dim, queries=v)
                ms = median_ms([lambda c=c: mma.queries(c) for c in cases])
                record.time(f"{label} mma queries {v}", ms, tflops=1.5 * rate / ms, registers=str(mma.queries_kernel.report))
            record.guard(f"{label} queries {v}", work)


def sanitize(_record):
    """Small launches for the sanitizer: only copies besides our kernels."""
    for dim in (64, 128):
        case = Case(1, 4, 2, 200, 200, dim, documents=2, parts=2)
        mma = Mma(dim)
        mma.forward(case), mma.grad(case)
        torch.cuda.synchronize()


def profile(_record):
    """One launch of each main kernel for the profiler."""
    for shape in SHAPES.values():
        batch, heads, kv_heads, length, dim = shape
        case = Case(batch, heads, kv_heads, length, length, dim, parts=2)
        mma = Mma(dim)
        mma.forward(case), mma.grad(case)
        torch.cuda.synchronize()
