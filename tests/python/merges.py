"""Merges tiny models with mergekit and with us: the same tensors, the same configuration; transformers opens our folder.

Recipes of models of one kind, with an adapter, in bf16, of vocabularies that are made one, of models that see; mixtures of experts;
adapters that are extracted.

usage: merges.py PLANARIA TESTDATA FOLDER
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models as kinds, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

try:
    import mergekit  # noqa: F401
except ImportError:
    mergekit = None
try:
    import peft
except ImportError:
    peft = None

PLANARIA, OUT = str(Path(sys.argv[1]).resolve()), Path(sys.argv[3]).resolve()
# How far elements may be apart, in parts of the largest: both compute in f32 or wider and round once.
CLOSE = 2e-6
# In bf16 a sum that lies in the middle may be rounded to either side.
CLOSE_BF16 = 2**-7
WORDS = ["<s>", "</s>", "<unk>", *(f"w{i}" for i in range(45))]
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
    "bf16": """
merge_method: linear
models:
- {model: a, parameters: {weight: 0.3}}
- {model: b, parameters: {weight: 0.6}}
dtype: bfloat16
""",
    "out": """
merge_method: slerp
base_model: a
models: [{model: a}, {model: b}]
parameters: {t: 0.35}
dtype: float32
out_dtype: bfloat16
""",
    "adapted": """
merge_method: task_arithmetic
base_model: base
models:
- {model: a+adapter, parameters: {weight: 0.8}}
- {model: b, parameters: {weight: 0.5}}
dtype: float32
""",
}
UNION = """
merge_method: linear
base_model: base
models:
- {model: base, parameters: {weight: 1}}
- {model: wordy, parameters: {weight: 0.5}}
tokenizer_source: union
dtype: float32
"""
SEEING = """
merge_method: linear
models:
- {model: sees, parameters: {weight: [0.2, 0.8]}}
- {model: looks, parameters: {weight: 0.5}}
dtype: float32
"""
MODULES = """
merge_method: linear
modules:
  text_decoder: {models: [{model: sees, parameters: {weight: 0.5}}, {model: looks, parameters: {weight: 0.5}}]}
  vision_tower: {models: [{model: sees, parameters: {weight: 1}}]}
  multi_modal_projector: {models: [{model: looks, parameters: {weight: 1}}]}
dtype: float32
"""
MIXTURE = """
base_model: base
gate_mode: cheap_embed
architecture: mixtral
experts_per_token: 1
experts:
- {source_model: a, positive_prompts: ["w1 w2 w3"]}
- {source_model: b, positive_prompts: ["w7 w9", "w20"]}
dtype: float32
"""


def words(folder, vocabulary):
    """A tokenizer of whole words."""
    made = Tokenizer(kinds.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>").save_pretrained(folder)


def shaken(model, seed):
    """All elements differ in magnitude, so that selections have no ties."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    return model


def llama(vocabulary):
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=1,
    )


def models():
    """Models of one kind, one with more words, an adapter, and two models that see."""
    for seed, name in enumerate(["base", "a", "b"]):
        shaken(LlamaForCausalLM(llama(48)), seed).save_pretrained(OUT / name)
        words(OUT / name, WORDS)
    # Two words of the others are missing, one is new.
    shaken(LlamaForCausalLM(llama(47)), 3).save_pretrained(OUT / "wordy")
    words(OUT / "wordy", [*WORDS[:46], "new"])
    if peft is not None:
        model = LlamaForCausalLM.from_pretrained(OUT / "a")
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        shaken(peft.get_peft_model(model, config), 4).save_pretrained(OUT / "adapter")
    text = dict(vocab_size=48, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    text["rope_scaling"] = {"type": "mrope", "mrope_section": [1, 1, 0]}
    vision = dict(depth=3, hidden_size=16, out_hidden_size=16, intermediate_size=20, num_heads=2, patch_size=4, fullatt_block_indexes=[1])
    for seed, name in enumerate(["sees", "looks"]):
        model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))
        shaken(model, 5 + seed).save_pretrained(OUT / name)


def weights(folder):
    return {k: v for file in sorted(folder.glob("model*.safetensors")) for k, v in load_file(file).items()}


def run(*command):
    done = subprocess.run(command, cwd=OUT, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"


def theirs_of(name, script, *arguments):
    """What mergekit makes, in this process: it takes seconds to load."""
    main, before = importlib.import_module(script).main, Path.cwd()
    os.chdir(OUT)
    try:
        main.main([*arguments, f"{name}-theirs"], standalone_mode=False)
    finally:
        os.chdir(before)
    return OUT / f"{name}-theirs"


def ours_of(name, recipe, *more):
    (OUT / f"{name}.yml").write_text(recipe)
    run(PLANARIA, "merge", f"{name}.yml", f"{name}-ours", *more)
    return OUT / f"{name}-ours"


MERGEKIT = ["--no-copy-tokenizer", "--no-write-model-card", "--lora-merge-cache", "cache"]


def same(one, other, bound=CLOSE):
    assert one.keys() == other.keys(), sorted(one.keys() ^ other.keys())
    for key, expected in other.items():
        assert one[key].dtype == expected.dtype and one[key].shape == expected.shape, key
        apart = (one[key].float() - expected.float()).abs().max().item()
        assert apart <= bound * expected.float().abs().max().item(), f"{key} is {apart} apart"


def agree(name, recipe):
    """What we make of a recipe opens in transformers, and is what mergekit makes of it."""
    ours = ours_of(name, recipe)
    made = AutoModelForCausalLM.from_pretrained(ours)
    assert made.config.num_hidden_layers == (4 if name == "layers" else 3)
    assert torch.isfinite(made(input_ids=torch.arange(12)[None]).logits).all()
    if mergekit is None:
        return
    theirs = theirs_of(name, "mergekit.scripts.run_yaml", *MERGEKIT, f"{name}.yml")
    same(weights(ours), weights(theirs), CLOSE_BF16 if "bfloat16" in recipe else CLOSE)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (ours, theirs)]
    for key in ["hidden_size", "num_hidden_layers", "vocab_size", "tie_word_embeddings"]:
        assert configs[0].get(key) == configs[1].get(key), key
    # The copy of the recipe that we leave says what was read.
    copy = (ours / "mergekit_config.yml").read_text()
    assert copy.startswith(recipe.rstrip()) and "hash " in copy, copy


