"""The code in the guide and in docstrings runs."""

import doctest
import importlib.util
import inspect
import pathlib
import re

import pytest

import planaria
import planaria.torch

pytest.importorskip("numpy")
GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "guide" / "python.md"


def test_every_block_of_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)


REPORTS = {name for name in planaria.__all__ if name.endswith("Report")} | {"Outcome", "RunPlan", "Step"}


def examples():
    """Every public name that does something, with its text."""
    for name in planaria.__all__:
        thing = getattr(planaria, name)
        if not (inspect.isclass(thing) and issubclass(thing, Exception)) and name not in REPORTS | {"mpi"}:
            yield name, thing
    if importlib.util.find_spec("torch") is not None:
        for name in planaria.torch.__all__:
            yield f"torch.{name}", getattr(planaria.torch, name)
    if importlib.util.find_spec("transformers") is not None:
        yield "transformers.CheckpointCallback", planaria.transformers.CheckpointCallback
    yield "array_api", planaria.array_api


def examples_of_members():
    """Methods of public classes, and functions of modules, whose text has an example."""
    things = {name: getattr(planaria, name) for name in planaria.__all__ if inspect.isclass(getattr(planaria, name))}
    for owner, thing in (things | {"array_api": planaria.array_api}).items():
        for name, member in vars(thing).items():
            described = inspect.isroutine(member) or inspect.isdatadescriptor(member)
            if described and ">>>" in (inspect.getdoc(member) or ""):
                yield f"{owner}.{name}", member


@pytest.mark.parametrize("name, thing", list(examples()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_docstring_has_an_example_that_runs(name, thing):
    runs(name, thing)


def test_the_examples_of_methods_run():
    found = dict(examples_of_members())
    assert len(found) >= 12, sorted(found)
    for name, member in found.items():
        runs(name, member)


def runs(name, thing):
    text = inspect.getdoc(thing)
    assert text and ">>>" in text
    test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    ran = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test)
    assert ran.failed == 0 and ran.attempted > 0, name


def test_every_public_name_is_documented():
    for name in planaria.__all__:
        assert getattr(planaria, name).__doc__, name
    assert sorted(planaria.__all__) == planaria.__all__
