"""The warpgroup kernels of attention, in a process of their own."""
import torch

from attention import SHAPES, Case, ForwardTma, check_tma as check, time_tma as time_all
from variants import FORWARD_TMA

__all__ = ["check", "time_all", "sanitize", "profile"]


def sanitize(_record):
    for dim in (64, 128):
        ForwardTma(dim, FORWARD_TMA[dim][0])(Case(1, 4, 2, 300, 300, dim))
    torch.cuda.synchronize()


def profile(_record):
    for batch, heads, kv_heads, length, dim in SHAPES.values():
        ForwardTma(dim, FORWARD_TMA[dim][0])(Case(batch, heads, kv_heads, length, length, dim))
    torch.cuda.synchronize()
