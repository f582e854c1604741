"""Models of every family as ONNX models and as Paddle programs, run by onnxruntime and by Paddle: COMMAND TESTDATA OUT.

Each golden model of testdata/models becomes a folder of weights; `planaria convert --validate` writes its programs for any
batch and length, runs the model, the programs in our interpreter and the programs here, and compares all outputs. What
transformers made of the golden tokens, and of prompts with pictures, is compared too.
"""

import gzip
import json
import pathlib
import subprocess
import sys

import numpy
import onnxruntime
from safetensors.numpy import load, save_file

COMMAND, TESTDATA, OUT = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])

# Every family, and what some of them vary.
MODELS = [
    "gpt2",
    "llama",
    "mistral",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "phi3-long",
    "qwen2-moe",
    "qwen3-moe",
    "qwen2-5-vl",
]

# A folder as it is published, in bf16.
SEEING = TESTDATA / "qwen2-vl" / "model" / "tiny_a"

# The programs of a model, and those of one that sees.
PARTS = {"forward", "decode"}
SEEING_PARTS = PARTS | {"vision", "prompt"}


def weights(source):
    """A folder as transformers would write it, and what it made of some tokens."""
    name = source.name.split(".")[0]
    data = gzip.decompress(source.read_bytes())
    size = int.from_bytes(data[:8], "little")
    config = json.loads(data[8 : 8 + size])["__metadata__"]["config"]
    folder = OUT / "weights" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    tensors = load(data)
    kept = {key: value for key, value in tensors.items() if "weight" in key or "bias" in key}
    kept = {key: value for key, value in kept.items() if not key.startswith("grad.")}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return name, folder, tensors


def validated(folder, name, form, sizes=(), parts=PARTS):
    target = OUT / f"{name}-{form}{'-fixed' if sizes else ''}"
    call = [COMMAND, "--json", "convert", str(folder), str(target), "--to", form, "--validate", "--python", sys.executable]
    ran = subprocess.run([*call, *sizes], capture_output=True, text=True)
    assert ran.returncode == 0, f"{ran.stderr.strip()} {ran.stdout[-600:]}"
    rows = json.loads(ran.stdout)["outputs"]
    by = {row["by"] for row in rows}
    assert by == {"planaria", "onnxruntime" if form == "onnx" else "paddle"}, by
    programs = {row["program"] for row in rows}
    assert programs == parts, programs
    return max(row["relative"] for row in rows)


def as_transformers(name, tensors):
    """The ONNX model on the golden tokens against the logits that transformers gave."""
    session = onnxruntime.InferenceSession(OUT / f"{name}-onnx" / "forward.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(["logits"], {"input_ids": tensors["input_ids"]})
    worst = numpy.abs(found - tensors["logits"]).max() / numpy.abs(tensors["logits"]).max()
    assert worst < 1e-4, worst
    return worst


def pictures_as_transformers():
    """Prompts with pictures: vectors and positions that transformers recorded, against its logits."""
    expected = load((SEEING / "expected" / "expected.safetensors").read_bytes())
    cases = json.loads((SEEING / "expected" / "expected.json").read_text())["cases"]
    session = onnxruntime.InferenceSession(OUT / "qwen2-vl-onnx" / "prompt.onnx", providers=["CPUExecutionProvider"])
    worst = []
    for case in cases:
        name = case["name"]
        if name not in ("one_image", "two_images", "video"):
            continue
        numbers = {key: numpy.array(case[key]["data"]).reshape(case[key]["shape"]) for key in ("input_ids", "position_ids")}
        seen = "video_features" if name == "video" else "image_features"
        (found,) = session.run(["logits"], {**numbers, "image_embeds": expected[f"{name}.{seen}"]})
        wanted = expected[f"{name}.logits"]
        worst.append(numpy.abs(found - wanted).max() / numpy.abs(wanted).max())
    assert len(worst) == 3 and max(worst) < 1e-4, worst
    return max(worst)


def main():
    passed = failed = 0

    def attempt(what, work):
        nonlocal passed, failed
        try:
            print(f"{what}: largest relative difference {work():.1e}", flush=True)
            passed += 1
        except Exception as error:  # noqa: BLE001: every failure is reported, none ends the run
            failed += 1
            print(f"FAILED {what}: {type(error).__name__}: {error}", flush=True)

    for model in MODELS:
        name, folder, tensors = weights(TESTDATA / "models" / f"{model}.safetensors.gz")
        for form in ("onnx", "paddle-program"):
            parts = SEEING_PARTS if name == "qwen2-5-vl" else PARTS
            attempt(f"{name} {form}", lambda: validated(folder, name, form, parts=parts))
        attempt(f"{name} as transformers", lambda: as_transformers(name, tensors))
    for form in ("onnx", "paddle-program"):
        attempt(f"qwen2-vl {form}", lambda: validated(SEEING, "qwen2-vl", form, parts=SEEING_PARTS))
        attempt(f"fixed sizes, {form}", lambda: validated(OUT / "weights" / "gemma3", "gemma3", form, ("--sizes", "2x7")))
    attempt("qwen2-vl pictures as transformers", pictures_as_transformers)
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
