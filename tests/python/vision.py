"""Opens models that see with transformers: as a run saved them, with an adapter merged, and with both kinds of names.

usage: vision.py PLANARIA TESTDATA FOLDER
"""

import subprocess
import sys
from pathlib import Path

import torch
from transformers import Qwen2VLForConditionalGeneration

# Absolute: the command runs in other folders.
PLANARIA, TESTDATA, OUT = [str(Path(path).resolve()) for path in sys.argv[1:4]]
MODEL = f"{TESTDATA}/qwen2-vl/model/tiny_a"
CONFIG = f"{TESTDATA}/../examples/vision/sft.toml"
IDS = torch.tensor([[377, 82, 88, 302, 68, 76, 198, 367, 343, 257]])


def planaria(*args):
    done = subprocess.run([PLANARIA, *args], cwd=OUT, capture_output=True, text=True)
    assert done.returncode == 0, f"{args}: {done.stderr}"
    return done.stdout.strip()


def scores(folder):
    """Every tensor of the folder has its place, and none is missing."""
    model, told = Qwen2VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = {key: value for key, value in told.items() if value}
    assert not wrong, f"{folder}: {wrong}"
    return model(input_ids=IDS).logits.detach()


def trained_on_pictures():
    ran = planaria("train", CONFIG, "-q", "--set", f"log.dir={OUT}/runs", "--set", "train.steps=2")
    assert torch.isfinite(scores(f"{OUT}/{ran}" if not ran.startswith("/") else ran)).all()


def both_names_are_one_model():
    planaria("convert", MODEL, "today", "--to", "hf", "--names", "today")
    planaria("convert", "today", "published", "--to", "hf", "--names", "published")
    first = scores(MODEL)
    for name in ["today", "published"]:
        assert torch.equal(scores(f"{OUT}/{name}"), first), name


def an_adapter_is_merged():
    modules = 'lora.target_modules=["attn.qkv", "mlp.2", "q_proj"]'
    more = ["--set", "name=adapter", "--set", "lora.r=4", "--set", modules, "--set", "train.steps=2"]
    planaria("train", CONFIG, "-q", "--set", f"log.dir={OUT}/runs", *more)
    planaria("lora", "merge", MODEL, "runs/adapter", "merged")
    assert not torch.equal(scores(f"{OUT}/merged"), scores(MODEL))


def main():
    passed = failed = 0
    for check in [trained_on_pictures, both_names_are_one_model, an_adapter_is_merged]:
        try:
            check()
            passed += 1
        except Exception as error:  # noqa: BLE001: every failure is reported, none ends the run
            failed += 1
            print(f"FAILED {check.__name__}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
