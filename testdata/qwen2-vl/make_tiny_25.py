"""Makes `model/tiny_25`: a Qwen2.5-VL of random weights with what transformers 5.22 computes with it, in the form of `model/tiny_a`.

The video is short: after one that is longer than wide, transformers 5 continues at wrong positions. Pictures have sizes that need no resizing, so that patches are made here without an image library.
Run with torch and transformers, in this folder: python make_tiny_25.py
"""

import json
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

HERE = Path(__file__).parent / "model"
A, OUT = HERE / "tiny_a", HERE / "tiny_25"
MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
PATCH, MERGE, FRAMES = 14, 2, 2
IMAGE, VIDEO = 382, 383


def png(path, rgb):
    height, width, _ = rgb.shape
    rows = b"".join(b"\0" + rgb[y].tobytes() for y in range(height))

    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    )


def picture(seed, height, width):
    """Smooth colours with a little noise."""
    noise = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [128 + 90 * np.sin((seed + 1 + c) * (x + 2 * y) / 40.0 + c) for c in range(3)]
    rgb = np.stack(planes, -1) + noise.normal(0, 8, (height, width, 3))
    return rgb.clip(0, 255).astype(np.uint8)


def patches(frames):
    while len(frames) % FRAMES:
        frames = [*frames, frames[-1]]
    x = np.stack(frames).astype(np.float64) * (1 / 255)
    x = ((x.astype(np.float32) - MEAN) / STD).transpose(0, 3, 1, 2)
    t, (h, w) = len(frames) // FRAMES, (x.shape[2] // PATCH, x.shape[3] // PATCH)
    x = x.reshape(t, FRAMES, 3, h // MERGE, MERGE, PATCH, w // MERGE, MERGE, PATCH)
    x = x.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8)
    return torch.from_numpy(x.reshape(t * h * w, -1).copy()), [t, h, w]


