"""Attention for every type and head dim: checked against f64; its time is only noted."""
import torch

from attention import NAMES, Attention, Case, check_case, strides
from device import F64, I32, I64, Kernel, P, Struct
from timing import median_ms
from variants import plain_options

NAMES.update({torch.float32: "f32", torch.float64: "f64"})
LIMITS = {torch.float32: (1e-6, 1e-6, 2e-6, 2e-6, 2e-6), torch.float64: (1e-13, 1e-13, 1e-13, 1e-13, 1e-13)}


class Plain(Struct):
    _fields_ = (
        [(n, P) for n in "q k v out lse dout delta dq dk dv first end mask".split()]
        + [(n + "_stride", I64 * 3) for n in "q k v out dout dq dk dv".split()]
        + [("mask_stride", I64 * 4), ("first_stride", I64), ("end_stride", I64)]
        + [(n, I32) for n in "batch q_heads kv_heads q_len k_len dim v_dim causal shift window".split()]
        + [("scale", F64)]
    )


def plain_of(c):
    """The operands of a case for the plain kernels; statistics of f64 operands are f64."""
    if c.dtype == torch.float64:
        c.lse, c.delta = c.lse.double(), c.delta.double()
    p, s = Plain(), c.s
    p.fill(q=c.q, k=c.k, v=c.v, out=c.out, lse=c.lse, dout=c.dout, delta=c.delta, dq=c.dq, dk=c.dk, dv=c.dv, dim=c.dim, v_dim=c.dim, scale=s.scale)
    for name, *_ in Attention._fields_:
        if name in ("first", "end", "mask", "first_stride", "end_stride", "batch", "q_heads", "kv_heads", "q_len", "k_len", "causal", "shift", "window"):
            setattr(p, name, getattr(s, name))
    for name in "q k v out dout dq dk dv".split():
        p.fill(**{name + "_stride": strides(getattr(c, name))})
    if c.mask_kind:
        if c.mask_kind == 2:
            c.mask = c.mask.to(c.lse.dtype)
        p.fill(mask=c.mask, mask_stride=list(c.mask.expand(s.batch, s.q_heads, s.q_len, s.k_len).stride()))
    return p


def run(c):
    p = plain_of(c)
    for name in ("plain_forward", "plain_grad_queries", "plain_grad_keys"):
        Kernel("attention_plain.cu", plain_options(c.element, -(-c.dim // 32), c.mask_kind), name)(132 * 16, 128, p)


def check(record):
    cases = {
        "f32, 40": lambda: Case(2, 4, 2, 130, 130, 40, torch.float32),
        "f64, 80, documents": lambda: Case(1, 4, 2, 150, 150, 80, torch.float64, documents=3),
        "f64, 16, other length": lambda: Case(2, 2, 1, 70, 133, 16, torch.float64, causal=0),
        "bf16, 96, window": lambda: Case(1, 4, 4, 200, 200, 96, window=50),
        "f32, 64, sees nothing": lambda: Case(1, 2, 1, 100, 40, 64, torch.float32, shift=-30),
        "bf16, 80, bools": lambda: Case(1, 4, 2, 90, 110, 80, causal=0, mask=1),
        "f32, 32, added": lambda: Case(2, 4, 2, 90, 90, 32, torch.float32, mask=2),
    }
    for name, make in cases.items():
        def work():
            case = make()
            check_case(record, f"plain {name}", case, [run], LIMITS.get(case.dtype))
        record.guard(name, work)


def time_all(record):
    c = Case(2, 14, 2, 1024, 1024, 80, torch.float32)
    record.time("plain attention and gradients, f32, 2x1024, 14/2x80", median_ms([lambda: run(c)], 4, 1))


def sanitize(_record):
    run(Case(1, 2, 1, 50, 50, 40, torch.float32))
    torch.cuda.synchronize()


def profile(_record):
    run(Case(1, 2, 1, 200, 200, 40, torch.float32))
    torch.cuda.synchronize()
