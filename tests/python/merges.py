"""Merges tiny models with mergekit and with us: the same tensors, the same configuration; transformers opens our folder.

usage: merges.py PLANARIA TESTDATA FOLDER
"""

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

try:
    import mergekit  # noqa: F401
except ImportError:
    mergekit = None

PLANARIA, OUT = str(Path(sys.argv[1]).resolve()), Path(sys.argv[3]).resolve()
# How far elements may be apart, in parts of the largest: both compute in f32 or wider and round once.
CLOSE = 2e-6
RECIPES = {
    "linear": """
merge_method: linear
models:
- {model: base, parameters: {weight: 0.7}}
- {model: a, parameters: {weight: 0.4}}
- {model: b, parameters: {weight: [0.1, 0.6]}}
dtype: float32
""",
    "slerp": """
merge_method: slerp
base_model: base
models: [{model: base}, {model: a}]
parameters:
  t: [{filter: self_attn, value: [0, 0.4, 1]}, {filter: mlp, value: 0.3}, {value: 0.5}]
dtype: float32
""",
    "ties": """
merge_method: ties
base_model: base
models:
- {model: a, parameters: {weight: 0.6, density: 0.5}}
- {model: b, parameters: {weight: 0.5, density: 0.7}}
parameters: {normalize: true}
dtype: float32
""",
    "layers": """
merge_method: passthrough
slices:
- sources: [{model: a, layer_range: [0, 2]}]
- sources: [{model: b, layer_range: [1, 3]}]
dtype: float32
""",
}


def models():
    """Three models of one kind; all elements differ in magnitude, so that selections have no ties."""
    config = LlamaConfig(
        vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2
    )
    for seed, name in enumerate(["base", "a", "b"]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
        for parameter in model.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        model.save_pretrained(OUT / name)


def weights(folder):
    return {k: v for file in sorted(folder.glob("model*.safetensors")) for k, v in load_file(file).items()}


def run(*command):
    done = subprocess.run(command, cwd=OUT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"


def agree(name, recipe):
    """What we make of a recipe opens in transformers, and is what mergekit makes of it."""
    (OUT / f"{name}.yml").write_text(recipe)
    ours, theirs = OUT / f"{name}-ours", OUT / f"{name}-theirs"
    run(PLANARIA, "merge", f"{name}.yml", ours.name)
    made = AutoModelForCausalLM.from_pretrained(ours)
    assert made.config.num_hidden_layers == (4 if name == "layers" else 3)
    assert torch.isfinite(made(input_ids=torch.arange(12)[None]).logits).all()
    if mergekit is None:
        return
    run(sys.executable, "-m", "mergekit.scripts.run_yaml", f"{name}.yml", theirs.name, "--no-copy-tokenizer", "--no-write-model-card")
    one, other = weights(ours), weights(theirs)
    assert one.keys() == other.keys(), sorted(one.keys() ^ other.keys())
    for key, expected in other.items():
        assert one[key].dtype == expected.dtype and one[key].shape == expected.shape, key
        apart = (one[key] - expected).abs().max().item()
        assert apart <= CLOSE * expected.abs().max().item(), f"{key} is {apart} apart"
    configs = [json.loads((folder / "config.json").read_text()) for folder in (ours, theirs)]
    for key in ["hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings"]:
        assert configs[0].get(key) == configs[1].get(key), key
    # The copy of the recipe that we leave says what was read.
    copy = (ours / "mergekit_config.yml").read_text()
    assert copy.startswith(recipe.rstrip()) and "hash " in copy, copy


def main():
    passed = failed = 0
    if mergekit is None:
        print("skipped: mergekit is not installed, so our merges are only opened")
    models()
    for name, recipe in RECIPES.items():
        try:
            agree(name, recipe)
            passed += 1
        except Exception as error:
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
