"""Nothing is kept that nobody holds: every public entry point, called again and again."""

import gc
import os
import sys
import warnings

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")

import entries  # noqa: E402
import planaria  # noqa: E402

CALLS = int(os.environ.get("PLANARIA_LEAK_CALLS", "100"))
"""Calls of each entry point; of those that touch files or start threads a tenth, unless as many are asked for as 10,000."""

N = 1 << 14
"""Elements of what is called with: a call that keeps its result shows."""


def settle():
    """Nothing is counted that only waits to be collected, nor the names of attributes that the interpreter remembers."""
    gc.collect()
    getattr(sys, "_clear_type_cache", lambda: None)()


def grown(call, times):
    """Blocks of Python's and bytes of the process that a call leaves, on average."""
    for _ in range(5):
        call()
    settle()
    blocks, before = sys.getallocatedblocks(), entries.resident()
    for _ in range(times):
        call()
    settle()
    return (sys.getallocatedblocks() - blocks) / times, (entries.resident() - before) / times


@pytest.fixture(scope="module", autouse=True)
def only_what_is_new():
    """What libraries made before is not looked through again at every collection: that took most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def world():
    return entries.World(N)


@pytest.mark.parametrize("name", sorted(entries.CALLS))
def test_nothing_is_left_by(name, world, tmp_path):
    made = entries.CALLS[name](world)
    times = CALLS if name not in entries.SLOW or CALLS >= 10000 else max(CALLS // 5, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            # What a first round leaves may be a cache.
            blocks, size = grown(made, times)
            # A thread or a table that comes and goes is a few dozen objects.
            if blocks * times < max(times, 60) and (size < N or size * times < 16 << 20):
                return
    raise AssertionError(f"{blocks:.2f} objects and {size:.0f} bytes are left by a call")


def test_refusals_leave_nothing():
    x = planaria.array([1.0, 2.0])

    def refused():
        for wrong in (lambda: x[9], lambda: x.astype("nonsense"), lambda: planaria.open("/nowhere"), lambda: planaria.mesh("dp")):
            with pytest.raises(planaria.Error):
                wrong()

    blocks, size = min(grown(refused, 300) for _ in range(3))
    assert blocks < 1.0 and size < 4096
