#!/bin/bash
# Communication between ranks on a machine with a GPU, in about four minutes. Never stops at a failure.
#
#   OUT=folder benches/gpu/ranks.sh FOLDER
#
# FOLDER holds the command `planaria` and `kernels.bin`, the archive that `cargo xtask kernels` writes. NCCL is that of torch unless
# PLANARIA_NCCL names a folder. The record is $OUT/ranks.txt, with one JSON file for each family.
folder=$(cd "${1:-target/gpu}" && pwd)
out=${OUT:-$folder/out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
device=${DEVICE:-cuda:0}
planaria=$folder/planaria
chmod +x "$planaria" 2>/dev/null
export PLANARIA_KERNELS=${PLANARIA_KERNELS:-$folder/kernels.bin}
libraries=$(ls -d /usr/local/cuda*/lib64 2>/dev/null | tail -1)
export PLANARIA_CUBLASLT=$libraries PLANARIA_NVRTC=$libraries
if [ -z "$PLANARIA_NCCL" ]; then
    found=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib")' 2>/dev/null)
    [ -n "$found" ] && export PLANARIA_NCCL=$found
fi
work=$(mktemp -d)
cd "$work" || exit 1

# part NAME SECONDS COMMAND...: runs a part with a limit; its output goes to the record.
part() {
    local name=$1 limit=$2 begun=$SECONDS
    shift 2
    {
        echo
        echo "==== $name"
        timeout -k 5 "$limit" "$@" 2>&1
        echo "---- $name: exit $? after $((SECONDS - begun)) s"
    } >> "$out/ranks.txt"
}

{
    date
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv 2>/dev/null
    echo "NCCL: ${PLANARIA_NCCL:-where the loader looks}"
} > "$out/ranks.txt"
part "comm" 120 "$planaria" selftest --device "$device" --family comm --record "$out/comm.json"
part "nccl" 120 "$planaria" selftest --device "$device" --family nccl --record "$out/nccl.json"
part "large" 90 "$planaria" selftest --device "$device" --family large --record "$out/large.json"
PLANARIA_CUDA=checked part "comm, checked" 150 "$planaria" selftest --device "$device" --family comm
PLANARIA_CUDA=checked part "nccl, checked" 120 "$planaria" selftest --device "$device" --family nccl

# The same run on one rank, two threads and two processes that share the GPU: the losses must be the same.
python3 - << 'PYTHON'
open("text.txt", "w").write("".join(f"{i}: cut the worm anywhere, piece {i * i % 97} grows back whole.\n" for i in range(2000)))
open("tiny.toml", "w").write("""name = "tiny"
[model]
kind = "qwen2"
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
tie_word_embeddings = true
[data]
sequence = 64
[[data.source]]
path = "text.txt"
[optim]
lr = 1e-3
[train]
steps = 5
global_batch = 8
micro_batch = 2
[log]
every = 1
tensorboard = false
""")
PYTHON
train=("$planaria" train tiny.toml --device "$device")
part "one rank" 60 "${train[@]}" --set name=one
part "two threads" 60 "${train[@]}" -n 2 --set mesh=dp=2 --set name=threads
part "two processes" 90 "$planaria" launch -n 2 --engine processes -- "${train[@]}" --set mesh=dp=2 --set name=processes
part "two stages" 90 "$planaria" launch -n 2 --engine processes -- "${train[@]}" --set mesh=pp=2 --set name=stages
{
    echo
    echo "==== losses"
    for run in one threads processes stages; do
        echo "$run $(find . -path "*$run*" -name 'metrics*.jsonl' -exec cat {} + | python3 -c '
import json, sys
print(*(json.loads(line)["loss"] for line in sys.stdin if "\"loss\"" in line))')"
    done
} >> "$out/ranks.txt" 2>&1
rm -rf "$work"
exit 0
