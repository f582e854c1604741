"""Trains adapters and opens them with peft, and the other way round: the same keys, the same merged weights, the same texts.

usage: adapters.py PLANARIA TESTDATA FOLDER
"""

import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

try:
    import peft
except ImportError:
    peft = None

# Absolute: the command runs in other folders.
PLANARIA, OUT = str(Path(sys.argv[1]).resolve()), Path(sys.argv[3]).resolve()
BASE = """
name = "base"
[model]
kind = "qwen2"
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
tie_word_embeddings = {tied}
[data]
sequence = 32
[[data.source]]
path = "text.txt"
[train]
steps = 20
global_batch = 4
[optim]
lr = 1e-2
"""
TUNED = """
name = "tuned"
model.init = "runs/base"
[data]
sequence = 32
[[data.source]]
path = "other.txt"
[train]
steps = 10
global_batch = 4
[optim]
lr = 1e-2
[lora]
"""
# What the section says, and what peft is told for an adapter of its own; whether the head is tied.
CASES = [
    (False, 'target_modules = "all-linear"\nr = 4\nalpha = 8', {"target_modules": "all-linear", "r": 4}),
    (False, 'target_modules = ["q_proj", "down_proj"]\ndora = true\nrslora = true', {"target_modules": ["q_proj"], "use_dora": True}),
    (False, 'target_modules = ["embed_tokens", "lm_head"]', {"target_modules": ["embed_tokens", "lm_head"]}),
    (
        True,
        'modules_to_save = ["norm"]\nbias = "lora_only"\nrank_pattern = { "layers.0.self_attn.q_proj" = 2 }',
        {"target_modules": ["v_proj", "o_proj"], "rank_pattern": {"v_proj": 3}, "bias": "all"},
    ),
    (True, "trainable_token_indices = [40, 41]", {"target_modules": ["k_proj"], "trainable_token_indices": [9, 50]}),
]
PROMPTS = ["12: cut it", "7: the sun", "a"]


def planaria(folder, *args):
    done = subprocess.run([PLANARIA, *args], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"planaria {' '.join(args)}: {done.stderr}"
    return done.stdout


def trained(number, tied, section):
    """A model and an adapter that was trained on two ranks."""
    folder = OUT / str(number)
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("".join(f"{i}: cut it anywhere, every piece grows back.\n" for i in range(200)))
    (folder / "other.txt").write_text("".join(f"{i}: the sun is {i % 7} times brighter.\n" for i in range(200)))
    (folder / "base.toml").write_text(BASE.format(tied=str(tied).lower()))
    (folder / "tuned.toml").write_text(TUNED + section + "\n")
    base = folder / planaria(folder, "train", "base.toml", "-q").strip()
    tuned = folder / planaria(folder, "train", "tuned.toml", "-q", "-n", "2", "--set", "mesh=tp=2").strip()
    return folder, base, tuned


def close(ours, theirs, what):
    assert ours.keys() == theirs.keys(), f"{what}: {sorted(ours.keys() ^ theirs.keys())}"
    for name, tensor in theirs.items():
        apart = (ours[name].float() - tensor.float()).abs().max().item()
        assert apart <= 1e-5 * tensor.abs().max().item() + 1e-7, f"{what}: {name} is {apart} apart"


def weights(folder):
    return {k: v for file in sorted(folder.glob("model*.safetensors")) for k, v in load_file(file).items()}


def says(model, tokenizer, prompt):
    """Ids of the next tokens: with random factors they are not text."""
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    made = model.generate(ids, max_new_tokens=12, do_sample=False)[0][ids.shape[1] :].tolist()
    return [i for i in made if i != tokenizer.eos_token_id]


def agree(folder, base, adapter, what):
    """peft and we make the same weights and the same texts of a model and an adapter."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    state = peft.get_peft_model_state_dict(model)
    stored = load_file(adapter / "adapter_model.safetensors")
    assert state.keys() == stored.keys(), f"{what}: {sorted(state.keys() ^ stored.keys())}"
    for prompt in PROMPTS:
        theirs = says(model, tokenizer, prompt)
        said = ["--tokens", "12", "--temperature", "0", "--json"]
        ours = json.loads(planaria(folder, "generate", str(base), prompt, "--lora", str(adapter), *said))
        assert theirs == ours["ids"], f"{what}: {theirs} is not {ours}"
    merged = folder / f"merged-{what}"
    planaria(folder, "lora", "merge", str(base), str(adapter), str(merged))
    whole = model.merge_and_unload()
    theirs = {k: v for k, v in whole.state_dict().items() if k in weights(merged)}
    ours = weights(merged)
    assert set(ours) >= set(whole.state_dict()) - {"lm_head.weight"}, what
    close(ours, theirs, what)


# How adapters are combined: what we are told, what peft is told.
COMBINED = [
    (["--method", "cat"], {"combination_type": "cat"}),
    (["--method", "linear"], {"combination_type": "linear"}),
    (["--method", "svd", "--svd-rank", "5"], {"combination_type": "svd", "svd_rank": 5}),
    (["--method", "ties", "--density", "0.5"], {"combination_type": "ties", "density": 0.5}),
    (["--method", "ties_svd", "--density", "0.6"], {"combination_type": "ties_svd", "density": 0.6}),
    (["--method", "magnitude_prune", "--density", "0.4"], {"combination_type": "magnitude_prune", "density": 0.4}),
]
IDS = torch.arange(40, 60)[None]


def scores(base, adapter):
    model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter).eval()
    return model(input_ids=IDS).logits


def near(found, expected, what, bound=2e-5):
    apart = (found - expected).abs().max().item()
    assert apart <= bound * expected.abs().max().item(), f"{what}: scores are {apart} apart"


def random_adapter(base, folder, seed):
    """An adapter of peft with values everywhere."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=2 + seed, target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    made = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    torch.manual_seed(seed)
    for parameter in (p for p in made.parameters() if p.requires_grad):
        parameter.data = 0.1 * torch.randn_like(parameter)
    made.save_pretrained(folder)


def combined(folder, base):
    """Two adapters made one by peft and by us say the same, opened in peft."""
    for number, name in enumerate(["first", "second"]):
        random_adapter(base, folder / name, number)
    for number, (ours, theirs) in enumerate(COMBINED):
        out = folder / f"combined{number}"
        planaria(folder, "lora", "combine", "first=0.7", "second=0.4", "--out", str(out), *ours)
        model = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder / "first", adapter_name="first")
        model.load_adapter(folder / "second", adapter_name="second")
        model.add_weighted_adapter(["first", "second"], [0.7, 0.4], "both", **theirs)
        model.set_adapter("both")
        near(scores(base, out), model.eval()(input_ids=IDS).logits, " ".join(ours))


