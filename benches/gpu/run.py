"""Compiles, checks and times the CUDA kernels on one GPU, each family in its own process.

    python3 benches/gpu/run.py compile            compiles everything, prints registers and spills; needs no GPU
    python3 benches/gpu/run.py all OUT [FAMILY..] checks and times every family (or these); one JSON file and a table
    python3 benches/gpu/run.py check|time|both|sanitize|profile FAMILY [OUT]
    python3 benches/gpu/run.py record OUT/gpu.json > RECORD.md
"""
import json
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from device import compile_all, report_of  # noqa: E402

FAMILIES = ("attention_tma", "step", "attention", "indexing", "training", "basics", "generation", "attention_plain")


def compile_everything(workers, quiet=False):
    import variants
    begin, bad = time.time(), 0
    done = compile_all(variants.wanted(), workers)
    for (file, options), (path, log) in done.items():
        if path is None:
            bad += 1
            print(f"NOT COMPILED {file} {' '.join(options)}\n{log[:3000]}")
        elif not quiet:
            for kernel, (registers, spills) in report_of(log).items():
                print(f"{file:28s} {kernel:26s} {registers:4d} registers {spills:5d} bytes spilled  {' '.join(options)}")
    print(f"{len(done)} compilations, {bad} failed, {time.time() - begin:.1f} s", flush=True)
    return bad


def run_family(verb, family, out):
    import torch
    import importlib
    from timing import Record
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")  # makes the context that modules are loaded into
    record, module = Record(), importlib.import_module(family)
    verbs = {"check": [module.check], "time": [module.time_all], "both": [module.check, module.time_all], "sanitize": [module.sanitize],
             "profile": [module.profile]}
    begin = time.time()
    for work in verbs[verb]:
        record.guard(f"{family} {verb}", lambda: work(record))
        if out:  # after each, so that a cut run leaves what it found
            with open(out, "w") as f:
                json.dump({"checks": record.checks, "times": record.times, "failures": record.failures}, f)
    good = sum(c["good"] for c in record.checks)
    print(f"{family} {verb}: {good} of {len(record.checks)} checks, {len(record.times)} times, {len(record.failures)} failures, "
          f"{time.time() - begin:.0f} s", flush=True)


def run_all(out, families, seconds=60):
    compile_everything(os.cpu_count(), quiet=True)
    import torch
    machine = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cuda": torch.version.cuda,
               "driver": subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                                        text=True).stdout.strip()}
    everything = {"machine": machine, "when": time.strftime("%Y-%m-%d %H:%M:%S")}
    for family in families:
        part = os.path.join(out, f"part-{family}.json")
        limit = 3 * seconds if family == "step" else seconds
        try:
            subprocess.run([sys.executable, __file__, "both", family, part], timeout=limit)
        except subprocess.TimeoutExpired:
            print(f"FAILED {family}: more than {limit} s", flush=True)
        everything[family] = "nothing: it did not end"
        if os.path.exists(part):
            everything[family] = json.load(open(part))
            os.remove(part)
        with open(os.path.join(out, "gpu.json"), "w") as f:
            json.dump(everything, f, indent=1)


def print_record(path):
    """A page for benches/runs from what `all` left."""
    found = json.load(open(path))
    m = found["machine"]
    print(f"# CUDA kernels against f64 and torch, {found['when'][:10]}\n")
    print("| | |\n|---|---|")
    print("| command | `python3 benches/gpu/run.py all OUT` |")
    print(f"| GPU | {m['device']}, driver {m['driver']} |\n| torch | {m['torch']} |\n| CUDA | {m['cuda']} |\n")
    print("Checks: fresh random inputs, poisoned outputs, two runs with equal bits, error against f64 (bits where the limit is 0).\n")
    print("| family | checks passed | worst error of its limit | failures |\n|---|---|---|---|")
    for family in FAMILIES:
        part = found.get(family)
        if part is None:
            continue
        if not isinstance(part, dict):
            print(f"| {family} | did not end | | |")
            continue
        good = [c for c in part["checks"] if c["good"]]
        share = max((c["error"] / c["limit"] for c in good if c["limit"] > 0), default=0)
        bad = [c["name"] for c in part["checks"] if not c["good"]] + [f["name"] for f in part["failures"]]
        print(f"| {family} | {len(good)} of {len(part['checks'])} | {share:.2f} | {', '.join(bad[:3]) + (f' and {len(bad) - 3} more' if len(bad) > 3 else '') or 'none'} |")
    print("\nTimes: medians of 20 calls by events, inputs in turn, the device kept busy while a call is queued.\n")
    for family in FAMILIES:
        part = found.get(family)
        if not isinstance(part, dict) or not part["times"]:
            continue
        print(f"## {family}\n\n| what | ms | torch ms | torch / ours | more |\n|---|---|---|---|---|")
        for t in part["times"]:
            more = ", ".join(f"{v:.0f} TFLOP/s" if k == "tflops" else f"{v:.2f} TB/s" if k == "tb_s" else f"{v:.0f} tokens/s" if k == "tokens_s" else f"{v:.1f} GiB"
                             for k, v in t.items() if k in ("tflops", "tb_s", "tokens_s", "gib"))
            peer = (f"{t['peer_ms']:.4f}", f"{t['peer_ms'] / t['ms']:.2f}") if t["peer_ms"] else ("", "")
            print(f"| {t['name']} | {t['ms']:.4f} | {peer[0]} | {peer[1]} | {more} |")
        print()


if __name__ == "__main__":
    verb = sys.argv[1]
    if verb == "compile":
        sys.exit(compile_everything(int(os.environ.get("WORKERS", "1"))) > 0)
    elif verb == "all":
        run_all(sys.argv[2], sys.argv[3:] or FAMILIES)
    elif verb == "record":
        print_record(sys.argv[2])
    else:
        run_family(verb, sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
