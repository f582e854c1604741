"""Every public function with arguments of every wrong type: a typed error, never a crash or a panic."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

CODE = r"""
import inspect, os, random, sys, tempfile
sys.path.insert(0, sys.argv[2])
import numpy as np
import planaria, planaria.array_api as xp, planaria.torch
import entries

os.chdir(tempfile.mkdtemp())
x = planaria.array(np.arange(6.0, dtype=np.float32).reshape(2, 3))
VALUES = [
    None, True, 0, -1, 3, 2**70, 1.5, float("nan"), "", "text", "a -> b", b"bytes", [], [1, 2], [[1], [2, 3]], (), (1, 2), {}, {"a": 1},
    {"w": x}, object(), ..., slice(1), x, x[0], x[:0], np.arange(3), np.array(["s"]), planaria.DType("i8"), planaria.mesh(dp=2),
    planaria.mesh(dp=2).layout((2, 3), "dp:S0"), planaria.tensor([1.0]), planaria.alone(), int, len, lambda *a: a, "f32", "dp=2", -7, (-1, 3), [2**70], -(2**70),
]
random.seed(int(sys.argv[1]))
# Both need other processes, and wait for them.
SKIP = {"mpi", "torch.comm"}
# What a wrong argument may raise. Each planaria.Error is one of them too; AttributeError, AssertionError and their kin say
# that nobody looked at the argument, and so does a bare OverflowError.
TYPED = (planaria.Error, TypeError, ValueError, LookupError, OSError, BufferError, ImportError, RuntimeError)
held = entries.instances()
def calls():
    for name in entries.public():
        if name in SKIP or name.startswith(entries.CALLED_BY_OTHERS):
            continue
        first, _, rest = name.partition(".")
        if first == "xp":
            yield name, getattr(xp, rest)
        elif first == "torch":
            yield name, getattr(planaria.torch, rest)
        elif rest:
            yield name, getattr(held[first], rest)
        else:
            yield name, getattr(planaria, name)
    for name in planaria.__all__:
        thing = getattr(planaria, name)
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            yield name, thing
    yield "Array.at", lambda *a: x.at[a[0] if a else 0].add(*a[1:])
    yield "torch.Reader", planaria.torch.Reader
    yield "torch.Writer", planaria.torch.Writer
def named(function):
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in found if p.kind == p.KEYWORD_ONLY]
count, wrong = 0, []
for name, function in calls():
    parameters = named(function)
    for _ in range(20):
        arguments = [random.choice(VALUES) for _ in range(random.randrange(0, 4))]
        keywords = {key: random.choice(VALUES) for key in parameters if random.random() < 0.2}
        try:
            answer = function(*arguments, **keywords)
            if inspect.isgenerator(answer):
                list(answer)
        except (planaria.InternalError, NotImplementedError, RecursionError) as error:
            wrong.append(f"{name} {arguments} {keywords}: {error!r}")
        except TYPED:
            pass
        except Exception as error:
            wrong.append(f"{name} {arguments} {keywords}: {error!r}")
        count += 1
print(*wrong, sep="\n")
print(count)
sys.exit(bool(wrong))
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_wrong_arguments_never_break_anything(seed):
    pytest.importorskip("numpy")
    pytest.importorskip("torch")
    here = str(pathlib.Path(__file__).parent)
    ran = subprocess.run([sys.executable, "-c", CODE, str(seed), here], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, (ran.returncode, ran.stdout[-2000:], ran.stderr[-3000:])
    assert "panicked" not in ran.stderr, ran.stderr[-3000:]
    assert int(ran.stdout.split()[-1]) > 5000


def test_integers_out_of_range_are_refused_by_value(tmp_path):
    import planaria

    mesh = planaria.mesh(dp=2)
    layout = mesh.layout((4, 3), "dp:S0")
    of_layouts = [
        lambda: planaria.mesh(dp=-1), lambda: mesh.layout((-1, 3), "dp:S0"), lambda: layout.boxes(rank=-1),
        lambda: layout.local_shape(-1), lambda: planaria.plan(layout, layout, dtype="f32").moves(-1),
    ]
    config = {"mesh": "dp=1", "model": {"kind": "qwen2"}, "data": {"sequence": 8, "source": [{"path": "x"}]}, "train": {"steps": 1}}
    of_others = [
        lambda: planaria.threads(-1, lambda comm: None), lambda: planaria.alone().broadcast([1.0], root=-1),
        lambda: planaria.alone().all_to_all([1.0], send=[-1]), lambda: planaria.plan_run(config, ranks=-1),
        lambda: planaria.save({"a": 1}, tmp_path / "c", step=-1), lambda: planaria.async_save({"a": 1}, tmp_path / "c", step=-1),
        lambda: planaria.merge({"merge_method": "linear"}, tmp_path / "c", seed=-1), lambda: planaria.schedule("1f1b", -1, 2),
        lambda: planaria.tensor([1.0, 2.0]).reshape(-2),
    ]
    for calls, error in ((of_layouts, planaria.LayoutError), (of_others, ValueError)):
        for call in calls:
            with pytest.raises(error, match=r"-[12]\b") as refused:
                call()
            assert isinstance(refused.value, planaria.Error)
    with pytest.raises(TypeError, match="step is 1.5"):
        planaria.save({"a": 1}, tmp_path / "c", step=1.5)
    assert planaria.tensor([[1.0, 2.0]]).reshape(-1).shape == (2,)


@pytest.mark.parametrize("check", [["stubtest", "planaria._planaria"], ["--strict", "-p", "planaria"]])
def test_types_are_whole_and_those_of_the_module(check, tmp_path):
    pytest.importorskip("mypy")
    tool = "mypy.stubtest" if check[0] == "stubtest" else "mypy"
    arguments = check[1:] if check[0] == "stubtest" else check
    ran = subprocess.run([sys.executable, "-m", tool, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_public_type_is_known(tmp_path):
    pyright = pytest.importorskip("pyright")
    command = [sys.executable, "-m", pyright.__name__, "--verifytypes", "planaria", "--ignoreexternal", "--outputjson"]
    # It asks the first python on the path where packages are.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300, env=environment)
    if not ran.stdout.strip().startswith("{"):
        pytest.skip(f"pyright does not run here: {(ran.stdout + ran.stderr).strip()[-200:]}")
    found = json.loads(ran.stdout)["typeCompleteness"]
    unknown = [one["name"] for one in found["symbols"] if one["isExported"] and not one["isTypeKnown"]]
    assert unknown == [] and found["completenessScore"] == 1
