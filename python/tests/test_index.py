"""The index language against NumPy: results, errors, views or copies, reads and writes."""

import itertools

import pytest

import planaria

np = pytest.importorskip("numpy")

ENTRIES = [
    0, -1, 2, slice(None), slice(1, None), slice(None, -1), slice(None, None, 2), slice(5, 1), slice(-100, 100), None, Ellipsis,
    [0, 2], [], [-1, 0, 0], np.array([[0, 1], [2, 0]]), True, False, np.array([True, False, True]),
]


def _numpy_says(x, index):
    try:
        return x[index]
    except IndexError as error:
        return error


def _differs_like_torch(index):
    """An int between slices and index arrays acts first with us, and a second ellipsis stands for nothing."""
    ellipses = sum(1 for i in index if i is Ellipsis)
    arrays = [k for k, i in enumerate(index) if isinstance(i, (list, np.ndarray, bool))]
    ints = [k for k, i in enumerate(index) if type(i) is int]
    return ellipses > 1 or bool(arrays and ints)


def test_every_pair_and_triple_reads_as_numpy_does():
    x = np.arange(27.0).reshape(3, 3, 3)
    ours = planaria.array(x)
    checked = 0
    for count in (1, 2, 3):
        for index in itertools.product(ENTRIES, repeat=count):
            if _differs_like_torch(index):
                continue
            want = _numpy_says(x, index)
            if isinstance(want, IndexError):
                with pytest.raises(IndexError):
                    ours[index]
            else:
                got = ours[index]
                assert got.shape == want.shape and got.tolist() == want.tolist(), index
                basic = all(i is None or i is Ellipsis or isinstance(i, slice) or type(i) is int for i in index)
                if want.size and want.ndim:
                    assert np.shares_memory(got.numpy(), x) == basic, index
            checked += 1
    assert checked > 3000


def test_every_pair_writes_as_numpy_does():
    checked = 0
    for index in itertools.product(ENTRIES, repeat=2):
        if _differs_like_torch(index):
            continue
        theirs = np.arange(9.0).reshape(3, 3)
        ours = planaria.array(theirs.copy())
        part = _numpy_says(theirs, index)
        if isinstance(part, IndexError):
            with pytest.raises(IndexError):
                ours[index] = 1.0
            continue
        for value in (5.0, np.arange(part.size, dtype=float).reshape(part.shape)):
            theirs[index] = value
            ours[index] = value
            assert ours.tolist() == theirs.tolist(), index
            checked += 1
    assert checked > 200


def test_ints_act_before_index_arrays_as_in_torch():
    x = np.arange(24).reshape(2, 3, 4)
    got = planaria.array(x)[0, :, [1, 2]]
    assert got.tolist() == x[0][:, [1, 2]].tolist()
    assert planaria.array(x)[..., ...].shape == x.shape


def test_errors_say_what_is_wrong():
    x = planaria.array(np.zeros((3, 4)))
    with pytest.raises(IndexError, match="index 7 is out of range for dim 1 with size 4") as error:
        x[0, 7]
    assert isinstance(error.value, planaria.ArrayIndexError) and isinstance(error.value, planaria.Error)
    for wrong in [(0, 0, 0), 1.0, "a", (1.5, 0), [0.5], [[1.0]], slice(0.5, None), object(), {}, 2**80, np.ones(2, bool)]:
        with pytest.raises(IndexError):
            x[wrong]
    with pytest.raises(ValueError):
        x[:] = np.zeros((2, 2))
    with pytest.raises(ValueError):
        x[::0]


def test_writes_cast_broadcast_and_are_seen_by_views():
    x = planaria.array([[1, 2, 3], [4, 5, 6]])
    row = x[0]
    x[:, 1] = 7.9
    assert row.tolist() == [1, 7, 3]
    row[:] = [10, 20, 30]
    assert x.tolist() == [[10, 20, 30], [4, 7, 6]]
    x[x > 9] = 0
    x[1] += 1
    assert x.tolist() == [[0, 0, 0], [5, 8, 7]]
    x[[0, 0]] += 1
    assert x[0].tolist() == [1, 1, 1]
    with pytest.raises(OverflowError):
        planaria.array([1], dtype="u8")[0] = 256


