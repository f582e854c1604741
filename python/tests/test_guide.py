"""The code in the guide and in docstrings runs."""

import doctest
import pathlib
import re

import pytest

import planaria
from planaria import _checkpoint, _plot, _save

pytest.importorskip("numpy")
GUIDE = pathlib.Path(__file__).parents[2] / "docs" / "guide" / "python.md"


def test_every_block_of_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), names)


def test_docstrings_run():
    for module in (_checkpoint, _plot, _save):
        ran = doctest.testmod(module)
        assert ran.failed == 0 and ran.attempted > 0, module


def test_every_public_name_is_documented():
    for name in planaria.__all__:
        assert getattr(planaria, name).__doc__, name
    assert sorted(planaria.__all__) == planaria.__all__
