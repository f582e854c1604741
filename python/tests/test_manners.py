"""Every public function with arguments of every wrong type: a typed error, never a crash or a panic."""

import subprocess
import sys

import pytest

CODE = r"""
import inspect, itertools, os, random, sys, tempfile, threading
import numpy as np
import planaria, planaria.array_api as xp

os.chdir(tempfile.mkdtemp())
x = planaria.array(np.arange(6.0, dtype=np.float32).reshape(2, 3))
VALUES = [
    None, True, 0, -1, 3, 2**70, 1.5, float("nan"), "", "text", "a -> b", b"bytes", [], [1, 2], [[1], [2, 3]], (), (1, 2), {}, {"a": 1},
    {"w": x}, object(), ..., slice(1), x, x[0], x[:0], np.arange(3), np.array(["s"]), planaria.DType("i8"), planaria.mesh(dp=2),
    planaria.mesh(dp=2).layout((2, 3), "dp:S0"), planaria.tensor([1.0]), planaria.alone(), int, len, lambda *a: a, "f32", "dp=2", -7,
]
random.seed(int(sys.argv[1]))
SKIP = {"threads"}
def calls():
    for name in planaria.__all__:
        thing = getattr(planaria, name)
        if callable(thing) and name not in SKIP and not (inspect.isclass(thing) and issubclass(thing, Exception)):
            yield name, thing
    for name in dir(xp):
        if not name.startswith("_") and callable(getattr(xp, name)):
            yield "xp." + name, getattr(xp, name)
    for holder in (x, planaria.tensor([[1.0, 2.0]], requires_grad=True), planaria.alone(), planaria.mesh(dp=2),
                   planaria.mesh(dp=2).layout((2, 3), "dp:S0"), planaria.DType("f32"), x.at):
        for name in dir(type(holder)):
            if name not in ("__class__", "__init_subclass__", "__subclasshook__", "__new__", "__init__", "__getattribute__", "__setattr__", "__delattr__", "__dir__", "__sizeof__"):
                attribute = getattr(holder, name, None)
                if callable(attribute):
                    yield f"{type(holder).__name__}.{name}", attribute
count = 0
for name, function in calls():
    for _ in range(25):
        arguments = [random.choice(VALUES) for _ in range(random.randrange(0, 4))]
        try:
            function(*arguments)
        except planaria.InternalError as error:
            print("INTERNAL", name, arguments, error)
            sys.exit(1)
        except Exception:
            pass
        count += 1
print(count)
"""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_wrong_arguments_never_break_anything(seed):
    pytest.importorskip("numpy")
    ran = subprocess.run([sys.executable, "-c", CODE, str(seed)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, (ran.returncode, ran.stdout[-2000:], ran.stderr[-3000:])
    assert "panicked" not in ran.stderr, ran.stderr[-3000:]
    assert int(ran.stdout.split()[-1]) > 5000


def test_nothing_leaks_over_many_calls():
    code = r"""
import numpy as np, planaria
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
x, theirs = planaria.array(np.zeros(2000)), np.zeros(2000)
calls = [
    lambda: planaria.array(theirs), lambda: x.numpy(), lambda: memoryview(x), lambda: x[1:], lambda: x[[1, 2]], lambda: x + 1.0,
    lambda: x.snapshot(), lambda: x.__dlpack__(), lambda: planaria.array([1, 2, 3]), lambda: x.tolist() and None,
    lambda: planaria.mesh(dp=2).layout((4,), "dp:S0").boxes(0), lambda: repr(x), lambda: x.at[[1]].add(1.0),
    lambda: (planaria.tensor(x, requires_grad=True) * 2.0).sum().backward(),
]
def failing():
    try:
        x[9999]
    except IndexError:
        pass
calls.append(failing)
for call in calls:
    for _ in range(200):
        call()
    before = resident()
    for _ in range(10000 if call is not calls[9] and call is not calls[11] else 500):
        call()
    grown = resident() - before
    assert grown < 8 << 20, (calls.index(call), grown)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


@pytest.mark.parametrize("check", [["stubtest", "planaria._planaria"], ["--strict", "-p", "planaria"]])
def test_types_are_whole_and_those_of_the_module(check, tmp_path):
    pytest.importorskip("mypy")
    tool = "mypy.stubtest" if check[0] == "stubtest" else "mypy"
    arguments = check[1:] if check[0] == "stubtest" else check
    ran = subprocess.run([sys.executable, "-m", tool, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
