#!/bin/bash
# Training, checkpoints and generation on a machine with a GPU, in under nine minutes. Never stops at a failure.
#
#   OUT=folder benches/gpu/train.sh FOLDER
#
# FOLDER holds the command `planaria` (or `planaria.gz`) and `kernels.bin` (or `kernels.bin.gz`), the archive that `cargo xtask kernels` writes. With
# `h200_base.py` in it, torch's step is timed too. The text record is $OUT/train.txt; PARTS chooses parts by their names, where a name ends in `*` all that
# begin so. Without PARTS everything runs, in about nine minutes.
folder=$(cd "${1:-target/gpu}" && pwd)
out=${OUT:-$folder/out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d)
record=$out/train.txt
planaria=$folder/planaria
[ -e "$planaria" ] || gunzip -k "$planaria.gz"
chmod +x "$planaria" 2>/dev/null
[ -e "$folder/kernels.bin" ] || gunzip -k "$folder/kernels.bin.gz"
export PLANARIA_KERNELS=$folder/kernels.bin RUST_BACKTRACE=1
libraries=$(ls -d /usr/local/cuda*/lib64 2>/dev/null | tail -1)
export PLANARIA_CUBLASLT=$libraries PLANARIA_NVRTC=$libraries
PLANARIA_NCCL=$(python3 -c "import nvidia.nccl as n; print(list(n.__path__)[0] + '/lib')" 2>/dev/null) && export PLANARIA_NCCL
begun=$SECONDS
cd "$work" || exit 1

wanted() {
    local pattern
    [[ -z $PARTS ]] && return 0
    for pattern in $PARTS; do
        [[ $1 == $pattern ]] && return 0
    done
    return 1
}

# part NAME SECONDS COMMAND...: runs a part with a limit; its output goes to the record.
part() {
    local name=$1 limit=$2
    shift 2
    wanted "$name" || return 0
    {
        echo
        echo "==== $name (at $((SECONDS - begun)) s)"
        timeout -k 5 "$limit" "$@" 2>&1
        echo "---- $name: exit $? (at $((SECONDS - begun)) s)"
    } >> "$record"
}

python3 - << 'PYTHON'
import json, random
random.seed(1)
open("text.txt", "w").write("".join(f"{i}: cut the worm anywhere, piece {i * i % 97} grows back whole.\n" for i in range(4000)))
tiny = """name = "tiny"
[model]
kind = "qwen2"
hidden_size = 256
intermediate_size = 512
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
tie_word_embeddings = true
[data]
sequence = 128
held_out = 0.05
[[data.source]]
path = "text.txt"
[optim]
lr = 1e-3
warmup = 4
horizon = 20
[train]
steps = 20
global_batch = 16
micro_batch = 4
eval_every = 10
[checkpoint]
every = 10
[log]
every = 1
tensorboard = false
"""
open("tiny.toml", "w").write(tiny)
words = 151936
vocab = {f"w{i}": i for i in range(words)}
split = {"type": "WhitespaceSplit"}
json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": split, "post_processor": None, "decoder": None,
           "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}}, open("tokenizer.json", "w"))
open("words.txt", "w").write(" ".join(f"w{random.randrange(words)}" for _ in range(1_800_000)))
qwen = """name = "NAME"
[model]
kind = "qwen2"
vocab_size = 151936
hidden_size = 896
intermediate_size = 4864
num_hidden_layers = 24
num_attention_heads = 14
num_key_value_heads = 2
rope_theta = 1000000.0
tie_word_embeddings = true
[data]
tokenizer = "tokenizer.json"
sequence = 2048
[[data.source]]
path = "words.txt"
[optim]
lr = 1e-4
[train]
steps = STEPS
global_batch = BATCH
micro_batch = BATCH
precision = "bf16"
[checkpoint]
every = 0
final_save = false
[log]
every = 1
tensorboard = false
"""
larger = {"hidden_size = 896": "hidden_size = 1536", "intermediate_size = 4864": "intermediate_size = 8960", "num_hidden_layers = 24": "num_hidden_layers = 28",
          "num_attention_heads = 14": "num_attention_heads = 12", "sequence = 2048": "sequence = 4096"}
