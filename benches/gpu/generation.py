"""Kernels of generation: attention over a cache by splits, and products of few rows with large weights."""
import math

import torch
import torch.nn.functional as F

from device import F32, I32, I64, Kernel, P, Struct
from timing import error, median_ms, same_bits
from variants import GEMV_TILES, options

DEV = "cuda"
BF = torch.bfloat16


class Decode(Struct):
    _fields_ = [(n, P) for n in "q k v out parts tops sums positions".split()] + [
        ("q_stride", I64 * 2), ("k_stride", I64 * 3), ("v_stride", I64 * 3), ("out_stride", I64 * 2)] + [
        (n, I32) for n in "batch q_heads kv_heads splits window".split()] + [("scale", F32)]


def cdiv(a, b):
    return -(-a // b)


class Cache:
    """A cache [batch, kv_heads, room, dim] of given lengths and one query a sequence."""

    def __init__(self, lengths, q_heads, kv_heads, dim, warps=4, window=0, room=None):
        batch, self.longest = len(lengths), max(lengths)
        room = room or self.longest
        self.warps, self.dim, self.window, self.list = warps, dim, window, lengths
        self.q = torch.randn(batch, q_heads, dim, device=DEV).to(BF)
        self.k, self.v = (torch.randn(batch, kv_heads, room, dim, device=DEV).to(BF) for _ in range(2))
        self.out = torch.empty_like(self.q)
        self.positions = torch.tensor(lengths, dtype=torch.int64, device=DEV) - 1
        splits = cdiv(self.longest, 64 * warps)
        self.parts = torch.empty(batch, q_heads, splits, dim, device=DEV)
        self.tops, self.sums = torch.empty(2, batch, q_heads, splits, device=DEV)
        self.s = Decode().fill(q=self.q, k=self.k, v=self.v, out=self.out, parts=self.parts, tops=self.tops, sums=self.sums, positions=self.positions,
                               q_stride=self.q.stride()[:2], k_stride=self.k.stride()[:3], v_stride=self.v.stride()[:3], out_stride=self.out.stride()[:2],
                               batch=batch, q_heads=q_heads, kv_heads=kv_heads, splits=splits, window=window, scale=1 / math.sqrt(dim))

    def run(self):
        o, s = options(ELEMENT="bf16", DIM=self.dim, WARPS=self.warps), self.s
        room = self.warps * 64 * self.dim * 4 + 16 * self.dim * 2 + self.warps * (16 * self.dim + 32) * 4
        Kernel("decode.cu", o, "decode_splits")((s.batch * s.kv_heads, s.splits), 32 * self.warps, s, shared=room)
        Kernel("decode.cu", o, "decode_fold")(s.batch * s.q_heads, self.dim, s)
        return self.out

    def reference(self):
        group, outs = self.s.q_heads // self.s.kv_heads, []
        for b, n in enumerate(self.list):
            first = max(0, n - self.window) if self.window else 0
            k, v = (x[b, :, first:n].double().repeat_interleave(group, 0) for x in (self.k, self.v))
            p = (self.q[b].double()[:, None] @ k.transpose(1, 2) * self.s.scale).softmax(-1)
            outs.append((p @ v)[:, 0])
        return torch.stack(outs)


def gemv(x, w, bias, added, tiles, warps=8):
    y = torch.empty(x.shape[0], w.shape[0], device=DEV, dtype=BF)
    k = Kernel("gemv.cu", options(ELEMENT="bf16", TILES=tiles, WARPS=warps), "gemv")
    k(cdiv(w.shape[0], 16), 32 * warps, x, w, bias, added, y, I32(x.shape[0]), I32(w.shape[0]), I32(w.shape[1]), I64(x.stride(0)), I64(y.stride(0)))
    return y


def gemv_gated(x, w, tiles, warps=8):
    n = w.shape[0] // 2
    y = torch.empty(x.shape[0], n, device=DEV, dtype=BF)
    k = Kernel("gemv.cu", options(ELEMENT="bf16", TILES=tiles, WARPS=warps), "gemv_gated")
    k(cdiv(n, 16), 32 * warps, x, w, y, I32(x.shape[0]), I32(n), I32(w.shape[1]), I64(x.stride(0)), I64(y.stride(0)))
    return y


def check(record):
    def decode():
        for dim in (64, 128):
            for warps in (2, 4):
                for lengths, heads, kv, window in (([1, 300, 77, 1000], 14, 2, 0), ([5, 2047], 8, 8, 0), ([900, 31], 16, 1, 100)):
                    c = Cache(lengths, heads, kv, dim, warps, window, room=2100)
                    found = []
                    for _ in range(2):
                        for t in (c.out, c.parts, c.tops, c.sums):
                            t.fill_(float("nan"))
                        found.append(c.run().clone())
                    record.check(f"decode {dim} warps {warps} {lengths} {heads}/{kv} window {window}", error(found[0], c.reference()), 5e-3, same_bits(*found))

    def products():
        for rows, tiles in ((1, 1), (8, 1), (13, 2), (32, 4), (64, 8)):
            for warps in (4, 8):
                for n, k in ((896, 896), (37, 40), (1152, 4864)):
                    x, w, b, r = (torch.randn(*s, device=DEV).to(BF) for s in ((rows, k), (n, k), (n,), (rows, n)))
                    want = x.double() @ w.double().T
                    runs = [gemv(x, w, b, r, tiles, warps) for _ in range(2)]
                    record.check(f"gemv {rows} rows {n}x{k} warps {warps}", error(runs[0], want + b.double() + r.double()), 4e-3, same_bits(*runs))
                    if n % 2 == 0:
                        g, u = want.split(n // 2, 1)
                        runs = [gemv_gated(x, w, tiles, warps) for _ in range(2)]
                        record.check(f"gemv gated {rows} rows {n}x{k} warps {warps}", error(runs[0], F.silu(g) * u), 6e-3, same_bits(*runs))

    record.guard("decode", decode)
    record.guard("products", products)


def time_all(record):
    for batch, length in ((1, 384), (64, 384), (256, 384), (8, 8192)):
        for warps in (2, 4):
            sets = [Cache([length] * batch, 14, 2, 64, warps) for _ in range(3)]
            q = [c.q[:, :, None] for c in sets]
            peer = median_ms([lambda c=c, q=q: F.scaled_dot_product_attention(q, c.k, c.v, enable_gqa=True) for c, q in zip(sets, q)])
            ms = median_ms([lambda c=c: c.run() for c in sets])
            record.time(f"decode attention 14/2x64, batch {batch}, {length} keys, {64 * warps} a split", ms, peer, tb_s=2 * sets[0].k.numel() * 2 / ms / 1e9)
    for n, k, name in ((1152, 896, "qkv"), (896, 896, "o"), (896, 4864, "down"), (151_936, 896, "head")):
        ws = [torch.randn(n, k, device=DEV, dtype=BF) for _ in range(2 if n > 100_000 else 24)]
        for rows in (1, 8, 64):
            x = torch.randn(rows, k, device=DEV, dtype=BF)
            tiles = next(t for t in GEMV_TILES if 8 * t >= rows)
            peer = median_ms([lambda w=w: F.linear(x, w) for w in ws], 24)
            for warps in (4, 8):
                ms = median_ms([lambda w=w: gemv(x, w, None, None, tiles, warps) for w in ws], 24)
                record.time(f"gemv {name} {n}x{k}, {rows} rows, {warps} warps", ms, peer, tb_s=n * k * 2 / ms / 1e9)
    ws = [torch.randn(9728, 896, device=DEV, dtype=BF) for _ in range(12)]
    for rows in (1, 8, 64):
        x = torch.randn(rows, 896, device=DEV, dtype=BF)
        tiles = next(t for t in GEMV_TILES if 8 * t >= rows)
        def peer(w):
            g, u = F.linear(x, w).split(4864, 1)
            return F.silu(g) * u
        p = median_ms([lambda w=w: peer(w) for w in ws], 24)
        for warps in (4, 8):
            ms = median_ms([lambda w=w: gemv_gated(x, w, tiles, warps) for w in ws], 24)
            record.time(f"gemv gate and up 9728x896, {rows} rows, {warps} warps", ms, p, tb_s=9728 * 896 * 2 / ms / 1e9)


def sanitize(_record):
    x, w = torch.randn(3, 40, device=DEV).to(BF), torch.randn(38, 40, device=DEV).to(BF)
    gemv(x, w, None, None, 1), gemv_gated(x, w, 1), Cache([5, 300], 4, 2, 64).run()
    torch.cuda.synchronize()


def profile(_record):
    x, w = torch.randn(1, 896, device=DEV).to(BF), torch.randn(151_936, 896, device=DEV).to(BF)
    gemv(x, w, None, None, 1), Cache([384] * 64, 14, 2, 64).run()
    torch.cuda.synchronize()
