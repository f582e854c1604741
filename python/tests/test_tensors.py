"""Tensors: gradients against hand-written ones, and the same values on any layout."""

import threading

import pytest

import planaria

np = pytest.importorskip("numpy")


def test_gradients_of_simple_functions():
    x = planaria.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = (3.0 * x * x - x / 2).sum()
    assert y.item() == 39.0
    y.backward()
    assert x.grad.full().tolist() == [5.5, 11.5, 17.5]
    z = planaria.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    (z[0] @ z[:, 1]).backward()
    assert z.grad.full().tolist() == [[2.0, 4 + 1.0], [0.0, 2.0]]
    a = planaria.tensor([0.5], requires_grad=True)
    (first,) = planaria.grad((a * a * a).sum(), [a], create_graph=True)
    (second,) = planaria.grad(first.sum(), [a])
    assert first.full().tolist() == [0.75] and second.full().tolist() == [3.0]
    weights = planaria.tensor([1.0, 1.0], requires_grad=True)
    (weights * 2.0).backward(grad=planaria.array([1.0, 10.0]))
    assert weights.grad.full().tolist() == [2.0, 20.0]


def test_operators_of_numbers_and_tensors():
    x = planaria.tensor([1.0, -2.5, 3.0], requires_grad=True)
    for made, want in [
        (2.0**x, [2.0, 2.0**-2.5, 8.0]), (abs(x), [1.0, 2.5, 3.0]), (x // 2.0, [0.0, -2.0, 1.0]), (x % 2.0, [1.0, 1.5, 1.0]),
        (7.0 // x, [7.0, -3.0, 2.0]), (7.0 % x, [0.0, -0.5, 1.0]), (planaria.array([1.0, 2.0, 3.0]) ** x, [1.0, 2.0**-2.5, 27.0]),
    ]:
        assert made.full().tolist() == pytest.approx(want, rel=1e-6)
    (2.0**x).sum().backward()
    assert x.grad.full().tolist() == pytest.approx([2.0**n * np.log(2) for n in (1.0, -2.5, 3.0)], rel=1e-5)


def test_a_tensor_shows_its_values():
    assert repr(planaria.tensor([1.0, 2.5])) == "Tensor f32[2]\n[1.0, 2.5]"

    def rank(comm):
        layout = planaria.mesh(tp=2).layout((4,), "tp:S0")
        return repr(planaria.tensor([1.0, 2.0, 3.0, 4.0], layout, comm=comm))

    first, second = planaria.threads(2, rank)
    assert first.startswith("Tensor f32[4] @ ") and first.endswith("here Array f32[2]\n[1.0, 2.0]") and second.endswith("[3.0, 4.0]")
    assert "..." in repr(planaria.tensor(np.zeros(2000, np.float32)))


def test_no_grad_and_errors():
    x = planaria.tensor([1.0], requires_grad=True)
    with planaria.no_grad():
        assert not (x * 2.0).requires_grad
        other = []
        thread = threading.Thread(target=lambda: other.append((x * 2.0).requires_grad))
        thread.start()
        thread.join()
        assert other == [True], "the block is this thread's own"
    assert (x * 2.0).requires_grad and not x.detach().requires_grad
    with pytest.raises(ValueError):
        (x.detach() * 2.0).sum().backward()
    with pytest.raises(ValueError):
        planaria.tensor([1.0, 2.0], requires_grad=True).backward()
    with pytest.raises(TypeError):
        planaria.tensor([1, 2], requires_grad=True)
    with pytest.raises(ValueError):
        x + planaria.tensor([1.0, 2.0]) @ planaria.tensor([[1.0]])
    with pytest.raises(planaria.LayoutError):
        x.reshard("tp:S0")
    assert "f32[1]" in repr(x)


def test_one_value_on_any_layout():
    value = np.arange(32.0, dtype=np.float32).reshape(8, 4)

    def loss(comm, placement):
        layout = planaria.mesh(dp=2, tp=2).layout((8, 4), placement)
        x = planaria.tensor(value, layout, requires_grad=True, comm=comm)
        assert x.local().shape == layout.local_shape(comm.rank) and x.layout == layout
        y = ((x @ planaria.array(np.ones((4, 3), np.float32))).tanh() * 0.5).sum()
        y.backward()
        moved = x.detach().reshard("dp:S1 tp:S0")
        assert moved.full().tolist() == value.tolist()
        return y.item(), x.grad.full().tolist()

    alone = planaria.threads(4, loss, "dp:R tp:R")[0]
    for placement in ["dp:S0", "tp:S1", "dp:S0 tp:S1", "dp:S0 tp:S0", "dp:S1 tp:S0"]:
        for got in planaria.threads(4, loss, placement):
            assert got[0] == pytest.approx(alone[0], rel=1e-6)
            np.testing.assert_allclose(got[1], alone[1], rtol=1e-5)


def test_pieces_make_a_tensor():
    def work(comm):
        layout = planaria.mesh(tp=2).layout((4,), "tp:S0")
        x = planaria.tensor([float(comm.rank)] * 2, layout, comm=comm)
        with pytest.raises(ValueError):
            planaria.tensor([1.0] * 3, layout, comm=comm)
        return x.full().tolist()
    assert planaria.threads(2, work) == [[0.0, 0.0, 1.0, 1.0]] * 2
    with pytest.raises(planaria.LayoutError):
        planaria.tensor([1.0] * 4, planaria.mesh(tp=2).layout((4,), "tp:S0"))


def test_a_single_tensor_is_asked_about_by_itself():
    x = planaria.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    for xs in (x, [x], (x,)):
        (found,) = planaria.grad((x * x).sum(), xs)
        assert found.full().tolist() == [[2.0, 4.0], [6.0, 8.0]]
    scalar = planaria.tensor(3.0, requires_grad=True)
    assert planaria.grad(scalar * scalar, scalar)[0].item() == 6.0


def test_a_tensor_of_one_element_is_its_number():
    x = planaria.tensor([0.0])
    assert not bool(x) and bool(planaria.tensor(-1.0)) and not bool(planaria.tensor([1.0]) == 5)
    assert float(planaria.tensor([[2.5]])) == 2.5 and int(planaria.tensor([7.9])) == 7
    assert 2.0 in planaria.tensor([1.0, 2.0]) and 3.0 not in planaria.tensor([1.0, 2.0])
    for ask in (bool, float, int, lambda t: t.item()):
        with pytest.raises(ValueError, match="one element"):
            ask(planaria.tensor([1.0, 2.0]))

    def work(comm):
        layout = planaria.mesh(tp=2).layout((1,), "tp:S0")
        return float(planaria.tensor([4.0], layout, comm=comm))
    assert planaria.threads(2, work) == [4.0, 4.0]


def test_numpy_leaves_operators_to_the_tensor():
    x = planaria.tensor([1.0, 2.0], requires_grad=True)
    left = np.full(2, 3, np.float32) * x
    assert isinstance(left, planaria.Tensor)
    left.sum().backward()
    assert x.grad.full().tolist() == [3.0, 3.0]
    assert np.asarray(x).dtype == np.float32 and np.asarray(x, np.float64).tolist() == [1.0, 2.0]

    def work(comm):
        layout = planaria.mesh(tp=2).layout((2,), "tp:S0")
        with pytest.raises(planaria.LayoutError, match="full"):
            np.asarray(planaria.tensor([1.0, 2.0], layout, comm=comm))
    planaria.threads(2, work)