def tensor(x):
    return {"shape": list(x.shape), "dtype": "i64", "data": x.flatten().tolist()}


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "images").mkdir(parents=True)
    (OUT / "expected").mkdir()
    for name in ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]:
        shutil.copy(A / name, OUT / name)
    settings = json.loads((A / "preprocessor_config.json").read_text())
    settings.update(min_pixels=784, max_pixels=20000, rescale_factor=1 / 255)
    settings["size"] = {"shortest_edge": 784, "longest_edge": 20000}
    (OUT / "preprocessor_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    files = {"a.png": picture(1, 84, 140), "b.png": picture(2, 112, 56)}
    files.update({f"v{i}.png": picture(3 + i, 84, 84) for i in range(4)})
    for name, rgb in files.items():
        png(OUT / "images" / name, rgb)

    config = json.loads((A / "config.json").read_text())
    config.update(model_type="qwen2_5_vl", architectures=["Qwen2_5_VLForConditionalGeneration"])
    config["vision_config"] = {
        "depth": 3, "hidden_size": 32, "out_hidden_size": 64, "intermediate_size": 48, "num_heads": 2, "hidden_act": "silu",
        "in_chans": 3, "patch_size": 14, "spatial_patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 2, "model_type": "qwen2_5_vl",
    }
    (OUT / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    torch.manual_seed(25)
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**{k: v for k, v in config.items() if k != "architectures"}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "ln_q" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_((0.02 if name.endswith("bias") else 0.15) * torch.randn_like(parameter))
            parameter.copy_(parameter.bfloat16().float())
    model.tie_weights()
    model = model.float().eval()

    def published(name):
        name = name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
        return name

    state = {published(n): p.detach().bfloat16().contiguous() for n, p in model.named_parameters()}
    save_file(state, OUT / "model.safetensors", metadata={"format": "pt"})
    tokenizer = AutoTokenizer.from_pretrained(A)
    user = lambda *parts: {"role": "user", "content": list(parts)}
    image = lambda name: {"type": "image", "image": name}
    words = lambda text: {"type": "text", "text": text}
    video = {"type": "video", "video": [f"v{i}.png" for i in range(4)], "fps": 4.0}
    conversations = {
        "one_image": [user(image("a.png"), words("Describe the image."))],
        "two_images": [user(image("b.png"), words("and"), image("a.png"), words("Hello?"))],
        "video": [user(video, words("What is the weather?"))],
        "text_only": [user(words("Hello, how are you?"))],
    }

    def given(messages, prompt):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        shown = [p for m in messages if isinstance(m["content"], list) for p in m["content"] if p["type"] != "text"]
        values = {"image": [], "video": []}
        for part in shown:
            names = part["video"] if part["type"] == "video" else [part["image"]]
            pixels, grid = patches([files[name] for name in names])
            values[part["type"]].append((pixels, grid, FRAMES / part.get("fps", 2.0)))
        left = {k: list(v) for k, v in values.items()}
        out = []
        for token in ids:
            kind = {IMAGE: "image", VIDEO: "video"}.get(token)
            count = 1
            if kind:
                t, h, w = left[kind].pop(0)[1]
                count = t * h * w // MERGE**2
            out += [token] * count
        inputs = {"input_ids": torch.tensor([out]), "attention_mask": torch.ones(1, len(out), dtype=torch.long)}
        if values["image"]:
            inputs["pixel_values"] = torch.cat([v[0] for v in values["image"]])
            inputs["image_grid_thw"] = torch.tensor([v[1] for v in values["image"]])
        if values["video"]:
            inputs["pixel_values_videos"] = torch.cat([v[0] for v in values["video"]])
            inputs["video_grid_thw"] = torch.tensor([v[1] for v in values["video"]])
            inputs["second_per_grid_ts"] = torch.tensor([v[2] for v in values["video"]])
        kinds = torch.tensor([[1 if t == IMAGE else 2 if t == VIDEO else 0 for t in out]])
        return text, inputs, kinds

    def positions(inputs, kinds):
        keys = ["input_ids", "image_grid_thw", "video_grid_thw", "attention_mask"]
        more = {k: inputs.get(k) for k in keys}
        found, _ = model.model.get_rope_index(
            **more, second_per_grid_ts=inputs.get("second_per_grid_ts"), mm_token_type_ids=kinds
        )
        return found

    cases, arrays = [], {}
    for name, messages in conversations.items():
        text, inputs, kinds = given(messages, True)
        where = positions(inputs, kinds)
        tokens, margins = [], []
        ids = inputs["input_ids"]
        with torch.no_grad():
            logits = model(**inputs, position_ids=where).logits
            arrays[f"{name}.logits"] = logits.float().contiguous()
            grown = dict(inputs)
            for _ in range(8):
                scores = model(**grown, position_ids=where).logits[0, -1]
                best = scores.topk(2)
                tokens.append(int(best.indices[0]))
                margins.append(float(best.values[0] - best.values[1]))
                grown["input_ids"] = torch.cat([grown["input_ids"], best.indices[:1][None]], 1)
                grown["attention_mask"] = torch.ones_like(grown["input_ids"])
                where = torch.cat([where, (where.max() + 1).expand(3, 1, 1)], 2)
        where = where[:, :, : ids.shape[1]]
        cases.append({
            "name": name, "messages": [messages], "text": [text], "input_ids": tensor(ids),
            "attention_mask": tensor(inputs["attention_mask"]),
            "image_grid_thw": inputs.get("image_grid_thw", torch.zeros(0, 3)).tolist(),
            "video_grid_thw": inputs.get("video_grid_thw", torch.zeros(0, 3)).tolist(),
            "position_ids": tensor(where), "next_position": [int(where.max()) + 1], "greedy_tokens": [tokens],
            "greedy_min_margin": min(margins), "logits": "all positions",
        })
    messages = [*conversations["one_image"], {"role": "assistant", "content": "A small red square."}]
    _, prompt, _ = given(messages[:1], True)
    _, inputs, kinds = given(messages, False)
    labels = inputs["input_ids"].clone()
    labels[0, : prompt["input_ids"].shape[1]] = -100
    labels[0, -1] = -100
    output = model(**inputs, position_ids=positions(inputs, kinds))
    count = int((labels[0, 1:] != -100).sum())
    loss = torch.nn.functional.cross_entropy(output.logits[0, :-1].float(), labels[0, 1:], ignore_index=-100)
    loss.backward()
    norms = {published(n): float(p.grad.norm()) for n, p in model.named_parameters() if p.grad is not None}
    sft = {
        "messages": messages, "input_ids": tensor(inputs["input_ids"]), "labels": tensor(labels), "loss": loss.item(),
        "tokens": count, "grad_norms": norms,
    }
    tolerances = json.loads((A / "expected/expected.json").read_text())["tol"]
    text = json.dumps({"cases": cases, "sft": sft, "tol": tolerances}, indent=None)
    (OUT / "expected/expected.json").write_text(text + "\n")
    save_file(arrays, OUT / "expected/expected.safetensors")
    for case in cases:
        print(case["name"], case["greedy_tokens"], case["greedy_min_margin"], case["next_position"])
    print("loss", loss.item(), count, len(norms))


main()
