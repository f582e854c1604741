"""Trains a model of sentence embeddings with sentence-transformers and its gradient caching, and prints pairs per second as JSON.

usage: embeddings.py make FOLDER TOKENIZER
       embeddings.py train FOLDER THREADS PAIRS CHUNK STEPS
"""

import json
import statistics
import sys
import time
from pathlib import Path


def memory(name):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(name))


def make(folder, tokenizer):
    """A model of 10 million parameters, as a folder that both sides open."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2Model

    words = AutoTokenizer.from_pretrained(tokenizer)
    sizes = dict(hidden_size=320, intermediate_size=864, num_hidden_layers=8, num_attention_heads=5, num_key_value_heads=5)
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=len(words), use_cache=False, max_position_embeddings=256, **sizes)
    Qwen2Model(config).save_pretrained(folder)
    words.save_pretrained(folder)


def train(folder, threads, pairs, chunk, steps):
    import torch
    from sentence_transformers import SentenceTransformer, losses
    from sentence_transformers.models import Normalize, Pooling, Transformer

    torch.set_num_threads(threads)
    start = memory("VmRSS")
    encoder = Transformer(folder)
    model = SentenceTransformer(modules=[encoder, Pooling(320, pooling_mode="mean"), Normalize()], device="cpu")
    model.train()
    parameters = sum(p.numel() for p in model.parameters())
    rows = [json.loads(line) for line in (Path(folder) / "rows.jsonl").read_text().splitlines()]
    ids = lambda name: torch.tensor([row[name] for row in rows])
    columns = [ids("query"), ids("positive")]
    loss = losses.CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=chunk)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seconds = []
    for step in range(steps):
        chosen = [column[step * pairs : (step + 1) * pairs] for column in columns]
        features = [{"input_ids": column, "attention_mask": torch.ones_like(column)} for column in chosen]
        begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        value = loss(features, None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - begun)
    rate = pairs / statistics.median(seconds[1:])
    print(json.dumps({"rate": rate, "peak": memory("VmHWM"), "start": start, "parameters": parameters, "loss": value.item()}))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(*sys.argv[2:4])
    else:
        train(sys.argv[2], *map(int, sys.argv[3:7]))
