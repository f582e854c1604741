"""Collectives by torch's gloo: one line on stdin names a collective, its elements and how often it is called, and is
answered with the seconds of one call (the slowest rank's)."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

NAMES = ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]


def call(name: str, whole: torch.Tensor, recv: torch.Tensor, rank: int, ranks: int):
    part = whole.numel() // ranks
    if name == "all_reduce":
        return lambda: dist.all_reduce(recv, op=dist.ReduceOp.MAX)
    if name == "all_gather":
        mine = whole[rank * part : (rank + 1) * part]
        return lambda: dist.all_gather_into_tensor(recv, mine)
    if name == "reduce_scatter":
        mine = recv[:part].clone()
        return lambda: dist.reduce_scatter_tensor(mine, whole, op=dist.ReduceOp.MAX)
    if name == "broadcast":
        return lambda: dist.broadcast(whole if rank == 0 else recv, 0)
    return lambda: dist.all_to_all_single(recv, whole)


def rank_main(rank: int, ranks: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    made = {}
    while True:
        order = torch.zeros(3, dtype=torch.int64)
        if rank == 0:
            words = sys.stdin.readline().split()
            if len(words) == 3:
                order = torch.tensor([NAMES.index(words[0]) + 1, int(words[1]), int(words[2])])
        dist.broadcast(order, 0)
        which, count, calls = order.tolist()
        if which == 0:
            break
        if (which, count) not in made:
            made = {}
            arrays = torch.full((count,), float(rank + 1)), torch.zeros(count)
            made[which, count] = call(NAMES[which - 1], *arrays, rank, ranks)
        work = made[which, count]
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        took = torch.tensor([(time.perf_counter() - begin) / calls], dtype=torch.float64)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        if rank == 0:
            print(took.item(), flush=True)
    dist.destroy_process_group()


def main() -> None:
    ranks = int(sys.argv[1])
    meeting = os.path.join(tempfile.mkdtemp(), "meeting")
    context = mp.get_context("spawn")
    others = [context.Process(target=rank_main, args=(r, ranks, meeting)) for r in range(1, ranks)]
    for process in others:
        process.start()
    rank_main(0, ranks, meeting)
    for process in others:
        process.join()


if __name__ == "__main__":
    main()
