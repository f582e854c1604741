"""Trains tiny models on two meshes and opens the checkpoints with transformers, as they are, and back.

usage: training.py PLANARIA TESTDATA FOLDER
"""

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

# Absolute: the command runs in other folders.
PLANARIA, OUT = str(Path(sys.argv[1]).resolve()), Path(sys.argv[3]).resolve()
CONFIG = """
name = "tiny"
mesh = "dp=2 tp=2"
[model]
kind = "{kind}"
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
tie_word_embeddings = {tied}
{more}
[data]
sequence = 32
[[data.source]]
path = "text.txt"
[train]
steps = 60
global_batch = 4
[optim]
lr = 1e-2
[checkpoint]
every = 30
"""

EXPERTS = """
num_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = 16
shared_expert_intermediate_size = 24
norm_topk_prob = true
mlp_only_layers = [0]
"""
# Kind, whether the head is tied, further keys of the model.
CASES = [
    ("qwen2", True, ""),
    ("llama", False, 'hidden_act = "gelu"'),
    ("qwen2_moe", False, EXPERTS),
    ("qwen3", False, "head_dim = 8"),
    ("gemma3_text", True, "head_dim = 8\nown = { query_pre_attn_scalar = 8, sliding_window = 16, sliding_window_pattern = 2 }"),
]


def planaria(folder, *args):
    done = subprocess.run([PLANARIA, *args], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"planaria {' '.join(args)}: {done.stderr}"
    return done.stdout


def parts(folder, stem):
    """The tensors of one kind of file, checked against their index."""
    index = json.loads((folder / f"{stem}.safetensors.index.json").read_text())
    tensors = {}
    for file in sorted(set(index["weight_map"].values())):
        tensors.update(load_file(folder / file))
    assert tensors.keys() == index["weight_map"].keys(), stem
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    assert index["metadata"]["total_size"] == total, f"{stem}: total_size is exact"
    return tensors


def trained(kind, tied, more):
    """A run that was cut and went on as another mesh; its last checkpoint."""
    folder = OUT / f"{kind}-{tied}"
    folder.mkdir(parents=True)
    lines = (f"{i}: cut it anywhere, every piece grows back whole.\n" for i in range(400))
    (folder / "text.txt").write_text("".join(lines))
    (folder / "tiny.toml").write_text(CONFIG.format(kind=kind, tied=str(tied).lower(), more=more))
    planaria(folder, "train", "tiny.toml", "-n", "4", "--set", "train.steps=30")
    planaria(folder, "train", "tiny.toml", "-n", "4", "--set", "mesh=pp=2 dp=2")
    return folder, folder / "runs" / "tiny" / "ckpt" / "step-00000060"


def serves_as_it_is(kind, tied, more):
    folder, last = trained(kind, tied, more)
    weights = parts(last, "model")
    slots = parts(last, "optimizer")
    assert {name.rsplit("/", 1)[0] for name in slots} == set(weights), "every weight has its moments"
    model, report = AutoModelForCausalLM.from_pretrained(last, output_loading_info=True)
    absent = set(report["missing_keys"]) - ({"lm_head.weight"} if tied else set())
    assert not absent and not report["unexpected_keys"], report
    assert model.dtype == torch.float32
    again = folder / "again"
    model.save_pretrained(again)
    state = load_file(again / "model.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())

    tokenizer = AutoTokenizer.from_pretrained(last)
    prompt = "12: cut it"
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    made = model.eval().generate(ids, max_new_tokens=12, do_sample=False)
    theirs = tokenizer.decode(made[0], skip_special_tokens=True)
    ours = planaria(folder, "generate", "runs/tiny", prompt, "--tokens", "12", "--temperature", "0")
    assert theirs.strip() in ours or ours.strip() in theirs, f"{theirs!r} is not {ours!r}"
    is_a_start(folder, again, last)


def is_a_start(folder, theirs, ours):
    """The folder that transformers wrote speaks, and a run from it begins as one from ours does."""
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (theirs / file).write_bytes((ours / file).read_bytes())
    speak = ["--tokens", "12", "--temperature", "0"]
    assert planaria(folder, "generate", str(theirs), "12: cut", *speak) == planaria(
        folder, "generate", str(ours), "12: cut", *speak
    )
    tuned = '[data]\nsequence = 32\n[[data.source]]\npath = "text.txt"\n[train]\nsteps = 1\nglobal_batch = 4\n'
    (folder / "tuned.toml").write_text(tuned)
    losses = []
    for name, init in [("theirs", theirs), ("ours", ours)]:
        told = planaria(
            folder, "train", "tuned.toml", "--json", "--set", f"name={name}", "--set", f"model.init={init}",
            "--set", "mesh=tp=2",
        )
        steps = [json.loads(line) for line in told.splitlines()]
        losses += [line["loss"] for line in steps if line["event"] == "step"]
    assert losses[0] == losses[1] and losses[0] < 5, losses


STATE = """
name = "resumed"
[model]
kind = "llama"
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
vocab_size = 300
tie_word_embeddings = {tied}
[data]
sequence = 32
[[data.source]]
path = "text.txt"
[optim]
lr = 1e-2
schedule = "constant"
warmup = 0
beta1 = 0.9
beta2 = 0.95
weight_decay = 0.0
clip = 0.0
[train]
steps = 8
global_batch = 4
[checkpoint]
from = "ours"
"""


def torch_state_is_a_start(tied):
    """Model and AdamW of torch, saved by DCP in the middle of training, converted and gone on with: the same losses as in torch."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = OUT / f"torch-state-{tied}"
    folder.mkdir(parents=True)
    # Every sample of 32 bytes is the same one, so the order of the data does not matter.
    period = "cut it, and every piece grows ba"
    assert len(period) == 32
    (folder / "text.txt").write_text(period * 400)
    torch.manual_seed(4)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied, initializer_range=0.1,
    ))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)

    def step(row):
        ids = torch.tensor([row])
        optimizer.zero_grad()
        scores = model(input_ids=ids[:, :32]).logits
        loss = torch.nn.functional.cross_entropy(scores[0], ids[0, 1:33])
        loss.backward()
        optimizer.step()
        return loss.item()

    row = [ord(c) for c in (period * 2)[:33]]
    for _ in range(5):
        step(row)
    states = get_state_dict(model, optimizer)
    dcp.save({"model": states[0], "optim": states[1]}, checkpoint_id=folder / "theirs")
    theirs = [step(row) for _ in range(3)]
    planaria(folder, "convert", "theirs", "ours", "--to", "planaria")
    (folder / "state.toml").write_text(STATE.format(tied=str(tied).lower()))
    for name, mesh in [("resumed", "dp=2"), ("other", "tp=2")]:
        told = planaria(folder, "train", "state.toml", "--json", "--set", f"name={name}", "--set", f"mesh={mesh}")
        steps = [json.loads(line) for line in told.splitlines()]
        steps = [line for line in steps if line["event"] == "step"]
        assert [line["step"] for line in steps] == [6, 7, 8], steps
        for line, loss in zip(steps, theirs):
            assert abs(line["loss"] - loss) <= 1e-4 * loss, (tied, mesh, [s["loss"] for s in steps], theirs)


def main():
    passed = failed = 0
    cases = [(serves_as_it_is, case) for case in CASES] + [(torch_state_is_a_start, (tied,)) for tied in (False, True)]
    for check, case in cases:
        kind = f"{check.__name__}{case}"
        try:
            check(*case)
            passed += 1
        except Exception as error:  # noqa: BLE001: every failure is reported, none ends the run
            failed += 1
            print(f"FAILED {kind}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
