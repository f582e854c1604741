"""Builds the emulated driver, the emulated NCCL and kernels for them.

    build.py FOLDER SOURCES LIST

Each line of the file LIST: key, source file in the folder SOURCES, defines (tab-separated), as the example `kernels`
prints them. FOLDER gets libcuda.so.1, libnccl.so.2 and one shared library per build, named by its key.
"""

import concurrent.futures
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
FLAGS = ["-std=c++17", "-fPIC", "-shared", "-w", "-ffp-contract=off", "-fno-strict-aliasing",
         # Jumps between stacks are what it is made of.
         "-U_FORTIFY_SOURCE"]
WAITS = re.compile(r"__sync|__shfl|__ballot|__any|__all")


def waits(source):
    """Whether threads of a block may wait for each other in a file or in what it includes."""
    text = source.read_text()
    included = [source.parent / name for name in re.findall(r'#include "(.*)"', text)]
    return bool(WAITS.search(text)) or any(map(waits, included))


def build(folder, key, source, defines):
    out = folder / key
    if out.exists():
        return f"{key} kept"
    text = subprocess.run(
        ["g++", "-std=c++17", "-E", "-P", "-x", "c++", "-DKERNEL=EMULATED_KERNEL", *(f"-D{d}" for d in defines.split()),
         "-include", HERE / "device.h", source],
        check=True, capture_output=True, text=True,
    ).stdout
    names = re.findall(r"EMULATED_KERNEL\s+void\s+(\w+)\s*\(", text)
    threads_wait = str(waits(pathlib.Path(source))).lower()
    text = text.replace("EMULATED_KERNEL", 'extern "C"')
    for name in names:
        text += (
            f'extern "C" void {name}__call(void** p) {{ emulated_apply({name}, p); }}\n'
            f'extern "C" void {name}__run(const unsigned* d, unsigned, void** p) '
            f"{{ emulated_launch<{threads_wait}>({name}__call, d, p); }}\n"
        )
    made = out.with_suffix(".partial")
    done = subprocess.run(["g++", *FLAGS, "-O1", "-x", "c++", "-", "-o", made], input=text, text=True, capture_output=True)
    if done.returncode:
        return f"{source} {defines}: FAILED\n{done.stderr[:4000]}"
    made.rename(out)
    return f"{source} {defines}: {len(names)} kernels"


def main():
    folder, sources, builds = map(pathlib.Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    for source, name in [("driver.cpp", "libcuda.so.1"), ("nccl.cpp", "libnccl.so.2")]:
        subprocess.run(
            ["g++", "-std=c++17", "-O2", "-fPIC", "-shared", f"-Wl,-soname,{name}", HERE / source, "-ldl", "-o",
             folder / name],
            check=True,
        )
    jobs = [line.split("\t") for line in builds.read_text().splitlines()]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda job: build(folder, job[0], sources / job[1], job[2]), jobs))
    print("\n".join(results))
    sys.exit(any("FAILED" in line for line in results))


if __name__ == "__main__":
    main()