def union(name, recipe):
    """Rows are compared token by token: new ones have ids in another order there."""
    ours = ours_of(name, recipe)
    vocabulary = PreTrainedTokenizerFast.from_pretrained(ours).get_vocab()
    assert set(vocabulary) == {*WORDS, "new"}, sorted(vocabulary)
    assert AutoModelForCausalLM.from_pretrained(ours).config.vocab_size == len(vocabulary)
    if mergekit is None:
        return
    theirs = theirs_of(name, "mergekit.scripts.run_yaml", "--no-write-model-card", f"{name}.yml")
    other = PreTrainedTokenizerFast.from_pretrained(theirs).get_vocab()
    order = [other[word] for word, _ in sorted(vocabulary.items(), key=lambda item: item[1])]
    expected = weights(theirs)
    for key in ["model.embed_tokens.weight", "lm_head.weight"]:
        expected[key] = expected[key][order]
    same(weights(ours), expected)


def seeing(name, recipe):
    """Each module has layers of its own, over which gradients run."""
    ours = ours_of(name, recipe)
    made = Qwen2_5_VLForConditionalGeneration.from_pretrained(ours)
    assert torch.isfinite(made(input_ids=torch.arange(12)[None]).logits).all()
    if mergekit is not None:
        theirs = theirs_of(name, "mergekit.scripts.run_yaml", *MERGEKIT, f"{name}.yml")
        one, other = weights(ours), weights(theirs)
        # What stands between has no layers here; there each of its tensors is made twice, the last time for the last layer.
        between = {key for key in other if "merger" in key} if "0.8" in recipe else set()
        same({k: v for k, v in one.items() if k not in between}, {k: v for k, v in other.items() if k not in between})
        assert between <= one.keys()


def mixture(name, recipe):
    """Folders of mixtures have other names of tensors; what counts is what they say."""
    ours = ours_of(name, recipe)
    ids = torch.arange(3, 15)[None]
    said = AutoModelForCausalLM.from_pretrained(ours)(input_ids=ids).logits
    assert torch.isfinite(said).all()
    if mergekit is None:
        return
    command = ["mergekit.scripts.moe", "--i-understand-this-is-not-useful-without-training", f"{name}.yml"]
    theirs = theirs_of(name, *command)
    expected = AutoModelForCausalLM.from_pretrained(theirs)(input_ids=ids).logits
    apart = (said - expected).abs().max().item()
    assert apart <= 1e-5 * expected.abs().max().item(), f"scores are {apart} apart"


def extracted(name, _):
    """An adapter of full rank makes the one model of the other, in peft too."""
    run(PLANARIA, "lora", "extract", "a", "base", f"{name}-ours", "--max-rank", "16")
    if peft is None:
        return
    ids = torch.arange(3, 15)[None]
    expected = LlamaForCausalLM.from_pretrained(OUT / "a")(input_ids=ids).logits
    said = peft.PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(OUT / "base"), OUT / f"{name}-ours")(input_ids=ids).logits
    apart = (said - expected).abs().max().item()
    assert apart <= 1e-4 * expected.abs().max().item(), f"scores are {apart} apart"
    # The best of a small rank is the same product, whatever the signs of its factors.
    run(PLANARIA, "lora", "extract", "a", "base", f"{name}-small", "--max-rank", "3")
    small = load_file(OUT / f"{name}-small" / "adapter_model.safetensors")
    change = weights(OUT / "a")["model.layers.1.mlp.up_proj.weight"] - weights(OUT / "base")["model.layers.1.mlp.up_proj.weight"]
    u, s, v = torch.linalg.svd(change.double(), full_matrices=False)
    best = (u[:, :3] * s[:3]) @ v[:3]
    module = "base_model.model.model.layers.1.mlp.up_proj"
    found = small[f"{module}.lora_B.weight"].double() @ small[f"{module}.lora_A.weight"].double()
    assert (found - best).abs().max() <= 1e-5 * best.abs().max()


def main():
    passed = failed = 0
    if mergekit is None:
        print("skipped: mergekit is not installed, so our merges are only opened")
    models()
    cases = [(agree, name, recipe) for name, recipe in RECIPES.items() if peft is not None or name != "adapted"]
    cases += [(union, "union", UNION), (seeing, "seeing", SEEING), (seeing, "modules", MODULES)]
    cases += [(mixture, "mixture", MIXTURE), (extracted, "extracted", None)]
    for check, name, recipe in cases:
        try:
            check(name, recipe)
            passed += 1
        except Exception as error:
            failed += 1
            print(f"FAILED {name}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
