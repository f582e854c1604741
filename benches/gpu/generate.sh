#!/bin/bash
# Generation on a machine with a GPU, in under three minutes. Never stops at a failure.
#
#   OUT=folder benches/gpu/generate.sh FOLDER
#
# FOLDER holds the command `planaria` and `kernels.bin` (or `kernels.bin.gz`), the archive that `cargo xtask kernels` writes. The text
# record is $OUT/generate.txt; PARTS chooses parts by their names. Needs python3 with torch, which writes the weights.
folder=$(cd "${1:-target/gpu}" && pwd)
out=${OUT:-$folder/out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
record=$out/generate.txt
planaria=$folder/planaria
chmod +x "$planaria" 2>/dev/null
[ -e "$folder/kernels.bin" ] || gunzip -k "$folder/kernels.bin.gz"
export PLANARIA_KERNELS=$folder/kernels.bin RUST_BACKTRACE=1
libraries=$(ls -d /usr/local/cuda*/lib64 2>/dev/null | tail -1)
export PLANARIA_CUBLASLT=$libraries PLANARIA_NVRTC=$libraries
begun=$SECONDS
cd "$work" || exit 1

# part NAME SECONDS COMMAND...: runs a part with a limit; its output goes to the record.
part() {
    local name=$1 limit=$2
    shift 2
    [[ -z $PARTS || " $PARTS " == *" $name "* ]] || return 0
    {
        echo
        echo "==== $name (at $((SECONDS - begun)) s)"
        timeout -k 5 "$limit" "$@" 2>&1
        echo "---- $name: exit $? (at $((SECONDS - begun)) s)"
    } >> "$record"
}

{
    date
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
    ls -l "$folder"
    "$planaria" --version
} > "$record" 2>&1

# Random weights as a Hugging Face folder: 0.5B in bf16, and a small model in f32. Prompts are words, one a token.
cat > weights.py << 'PYTHON'
import json, os, random, torch
random.seed(3)
def write(folder, dtype, vocab, width, inner, layers, heads, kv, std):
    os.makedirs(folder)
    dim = width // heads
    shapes = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    for i in range(layers):
        p = f"model.layers.{i}."
        for name, rows in (("q", heads * dim), ("k", kv * dim), ("v", kv * dim)):
            shapes[f"{p}self_attn.{name}_proj.weight"], shapes[f"{p}self_attn.{name}_proj.bias"] = (rows, width), (rows,)
        shapes[f"{p}self_attn.o_proj.weight"] = (width, heads * dim)
        for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
            shapes[f"{p}mlp.{name}_proj.weight"] = shape
        shapes[p + "input_layernorm.weight"] = shapes[p + "post_attention_layernorm.weight"] = (width,)
    torch.manual_seed(1)
    header, at, parts = {}, 0, []
    for name, shape in shapes.items():
        x = torch.ones(shape) if "norm" in name else torch.randn(shape, device="cuda").cpu() * std
        parts.append(x.to(dtype).contiguous().view(torch.uint8).numpy().tobytes())
        header[name] = {"dtype": "BF16" if dtype == torch.bfloat16 else "F32", "shape": list(shape), "data_offsets": [at, at + len(parts[-1])]}
        at += len(parts[-1])
    text = json.dumps(header).encode()
    with open(f"{folder}/model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for part in parts: f.write(part)
    json.dump({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": vocab, "hidden_size": width, "intermediate_size": inner,
               "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "max_position_embeddings": 2048,
               "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "hidden_act": "silu"}, open(f"{folder}/config.json", "w"))
    json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
               "decoder": None, "model": {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(vocab)}, "unk_token": "w0"}}, open(f"{folder}/tokenizer.json", "w"))
write("half", torch.bfloat16, 151936, 896, 4864, 24, 14, 2, 0.02)
write("small", torch.float32, 1000, 256, 768, 4, 4, 2, 0.05)
def prompts(name, vocab, lengths):
    open(name, "w").write("".join(" ".join(f"w{random.randrange(vocab)}" for _ in range(n)) + "\n" for n in lengths))
prompts("one.txt", 151936, [256] * 3)
prompts("many.txt", 151936, [256] * 128)
prompts("most.txt", 151936, [256] * 512)
prompts("uneven.txt", 1000, [3, 40, 17, 1, 120, 40, 9, 64, 5, 90])
prompts("eight.txt", 151936, [50, 256, 3, 100, 256, 77, 1, 200])
PYTHON
cat > same.py << 'PYTHON'
import json, sys
rows = [[json.loads(line)["ids"] for line in open(name) if line.startswith("{")] for name in sys.argv[1:]]
for name, other in zip(sys.argv[2:], rows[1:]):
    equal = sum(a == b for a, b in zip(rows[0], other))
    agree = [next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), len(a)) for a, b in zip(rows[0], other)]
    print(f"{sys.argv[1]} and {name}: {equal} of {len(rows[0])} texts equal ({len(other)} there); tokens before the first difference: {agree}")
PYTHON
say() { "$planaria" generate "$@" --temperature 0 --json -v; }
declare -fx say
export planaria
part weights 60 python3 weights.py
part selftest 60 "$planaria" selftest --device cuda:0 --family generation --minutes 0.8
part tokens 40 bash -c 'say small --prompts uneven.txt --tokens 50 > cpu.json; for b in 1 3 10; do say small --prompts uneven.txt --tokens 50 --device cuda --batch $b > cuda-$b.json; done; say small --prompts uneven.txt --tokens 50 --batch 1 > cpu-1.json; PLANARIA_CUDA=checked say small --prompts uneven.txt --tokens 50 --device cuda > checked.json; python3 same.py cpu.json cpu-1.json cuda-1.json cuda-3.json cuda-10.json checked.json'
part batch-1 40 bash -c 'say half --prompts one.txt --tokens 128 --device cuda --precision bf16 --batch 1 | cut -c1-200'
part batch-64 40 bash -c 'say half --prompts many.txt --tokens 128 --device cuda --precision bf16 --batch 64 > 64.json; wc -l 64.json'
part batch-256 60 bash -c 'say half --prompts most.txt --tokens 128 --device cuda --precision bf16 --batch 256 > 256.json; wc -l 256.json'
part half-f32 60 bash -c 'for b in 1 8; do say half --prompts eight.txt --tokens 64 --device cuda --batch $b > f32-$b.json; done; python3 same.py f32-1.json f32-8.json'
part sampled 40 bash -c '"$planaria" generate half --prompts eight.txt --tokens 32 --device cuda --precision bf16 --temperature 0.8 --top-k 50 --top-p 0.9 --json -v | cut -c1-120'
part times-1 40 bash -c "head -1 one.txt > first.txt; PLANARIA_CUDA_TIMES=$out/generate-times-1.txt say half --prompts first.txt --tokens 32 --device cuda --precision bf16 --batch 1 > /dev/null; head -24 $out/generate-times-1.txt"
part times-64 40 bash -c "head -64 many.txt > few.txt; PLANARIA_CUDA_TIMES=$out/generate-times-64.txt say half --prompts few.txt --tokens 32 --device cuda --precision bf16 --batch 64 > /dev/null; head -30 $out/generate-times-64.txt"
part times-256 40 bash -c "head -256 most.txt > rows.txt; PLANARIA_CUDA_TIMES=$out/generate-times-256.txt say half --prompts rows.txt --tokens 32 --device cuda --precision bf16 --batch 256 > /dev/null; head -30 $out/generate-times-256.txt"
{
    echo
    echo "whole script: $((SECONDS - begun)) s"
} >> "$record"
tail -c 60000 "$record"
