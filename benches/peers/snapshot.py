"""torch's `async_save` of a model that is really training: one line of JSON with the figures of `snapshot`.

The model has the sizes of `snapshot.rs`, one token stream of random bytes, AdamW. `--kind thread` is the default of torch; `--kind
process` writes from another process with a stager that keeps its memory pinned or shared between saves.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

HIDDEN, INNER, HEADS, SEQUENCE, BATCH = 1024, 2816, 16, 128, 2
BLOCK = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate = nn.Linear(HIDDEN, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, HIDDEN, bias=False)
        self.first, self.second = nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (BATCH, SEQUENCE, HEADS, HIDDEN // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, dim=-1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        gate, up = self.gate(self.second(x)).chunk(2, dim=-1)
        return x + self.down(nn.functional.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.norm = nn.RMSNorm(HIDDEN)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.embed.weight.T


def resident() -> int:
    with open("/proc/self/statm") as about:
        return int(about.read().split()[1]) * resource.getpagesize()


def stager(kind: str):
    """The stager and the way of saving, as far as this torch has them."""
    if kind == "thread":
        return {}
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    pinned = torch.cuda.is_available()
    options = StagingOptions(use_pinned_memory=pinned, use_shared_memory=True, use_async_staging=False, use_non_blocking_copy=pinned)
    return {"async_checkpointer_type": AsyncCheckpointerType.PROCESS, "async_stager": DefaultStager(options)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=["thread", "process"], default="thread")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--calm", type=int, default=8)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--apart", type=int, default=6)
    parser.add_argument("--threads", type=int, help="threads that train; all where it is not given")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29533")
    dist.init_process_group("cpu:gloo,cuda:nccl" if args.device == "cuda" else "gloo", rank=0, world_size=1)
    torch.manual_seed(0)
    model = Model(max(round(args.gib * 2**30 / 12 / BLOCK), 1)).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    size = sum(parameter.numel() for parameter in model.parameters()) * 12

    def step() -> float:
        began = time.perf_counter()
        ids = torch.randint(0, 256, (BATCH, SEQUENCE + 1)).to(args.device)
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # A step ends when its loss is known, as ours does.
        return time.perf_counter() - began

    calm = statistics.median([step() for _ in range(args.calm)][2:])
    folder = tempfile.mkdtemp(dir=args.folder)
    options, calls, rounds = stager(args.kind), [], []
    before = most = resident()
    try:
        for number in range(args.saves):
            began = time.perf_counter()
            weights, state = get_state_dict(model, optimizer)
            saved = dcp.async_save({"model": weights, "optim": state}, checkpoint_id=f"{folder}/{number}", **options)
            calls.append(time.perf_counter() - began)
            rounds.append([])
            for _ in range(args.apart):
                rounds[-1].append(step())
                most = max(most, resident())
            (getattr(saved, "upload_completion", None) or saved).result()
            shutil.rmtree(f"{folder}/{number}", ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    source = torch.ones(size // 4, device=args.device)
    target = torch.zeros(size // 4, pin_memory=args.device == "cuda")
    copies = []
    for _ in range(3):
        began = time.perf_counter()
        target.copy_(source)
        copies.append(time.perf_counter() - began)
    figures = {"name": f"torch DCP, {args.kind}", "bytes": size, "step": calm, "calls": calls, "rounds": rounds, "extra": most - before, "copy": min(copies)}
    print(json.dumps(figures), flush=True)
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
