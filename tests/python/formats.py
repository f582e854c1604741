"""Opens what `planaria convert` writes with the programs it is written for, and compares every bit.

usage: formats.py PLANARIA TESTDATA FOLDER
"""

import json
import math
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

warnings.filterwarnings("ignore")
PLANARIA, TESTDATA, OUT = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
SOURCES = [
    "torch-dcp/dtensor2",
    "torch-dcp/fsdp2_2",
    "torch-dcp/single",
    "torch-dcp/fp8_2",
    "torch-dcp/nested2",
    "paddle-checkpoints/tp4_replicas",
    "paddle-checkpoints/uneven2",
    "paddle-checkpoints/zero2_flat",
    "paddle-checkpoints/big1",
]


def convert(source, name, *flags):
    target = OUT / name
    command = [PLANARIA, "convert", str(source), str(target), "--yes", "-q", *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return target


def same(found, expected):
    assert found.keys() == expected.keys(), set(found) ^ set(expected)
    for name, tensor in expected.items():
        other = found[name]
        assert other.dtype == tensor.dtype and other.shape == tensor.shape, (name, other.dtype, other.shape)
        raw = [t.contiguous().view(-1).view(torch.uint8) for t in (other, tensor)]
        assert torch.equal(*raw), f"{name} differs"


def files(folder, stem):
    """The tensors of numbered files, checked against their index."""
    index = json.loads((folder / f"{stem}.safetensors.index.json").read_text())
    tensors = {}
    for file in sorted(set(index["weight_map"].values())):
        held = load_file(folder / file)
        assert all(index["weight_map"][name] == file for name in held), file
        tensors.update(held)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    assert index["metadata"]["total_size"] == total, "total_size is exact"
    return tensors


def read_dcp(folder):
    about = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    tensors = {k: torch.zeros(m.size, dtype=m.properties.dtype) for k, m in about.items() if hasattr(m, "size")}
    dcp.load(tensors, checkpoint_id=folder)
    return tensors


def model_of(name, expected):
    """What of a checkpoint is the model: the rest does not go to a Hugging Face folder."""
    if name == "torch-dcp-fsdp2_2":
        return {k: v for k, v in expected.items() if not k.startswith("optim.")}
    if name == "paddle-checkpoints-zero2_flat":
        return {k.removesuffix(".w_0"): v for k, v in expected.items() if k.endswith(".w_0")}
    return expected


def in_torch(name, expected):
    """The names that torch has for optimizer state; Paddle's powers of betas become steps."""
    if name != "paddle-checkpoints-zero2_flat":
        return expected
    slots = {".moment1_0": "exp_avg", ".moment2_0": "exp_avg_sq"}
    found = {}
    for key, value in expected.items():
        stem, slot = key.rsplit(".", 1)
        if slot == "w_0":
            found[f"master_weights.{stem}"] = value
        elif "." + slot in slots:
            found[f"optim.state.{stem}.{slots['.' + slot]}"] = value
        elif slot == "beta1_pow_acc_0":
            steps = round(math.log(value.item()) / math.log(0.9)) - 1
            found[f"optim.state.{stem}.step"] = torch.tensor(float(steps))
    return found


def hugging_face(source, expected, name):
    expected = model_of(name, expected)
    folder = convert(source, f"{name}-hf", "--to", "hf", "--max-shard-size", "500B")
    many = (folder / "model.safetensors.index.json").exists()
    same(files(folder, "model") if many else load_file(folder / "model.safetensors"), expected)


def torch_dcp(source, expected, name):
    expected = in_torch(name, expected)
    folder = convert(source, f"{name}-dcp", "--to", "dcp", "--max-shard-size", "3kB")
    same(read_dcp(folder), expected)
    one = OUT / f"{name}.pt"
    dcp_to_torch_save(folder, one)
    saved, _ = flatten_state_dict(torch.load(one, weights_only=False))
    same({k: v for k, v in saved.items() if torch.is_tensor(v)}, expected)


def torch_dcp_as_held(source, expected, name):
    expected = in_torch(name, expected)
    folder = convert(source, f"{name}-held", "--to", "dcp", "--layout", "as-held")
    same(read_dcp(folder), expected)


def our_own(source, expected, name):
    """Our folder is an ordinary folder of safetensors files with an index."""
    folder = convert(source, f"{name}-ours", "--to", "planaria", "--max-shard-size", "700B")
    parts = [stem for stem in ("model", "master_weights", "optimizer") if (folder / f"{stem}.safetensors.index.json").exists()]
    found = {}
    for part in parts:
        found.update({(part, k): v for k, v in files(folder, part).items()})
    assert len(found) == len(expected)
    if parts == ["model"]:
        same({k: v for (_, k), v in found.items()}, expected)
    done = subprocess.run([PLANARIA, "verify", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("sound: "), done.stdout + done.stderr


def archives_have_right_checksums(source, expected, name):
    folder = convert(source, f"{name}-zip", "--to", "dcp")
    about = dcp.FileSystemReader(folder).read_metadata()
    for place in about.storage_data.values():
        with open(folder / place.relative_path, "rb") as file:
            file.seek(place.offset)
            part = OUT / "archive.zip"
            part.write_bytes(file.read(place.length))
        assert zipfile.ZipFile(part).testzip() is None


def unified(source, expected, name):
    if name != "paddle-checkpoints-tp4_replicas":
        return
    folder = convert(source, f"{name}-unified", "--to", "paddle-unified", "--max-shard-size", "300B")
    same(files(folder, "model"), expected)


def casts_like_torch(source, expected, name):
    expected = model_of(name, expected)
    folder = convert(source, f"{name}-bf16", "--to", "hf", "--dtype", "bf16")
    wide = (torch.float32, torch.float64, torch.float16)
    cast = {k: v.to(torch.bfloat16) if v.dtype in wide or v.element_size() == 1 and v.is_floating_point() else v
            for k, v in expected.items()}
    same(load_file(folder / "model.safetensors"), cast)


def transformers_model():
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(OUT / "qwen2")
    ring = convert(OUT / "qwen2", "qwen2-dcp", "--to", "dcp")
    same(read_dcp(ring), {k: v for k, v in load_file(OUT / "qwen2" / "model.safetensors").items()})
    ring = convert(ring, "qwen2-unified", "--to", "paddle-unified", "--max-shard-size", "10kB")
    ours = convert(ring, "qwen2-ours", "--to", "planaria", "--max-shard-size", "30kB")
    ring = convert(ours, "qwen2-hf", "--to", "hf", "--max-shard-size", "20kB")
    tokens = torch.arange(24).reshape(2, 12)
    for folder in (ring, ours):
        again = AutoModelForCausalLM.from_pretrained(folder).eval()
        assert torch.equal(model(tokens).logits, again(tokens).logits), "the same logits"


def mapping_transposes():
    torch.manual_seed(1)
    tensors = {"a.w": torch.randn(37, 53), "b.w": torch.randn(37, 11)}
    save_file(tensors, OUT / "plain.safetensors")
    (OUT / "t.aoa").write_text("a.w^T, b.w^T -> ab, axis=0\n")
    folder = convert(OUT / "plain.safetensors", "mapped", "--to", "hf", "--mapping", str(OUT / "t.aoa"))
    same(load_file(folder / "model.safetensors"), {"ab": torch.cat([tensors["a.w"].T, tensors["b.w"].T])})


def trained():
    """A small model and its AdamW after a few steps, as torch keeps them."""
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.LayerNorm(10), torch.nn.Linear(10, 5))
    groups = [{"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    for _ in range(7):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def state_of(model, optimizer):
    from torch.distributed.checkpoint.state_dict import get_state_dict

    states = get_state_dict(model, optimizer)
    return {"model": states[0], "optim": states[1]}


def resumed(folder):
    """A fresh model and optimizer that load a folder as torch programs do."""
    from torch.distributed.checkpoint.state_dict import set_state_dict

    model, optimizer = trained()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for state in optimizer.state.values():
            for value in state.values():
                value.zero_()
    for group in optimizer.param_groups:
        group["lr"], group["betas"] = 1.0, (0.1, 0.2)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    return state_of(model, optimizer)


def equal(found, expected, path="state"):
    assert type(found) is type(expected), (path, found, expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), (path, set(found) ^ set(expected))
        for key in expected:
            equal(found[key], expected[key], f"{path}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), path
        for number, pair in enumerate(zip(found, expected)):
            equal(*pair, f"{path}.{number}")
    elif torch.is_tensor(expected):
        raw = [t.contiguous().view(torch.uint8) if t.ndim else t.reshape(1).view(torch.uint8) for t in (found, expected)]
        assert found.dtype == expected.dtype and found.shape == expected.shape and torch.equal(*raw), path
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and np.array_equal(found, expected), path
    elif isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(found), path
    elif isinstance(expected, float):
        assert math.copysign(1, found) == math.copysign(1, expected) and found == expected, path
    else:
        assert found == expected, (path, found, expected)


def torch_optimizer_comes_back():
    """DCP to our own folder and back: torch resumes from it and finds everything as it was."""
    expected = state_of(*trained())
    dcp.save(expected, checkpoint_id=OUT / "adamw")
    equal(resumed(OUT / "adamw"), expected)
    ours = convert(OUT / "adamw", "adamw-ours", "--to", "planaria")
    slots = files(ours, "optimizer")
    same({"m": slots["model.0.weight/moment1_0"]}, {"m": expected["optim"]["state"]["0.weight"]["exp_avg"]})
    equal(resumed(convert(ours, "adamw-back", "--to", "dcp")), expected)


def python_values_come_back():
    """Values of every kind, nested between tensors: torch finds the same dict, straight and by way of our folder."""
    for name in ("values", "foreign"):
        source = TESTDATA / "torch-dcp" / name
        ours = convert(source, f"{name}-ours", "--to", "planaria")
        folders = [source, convert(source, f"{name}-straight", "--to", "dcp"), convert(ours, f"{name}-through", "--to", "dcp")]
        saved = []
        for number, folder in enumerate(folders):
            dcp_to_torch_save(folder, OUT / f"{name}-{number}.pt")
            saved.append(torch.load(OUT / f"{name}-{number}.pt", weights_only=False))
        equal(saved[1], saved[0])
        # Our folder is one of safetensors files, which have no complex128.
        equal(saved[2], {k: v for k, v in saved[0].items() if k != "c128"})
        assert [list(d) for d in saved[2].get("unsorted", ())] == [list(d) for d in saved[0].get("unsorted", ())], "order"


def carried_types_are_those_of_safetensors():
    folder = convert(TESTDATA / "torch-dcp" / "foreign", "foreign-hf", "--to", "hf")
    expected = read_dcp(TESTDATA / "torch-dcp" / "foreign")
    del expected["c128"]
    same(load_file(folder / "model.safetensors"), expected)


def torch_optimizer_through_paddle():
    """Paddle keeps powers of the betas where torch counts steps; both follow from each other."""
    expected = state_of(*trained())["optim"]["state"]
    dcp.save(state_of(*trained()), checkpoint_id=OUT / "adamw2")
    unified = convert(OUT / "adamw2", "adamw-unified", "--to", "paddle-unified")
    slots = files(unified, "optimizer")
    power = torch.tensor(0.95)
    for _ in range(7):
        power = power * torch.tensor(0.95)
    same({"p": slots["model.2.bias/beta2_pow_acc_0"]}, {"p": power.reshape(1)})
    back = read_dcp(convert(unified, "adamw-third", "--to", "dcp", "--betas", "0.9,0.95"))
    for name, slots in expected.items():
        same({k: back[f"optim.state.model.{name}.{k}"] for k in slots}, slots)


def torch_optimizer_through_a_mapping():
    """A transposed and renamed weight, its moments with it; torch's own groups name it anew."""
    dcp.save(state_of(*trained()), checkpoint_id=OUT / "adamw3")
    expected = state_of(*trained())
    (OUT / "turn.aoa").write_text("model.0.weight^T -> model.first\n")
    folder = convert(OUT / "adamw3", "adamw-mapped", "--to", "dcp", "--map", str(OUT / "turn.aoa"))
    found = read_dcp(folder)
    for slot in ("exp_avg", "exp_avg_sq"):
        turned = expected["optim"]["state"]["0.weight"][slot].T.contiguous()
        same({"m": found[f"optim.state.first.{slot}"]}, {"m": turned})
    assert found["optim.state.first.step"].item() == 7


def main():
    passed = failed = 0
    cases = []
    for source in SOURCES:
        for check in (hugging_face, torch_dcp, torch_dcp_as_held, our_own, archives_have_right_checksums, unified, casts_like_torch):
            expected = load_file(TESTDATA / f"{source}.expected.safetensors")
            cases.append((f"{check.__name__} {source}", check, (TESTDATA / source, expected, source.replace("/", "-"))))
    alone = (transformers_model, mapping_transposes, python_values_come_back, carried_types_are_those_of_safetensors,
             torch_optimizer_comes_back, torch_optimizer_through_paddle,
             torch_optimizer_through_a_mapping)
    cases += [(f.__name__, f, ()) for f in alone]
    for name, check, args in cases:
        try:
            check(*args)
            passed += 1
        except Exception as error:  # noqa: BLE001: every failure is reported, none ends the run
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
