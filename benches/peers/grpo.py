"""GRPO with TRL on the model of `grpo`: makes the model and its prompts, or trains and prints samples per second as JSON.

usage: grpo.py make FOLDER SIZE
       grpo.py train FOLDER SIZES_AS_JSON
"""

import json
import os
import statistics
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback

SIZES = {
    "10m": dict(hidden_size=320, intermediate_size=864, num_hidden_layers=8, num_attention_heads=5, num_key_value_heads=5),
    "500m": dict(hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2),
}
END = "<|endoftext|>"


def make(folder, size):
    """A model that has learned nothing, a tokenizer of bytes, and prompts."""
    torch.manual_seed(0)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token="<|pad|>")
    config = Qwen2Config(
        vocab_size=len(wrapped), tie_word_embeddings=True, max_position_embeddings=4096, eos_token_id=wrapped.eos_token_id, **SIZES[size]
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)
    with open(os.path.join(folder, "prompts.jsonl"), "w") as file:
        for i in range(4096):
            file.write(json.dumps({"prompt": f"{i}: what is {i * i % 9973} and {i * 7 % 9973}, and how was it found? Answer:"[:64].ljust(64)}) + "\n")
    print(json.dumps({"parameters": sum(p.numel() for p in model.parameters())}))


class Times(TrainerCallback):
    """Seconds from the end of one step to the end of the next."""

    def __init__(self):
        self.ends = []

    def on_step_end(self, args, state, control, **others):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def train(folder, sizes):
    import pyarrow
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from trl import GRPOConfig, GRPOTrainer

    cuda = sizes["device"] == "cuda"
    torch.set_num_threads(sizes["threads"])
    made = []

    def short(completion_ids, **others):
        made.extend(len(ids) for ids in completion_ids)
        return [1 - len(ids) / sizes["new"] for ids in completion_ids]

    rows = [json.loads(line) for line in open(os.path.join(folder, "prompts.jsonl"))]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    options = GRPOConfig(
        output_dir=os.path.join(folder, "trl"),
        per_device_train_batch_size=sizes["micro"] * sizes["group"],
        gradient_accumulation_steps=sizes["prompts"] // sizes["micro"],
        num_generations=sizes["group"],
        max_completion_length=sizes["new"],
        max_steps=sizes["steps"],
        learning_rate=1e-6,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,
        beta=0.0,
        bf16=sizes["bf16"],
        use_cpu=not cuda,
        gradient_checkpointing=False,
        use_transformers_continuous_batching=sizes["continuous"],
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        optim="adamw_torch_fused",
        dataloader_num_workers=0,
    )
    times = Times()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=short,
        args=options,
        # Named, or its contents are pickled for a name, which fails with some versions.
        train_dataset=Dataset(InMemoryTable(pyarrow.Table.from_pylist(rows)), fingerprint="prompts"),
        processing_class=AutoTokenizer.from_pretrained(folder),
        callbacks=[times],
    )
    trainer.train()
    seconds = statistics.median(b - a for a, b in zip(times.ends[1:], times.ends[2:]))
    samples = sizes["prompts"] * sizes["group"]
    peak = torch.cuda.max_memory_allocated() if cuda else next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith("VmHWM"))
    print(json.dumps({"samples_per_second": samples / seconds, "response_tokens": statistics.mean(made), "peak": peak}))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], sys.argv[3])
    else:
        train(sys.argv[2], json.loads(sys.argv[3]))
