"""LoRA fine-tuning of a tiny Qwen2 by planaria and by transformers + peft: tokens a second and memory, in turn, same threads.

usage: lora.py PLANARIA FOLDER [--sizes 10,100] [--threads 2] [--rounds 3] [--steps 6]

PYTHON needs torch, transformers, peft and safetensors. Both begin with the same weights (saved by transformers), adapt all
linear modules with rank 16, and take the same batches of random tokens. The first two steps of a side are not counted.
Memory is the largest resident set of a process of its own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

SIZES = {
    10: dict(hidden_size=256, intermediate_size=704, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=4),
    100: dict(hidden_size=768, intermediate_size=2048, num_hidden_layers=10, num_attention_heads=12, num_key_value_heads=12),
}
VOCAB, LENGTH, BATCH, RANK = 8192, 256, 4, 16


def peer(folder, threads, steps):
    """The side of transformers and peft; prints its figures as JSON."""
    import resource

    import peft
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
    model = peft.get_peft_model(model, config).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    tokens = torch.randint(0, VOCAB, (steps, BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    seconds = []
    for batch in tokens:
        began = time.perf_counter()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    rate = BATCH * LENGTH / statistics.median(seconds[2:])
    print(json.dumps({"rate": rate, "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))


def ours(planaria, folder, threads, steps):
    (folder / "tokens.txt").write_text("".join(chr(33 + (i * 7919) % 90) for i in range(400_000)))
    (folder / "lora.toml").write_text(f"""
name = "lora"
model.init = "model"
[data]
sequence = {LENGTH}
[[data.source]]
path = "tokens.txt"
[optim]
lr = 1e-3
[train]
steps = {steps}
global_batch = {BATCH}
micro_batch = {BATCH}
threads = {threads}
[checkpoint]
final_save = false
[lora]
r = {RANK}
alpha = {2 * RANK}
target_modules = "all-linear"
""")
    command = ["/usr/bin/time", "-f", "%M", planaria, "train", "lora.toml", "--json"]
    subprocess.run(["rm", "-rf", str(folder / "runs")], check=True)
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    seconds = [line["seconds"] for line in lines if line["event"] == "step"]
    rate = BATCH * LENGTH / statistics.median(seconds[2:])
    return {"rate": rate, "bytes": int(done.stderr.strip().splitlines()[-1]) * 1024}


def make(folder, size):
    """Random weights with a byte tokenizer beside them, so that both can begin there."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(vocab_size=VOCAB, max_position_embeddings=LENGTH, **SIZES[size])).save_pretrained(folder / "model")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(sorted(alphabet))}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(folder / "model" / "tokenizer.json"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("planaria")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sizes", default="10,100")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.folder, args.threads, args.steps)
    print("| parameters | tokens/s ours | tokens/s peft | ratio (least, most) | memory ours | memory peft | ratio |\n|---|---|---|---|---|---|---|")
    for size in map(int, args.sizes.split(",")):
        folder = (args.folder / str(size)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, size)
        rows = []
        for _ in range(args.rounds):
            mine = ours(str(Path(args.planaria).resolve()), folder, args.threads, args.steps)
            command = [sys.executable, __file__, "-", str(folder), "--peer", "--threads", str(args.threads), "--steps", str(args.steps)]
            told = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": str(args.threads)})
            assert told.returncode == 0, told.stderr
            rows.append((mine, json.loads(told.stdout.splitlines()[-1])))
        middle = lambda values: statistics.median(list(values))
        rates = [middle(row[side]["rate"] for row in rows) for side in (0, 1)]
        memory = [middle(row[side]["bytes"] for row in rows) / 2**20 for side in (0, 1)]
        spread = sorted(a["rate"] / b["rate"] for a, b in rows)
        print(
            f"| {size} M | {rates[0]:.0f} | {rates[1]:.0f} | {middle(spread):.2f} ({spread[0]:.2f}, {spread[-1]:.2f}) "
            f"| {memory[0]:.0f} MiB | {memory[1]:.0f} MiB | {middle(a['bytes'] / b['bytes'] for a, b in rows):.2f} |"
        )


if __name__ == "__main__":
    main()
