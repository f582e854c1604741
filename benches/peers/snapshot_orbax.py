"""Orbax's asynchronous saves of a model that is really training in JAX: one line of JSON with the figures of `snapshot`.

The model has the sizes of `snapshot.py` beside it: weights and two moments of 32 bits, AdamW, random bytes as text.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy
import orbax.checkpoint as ocp

HIDDEN, INNER, HEADS, SEQUENCE, BATCH = 1024, 2816, 16, 128, 2
BLOCK = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER


def model(blocks: int):
    keys = iter(jax.random.split(jax.random.key(0), 4 * blocks + 1))

    def normal(rows: int, columns: int) -> jax.Array:
        return 0.02 * jax.random.normal(next(keys), (rows, columns), jnp.float32)

    def block():
        return {
            "qkv": normal(HIDDEN, 3 * HIDDEN),
            "out": normal(HIDDEN, HIDDEN),
            "gate": normal(HIDDEN, 2 * INNER),
            "down": normal(INNER, HIDDEN),
            "first": jnp.ones(HIDDEN),
            "second": jnp.ones(HIDDEN),
        }

    return {"embed": normal(256, HIDDEN), "blocks": [block() for _ in range(blocks)], "norm": jnp.ones(HIDDEN)}


def norm(x: jax.Array, weight: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def loss_of(weights, ids: jax.Array) -> jax.Array:
    x = weights["embed"][ids[:, :-1]]
    for block in weights["blocks"]:
        qkv = (norm(x, block["first"]) @ block["qkv"]).reshape(BATCH, SEQUENCE, 3, HEADS, HIDDEN // HEADS)
        mixed = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
        x = x + mixed.reshape(x.shape) @ block["out"]
        gate, up = jnp.split(norm(x, block["second"]) @ block["gate"], 2, axis=-1)
        x = x + (jax.nn.silu(gate) * up) @ block["down"]
    logits = norm(x, weights["norm"]) @ weights["embed"].T
    told = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, 1:, None], axis=-1)
    return -told.mean()


def update(state, ids: jax.Array):
    grads = jax.grad(loss_of)(state["weights"], ids)
    count = state["count"] + 1

    def moved(weight, first, second):
        first_hat, second_hat = first / (1 - 0.9**count), second / (1 - 0.999**count)
        return weight - 1e-4 * (first_hat / (jnp.sqrt(second_hat) + 1e-8) + 0.01 * weight)

    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["second"], grads)
    weights = jax.tree.map(moved, state["weights"], first, second)
    return {"weights": weights, "first": first, "second": second, "count": count}


def resident() -> int:
    with open("/proc/self/statm") as about:
        return int(about.read().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--calm", type=int, default=8)
    parser.add_argument("--saves", type=int, default=4)
    parser.add_argument("--apart", type=int, default=6)
    parser.add_argument("--device", choices=["cpu"], default="cpu")
    parser.add_argument("--threads", type=int, help="not obeyed: XLA takes the threads of the machine")
    args = parser.parse_args()
    weights = model(max(round(args.gib * 2**30 / 12 / BLOCK), 1))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = {"weights": weights, "first": zeros, "second": jax.tree.map(jnp.zeros_like, weights), "count": jnp.zeros(())}
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    jitted = jax.jit(update, donate_argnums=0)
    random = numpy.random.default_rng(0)

    def step() -> float:
        nonlocal state
        began = time.perf_counter()
        state = jax.block_until_ready(jitted(state, random.integers(0, 256, (BATCH, SEQUENCE + 1))))
        return time.perf_counter() - began

    calm = statistics.median([step() for _ in range(args.calm)][2:])
    folder = os.path.abspath(tempfile.mkdtemp(dir=args.folder))
    saver = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler())
    calls, rounds = [], []
    before = most = resident()
    try:
        for number in range(args.saves):
            began = time.perf_counter()
            saver.save(f"{folder}/{number}", args=ocp.args.StandardSave(state))
            calls.append(time.perf_counter() - began)
            rounds.append([])
            for _ in range(args.apart):
                rounds[-1].append(step())
                most = max(most, resident())
            saver.wait_until_finished()
            shutil.rmtree(f"{folder}/{number}", ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    source, target = numpy.ones(size // 4, "f4"), numpy.zeros(size // 4, "f4")
    copies = []
    for _ in range(3):
        began = time.perf_counter()
        numpy.copyto(target, source)
        copies.append(time.perf_counter() - began)
    figures = {"name": "Orbax", "bytes": size, "step": calm, "calls": calls, "rounds": rounds, "extra": most - before, "copy": min(copies)}
    print(json.dumps(figures), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
