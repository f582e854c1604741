"""The interpreter is free while we work: every public entry point, found by looking, beside a thread that counts."""

import os
import sys

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")

import entries  # noqa: E402
import planaria  # noqa: E402

LONG = 0.04
"""Seconds that a call must take to be judged: the system counts in ticks of some milliseconds."""

SIZES = [1 << 19, 1 << 22, 1 << 24]


def test_every_entry_point_is_in_the_table():
    listed = set(entries.CALLS) | set(entries.QUICK)
    assert set(entries.public()) - listed == set(), "say how it is called in CALLS, or why it takes no time in QUICK"
    assert listed - set(entries.public()) == set(), "no longer there"
    assert not set(entries.CALLS) & set(entries.QUICK)


def judged(name, worlds):
    """The least share of a long call in which the counting thread was kept waiting; none for one that never is long."""
    with entries.Counter() as counter:
        for size in SIZES:
            call = entries.CALLS[name](worlds.setdefault(size, entries.World(size)))
            call()
            took, share = counter.blocked(call)
            if took >= LONG:
                others = (counter.blocked(call)[1] for _ in range(4))
                return share if share < 0.5 else min(others)
    return None


@pytest.fixture(scope="module")
def worlds():
    return {}


@pytest.mark.parametrize("name", sorted(entries.CALLS))
def test_the_interpreter_is_free_during(name, worlds):
    share = judged(name, worlds)
    # What is not long at the largest size is over before anyone could wait for it.
    assert share is None or share < 0.5, f"the interpreter was held for {share:.0%} of the call"


@pytest.mark.parametrize("see", [planaria.Array.numpy, lambda array: memoryview(array).release()], ids=["dlpack", "buffer"])
def test_the_interpreter_is_free_while_a_view_copies(see):
    """After a snapshot the first view of an array copies it."""
    world = entries.World(SIZES[-1])
    with entries.Counter() as counter:
        world.seen_after_snapshots(see)
        shares = [counter.blocked(lambda: world.seen_after_snapshots(see))[1] for _ in range(3)]
    # Half of the time goes into arrays that are given back; held, the share is about that.
    assert min(shares) < 0.25, shares


def test_holding_the_interpreter_would_be_noticed():
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("this interpreter has no lock to hold")
    with entries.Counter() as counter:
        shares = [counter.blocked(lambda: pow(3, 1_500_000)) for _ in range(3)]
    noticed = max(share for took, share in shares) > 0.5
    if not noticed and os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        pytest.skip("the machine is too crowded to tell waiting for the interpreter from waiting for a processor")
    assert noticed, shares
