"""Fused kernels of a training step: norms, rotary, gated activations, loss, AdamW, exact norm, column sums."""
import ctypes
import math
import struct

import torch
import torch._functorch.config
import torch.nn.functional as F

from device import F64, I32, I64, Kernel, P, Struct
from timing import error, median_ms, same_bits
from variants import ENTROPY_THREADS, NORMS, adamw_options, norm_options, options

torch._functorch.config.donated_buffer = False  # a compiled backward pass is timed again and again
DEV = "cuda"
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.float64: "f64"}
WIDE = 132 * 16


class CrossEntropy(Struct):
    _fields_ = [(n, P) for n in "x dx labels scale loss lse fault".split()] + [(n, I64) for n in "rows cols stride scale_stride".split()] + [
        ("smoothing", F64)]


def cdiv(a, b):
    return -(-a // b)


def real_of(x):
    return torch.float64 if x.dtype == torch.float64 else torch.float32


class Norm:
    def __init__(self, v, element="bf16", center=0, packets=1):
        self.lanes, self.per, self.groups = v
        self.center, self.packets = center, packets
        o = norm_options(*v, element, center, packets)
        self.f, self.g = Kernel("norm.cu", o, "norm_forward"), Kernel("norm.cu", o, "norm_grad")

    def forward(self, x, residual, w, b, eps=1e-6, poison=True):
        rows, cols = x.shape
        self.added = torch.empty_like(x) if residual is not None else None
        y = torch.full_like(x, float("nan")) if poison else torch.empty_like(x)
        self.mean = torch.empty(rows, dtype=real_of(x), device=DEV) if self.center else None
        self.rstd = torch.empty(rows, dtype=real_of(x), device=DEV)
        self.f(min(cdiv(rows, 256 // self.lanes), 132 * 64), 256, x, residual, self.added, w, b, y, self.mean, self.rstd, I64(rows), I32(cols), F64(eps))
        return y

    def grad(self, dy, h, w, carried, poison=True):
        rows, cols = h.shape
        tiles, real = cdiv(rows, 128), real_of(h)
        dx = torch.full_like(h, float("nan")) if poison else torch.empty_like(h)
        parts = torch.empty((2, tiles, cols), dtype=real, device=DEV)
        if poison:
            parts.fill_(float("nan"))
        length = 16 // h.element_size() if self.packets else 1
        room = (1 + self.center) * self.groups * self.lanes * self.per * length * parts.element_size()
        self.g(tiles, self.lanes * self.groups, dy, h, w, self.mean, self.rstd, carried, dx, parts[0], parts[1], I64(rows), I32(cols), shared=room)
        name = NAMES[real]
        fold = Kernel("columns.cu", options(ELEMENT=name, OUT=name, PACKETS=0), "column_fold")
        out = torch.empty(2, cols, dtype=real, device=DEV)
        for i in range(1 + self.center):
            fold(cdiv(cols, 32), 256, parts[i], I64(tiles), I64(cols), out[i], I32(0))
        return dx, out[0], out[1]


def check_norms(record):
    cases = [(torch.bfloat16, 0, 1, c, v) for c, vs in NORMS.items() if c != 100 for v in vs]
    cases += [(d, c, 0, 100, (128, 1, 4)) for d in NAMES for c in (0, 1)] + [(torch.bfloat16, 1, 1, 896, (64, 2, 8))]
    for dtype, center, packets, cols, v in cases:
        rows = 515
        x, r, dy, carried = ((torch.randn(rows, cols) * 2 + 0.3).to(dtype) for _ in range(4))
        w, b = torch.randn(cols).to(dtype), torch.randn(cols).to(dtype)
        n = Norm(v, NAMES[dtype], center, packets)
        found = []
        for _ in range(2):
            y = n.forward(x.to(DEV), r.to(DEV), w.to(DEV), b.to(DEV) if center else None)
            dx, dw, db = n.grad(dy.to(DEV), n.added, w.to(DEV), carried.to(DEV))
            found.append([n.added, y, dx, dw] + ([db] if center else []))
        h = (x.to(real_of(x)) + r.to(real_of(x))).to(dtype)
        hd = h.double().requires_grad_()
        wd, bd = w.double().requires_grad_(), b.double().requires_grad_()
        want_y = F.layer_norm(hd, (cols,), wd, bd, 1e-6) if center else F.rms_norm(hd, (cols,), wd, 1e-6)
        gx, gw, *gb = torch.autograd.grad(want_y, [hd, wd] + ([bd] if center else []), dy.double())
        limit = {torch.float64: 1e-12, torch.float32: 2e-6}.get(dtype, 4e-3)
        sums = {torch.float64: 1e-12}.get(dtype, 2e-6)
        wants = [(h, 0.0), (want_y.detach(), limit), (gx + carried.double(), limit), (gw, sums)] + [(g, sums) for g in gb]
        for name, a, c, (want, bound) in zip(("added", "y", "dx", "dw", "db"), *found, wants):
            record.check(f"norm {dtype} center {center} {cols} {v}: {name}", error(a.cpu(), want), bound, same_bits(a, c))


def rotate(x, y, heads, dim, half, positions, length, cos, sin, turn, pairs, packets):
    tokens, real = x.shape[0], NAMES[x.dtype]
    k = Kernel("rotary.cu", options(ELEMENT=real, PAIRS=pairs, PACKETS=packets), "rotary")
    k(WIDE, 256, x, y, I64(tokens), I32(heads), I64(x.stride(0)), I64(y.stride(0)), I32(dim), I32(half), positions, I64(length), cos, sin, I32(turn))
    return y


def tables(length, half, base=1e6):
    angle = torch.arange(length).double()[:, None] * base ** (-torch.arange(half).double() / half)
    return angle.cos().float().to(DEV), angle.sin().float().to(DEV)


def check_rotary(record):
    for dtype in (torch.bfloat16, torch.float32):
        for pairs in (0, 1):
            for packets, dim, half in ((1, 64, 32), (1, 128, 64), (1, 96, 32), (0, 10, 3)):
                heads, length = 5, 77
                cos, sin = tables(length, half)
                x = torch.randn(200, heads + 2, dim).to(dtype)
                position = torch.randint(0, length, (200,))
                c, s = (t.double()[position][:, None] for t in (cos.cpu(), sin.cpu()))
                u = x[:, :heads].double()
                a, b = (u[..., 0:2 * half:2], u[..., 1:2 * half:2]) if pairs else (u[..., :half], u[..., half:2 * half])
                want = u.clone()
                p, q = a * c - b * s, b * c + a * s
                if pairs:
                    want[..., 0:2 * half:2], want[..., 1:2 * half:2] = p, q
                else:
                    want[..., :half], want[..., half:2 * half] = p, q
                xd = x.to(DEV).view(200, -1)
                runs = []
                for _ in range(2):
                    runs.append((rotate(xd.clone(), y := torch.full_like(xd, 9), heads, dim, half, position.to(DEV), length, cos, sin, 1, pairs, packets),
                                 rotate(z := xd.clone(), z, heads, dim, half, position.to(DEV), length, cos, sin, 1, pairs, packets)))
                limit = 4e-3 if dtype == torch.bfloat16 else 1e-6
                for i, name in enumerate(("to another", "in place")):
                    got = runs[0][i].view(200, heads + 2, dim)[:, :heads].cpu()
                    record.check(f"rotary {dtype} pairs {pairs} {dim}/{half} {name}", error(got, want), limit, same_bits(runs[0][i], runs[1][i]))
                back = rotate(z, z, heads, dim, half, position.to(DEV), length, cos, sin, -1, pairs, packets)
                record.check(f"rotary {dtype} pairs {pairs} {dim}/{half} back", error(back.cpu(), xd.cpu()), 2 * limit)


def gated(x, y, act, packets):
    rows, cols = y.shape
    k = Kernel("gated.cu", options(ELEMENT=NAMES[x.dtype], ACT=act, PACKETS=packets), "gated_forward")
    k(WIDE, 256, x, x[:, cols:], I64(2 * cols), I64(2 * cols), y, I64(rows), I64(cols))
    return y


def gated_grad(dy, x, dx, y, act, packets):
    rows, cols = dy.shape
    k = Kernel("gated.cu", options(ELEMENT=NAMES[x.dtype], ACT=act, PACKETS=packets), "gated_grad")
    two = I64(2 * cols)
    k(WIDE, 256, dy, x, x[:, cols:], two, two, dx, dx[:, cols:], two, two, y, I64(rows), I64(cols))
    return dx


def check_gated(record):
    for dtype, limit in ((torch.bfloat16, 4e-3), (torch.float32, 1e-6), (torch.float64, 1e-13)):
        for act, name in enumerate(("silu", "gelu", "gelu_tanh")):
            for packets, cols in ((1, 304), (0, 77)):
                x, dy = torch.randn(130, 2 * cols).mul(3).to(dtype), torch.randn(130, cols).to(dtype)
                xd = x.double().requires_grad_()
                g, u = xd.split(cols, 1)
                want = (F.silu(g) if act == 0 else F.gelu(g, approximate="tanh" if act == 2 else "none")) * u
                gx, = torch.autograd.grad(want, xd, dy.double())
                nan = lambda s: torch.full(s, float("nan"), dtype=dtype, device=DEV)
                runs = []
                for _ in range(2):
                    y = gated(x.to(DEV), nan((130, cols)), act, packets)
                    again = nan((130, cols))
                    dx = gated_grad(dy.to(DEV), x.to(DEV), nan((130, 2 * cols)), again, act, packets)
                    runs.append((y, dx, again))
                for label, a, b, w in zip(("y", "dx", "y again"), *runs, (want.detach(), gx, want.detach())):
                    record.check(f"gated {name} {dtype} {cols}: {label}", error(a.cpu(), w), limit, same_bits(a, b))


def cross_entropy(x, dx, labels, scale, threads, packets, grad=1, smoothing=0.0, fault=None):
    rows, cols = x.shape
    loss = torch.full((rows,), float("nan"), dtype=real_of(x), device=DEV)
    lse = torch.full_like(loss, float("nan"))
    k = Kernel("cross_entropy.cu", options(ELEMENT=NAMES[x.dtype], GRAD=grad, THREADS=threads, PACKETS=packets), "cross_entropy")
    s = CrossEntropy().fill(x=x, dx=dx if dx is not None else 0, labels=labels, scale=scale, loss=loss, lse=lse, fault=fault if fault is not None else 0,
                            rows=rows, cols=cols, stride=x.stride(0), scale_stride=0, smoothing=smoothing)
    k(min(rows, 132 * 8), threads, s)
    return loss, lse


def check_entropy(record):
    bf = torch.bfloat16
    whole = [(bf, 1, c, t) for c in (5000, 151_936) for t in ENTROPY_THREADS]
    for dtype, packets, cols, threads in whole + [(d, 0, 777, 512) for d in (bf, torch.float32, torch.float64)]:
        for smoothing in (0.0, 0.1):
            rows = 40
            x = (torch.randn(rows, cols) * 4).to(dtype)
            labels = torch.randint(0, cols, (rows,))
            labels[3] = -100
            scale = torch.tensor([0.37], dtype=real_of(x), device=DEV)
            xd = x.double().requires_grad_()
            want = F.cross_entropy(xd, labels, reduction="none", label_smoothing=smoothing)
            gx, = torch.autograd.grad(want, xd, torch.full_like(want, scale.item()))
            runs = []
            for _ in range(2):
                y = x.to(DEV)
                runs.append((*cross_entropy(y, y, labels.to(DEV), scale, threads, packets, smoothing=smoothing), y))
            limit = {torch.float64: 1e-12, torch.float32: 1e-6}.get(dtype, 4e-3)
            wants = ((want.detach(), 2e-6), (x.double().logsumexp(1), 2e-6), (gx, limit))
            for label, a, b, (w, bound) in zip(("loss", "lse", "grad"), *runs, wants):
                record.check(f"cross_entropy {dtype} {cols} {threads} smoothing {smoothing}: {label}", error(a.cpu(), w), bound, same_bits(a, b))


# --- AdamW: the CPU's arithmetic in numpy, operation by operation. ---

def fma32(a, b, c):
    """round(a * b + c) of f32: the product is exact in f64, and the sum rounds to odd before it rounds to f32."""
    import numpy as np
    a, b, c = (np.asarray(v, np.float32).astype(np.float64) for v in (a, b, c))
    p = a * b
    s = p + c
    t = s - p
    low = (p - (s - t)) + (c - t)
    bits = s.view(np.int64)
    odd = (low != 0) & (bits & 1 == 0) & np.isfinite(s)
    away = (low > 0) == (s > 0)
    fixed = np.where(odd, np.where(away, bits + 1, bits - 1), bits).view(np.float64)
    return np.where(s == 0, s, fixed).astype(np.float32)


def adamw_numpy(p, g, m, v, k):
    import numpy as np
    g = (g * k[0]).astype(np.float32)
    m = fma32(k[2], g - m, m)
    v = fma32(k[3], v, (k[4] * g) * g)
    p = fma32(p, k[1], -((k[6] * m) / fma32(np.sqrt(v), k[7], k[5])))
    return p, m, v


def adamw_tables(tensors, groups):
    """Device tables for [(param, master or None, grad, m, v)]."""
    rows, pieces = b"", b""
    for i, (p, w, g, m, v) in enumerate(tensors):
        address = [t.data_ptr() if t is not None else 0 for t in (p, w, g, m, v)]
        aligned = int(all(a % 16 == 0 for a in address))
        rows += struct.pack("<QQQQQQqii", *address, 0, p.numel(), groups[i], aligned)
        pieces += b"".join(struct.pack("<ii", i, n) for n in range(cdiv(p.numel(), 8192)))
    up = lambda b: torch.frombuffer(bytearray(b), dtype=torch.uint8).to(DEV)
    return up(rows), up(pieces), len(pieces) // 8


def constants(step, lr=1e-3, decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, scale=0.7):
    return [scale, 1 - lr * decay, 1 - beta1, beta2, 1 - beta2, eps, lr / (1 - beta1**step), 1 / math.sqrt(1 - beta2**step)]


def check_adamw(record):
    import numpy as np
    for param, grad, master in ((torch.bfloat16, torch.bfloat16, 1), (torch.bfloat16, torch.float32, 1), (torch.float32, torch.float32, 0)):
        k = torch.tensor([constants(3), constants(3, decay=0.0)], dtype=torch.float32)
        tensors, groups, wants = [], [], []
        for i, n in enumerate((1, 8192, 100_003, 5000)):
            w, g = torch.randn(n), torch.randn(n).to(grad)
            m, v = torch.randn(n) * 0.1, torch.rand(n) * 0.01
            v[: n // 7] = 0
            g[: n // 9] = 0
            groups.append(i % 2)
            wants.append(adamw_numpy(w.numpy(), g.float().numpy(), m.numpy(), v.numpy(), k[i % 2].numpy()))
            wd = w.to(DEV)
            tensors.append((w.to(param).to(DEV) if master else wd, wd if master else None, g.to(DEV), m.to(DEV), v.to(DEV)))
        rows, pieces, count = adamw_tables(tensors, groups)
        o = adamw_options(NAMES[param], NAMES[grad], master)
        Kernel("adamw.cu", o, "adamw")(count, 256, rows, pieces, k.to(DEV))
        torch.cuda.synchronize()
        for (p, w, g, m, v), (wp, wm, wv) in zip(tensors, wants):
            got = (w if master else p, m, v)
            off = sum(int((a.cpu().numpy().view(np.int32) != b.view(np.int32)).sum()) for a, b in zip(got, (wp, wm, wv)))
            if master:
                off += int((p.cpu() != torch.from_numpy(wp).to(param)).sum())
            record.check(f"adamw {param} {grad} {p.numel()}: elements whose bits differ", float(off), 0)


def exact_tables(tensors):
    rows = b"".join(struct.pack("<Qq", t.data_ptr(), t.numel()) for t in tensors)
    pieces = b"".join(struct.pack("<ii", i, n) for i, t in enumerate(tensors) for n in range(cdiv(t.numel(), 65536)))
    up = lambda b: torch.frombuffer(bytearray(b), dtype=torch.uint8).to(DEV)
    return up(rows), up(pieces), len(pieces) // 8


def exact(tensors, tables=None):
    words = torch.zeros(70, dtype=torch.int64, device=DEV)
    rows, pieces, count = tables or exact_tables(tensors)
    Kernel("exact_norm.cu", options(ELEMENT=NAMES[tensors[0].dtype]), "exact_norm")(count, 256, rows, pieces, words)
    return words


def check_exact(record):
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for n, spread in ((1, 0), (100_003, 1), (50_000, 60)):
            x = (torch.randn(n) * torch.exp2(torch.randn(n) * spread)).to(dtype)
            if n > 10 and spread > 1:
                x[5], x[6], x[7], x[8] = float("nan"), float("inf"), -float("inf"), 0
            finite = x[x.isfinite()].float().view(torch.int32).tolist()
            want = 0
            for b in finite:
                e, m = b >> 23 & 255, b & 0x7FFFFF
                m += (e != 0) << 23
                want += m * m << (2 * max(e, 1) + 774)
            on_device = [part.to(DEV) for part in x.split(70_001)]
            runs = [exact(on_device).cpu() for _ in range(2)]
            total = sum(w << 32 * i for i, w in enumerate(runs[0][:68].tolist()))
            counts = runs[0][68:].tolist() == [int(x.isnan().sum()), int(x.isinf().sum())]
            record.check(f"exact norm {dtype} {n} {spread}", float(total != want or not counts), 0)


def check_columns(record):
    for dtype, out, packets, cols in ((torch.bfloat16, "f32", 1, 1152), (torch.bfloat16, "f32", 0, 77), (torch.float32, "f32", 1, 200), (torch.float64, "f64", 0, 33)):
        for rows in (1, 128, 1000, 5000):
            x = torch.randn(rows, cols).to(dtype)
            runs = [column_sums(x.to(DEV), out, packets) for _ in range(2)]
            record.check(f"column sums {dtype} {rows}x{cols}", error(runs[0].cpu(), x.double().sum(0)), 2e-6, same_bits(*runs))


def column_sums(x, out, packets):
    rows, cols = x.shape
    o, length, real = options(ELEMENT=NAMES[x.dtype], OUT=out, PACKETS=packets), 16 // x.element_size() if packets else 1, real_of(x)
    parts = torch.full((cdiv(rows, 128), cols), float("nan"), dtype=real, device=DEV)
    y = torch.full((cols,), float("nan"), dtype=real, device=DEV)
    Kernel("columns.cu", o, "column_parts")((cdiv(cols, 32 * length), parts.shape[0]), 256, x, I64(rows), I64(cols), I64(x.stride(0)), parts)
    Kernel("columns.cu", o, "column_fold")(cdiv(cols, 32), 256, parts, I64(parts.shape[0]), I64(cols), y, I32(0))
    return y


def check(record):
    for part in (check_norms, check_rotary, check_gated, check_entropy, check_adamw, check_exact, check_columns):
        record.guard(part.__name__, lambda: part(record))


def time_norms(record):
    for cols, vs in NORMS.items():
        if cols == 100:
            continue
        rows = 16_384
        sets = [[torch.randn(rows, cols, device=DEV, dtype=torch.bfloat16) for _ in range(4)] for _ in range(3)]
        w = torch.randn(cols, device=DEV, dtype=torch.bfloat16)
        base = torch.compile(lambda x, r, w: (x + r, F.rms_norm(x + r, (cols,), w, 1e-6)))
        peer = median_ms([lambda s=s: base(s[0], s[1], w) for s in sets])
        leaf = [s[0].clone().requires_grad_() for s in sets]
        wl = w.clone().requires_grad_()
        norm = torch.compile(lambda x, w: F.rms_norm(x, (cols,), w, 1e-6))
        outs = [norm(x, wl) for x in leaf]
        peer_b = median_ms([lambda x=x, o=o, s=s: torch.autograd.grad(o, (x, wl), s[2], retain_graph=True) for x, o, s in zip(leaf, outs, sets)])
        size = rows * cols * 2
        for v in vs:
            n = Norm(v)
            ms = median_ms([lambda s=s: n.forward(s[0], s[1], w, None, poison=False) for s in sets])
            record.time(f"residual + rms {rows}x{cols} {v}", ms, peer, tb_s=4 * size / ms / 1e9)
            ms = median_ms([lambda s=s: n.grad(s[2], s[0], w, s[3], poison=False) for s in sets])
            record.time(f"its gradient (with carried; peer without) {rows}x{cols} {v}", ms, peer_b, tb_s=4 * size / ms / 1e9, registers=str(n.g.report))


def time_rest(record):
    bf, rows = torch.bfloat16, 16_384
    qkv = [torch.randn(rows, 1152, device=DEV, dtype=bf) for _ in range(3)]
    cos, sin = tables(2048, 32)
    c16, s16 = (t.to(bf).repeat(8, 1)[:, None] for t in (cos, sin))
    def rope(x):
        h = x[:, :1024].view(rows, 16, 64)
        a, b = h[..., :32], h[..., 32:]
        return torch.cat([a * c16 - b * s16, b * c16 + a * s16], -1)
    peer = torch.compile(rope)
    record.time("rotary 16384 x 16 heads x 64", median_ms([lambda x=x: rotate(x, x, 16, 64, 32, None, 2048, cos, sin, 1, 0, 1) for x in qkv]),
                median_ms([lambda x=x: peer(x) for x in qkv]))
    xs = [torch.randn(rows, 9728, device=DEV, dtype=bf) for _ in range(2)]
    dys = [torch.randn(rows, 4864, device=DEV, dtype=bf) for _ in range(2)]
    y, dx = torch.empty_like(dys[0]), torch.empty_like(xs[0])
    f = torch.compile(lambda x: F.silu(x[:, :4864]) * x[:, 4864:])
    ms = median_ms([lambda x=x: gated(x, y, 0, 1) for x in xs])
    record.time("swiglu 16384 x 4864", ms, median_ms([lambda x=x: f(x) for x in xs]), tb_s=3 * y.numel() * 2 / ms / 1e9)
    leaf = [x.clone().requires_grad_() for x in xs]
    outs = [f(x) for x in leaf]
    peer_b = median_ms([lambda x=x, o=o, d=d: torch.autograd.grad(o, x, d, retain_graph=True) for x, o, d in zip(leaf, outs, dys)])
    ms = median_ms([lambda x=x, d=d: gated_grad(d, x, dx, y, 0, 1) for x, d in zip(xs, dys)])
    record.time("its gradient, with the result again", ms, peer_b, tb_s=6 * y.numel() * 2 / ms / 1e9)
    del leaf, outs, xs, dx
    scores = [torch.randn(2048, 151_936, device=DEV, dtype=bf) for _ in range(2)]
    labels, scale = torch.randint(0, 151_936, (2048,), device=DEV), torch.tensor([1e-3], device=DEV)
    def peer_step(x):
        return torch.autograd.grad(F.cross_entropy(x.float(), labels), x)
    lossy = torch.compile(lambda x: F.cross_entropy(x.float(), labels))
    leaf = [s.clone().requires_grad_() for s in scores]
    peer = median_ms([lambda x=x: torch.autograd.grad(lossy(x), x) for x in leaf], 8)
    for threads in ENTROPY_THREADS:
        ms = median_ms([lambda x=x: cross_entropy(x, x, labels, scale, threads, 1) for x in scores], 10)
        record.time(f"loss and gradient in place 2048 x 151936, {threads} threads", ms, peer, tb_s=2 * scores[0].numel() * 2 / ms / 1e9)
    del scores, leaf
    time_optimizer(record)
    x = [torch.randn(rows, 1152, device=DEV, dtype=bf) for _ in range(3)]
    record.time("column sums 16384 x 1152", median_ms([lambda t=t: column_sums(t, "f32", 1) for t in x]), median_ms([lambda t=t: t.sum(0, dtype=torch.float32) for t in x]))


def time_optimizer(record):
    n, bf = 60, torch.bfloat16
    sizes = [896 * 4864 * 2] * n
    tensors = []
    for s in sizes:
        w = torch.randn(s, device=DEV)
        tensors.append((w.to(bf), w, torch.randn(s, device=DEV).to(bf), torch.zeros(s, device=DEV), torch.zeros(s, device=DEV)))
    rows, pieces, count = adamw_tables(tensors, [0] * n)
    k = torch.tensor([constants(3)], dtype=torch.float32, device=DEV)
    run = Kernel("adamw.cu", adamw_options("bf16", "bf16", 1), "adamw")
    ms = median_ms([lambda: run(count, 256, rows, pieces, k)], 10)
    peers = [torch.nn.Parameter(t[1]) for t in tensors]
    for p, t in zip(peers, tensors):
        p.grad = t[2].float()
    opt = torch.optim.AdamW(peers, 1e-3, fused=True)
    peer = median_ms([opt.step], 6)
    record.time(f"adamw, bf16 with f32 master, {sum(sizes) / 1e6:.0f} M (peer: f32 fused, 28 B too)", ms, peer, tb_s=28 * sum(sizes) / ms / 1e9)
    grads = [t[2] for t in tensors[:30]]
    tables = exact_tables(grads)
    ms = median_ms([lambda: exact(grads, tables)], 10)
    peer = median_ms([lambda: torch._foreach_norm([t[2] for t in tensors[:30]])], 10)
    record.time(f"exact norm of {sum(sizes[:30]) / 1e6:.0f} M bf16 (peer: foreach_norm)", ms, peer, tb_s=2 * sum(sizes[:30]) / ms / 1e9)


def time_all(record):
    record.guard("norms", lambda: time_norms(record))
    record.guard("rest", lambda: time_rest(record))


def sanitize(record):
    bf = torch.bfloat16
    x, dy = torch.randn(300, 896).to(bf).to(DEV), torch.randn(300, 896).to(bf).to(DEV)
    w = torch.randn(896).to(bf).to(DEV)
    for v in NORMS[896]:
        n = Norm(v)
        n.forward(x, dy, w, None), n.grad(dy, x, w, dy)
    s = torch.randn(8, 1000).to(bf).to(DEV)
    cross_entropy(s, s, torch.arange(8).to(DEV), torch.tensor([1.0]).to(DEV), 256, 1)
    exact([x]), column_sums(x, "f32", 1)
    torch.cuda.synchronize()


def profile(record):
    bf = torch.bfloat16
    x, dy = torch.randn(16_384, 896, device=DEV, dtype=bf), torch.randn(16_384, 896, device=DEV, dtype=bf)
    w = torch.randn(896, device=DEV, dtype=bf)
    n = Norm(NORMS[896][0])
    n.forward(x, dy, w, None), n.grad(dy, x, w, dy)
    s = torch.randn(2048, 151_936, device=DEV, dtype=bf)
    cross_entropy(s, s, torch.arange(2048, device=DEV), torch.tensor([1.0], device=DEV), 512, 1)
    exact([s])
    torch.cuda.synchronize()