def converted(folder, base):
    """To Paddle's layout and back: the same values, the same scores."""
    planaria(folder, "lora", "convert", "first", "paddled", "--layout", "paddle")
    planaria(folder, "lora", "convert", "paddled", "again", "--layout", "peft")
    stored = [load_file(folder / name / "adapter_model.safetensors") for name in ("first", "again")]
    assert stored[0].keys() == stored[1].keys()
    assert all(torch.equal(stored[0][key], stored[1][key]) for key in stored[0])
    near(scores(base, folder / "again"), scores(base, folder / "first"), "converted", 0)


def started(number):
    """An adapter that took its start out of the weights, made to fit the weights as they are, in peft."""
    for init in ["pissa", "olora"]:
        section = f'target_modules = ["q_proj", "down_proj"]\nr = 4\ninit = "{init}"'
        folder, base, tuned = trained(f"{number}-{init}", False, section)
        planaria(folder, "lora", "convert", str(tuned), "fitting", "--layout", "peft", "--model", str(base))
        planaria(folder, "lora", "merge", str(base), str(tuned), "merged")
        if peft is None:
            continue
        merged = AutoModelForCausalLM.from_pretrained(folder / "merged").eval()
        near(scores(base, folder / "fitting"), merged(input_ids=IDS).logits, init)


def extracted(folder, base):
    """What a merged model changed, of the rank that it has, in peft."""
    planaria(folder, "lora", "merge", str(base), "first", "changed")
    for more in ([], ["--embed-lora"]):
        out = folder / f"extracted{len(more)}"
        planaria(folder, "lora", "extract", "changed", str(base), str(out), "--max-rank", "8", "--sv-epsilon", "1e-6", *more)
        near(scores(base, out), scores(base, folder / "first"), "extracted", 1e-4)


def experts(number):
    """Factors on tensors of all experts: peft and we merge the same, and say the same of them expert by expert."""
    if peft is None:
        return
    folder = OUT / str(number)
    config = Qwen3MoeConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        moe_intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
    )
    torch.manual_seed(number)
    model = Qwen3MoeForCausalLM(config).eval()
    base = folder / "mixture"
    model.save_pretrained(base)
    targets = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    made = peft.get_peft_model(
        model, peft.LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj"], target_parameters=targets, init_lora_weights=False)
    )
    for name, parameter in made.named_parameters():
        if parameter.requires_grad:
            parameter.data = 0.2 * torch.randn_like(parameter)
    made.save_pretrained(folder / "adapter")
    expected = made.eval()(input_ids=IDS).logits
    planaria(folder, "lora", "merge", "mixture", "adapter", "merged")
    near(AutoModelForCausalLM.from_pretrained(folder / "merged").eval()(input_ids=IDS).logits, expected, "experts")
    planaria(folder, "lora", "convert", "adapter", "each", "--layout", "peft", "--model", "mixture")
    planaria(folder, "lora", "merge", "mixture", "each", "merged-each")
    close(weights(folder / "merged-each"), weights(folder / "merged"), "experts one by one")


def several(number):
    folder, base, _ = trained(number, False, "target_modules = [\"q_proj\"]")
    if peft is not None:
        combined(folder, base)
        converted(folder, base)
        extracted(folder, base)


def both_ways(number, tied, section, arguments):
    folder, base, tuned = trained(number, tied, section)
    config = json.loads((tuned / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA" and (tuned / "adapter_model.safetensors").is_file()
    if peft is None:
        return
    agree(folder, base, tuned, "ours")
    # An adapter that peft made, with values of its own everywhere.
    model = AutoModelForCausalLM.from_pretrained(base)
    made = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **arguments))
    torch.manual_seed(number)
    for name, parameter in made.named_parameters():
        if parameter.requires_grad:
            parameter.data += 0.02 * torch.randn_like(parameter)
    theirs = folder / "theirs"
    made.save_pretrained(theirs)
    agree(folder, base, theirs, "theirs")


def main():
    passed = failed = 0
    if peft is None:
        print("skipped: peft is not installed, so only the form of our folders is looked at")
    cases = [(section, lambda n, t=tied, s=section, a=arguments: both_ways(n, t, s, a)) for tied, section, arguments in CASES]
    cases += [("several adapters", several), ("starts", started), ("experts", experts)]
    for number, (what, check) in enumerate(cases):
        try:
            check(number)
            passed += 1
        except Exception as error:
            failed += 1
            print(f"FAILED {what!r}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
