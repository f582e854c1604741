"""NumPy's own checks of index expressions, against its own model of indexing, with our arrays in the place of its own."""

import pytest

np = pytest.importorskip("numpy")
theirs = pytest.importorskip("numpy._core.tests.test_indexing")

import planaria  # noqa: E402


def native(entry):
    """Index arrays as this machine orders bytes; others are refused as any array of theirs is."""
    if isinstance(entry, np.ndarray) and not entry.dtype.isnative:
        return entry.astype(entry.dtype.newbyteorder("="))
    return entry


def ints_first(entries):
    """An int acts before index arrays, as in torch: what it selects, and the expression over what is left."""
    arrays = any(isinstance(e, (np.ndarray, list)) and np.ndim(e) > 0 for e in entries)
    if not (arrays and any(isinstance(e, int) for e in entries)):
        return None, entries
    first = []
    for entry in entries:
        if entry is not None:
            mask = isinstance(entry, np.ndarray) and entry.dtype == bool
            first += [entry] if isinstance(entry, int) or entry is Ellipsis else [slice(None)] * (entry.ndim if mask else 1)
    return tuple(first), tuple(e for e in entries if not isinstance(e, int))


class Ours(theirs.TestMultiIndexingAutomated):
    """Their expressions and their model; every comparison is ours."""

    __test__ = False

    def __init__(self):
        self.checked = self.refused = self.apart = 0

    def _check_multi_index(self, arr, index):
        self._check(arr, index, index)

    def _check_single_index(self, arr, index):
        self._check(arr, index, (index,))

    def _check(self, arr, index, entries):
        if sum(e is Ellipsis for e in entries) > 1:
            # In torch, and here, a second one stands for nothing.
            self.apart += 1
            return
        given = tuple(native(e) for e in index) if isinstance(index, tuple) else native(index)
        ours, plain = planaria.array(arr, copy=True), arr.copy()
        first, rest = ints_first(entries)
        try:
            left = plain if first is None else plain[first]
            expected, no_copy = self._get_multi_index(left, rest)
        except Exception as error:
            self.refused += 1
            self._refuses(ours, given, error)
            return
        self.checked += 1
        found = ours[given]
        np.testing.assert_array_equal(found.numpy(), expected)
        if found.size and found.ndim:
            assert np.may_share_memory(found.numpy(), ours.numpy()) == no_copy, index
        ours[given] = expected + 1000
        left[rest] = expected + 1000
        np.testing.assert_array_equal(ours.numpy(), plain)

    def _refuses(self, ours, index, error):
        for act in (lambda: ours[index], lambda: ours.__setitem__(index, 0)):
            try:
                empty = act()
            except Exception as mine:
                assert isinstance(mine, (IndexError, ValueError)), (index, error, mine)
                assert not isinstance(mine, planaria.InternalError)
                continue
            # Positions into an empty result may go unchecked.
            assert empty is None or empty.size == 0, (index, error)


def test_expressions_have_the_results_views_and_errors_of_numpy():
    ours = Ours()
    ours.test_multidim()
    ours.test_1d()
    assert ours.checked + ours.refused + ours.apart >= 2450, (ours.checked, ours.refused, ours.apart)
    assert ours.apart < 250, (ours.checked, ours.refused, ours.apart)