with open("words.jsonl", "w") as f:
    for _ in range(4000):
        print(json.dumps({"text": " ".join(f"w{random.randrange(words)}" for _ in range(random.randrange(100, 800)))}), file=f)
runs = [("qwen", 24, 8), ("packed", 24, 8), ("times", 3, 8), ("saving", 100, 8), ("final", 2, 8), ("larger", 14, 4), ("windows-larger", 14, 4), ("times-larger", 3, 4), ("memory", 2, 96)]
for name, steps, batch in runs:
    text = qwen.replace("NAME", name).replace("STEPS", str(steps)).replace("BATCH", str(batch))
    if "larger" in name:
        for before, after in larger.items():
            text = text.replace(before, after)
    if name == "windows-larger":
        text = text.replace("rope_theta", "use_sliding_window = true\nsliding_window = 512\nmax_window_layers = 0\nrope_theta")
    if name == "packed":
        text = text.replace("words.txt", "words.jsonl").replace("sequence = 2048", 'sequence = 2048\ndocuments = "separate"')
    if name == "saving":
        text = text.replace("every = 0", "every = 40", 1).replace("keep = 2", "keep = 1")
    if name == "final":
        text = text.replace("final_save = false", "final_save = true")
    open(f"{name}.toml", "w").write(text)
open("compare.py", "w").write('''import json, sys
def losses(path):
    lines = [json.loads(line) for line in open(path) if line.startswith("{")]
    return {line["step"]: line for line in lines if line.get("event") == "step"}
a, b = map(losses, sys.argv[1:3])
steps = sorted(set(a) & set(b))
worst = max((abs(a[s]["loss"] - b[s]["loss"]) / abs(a[s]["loss"]) for s in steps), default=None)
norm = max((abs(a[s]["grad_norm"] - b[s]["grad_norm"]) / abs(a[s]["grad_norm"]) for s in steps), default=None)
same = all(a[s]["loss"] == b[s]["loss"] and a[s]["grad_norm"] == b[s]["grad_norm"] for s in steps)
print(sys.argv[1], sys.argv[2], f"steps {len(steps)}, worst relative difference of loss {worst}, of norm {norm}, same bits {same}")
''')
open("speed.py", "w").write('''import json, sys
lines = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
steps = [line for line in lines if line.get("event") == "step"]
late = sorted(line["seconds"] for line in steps[4:])
if late:
    middle = late[len(late) // 2]
    print(f"{sys.argv[1]}: median step {middle * 1e3:.2f} ms, fastest {late[0] * 1e3:.2f}, slowest {late[-1] * 1e3:.2f}; "
          f"{steps[-1]['tokens'] / middle:.0f} tokens/s; peak of arrays {steps[-1]['peak_bytes'] / 2**30:.2f} GiB")
print("steps, ms:", [round(line["seconds"] * 1e3, 1) for line in steps])
print("losses:", [round(line["loss"], 4) for line in steps])
for line in lines:
    if line.get("event") not in ("saved", "save_failed"): continue
    print(line)
    # The steps while the save ran, beside those before it.
    mean = lambda part: sum(s["seconds"] for s in part) / max(len(part), 1)
    before = [s for s in steps if 4 < s["step"] <= line["step"]]
    during, left = [], line.get("seconds", 0) - line.get("blocked_ms", 0) / 1e3
    for s in steps:
        if s["step"] > line["step"] and left > 0: during.append(s); left -= s["seconds"]
    if before and during:
        print(f"mean of {len(before)} steps before the save {mean(before) * 1e3:.2f} ms, of {len(during)} while it ran {mean(during) * 1e3:.2f}, "
              f"lost {(mean(during) / mean(before) - 1) * 100:.2f} %")
''')
open("generate.py", "w").write('''import json, subprocess, sys, time
planaria, prompt = sys.argv[1:]
for precision in ("bf16", "f32"):
    took = {}
    for tokens in (1, 129):
        begun = time.time()
        command = [planaria, "generate", "runs/final", prompt, "--tokens", str(tokens), "--temperature", "0", "--device", "cuda"]
        done = subprocess.run([*command, "--precision", precision, "--json"], capture_output=True, text=True)
        took[tokens] = time.time() - begun
        print(done.stderr[-2000:], done.stdout[-200:] if done.returncode else "", end="")
        made = len(json.loads(done.stdout)["ids"]) if done.returncode == 0 else 0
    print(f"{precision}: with loading {took[1]:.2f} s for 1 token, {took[129]:.2f} s for {made}: {128 / (took[129] - took[1]):.0f} tokens/s")
''')
PYTHON

