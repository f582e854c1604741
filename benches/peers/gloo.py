"""An all-reduce by torch's gloo: one line on stdin is one round, answered with its seconds (the slowest rank's)."""

import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank_main(rank: int, ranks: int, count: int, meeting: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    data = torch.full((count,), float(rank + 1))
    go = torch.zeros(1)
    while True:
        if rank == 0:
            go[0] = float(sys.stdin.readline().strip() == "go")
        dist.broadcast(go, 0)
        if go[0] == 0:
            break
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(data, op=dist.ReduceOp.MAX)
        took = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        if rank == 0:
            print(took.item(), flush=True)
    dist.destroy_process_group()


def main() -> None:
    ranks, count = int(sys.argv[1]), int(sys.argv[2])
    meeting = os.path.join(tempfile.mkdtemp(), "meeting")
    context = mp.get_context("spawn")
    others = [context.Process(target=rank_main, args=(r, ranks, count, meeting)) for r in range(1, ranks)]
    for process in others:
        process.start()
    rank_main(0, ranks, count, meeting)
    for process in others:
        process.join()


if __name__ == "__main__":
    main()
