#!/bin/bash
# The self-test on a machine with a GPU, in under six minutes: every family, the index goldens of torch, then families again with poisoned memory
# and under compute-sanitizer. Never stops at a failure.
#
#   OUT=folder benches/gpu/selftest.sh FOLDER
#
# FOLDER holds the commands `planaria` and `planaria-golden` (or each as .gz) and `kernels.bin` (or .gz), the archive that `cargo xtask kernels` writes.
# It is called from the repository's root, which has the goldens. Records are left in $OUT.
folder=$(cd "${1:-target/gpu}" && pwd)
out=${OUT:-$folder/out}
mkdir -p "$out"
for file in planaria planaria-golden kernels.bin; do
    [ -e "$folder/$file" ] || gunzip -k "$folder/$file.gz"
done
chmod +x "$folder/planaria" "$folder/planaria-golden" 2>/dev/null
planaria=$folder/planaria
export PLANARIA_KERNELS=$folder/kernels.bin RUST_BACKTRACE=1
libraries=$(ls -d /usr/local/cuda*/lib64 2>/dev/null | tail -1)
export PLANARIA_CUBLASLT=$libraries PLANARIA_NVRTC=$libraries
PLANARIA_NCCL=$(python3 -c "import nvidia.nccl as n; print(list(n.__path__)[0] + '/lib')" 2>/dev/null) && export PLANARIA_NCCL

{
    date
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
    echo "== all"
    timeout 150 "$planaria" selftest --device cuda:0 --minutes 2 --record "$out/selftest.json" 2>&1
    echo "exit $?"
    for kind in indexing indexing-tensor; do
        echo "== goldens, $kind"
        PLANARIA_DEVICE=cuda:0 timeout 60 "$folder/planaria-golden" $kind testdata/indexing.jsonl.gz 2>&1 | tail -30
    done
    # Poisoned memory, guard bytes and a wait after each launch.
    for family in table fuzz index training; do
        echo "== checked, $family"
        PLANARIA_CUDA=checked timeout 40 "$planaria" selftest --family $family --minutes 0.5 2>&1 | tail -30
    done
    for family in table fuzz index attention; do
        echo "== memcheck, $family"
        timeout 45 compute-sanitizer --tool memcheck --print-limit 5 "$planaria" selftest --family $family --minutes 0.4 2>&1 | tail -30
    done
    echo "== racecheck, table"
    timeout 45 compute-sanitizer --tool racecheck --print-limit 5 "$planaria" selftest --family table --minutes 0.4 2>&1 | tail -30
    date
} > "$out/selftest.txt" 2>&1
