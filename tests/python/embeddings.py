"""Trains embeddings of every pooling and opens the folders with sentence-transformers as they are: the same vectors.
Adapters that were merged embed as before.

usage: embeddings.py PLANARIA TESTDATA FOLDER
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

try:
    import sentence_transformers
except ImportError:
    sentence_transformers = None

# Absolute: the command runs in other folders.
PLANARIA, TESTDATA, OUT = [str(Path(path).resolve()) for path in sys.argv[1:4]]
CONFIG = """
name = "run"
[model]
init = "{base}"
[data]
sequence = 64
[[data.source]]
path = "rows.jsonl"
[data.texts]
query_prompt = "find: "
include_prompt = {include}
append_eos = {eos}
[embedding]
pooling = {pooling}
normalize = {normalize}
loss = "{loss}"
{attention}
{more}
[train]
objective = "contrastive"
steps = 2
global_batch = 4
[optim]
lr = 1e-3
"""
# Pooling, whether vectors have length 1, whether prompts count, whether texts end with eos, who sees whom, what is learnt.
CASES = [
    (["lasttoken"], True, True, True, "causal", "info_nce"),
    (["cls"], False, True, False, "bidirectional", "info_nce"),
    (["mean"], True, False, True, "bidirectional", "triplet"),
    (["mean_sqrt_len_tokens"], False, True, True, "causal", "info_nce"),
    (["weightedmean"], True, False, True, "causal", "info_nce"),
    (["max", "mean"], False, True, True, "causal", "cosent"),
]
# A model with a head that scores tokens.
SCORING = """
name = "base"
[model]
kind = "qwen2"
hidden_size = 32
intermediate_size = 48
num_hidden_layers = 2
num_attention_heads = 4
[data]
sequence = 16
[[data.source]]
path = "rows.jsonl"
field = "query"
[train]
steps = 2
global_batch = 2
"""
TEXTS = ["how do worms grow back", "a", "cut it anywhere; every piece grows", "salt"]


def planaria(folder, *args):
    done = subprocess.run([PLANARIA, *map(str, args)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{args}: {done.stderr}"
    return done.stdout


def opens_as_it_is(number, pooling, normalize, include, eos, attention, loss):
    folder = Path(OUT) / f"case{number}"
    folder.mkdir()
    row = {"query": "worms {}", "positive": "they grow {}", "negative": ["no {}"]}
    if loss == "cosent":
        row = {"sentence1": "worms {}", "sentence2": "they grow {}"}
    fill = lambda value, i: [text.format(i) for text in value] if isinstance(value, list) else value.format(i)
    rows = [{key: fill(value, i) for key, value in row.items()} for i in range(8)]
    if loss == "cosent":
        rows = [{**row, "score": i / 8} for i, row in enumerate(rows)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = folder / "texts.txt"
    texts.write_text("\n".join(TEXTS))
    word = lambda value: json.dumps(value)
    base = f"{TESTDATA}/embeddings/models/last_token"
    config = CONFIG.format(
        base=base, include=word(include), eos=word(eos), pooling=word(pooling), normalize=word(normalize), loss=loss,
        attention=f'attention = "{attention}"', more="",
    )
    (folder / "run.toml").write_text(config)
    planaria(folder, "train", "run.toml", "-q")
    planaria(folder, "convert", "runs/run", "out", "--to", "hf")
    theirs = sentence_transformers.SentenceTransformer(str(folder / "out"), device="cpu")
    for prompt in ["query", None]:
        more = ["--prompt", prompt] if prompt else []
        planaria(folder, "embed", "runs/run", "texts.txt", "-o", f"{prompt}.npy", *more)
        ours = np.load(folder / f"{prompt}.npy")
        found = theirs.encode(TEXTS, prompt_name=prompt, batch_size=3)
        assert found.shape == ours.shape, (found.shape, ours.shape)
        apart = np.abs(found - ours).max() / np.abs(found).max()
        assert apart < 2e-5, f"{apart} apart with the prompt {prompt}"


def merged_embeds_as_before(base):
    """An adapter of bidirectional attention, with its own ends of texts, merged into its model."""
    folder = Path(OUT) / f"merged-{Path(base).name}"
    folder.mkdir()
    rows = [{"query": f"worms {i}", "positive": f"they grow {i}"} for i in range(8)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "texts.txt").write_text("\n".join(TEXTS))
    (folder / "base.toml").write_text(SCORING)
    planaria(folder, "train", "base.toml", "-q")
    config = CONFIG.format(
        base=base, include="true", eos="true", pooling='["mean"]', normalize="true", loss="info_nce",
        attention='attention = "bidirectional"', more='[lora]\nr = 4\ntarget_modules = "all-linear"',
    )
    (folder / "run.toml").write_text(config.replace("lr = 1e-3", "lr = 3e-2\nwarmup = 0"))
    planaria(folder, "train", "run.toml", "-q")
    planaria(folder, "lora", "merge", base, "runs/run", "merged")
    recipe = f"merge_method: passthrough\nmodels:\n- model: {{model: {{path: {base}}}, lora: {{path: runs/run}}}}\n"
    (folder / "recipe.yml").write_text(recipe)
    planaria(folder, "merge", "recipe.yml", "by-recipe")
    planaria(folder, "embed", "runs/run", "texts.txt", "-o", "before.npy")
    before = np.load(folder / "before.npy")
    for name in ["merged", "by-recipe"]:
        planaria(folder, "embed", name, "texts.txt", "-o", f"{name}.npy")
        apart = np.abs(np.load(folder / f"{name}.npy") - before).max()
        assert apart < 1e-6, f"{name} is {apart} apart from the model with its adapter"
        theirs = sentence_transformers.SentenceTransformer(str(folder / name), device="cpu").encode(TEXTS)
        apart = np.abs(theirs - before).max()
        assert apart < 2e-5, f"sentence-transformers is {apart} apart on {name}"


def main():
    if sentence_transformers is None:
        print("skipped: sentence-transformers is not installed\n0 passed, 0 failed")
        return
    passed = failed = 0
    cases = [(opens_as_it_is, (number, *case)) for number, case in enumerate(CASES)]
    bases = [f"{TESTDATA}/embeddings/models/last_token", "runs/base"]
    cases += [(merged_embeds_as_before, (base,)) for base in bases]
    for check, case in cases:
        try:
            check(*case)
            passed += 1
        except Exception as error:  # noqa: BLE001: every failure is reported, none ends the run
            failed += 1
            print(f"FAILED {check.__name__}{case}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