def test_at_add_counts_every_repeat():
    x = planaria.array([0.0, 0.0, 0.0])
    assert x.at[[0, 0, 2]].add(1.0) is x
    assert x.tolist() == [2.0, 0.0, 1.0]
    x.at[1:].add([5.0, 6.0])
    assert x.tolist() == [2.0, 5.0, 7.0]
    theirs, index = np.zeros((4, 5)), (np.array([0, 1, 0, 3]), np.array([1, 1, 1, 4]))
    np.add.at(theirs, index, np.arange(4.0))
    ours = planaria.array(np.zeros((4, 5)))
    ours.at[index].add(np.arange(4.0))
    assert ours.tolist() == theirs.tolist()
    with pytest.raises(IndexError):
        x.at[[9]].add(1.0)
    with pytest.raises(ValueError):
        x.at[[0, 1]].add([1.0, 2.0, 3.0])


def test_random_indices_agree_with_numpy():
    rng = np.random.default_rng(7)
    for _ in range(300):
        shape = tuple(rng.integers(1, 5, size=rng.integers(1, 4)))
        x = rng.normal(size=shape)
        ours = planaria.array(x)
        index = []
        for size in shape:
            kind = rng.integers(0, 4)
            if kind == 0:
                index.append(slice(*sorted(rng.integers(-size, size + 1, 2).tolist()), int(rng.integers(1, 3))))
            elif kind == 1:
                index.append(rng.integers(-size, size, size=int(rng.integers(0, 4))) if not index or True else 0)
            elif kind == 2:
                index.append(rng.integers(0, 2, size).astype(bool))
            else:
                index.append(slice(None))
        index = tuple(index)
        want = _numpy_says(x, index)
        if isinstance(want, IndexError):
            with pytest.raises(IndexError):
                ours[index]
        else:
            assert ours[index].tolist() == want.tolist(), index


OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">="]


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("dtype", ["i32", "i64", "f32", "f64"])
def test_operators_agree_with_numpy(operator, dtype):
    a = np.array([[1, 2, 3], [4, 5, 6]]).astype(planaria.array([0], dtype=dtype).numpy().dtype)
    b = np.array([[2], [3]]).astype(a.dtype)
    for x, y in [(a, b), (a, 2), (3, a), (b, a)]:
        want = eval(f"x {operator} y", {"x": x, "y": y})
        ours_x = planaria.array(x) if isinstance(x, np.ndarray) else x
        ours_y = planaria.array(y) if isinstance(y, np.ndarray) else y
        got = eval(f"x {operator} y", {"x": ours_x, "y": ours_y})
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
        if operator != "/" or "f" in dtype:
            assert got.dtype == want.dtype


def test_bit_operators_promotion_and_places():
    a, b = planaria.array([True, False]), planaria.array([True, True])
    assert (a & b).tolist() == [True, False] and (a | b).tolist() == [True, True]
    assert (a ^ b).tolist() == [False, True] and (~a).tolist() == [False, True]
    x = planaria.array([1, 2], dtype="i32")
    assert (x << 2).tolist() == [4, 8] and (8 >> x).tolist() == [4, 2]
    assert (x + planaria.array([1], dtype="i64")).dtype == "i64"
    assert (x + 1.5).dtype == "f32" and (x.astype("bf16") * 2.0).dtype == "bf16"
    assert (x / 2).tolist() == [0.5, 1.0] and (-x).tolist() == [-1, -2] and abs(-x).tolist() == [1, 2]
    assert (planaria.array([[1.0, 2.0]]) @ planaria.array([[3.0], [4.0]])).tolist() == [[11.0]]
    with pytest.raises(planaria.DTypeError):
        planaria.array([1], dtype="u64") + x
    view = x[1:]
    view += 5
    assert x.tolist() == [1, 7]
    with pytest.raises(TypeError):
        x += 0.5
    with pytest.raises(ValueError):
        x + planaria.array([1, 2, 3])
    with pytest.raises(TypeError):
        x + "a"
    assert (x == "a") is False
