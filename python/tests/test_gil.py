"""The interpreter is free while we work: every public entry point, found by looking, beside a thread that counts."""

import sys

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")

import entries  # noqa: E402
import planaria  # noqa: E402

ENOUGH = 10
"""Times that another thread must have come in: once could be a file that Python itself reads."""

MOST = 100
"""Calls in which it may do so: one that takes little time lets nobody in now and then."""

SIZES = [1 << 19, 1 << 22]


def test_every_entry_point_is_in_the_table():
    listed = set(entries.CALLS) | set(entries.QUICK)
    assert set(entries.public()) - listed == set(), "say how it is called in CALLS, or why it takes no time in QUICK"
    assert listed - set(entries.public()) == set(), "no longer there"
    assert not set(entries.CALLS) & set(entries.QUICK)


def came_in(make, worlds):
    """How often another thread came in during calls, at the first size at which it is enough."""
    with entries.Counter() as counter:
        for size in SIZES:
            call = make(worlds.setdefault(size, entries.World(size)))
            found = counter.came_in(call, ENOUGH, MOST)
            if found >= ENOUGH:
                break
    return found


@pytest.fixture(scope="module")
def worlds():
    return {}


@pytest.mark.parametrize("name", sorted(entries.CALLS))
def test_the_interpreter_is_free_during(name, worlds):
    assert came_in(entries.CALLS[name], worlds) >= ENOUGH, "nobody else came into the interpreter during the call"


@pytest.mark.parametrize("see", [planaria.Array.numpy, lambda array: memoryview(array).release()], ids=["dlpack", "buffer"])
def test_the_interpreter_is_free_while_a_view_copies(see, worlds):
    """After a snapshot the first view of an array copies it."""
    assert came_in(lambda world: lambda: world.seen_after_snapshots(see), worlds) >= ENOUGH


def test_holding_the_interpreter_would_be_noticed():
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("this interpreter has no lock to hold")
    with entries.Counter() as counter:
        assert counter.came_in(lambda: pow(3, 300_000), 1, 5) == 0