{
    date
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
    nproc
    ls -l "$folder"
    "$planaria" --version
} > "$record" 2>&1

for family in ${FAMILIES:-copy cast unary binary compare select late random reduce scan index order training matmul attention optimizer norm generation table fuzz comm nccl large stress}; do
    part "selftest-$family" 70 "$planaria" selftest --device cuda:0 --family "$family" --minutes 1 --record "$out/selftest-$family.json"
done
for family in index training attention matmul stress; do
    part "memcheck-$family" 40 compute-sanitizer --tool memcheck --print-limit 5 "$planaria" selftest --family "$family" --minutes 0.3
done
part racecheck 40 compute-sanitizer --tool racecheck --print-limit 5 "$planaria" selftest --family training --minutes 0.3

# Both devices from the same seed; the GPU twice; then each goes on with what the other left.
tiny() { "$planaria" train tiny.toml --json --device "$2" --set "name=$1" --set "train.steps=$3" > "$1-$3.jsonl"; }
half() {
    for pair in "a cuda cpu" "b cpu cuda"; do
        set -- $pair
        tiny "$1" "$2" 10 && tiny "$1" "$3" 20
        python3 compare.py cpu-20.jsonl "$1-20.jsonl"
    done
}
part tiny-cpu 60 bash -c "$(declare -f tiny); planaria=$planaria; tiny cpu cpu 20; tail -2 cpu-20.jsonl"
part tiny-cuda 60 bash -c "$(declare -f tiny); planaria=$planaria; tiny cuda cuda 20; tail -2 cuda-20.jsonl; tiny again cuda 20; python3 compare.py cpu-20.jsonl cuda-20.jsonl; python3 compare.py cuda-20.jsonl again-20.jsonl; $planaria diff runs/cuda runs/again | tail -4"
part tiny-bf16 60 bash -c "$planaria train tiny.toml --json --set name=bf16c --set train.precision=bf16 > bf16c.jsonl; $planaria train tiny.toml --json --device cuda --set name=bf16g --set train.precision=bf16 > bf16g.jsonl; python3 compare.py bf16c.jsonl bf16g.jsonl"
part resume 60 bash -c "$(declare -f tiny half); planaria=$planaria; half"
part checked 60 bash -c "[ -e cuda-20.jsonl ] || $planaria train tiny.toml --json --device cuda --set name=cuda --set train.steps=3 > cuda-20.jsonl; PLANARIA_CUDA=checked $planaria train tiny.toml --json --device cuda --set name=checked --set train.steps=3 > checked.jsonl; python3 compare.py cuda-20.jsonl checked.jsonl"
for mesh in "dp=2" "tp=2" "pp=2" "dp=2 tp=2"; do
    name=${mesh//[ =]/}
    part "ranks-$name" 60 bash -c "$planaria train tiny.toml --json --device cuda --set 'mesh=$mesh' --set name=$name --set train.steps=6 > $name.jsonl; python3 compare.py cuda-20.jsonl $name.jsonl"
done
part generate-tiny 40 bash -c "for d in cpu cuda; do $planaria generate runs/cuda '12: cut' --tokens 60 --temperature 0 --device \$d --json | tee generated-\$d.txt; done; $planaria eval runs/cuda text.txt --device cpu; $planaria eval runs/cuda text.txt --device cuda"

# The real size. nvidia-smi tells what the process holds in all.
part qwen 90 bash -c "(for i in \$(seq 60); do nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader; sleep 1; done > smi.txt) & $planaria train qwen.toml --json --device cuda > qwen.jsonl; kill %1; python3 speed.py qwen.jsonl; echo most of nvidia-smi: \$(sort -n smi.txt | tail -1); tail -3 qwen.jsonl | cut -c1-600"
part times 90 bash -c "PLANARIA_CUDA_TIMES=$out/times.txt $planaria train times.toml --json --device cuda > times.jsonl; python3 speed.py times.jsonl; head -70 $out/times.txt"
# Far too large a micro-batch says what held the memory, and a smaller one goes on in the same folder.
part memory 60 bash -c "$planaria train memory.toml --device cuda; echo exit \$?; $planaria train memory.toml --device cuda --set train.micro_batch=4 --set train.global_batch=8; echo exit \$?"
# Documents that share rows and do not see each other, as fast as rows that are one document.
part packed 90 bash -c "$planaria train packed.toml --json --device cuda > packed.jsonl; python3 speed.py packed.jsonl"
# Algorithms of products; with TUNED the runs after it use what was found.
part tune 120 "$planaria" tune qwen.toml --device cuda -o "$out/products.txt" --yes
part tune-larger 150 "$planaria" tune larger.toml --device cuda -o "$out/products-larger.txt" --yes
if [ -n "$TUNED" ]; then
    cat "$out"/products*.txt > products.txt 2>/dev/null
    export PLANARIA_CUDA_PRODUCTS=$PWD/products.txt
fi
for way in "4 none" "4 selective" "2 none" "2 selective"; do
    set -- $way
    part "larger-$1-$2" 60 bash -c "$planaria train larger.toml --json --device cuda --set name=larger$1$2 --set train.micro_batch=$1 --set train.recompute=$2 > larger$1$2.jsonl; python3 speed.py larger$1$2.jsonl"
done
part qwen-tuned 60 bash -c "$planaria train qwen.toml --json --device cuda --set name=tuned > tuned.jsonl; python3 speed.py tuned.jsonl; python3 compare.py qwen.jsonl tuned.jsonl"
part qwen-selective 60 bash -c "$planaria train qwen.toml --json --device cuda --set name=selective --set train.recompute=selective > selective.jsonl; python3 speed.py selective.jsonl; python3 compare.py qwen.jsonl selective.jsonl"
part larger 90 bash -c "$planaria train larger.toml --json --device cuda > larger.jsonl; python3 speed.py larger.jsonl"
# Every query sees 512 keys of 4,096: attention should take an eighth.
part windows-larger 60 bash -c "$planaria train windows-larger.toml --json --device cuda > windows.jsonl; python3 speed.py windows.jsonl"
part times-larger 60 bash -c "PLANARIA_CUDA_TIMES=$out/times-larger.txt $planaria train times-larger.toml --json --device cuda > times-larger.jsonl; head -40 $out/times-larger.txt"
part saving 120 bash -c "$planaria train saving.toml --json --device cuda > saving.jsonl; python3 speed.py saving.jsonl; du -sh runs/saving/ckpt/*"
part final 60 bash -c "$planaria train final.toml --json --device cuda > final.jsonl; python3 speed.py final.jsonl; tail -1 final.jsonl"
part checked-bf16 60 bash -c "[ -e bf16g.jsonl ] || $planaria train tiny.toml --json --device cuda --set name=bf16g --set train.precision=bf16 --set train.steps=3 > bf16g.jsonl; PLANARIA_CUDA=checked $planaria train tiny.toml --json --device cuda --set name=checked16 --set train.precision=bf16 --set train.steps=3 > checked16.jsonl; python3 compare.py bf16g.jsonl checked16.jsonl"
prompt=$(python3 -c "import random; random.seed(3); print(' '.join(f'w{random.randrange(151936)}' for _ in range(256)))")
part generate 90 python3 generate.py "$planaria" "$prompt"
if [ -e "$folder/h200_base.py" ]; then
    # Its training step alone, in the larger size.
    python3 - "$folder/h200_base.py" << 'PYTHON'
import re, sys
text = open(sys.argv[1]).read()
begin, end = text.index("# index ops"), text.index("# transformer training step")
text = text[:begin] + text[end:]
text = text.replace("151936,24,896,14,2,4864", "151936,28,1536,12,2,8960").replace("B,T=8,2048", "B,T=4,4096").replace("qwen2-0.5b", "qwen2-1.5b")
open("torch-larger.py", "w").write(text)
PYTHON
    part torch-larger 150 python3 torch-larger.py
fi
[ -e "$folder/h200_base.py" ] && part torch 150 bash -c "python3 $folder/h200_base.py | grep -v '^x\\[\\|index_put\\|masked\\|set_value'"
{
    echo
    echo "whole script: $((SECONDS - begun)) s"
} >> "$record"
tail -c 60000 "$record"
