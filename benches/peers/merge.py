"""Merging by planaria and by mergekit: seconds beside the I/O floor, and memory, in turn, inputs not in the page cache.

usage: merge.py PLANARIA FOLDER [--gib 1] [--rounds 3] [--cases linear,slerp,ties] [--mergekit PYTHON]

The models are llamas of random bf16 weights. The floor of a case reads its inputs and writes as many bytes as the result
has, raw, 8 MiB at a time on one thread, durably. Memory is the largest resident set without pages of files. PYTHON is an
interpreter with mergekit; without one only the floor stands beside us.
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import time
from pathlib import Path

BLOCK = 8 << 20
MODELS = {"linear": 2, "slerp": 2, "ties": 3}
BARS = {"linear": 1.5, "slerp": 1.5, "ties": 2.5}


def shapes(gib):
    """Tensors of a llama of about this size: a fourth of it is embeddings and head."""
    hidden, inner, vocab = 2048, 5632, 32000
    layer = {f"self_attn.{name}_proj": [hidden, hidden] for name in "qkvo"}
    layer |= {"mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden], "mlp.down_proj": [hidden, inner]}
    norms = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
    bytes_of = lambda shape: 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    each = sum(bytes_of(shape) for shape in (layer | norms).values())
    layers = max(1, round((gib * 2**30 - 2 * bytes_of([vocab, hidden])) / each))
    tensors = {"model.embed_tokens.weight": [vocab, hidden]}
    for number in range(layers):
        tensors |= {f"model.layers.{number}.{name}.weight": shape for name, shape in (layer | norms).items()}
    tensors |= {"model.norm.weight": [hidden], "lm_head.weight": [vocab, hidden]}
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=hidden, intermediate_size=inner, vocab_size=vocab)
    config |= dict(num_hidden_layers=layers, num_attention_heads=16, num_key_value_heads=16, rms_norm_eps=1e-5, dtype="bfloat16")
    return tensors, config | dict(max_position_embeddings=2048, tie_word_embeddings=False, torch_dtype="bfloat16")


def make(folder, gib, seed):
    tensors, config = shapes(gib)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = dict(dtype="BF16", shape=shape, data_offsets=[at, at + size])
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Values between 2^-7 and 2^-5 in magnitude, either sign, from a stream of random bytes that repeats at odd places.
    stream = bytearray(os.urandom(BLOCK + 2 * seed + 2))
    for place in range(1, len(stream), 2):
        stream[place] = (stream[place] & 0x80) | 0x3C
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        while at > 0:
            file.write(stream[: min(at, len(stream))])
            at -= min(at, len(stream))
        os.fsync(file.fileno())


def forget(paths):
    """Takes files out of the page cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def floor(inputs, target):
    began, total = time.perf_counter(), 0
    for path in inputs:
        with open(path, "rb", buffering=0) as file:
            while block := file.read(BLOCK):
                total += len(block)
    block, left = bytes(BLOCK), total // len(inputs)
    with open(target, "wb", buffering=0) as file:
        while left > 0:
            left -= file.write(block[: min(left, BLOCK)])
        os.fsync(file.fileno())
    target.unlink()
    return time.perf_counter() - began


def watched(command, folder):
    """Seconds, and the largest resident set without pages of files."""
    began, peak = time.perf_counter(), 0
    with open(folder / "log.txt", "wb") as log:
        child = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        while child.poll() is None:
            try:
                lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
                peak = max([peak] + [int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")])
            except OSError:
                pass
            time.sleep(0.01)
    assert child.returncode == 0, (folder / "log.txt").read_text()
    return time.perf_counter() - began, peak


def recipe(case, count):
    models = [f"model-{number}" for number in range(count)]
    parameters = {"linear": "weight: 0.5", "slerp": "", "ties": "weight: 0.5\n      density: 0.5"}[case]
    # The base of slerp and ties is the first model.
    lines = [f"merge_method: {case}"] + ([] if case == "linear" else [f"base_model: {models[0]}"]) + ["models:"]
    for number, model in enumerate(models):
        lines.append(f"  - model: {model}")
        if parameters and not (case == "ties" and number == 0):
            lines.append(f"    parameters:\n      {parameters}")
    return "\n".join(lines + (["parameters:\n  t: 0.4"] if case == "slerp" else []) + ["dtype: bfloat16", ""])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("planaria")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="linear,slerp,ties")
    parser.add_argument("--mergekit")
    args = parser.parse_args()
    folder, cases = args.folder.resolve(), args.cases.split(",")
    shutil.rmtree(folder, ignore_errors=True)
    for number in range(max(MODELS[case] for case in cases)):
        make(folder / f"model-{number}", args.gib, number)
    print("| case | floor | ours | ratio (least, most) | bar | memory | mergekit | ratio | memory |\n|---|---|---|---|---|---|---|---|---|")
    for case in cases:
        inputs = [folder / f"model-{number}" / "model.safetensors" for number in range(MODELS[case])]
        (folder / "recipe.yml").write_text(recipe(case, MODELS[case]))
        ours = [str(Path(args.planaria).resolve()), "merge", "recipe.yml", "out"]
        peer = [args.mergekit, "-m", "mergekit.scripts.run_yaml", "recipe.yml", "out", "--no-write-model-card", "--no-copy-tokenizer"]
        theirs = peer if args.mergekit else None
        rows = []
        for _ in range(args.rounds):
            row = []
            for command in [None, ours, theirs]:
                forget(inputs)
                if command is None:
                    row.append((floor(inputs, folder / "raw"), 0))
                    continue
                row.append(watched(command, folder) if command else (float("nan"), 0))
                shutil.rmtree(folder / "out", ignore_errors=True)
            rows.append(row)
        middle = lambda values: statistics.median(list(values))
        seconds = [middle(row[side][0] for row in rows) for side in range(3)]
        memory = [max(row[side][1] for row in rows) / 2**30 for side in range(3)]
        ratio = [middle(row[side][0] / row[0][0] for row in rows) for side in range(3)]
        spread = sorted(row[1][0] / row[0][0] for row in rows)
        peer = f"{seconds[2]:.1f} s | {ratio[2]:.1f} | {memory[2]:.2f} GiB" if theirs else "- | - | -"
        print(
            f"| {case} of {MODELS[case]} | {seconds[0]:.2f} s | {seconds[1]:.2f} s | {ratio[1]:.2f} ({spread[0]:.2f}, {spread[-1]:.2f}) "
            f"| {BARS[case]} "
            f"| {memory[1]:.2f} GiB | {peer} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
