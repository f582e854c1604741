"""Models of every family as ONNX models and as Paddle programs, run by onnxruntime and by Paddle: COMMAND TESTDATA OUT.

Each golden model of testdata/models becomes a folder of weights; `planaria convert --validate` writes its programs, runs
the model, the programs in our interpreter and the programs here, and compares all outputs.
"""

import gzip
import json
import pathlib
import subprocess
import sys

from safetensors.numpy import load, save_file

COMMAND, TESTDATA, OUT = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])

# One of each family.
MODELS = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "qwen2-moe", "qwen3-moe"]

# Masks of a sliding window, rotations that change with the length, and tokens grouped by expert are of one size.
FIXED = {"gemma2", "gemma3", "mistral", "phi3", "qwen2-moe", "qwen3-moe"}


def weights(source):
    """A folder as transformers would write it."""
    name = source.name.split(".")[0]
    data = gzip.decompress(source.read_bytes())
    size = int.from_bytes(data[:8], "little")
    config = json.loads(data[8 : 8 + size])["__metadata__"]["config"]
    folder = OUT / "weights" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    kept = {key: value for key, value in load(data).items() if "weight" in key or "bias" in key}
    kept = {key: value for key, value in kept.items() if not key.startswith("grad.")}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return name, folder


def validated(folder, name, form):
    sizes = ["--sizes", "2x7"] if name in FIXED else []
    target = OUT / f"{name}-{form}"
    call = [COMMAND, "--json", "convert", str(folder), str(target), "--to", form, "--validate", "--python", sys.executable]
    ran = subprocess.run(call + sizes, capture_output=True, text=True)
    assert ran.returncode == 0, f"{ran.stderr.strip()} {ran.stdout[-600:]}"
    rows = json.loads(ran.stdout)["outputs"]
    by = {row["by"] for row in rows}
    assert by == {"planaria", "onnxruntime" if form == "onnx" else "paddle"}, by
    return max(row["relative"] for row in rows)


def main():
    passed = failed = 0
    for model in MODELS:
        name, folder = weights(TESTDATA / "models" / f"{model}.safetensors.gz")
        for form in ("onnx", "paddle-program"):
            try:
                worst = validated(folder, name, form)
                print(f"{name} {form}: largest relative difference {worst:.1e}")
                passed += 1
            except Exception as error:  # noqa: BLE001: every failure is reported, none ends the run
                failed += 1
                print(f"FAILED {name} {form}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
