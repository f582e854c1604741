"""Trains the model of `tokens` with transformers and torch, eager, and prints tokens per second as JSON.

usage: tokens.py RANKS THREADS STEPS
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from transformers import Qwen2Config, Qwen2ForCausalLM

SEQUENCE, BATCH, VOCABULARY = 256, 8, 259


def memory(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))


def work(rank, ranks, threads, steps, port, results):
    torch.set_num_threads(threads)
    start = memory("VmRSS")
    torch.manual_seed(0)
    sizes = dict(hidden_size=320, intermediate_size=864, num_hidden_layers=8, num_attention_heads=5, num_key_value_heads=5)
    config = Qwen2Config(vocab_size=VOCABULARY, tie_word_embeddings=True, use_cache=False, max_position_embeddings=SEQUENCE, **sizes)
    model = Qwen2ForCausalLM(config)
    parameters = sum(p.numel() for p in model.parameters())
    if ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seconds = []
    for _ in range(steps):
        tokens = torch.randint(0, VOCABULARY, (BATCH // ranks, SEQUENCE))
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    results.put({"seconds": statistics.median(seconds[3:]), "peak": memory("VmHWM"), "start": start, "parameters": parameters})
    if ranks > 1:
        dist.destroy_process_group()


def main():
    ranks, threads, steps = map(int, sys.argv[1:4])
    results = mp.get_context("spawn").Queue()
    port = 20000 + os.getpid() % 20000
    mp.spawn(work, (ranks, threads, steps, port, results), nprocs=ranks)
    rows = [results.get() for _ in range(ranks)]
    seconds = max(row["seconds"] for row in rows)
    answer = {"tokens_per_second": BATCH * SEQUENCE / seconds, "parameters": rows[0]["parameters"]}
    answer |= {name: sum(row[name] for row in rows) for name in ("peak", "start")}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
