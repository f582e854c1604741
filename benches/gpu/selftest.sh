#!/bin/bash
# The self-test on a machine with a GPU, in under eight minutes. Never stops at a failure.
#
#   OUT=folder benches/gpu/selftest.sh FOLDER
#
# FOLDER holds `selftest` (the example of planaria-array) and `kernels.bin`, the archive that `cargo xtask kernels`
# writes, or the example `kernels`, which then makes it there. Records are left in $OUT.
folder=${1:-target/gpu}
out=${OUT:-$folder/out}
mkdir -p "$out"
export PLANARIA_KERNELS=$folder/kernels.bin
binary=$folder/selftest
libraries=$(ls -d /usr/local/cuda*/lib64 2>/dev/null | tail -1)
[ -e "$folder/kernels.bin" ] || PLANARIA_NVRTC=$libraries "$folder/kernels" "$folder/kernels.bin" > "$out/kernels.txt" 2>&1
export PLANARIA_CUBLASLT=$libraries
chmod +x "$binary" 2>/dev/null

{
    date
    nvidia-smi
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv
    nvcc --version | tail -2
    ls -l "$folder"
} > "$out/machine.txt" 2>&1

# Everything, family by family: one that hangs or dies costs only itself.
families=${FAMILIES:-copy cast unary binary compare select late random reduce scan index order training matmul attention optimizer stress}
for family in $families; do
    echo "== $family"
    timeout 40 "$binary" cuda:0 $family 0.5 "$out/$family.json" 2>&1
    echo "exit $?"
done > "$out/selftest.txt"
cat "$out"/*.json > "$out/selftest.jsons" 2>/dev/null
rm -f "$out"/*.json

# The same with poisoned memory, guard bytes and a wait after each launch.
for family in $families; do
    echo "== $family"
    PLANARIA_CUDA=checked timeout 12 "$binary" cuda:0 $family 0.1 2>&1 | tail -30
done > "$out/checked.txt"

# Under the sanitizer: a few families, each for a little while.
sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
{
    for family in ${SANITIZED:-index order training attention stress}; do
        echo "== memcheck $family"
        timeout 25 "$sanitizer" --tool memcheck --print-limit 5 "$binary" cuda:0 $family 0.2 2>&1 | tail -25
    done
    echo "== racecheck copy"
    timeout 25 "$sanitizer" --tool racecheck --print-limit 5 "$binary" cuda:0 copy 0.2 2>&1 | tail -15
} > "$out/sanitizer.txt" 2>&1

# Without an archive: the compiler of this machine, then the cache it left.
{
    mkdir -p "$out/cache"
    for round in compile cached; do
        echo "== $round"
        time env -u PLANARIA_KERNELS XDG_CACHE_HOME="$out/cache" PLANARIA_NVRTC="$libraries" \
            timeout 40 "$binary" cuda:0 select 0.5 2>&1 | tail -8
    done
    rm -rf "$out/cache"
} > "$out/nvrtc.txt" 2>&1
date >> "$out/machine.txt"
exit 0
