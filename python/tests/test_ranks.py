"""Meshes, layouts, plans, and ranks as threads."""

import pickle
import threading
import time

import pytest

import planaria

np = pytest.importorskip("numpy")


def test_meshes_and_layouts_have_one_text_form():
    mesh = planaria.mesh(dp=2, tp=4)
    assert str(mesh) == "dp=2 tp=4" and mesh.size == 8 and mesh.axes == {"dp": 2, "tp": 4}
    assert planaria.mesh("dp=2 tp=4") == mesh and hash(planaria.mesh("dp=2 tp=4")) == hash(mesh)
    lay = mesh.layout((4096, 1024), "dp:R tp:S1")
    assert lay.boxes(rank=3) == [(slice(0, 4096), slice(768, 1024))]
    assert lay.local_shape(rank=3) == (4096, 256) and lay.mesh == mesh and lay.shape == (4096, 1024)
    assert mesh.layout((4096, 1024), "tp:S1") == lay and lay != mesh.layout((4096, 1024), "tp:S0")
    for value in (mesh, lay, planaria.DType("bf16")):
        assert pickle.loads(pickle.dumps(value)) == value
    assert "768..1024" in lay._repr_html_() and "dp=2" in repr(mesh)
    for wrong in ["tp:S9", "xx:R", "tp", "tp:Q", "tp:S0 tp:S1 junk"]:
        with pytest.raises(planaria.LayoutError):
            mesh.layout((4096, 1024), wrong)
    for text in ["", "dp", "dp=0", "dp=2 dp=2"]:
        with pytest.raises(ValueError):
            planaria.mesh(text)
    with pytest.raises(TypeError):
        planaria.mesh()
    with pytest.raises(ValueError):
        lay.boxes(rank=8)


def test_a_plan_says_who_gives_which_box():
    mesh = planaria.mesh(dp=2, tp=4)
    source, target = mesh.layout((4096, 1024), "dp:R tp:S1"), mesh.layout((4096, 1024), "dp:S0 tp:R")
    plan = planaria.plan(source, target, dtype="f32")
    for rank in range(8):
        seen = np.zeros((4096, 1024), bool)
        for giver, box in plan.moves(rank):
            held = np.zeros_like(seen)
            for part in source.boxes(giver):
                held[part] = True
            assert held[box].all()
            seen[box] = True
        want = np.zeros_like(seen)
        for part in target.boxes(rank):
            want[part] = True
        assert (seen == want).all()
    assert plan.bytes == 8 * 3 * 2048 * 256 * 4 and "all-gather" in plan.route
    assert planaria.plan(source, target, dtype="bf16").bytes * 2 == plan.bytes
    with pytest.raises(ValueError):
        planaria.plan(source, mesh.layout((1, 1), "dp:R"))


def test_collectives():
    assert planaria.threads(4, lambda comm: comm.all_reduce(planaria.array([1.0 * comm.rank])).item()) == [6.0] * 4
    def work(comm, base):
        r, n = comm.rank, comm.size
        assert comm.all_reduce(np.array([r, -r]), op="max").tolist() == [n - 1, 0]
        out = np.zeros(2)
        assert comm.all_reduce(np.full(2, float(r)), out=out) is out and out.tolist() == [n * (n - 1) / 2] * 2
        gaps = np.zeros(4)
        comm.all_reduce(np.full(2, float(r)), out=gaps[::2])
        assert gaps.tolist() == [n * (n - 1) / 2, 0] * 2
        assert comm.all_gather(np.full((r, 2), r)).tolist() == [[k, k] for k in range(n) for _ in range(k)]
        assert comm.all_gather(planaria.array(r)).tolist() == list(range(n))
        assert comm.reduce_scatter(np.arange(2 * n)).tolist() == [n * 2 * r, n * (2 * r + 1)]
        assert comm.broadcast(np.array([r]), root=1).tolist() == [1]
        assert comm.all_to_all(np.arange(n) + 10 * r).tolist() == [10 * k + r for k in range(n)]
        part = comm.all_to_all(np.full(sum(range(n)), r), send=list(range(n)))
        assert part.tolist() == [k for k in range(n) for _ in range(r)]
        comm.barrier(timeout=30.0)
        return base + r
    assert planaria.threads(3, work, 100) == [100, 101, 102]
    alone = planaria.alone()
    assert (alone.rank, alone.size) == (0, 1) and alone.all_reduce(planaria.array([2.0])).tolist() == [2.0]


def test_the_first_real_exception_comes_back_with_its_rank():
    def work(comm):
        if comm.rank == 2:
            raise KeyError("mine")
        comm.barrier()
    with pytest.raises(KeyError, match="mine") as error:
        planaria.threads(4, work)
    assert error.value.__notes__ == ["rank 2"]
    with pytest.raises(planaria.CommError):
        planaria.threads(2, lambda comm: comm.all_reduce(np.zeros(1 + comm.rank)))
    with pytest.raises(ValueError):
        planaria.threads(0, lambda comm: None)
    for wrong in [lambda c: c.all_reduce("x"), lambda c: c.all_reduce([1.0], op="mode"), lambda c: c.broadcast([1.0], root=7)]:
        with pytest.raises((TypeError, ValueError)):
            planaria.threads(1, wrong)
    with pytest.raises(TypeError):
        pickle.dumps(planaria.alone())


def test_ranks_wait_without_the_interpreter():
    met = threading.Barrier(3)
    def work(comm):
        met.wait(60)
        if comm.rank == 0:
            # The others wait for this rank; held by one of them, the interpreter would not come back before they give up.
            for _ in range(1000):
                time.sleep(0)
        comm.barrier(timeout=60)
    planaria.threads(3, work)


def test_a_barrier_may_give_up():
    def work(comm):
        if comm.rank == 0:
            with pytest.raises(planaria.CommError, match="0.1 s"):
                comm.barrier(timeout=0.1)
            gone.set()
        else:
            gone.wait()
    gone = threading.Event()
    planaria.threads(2, work)


def test_the_order_of_cuts_along_one_dim_is_kept():
    mesh = planaria.mesh(dp=2, tp=2)
    inner, outer = mesh.layout((8, 5), "dp:S0.1 tp:S0"), mesh.layout((8, 5), "dp:S0 tp:S0")
    assert [inner.boxes(rank)[0][0].start for rank in range(4)] == [0, 4, 2, 6]
    assert [outer.boxes(rank)[0][0].start for rank in range(4)] == [0, 2, 4, 6]
    assert pickle.loads(pickle.dumps(inner)) == inner != outer
