"""Checkpoints: what is saved comes back, in any framework, or a typed error says why not."""

import asyncio
import collections
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading

import pytest

import planaria
from planaria import MismatchError

np = pytest.importorskip("numpy")


def state():
    return {
        "model": {"w": np.arange(12.0, dtype=np.float32).reshape(3, 4), "b": planaria.array([1, 2, 3], dtype="bf16")},
        "list": [1, 2.5, "text", None, True, b"\0\xff", (np.array(4, np.int64), float("inf"))],
        "optim": {"state": {0: {"m": np.ones(2)}}},
        "step": 7,
    }


def test_a_state_comes_back_as_it_was(tmp_path):
    report = planaria.save(state(), tmp_path / "c")
    assert report.tensors == 4 and report.url == str(tmp_path / "c") and report.bytes > 0
    assert report.to_dict()["tensors"] == 4 and "tensors" in repr(report)
    with pytest.raises(TypeError, match="neither"):
        bool(report)
    back = planaria.load(tmp_path / "c", framework="numpy")
    assert back["model"]["w"].tolist() == state()["model"]["w"].tolist()
    assert str(planaria.load(tmp_path / "c")["model"]["b"].dtype) == "bf16"
    assert back["list"][:6] == [1, 2.5, "text", None, True, b"\0\xff"]
    assert isinstance(back["list"][6], tuple) and back["list"][6][0] == 4 and back["list"][6][1] == float("inf")
    assert back["optim"]["state"][0]["m"].tolist() == [1, 1] and back["step"] == 7
    assert list(back) == ["model", "list", "optim", "step"]


def holds_itself():
    state = {"a": [{}]}
    state["a"][0]["b"] = state["a"]
    return state


def nested(depth):
    """Dicts in dicts, as many as that."""
    state = {"w": 1}
    for _ in range(depth - 1):
        state = {"a": state}
    return state


def test_plain_leaves_come_back_as_they_were_saved(tmp_path):
    random = np.random.Generator(np.random.PCG64(7))
    words = random.integers(0, 2**64, 11_000, dtype=np.uint64).view(np.float64)
    doubles = [float(x) for x in words if np.isfinite(x)][:10_000]
    ints = [2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**40, -(10**5000), True, 0]
    state = {
        "doubles": doubles, "ints": ints, "generator": random.bit_generator.state, 2**70: 1, -3: "x", "deep": nested(39),
        "numpy": [np.float32(0.1), np.int64(-5), np.bool_(True), np.float64("nan"), np.str_("text")],
    }
    planaria.save(state, tmp_path / "c")
    back = planaria.load(tmp_path / "c")
    assert [x.hex() for x in back["doubles"]] == [x.hex() for x in doubles] and len(doubles) == 10_000
    assert back["ints"] == ints and [type(x) for x in back["ints"]] == [type(x) for x in ints]
    assert back["generator"] == random.bit_generator.state and back[2**70] == 1 and back[-3] == "x" and back["deep"] == nested(39)
    assert back["numpy"][:3] == [float(np.float32(0.1)), -5, True] and np.isnan(back["numpy"][3]) and back["numpy"][4] == "text"
    other = np.random.Generator(np.random.PCG64(8))
    other.bit_generator.state = back["generator"]
    assert other.random() == random.random()
    into = {"numpy": [np.float32(0), np.int64(0), False, np.float64(0), ""], "ints": [0] * len(ints)}
    planaria.load(tmp_path / "c", into=into, keys=["numpy.*", "ints.*"])
    assert into["numpy"][1] == -5 and into["ints"] == ints
    assert planaria.load(tmp_path / "c", keys=[f"{2**70}"]) == {2**70: 1}


class Holder:
    """Something with a state of its own."""

    def __init__(self, **leaves):
        self.leaves = leaves

    def state_dict(self):
        return dict(self.leaves)

    def load_state_dict(self, state):
        self.leaves = state


def test_objects_get_tensors_of_the_library_theirs_were_of(tmp_path):
    saved = Holder(a=np.arange(3.0), b=planaria.array([1.0]), c=planaria.tensor([2.0]), n=3)
    planaria.save({"ema": saved, "w": np.ones(1)}, tmp_path / "c")
    there, empty = Holder(a=np.zeros(3), b=planaria.array([0.0]), c=planaria.tensor([0.0]), n=0), Holder()
    for holder in (there, empty):
        planaria.load(tmp_path / "c", into={"ema": holder, "w": np.zeros(1)})
        assert isinstance(holder.leaves["a"], np.ndarray) and isinstance(holder.leaves["b"], planaria.Array)
        assert holder.leaves["a"].tolist() == [0, 1, 2] and holder.leaves["b"].tolist() == [1] and holder.leaves["n"] == 3
    assert there.leaves["c"].local().tolist() == [2] and isinstance(there.leaves["c"], planaria.Tensor)
    other = Holder(a=planaria.array([0.0] * 3), b=np.zeros(1))
    planaria.load(tmp_path / "c", into={"ema": other}, strict=False)
    assert isinstance(other.leaves["a"], planaria.Array) and isinstance(other.leaves["b"], np.ndarray)
    # What is not asked for stays.
    planaria.load(tmp_path / "c", into={"ema": (kept := Holder(n=9)), "w": np.zeros(1)}, keys="w")
    assert kept.leaves == {"n": 9}


def test_objects_are_filled_where_there_is_no_torch(tmp_path):
    planaria.save({"ema": Holder(a=np.arange(3.0), b=planaria.array([1.0]))}, tmp_path / "c")
    code = """
import sys
sys.modules["torch"] = None
import planaria
class Holder:
    def state_dict(self):
        return {}
    def load_state_dict(self, state):
        self.state = state
holder = Holder()
planaria.load(sys.argv[1], into={"ema": holder})
assert type(holder.state["a"]).__name__ == "ndarray" and holder.state["b"].tolist() == [1.0]
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "c")], check=True, timeout=120)


def test_a_step_is_what_was_given(tmp_path):
    for number, (state, options, step) in enumerate([
        ({"a": 1}, {}, None), ({"step": 7}, {}, 7), ({"step": np.int64(8)}, {}, 8), ({"step": 7}, {"step": 9}, 9), ({"a": 1}, {"step": 0}, 0),
        ({"step": "seven"}, {}, None),
    ]):
        planaria.save(state, tmp_path / str(number), **options)
        with planaria.open(tmp_path / str(number)) as ckpt:
            assert ckpt.step == step, state


def test_values_are_compared_too(tmp_path):
    first = {"w": np.ones(2), "lr": 0.1, "nan": float("nan"), "name": "a", "only": 1, "big": 2**80}
    second = {"w": np.ones(2), "lr": 0.1 + 1e-9, "nan": float("nan"), "name": "b", "flag": True, "big": 2**80}
    planaria.save(first, tmp_path / "a")
    planaria.save(second, tmp_path / "b")
    found = planaria.diff(tmp_path / "a", tmp_path / "b")
    assert not found.equal and found.only_left == ["only"] and found.only_right == ["flag"]
    assert found.changed.keys() == {"lr", "name"} and found.changed["name"] == "'a' against 'b'"
    assert planaria.diff(tmp_path / "a", tmp_path / "b", tolerance=1e-6).changed.keys() == {"name"}
    assert planaria.diff(tmp_path / "a", tmp_path / "a").equal
    planaria.convert(tmp_path / "a", tmp_path / "hf", to="hf")
    assert planaria.diff(tmp_path / "a", tmp_path / "hf").equal, "the format has no place for values"


def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path):
    place = tmp_path / "c"
    for wrong, error, says in [
        ({"a": {"b": object()}, "w": np.ones(1)}, TypeError, "a.b"),
        ({"a.b": np.ones(1), "a": {"b": np.ones(1)}}, ValueError, "a.b"),
        ({"a": {"w": np.array(["x"])}}, TypeError, "a.w"),
        ({"w": np.array([1j])}, TypeError, "'w'.*complex128"),
        ({(1, 2): np.ones(1)}, TypeError, "keys"),
        (np.ones(3), TypeError, "name"),
        ({"w": {1, 2}}, TypeError, "w"),
        ({"a": {"b": "\ud800"}}, TypeError, "'a.b'.*surrogate"),
        ({"a": {"\udfff": 1}}, TypeError, "'a'.*surrogate"),
        (holds_itself(), ValueError, "'a.0.b'.*holds itself"),
        (nested(41), ValueError, "deeper than 40"),
    ]:
        with pytest.raises(error, match=says):
            planaria.save(wrong, place)
        with pytest.raises(error, match=says):
            planaria.async_save(wrong, place)
        assert not place.exists()
    for options in [{"format": "zip"}, {"max_file_size": "many"}, {"max_file_size": 0}, {"mapping": "a ->"}]:
        with pytest.raises(ValueError):
            planaria.save({"w": np.ones(1)}, place, **options)
    for call in (planaria.save, planaria.async_save):
        with pytest.raises(ValueError, match="no tensors"):
            call({"a": 1}, place, format="hf")
    with pytest.raises(TypeError):
        planaria.save({"w": np.ones(1)}, 5)


def test_a_state_may_be_values_alone(tmp_path):
    state = {"step": 3, "list": [None, (1.5, "text")]}
    assert planaria.save(state, tmp_path / "c").tensors == 0 and planaria.load(tmp_path / "c") == state
    into = {"step": 0, "list": ["", (0, 0)]}
    planaria.load(tmp_path / "c", into=into)
    assert into == state and planaria.verify(tmp_path / "c").ok


def test_a_committed_checkpoint_is_replaced_only_when_asked(tmp_path):
    planaria.save({"w": np.zeros(2)}, tmp_path / "c")
    with pytest.raises(FileExistsError) as refused:
        planaria.save({"w": np.ones(2)}, tmp_path / "c")
    assert isinstance(refused.value, planaria.ExistsError) and isinstance(refused.value, planaria.CheckpointError)
    with pytest.raises(planaria.ExistsError):
        planaria.async_save({"w": np.ones(2)}, tmp_path / "c")
    planaria.save({"w": np.ones(2)}, tmp_path / "c", overwrite=True)
    assert planaria.load(tmp_path / "c")["w"].tolist() == [1, 1]
    assert os.listdir(tmp_path) == ["c"]


def test_loading_in_place_keeps_addresses_and_replaces_values(tmp_path):
    planaria.save(state(), tmp_path / "c")
    into = state()
    into["model"]["w"][:] = 0
    into["optim"]["state"][0]["m"][:] = 0
    into["step"], into["list"][1] = 0, 0.0
    address = into["model"]["w"].ctypes.data
    ours = into["model"]["b"]
    ours[:] = 0
    report = planaria.load(tmp_path / "c", into=into)
    assert into["model"]["w"].ctypes.data == address and into["model"]["w"][2, 3] == 11
    assert ours.tolist() == [1, 2, 3] and into["step"] == 7 and into["list"][1] == 2.5
    assert isinstance(into["list"][6], tuple) and report.missing == [] and "model.w" in report.loaded
    assert report.bytes_read > 0 and report.seconds > 0


def test_mismatches_are_all_named_and_nothing_changes(tmp_path):
    planaria.save({"a": np.ones(2), "b": np.ones((2, 3)), "c": np.ones(1, np.float32), "n": 1}, tmp_path / "c")
    into = {"a": np.zeros(2), "b": np.zeros((3, 2)), "c": np.zeros(1), "d": np.zeros(1), "m": 2}
    with pytest.raises(MismatchError) as found:
        planaria.load(tmp_path / "c", into=into)
    error = found.value
    assert error.missing == ["d", "m"] and error.unexpected == ["n"]
    assert error.shapes == {"b": ((2, 3), (3, 2))} and error.dtypes == {"c": ("f32", "f64")}
    assert isinstance(error, ValueError) and isinstance(error, OSError) and into["a"].tolist() == [0, 0]
    into["b"] = np.zeros((2, 3))
    with pytest.raises(MismatchError):
        planaria.load(tmp_path / "c", into=into, strict=False)
    report = planaria.load(tmp_path / "c", into=into, strict=False, casts="floats")
    assert report.missing == ["d", "m"] and report.unexpected == ["n"] and report.cast == [("c", "f32", "f64")]
    assert into["a"].tolist() == [1, 1] and into["c"].tolist() == [1] and into["d"].tolist() == [0]
    planaria.load(tmp_path / "c", into={"a": np.zeros(2)}, ignore=["b", "c", "n"])
    planaria.load(tmp_path / "c", into={"a": np.zeros(2), "z": np.zeros(9)}, keys="a")


def test_parts_are_chosen_by_name(tmp_path):
    planaria.save(state(), tmp_path / "c")
    assert planaria.load(tmp_path / "c", keys=["model.*"]).keys() == {"model"}
    only = planaria.load(tmp_path / "c", keys="model.w", framework="numpy")
    assert list(only["model"]) == ["w"] and isinstance(only["model"]["w"], np.ndarray)
    for into in (None, state()):
        with pytest.raises(FileNotFoundError, match="model.w"):
            planaria.load(tmp_path / "c", into, keys=["model.x"])
    with pytest.raises(ValueError):
        planaria.load(tmp_path / "c", framework="jax")


def test_an_open_checkpoint_reads_slices(tmp_path):
    x = np.arange(2 * 50 * 40).reshape(50, 2, 40).astype(np.int32)
    planaria.save({"x": x, "s": np.array(3.0), "e": np.zeros((0, 3)), "step": 3}, tmp_path / "c")
    ckpt = planaria.open(tmp_path / "c")
    assert set(ckpt) == {"x", "s", "e"} and len(ckpt) == 3 and "x" in ckpt and "y" not in ckpt
    assert ckpt.format == "planaria" and ckpt.step == 3 and ckpt.values == {"step": 3} and len(ckpt.files) == 1
    stored = ckpt["x"]
    assert stored.shape == (50, 2, 40) and stored.dtype == "i32" and stored.nbytes == x.nbytes
    for index in [
        0, -1, (..., 3), slice(10, 20), slice(None, None, 7), (slice(5, 45, 3), 1), (None, 4, ..., slice(2, None, 5)),
        [0, 49], [[3, 4], [4, 3]], ([1, 2], slice(None), [5, 6]), (), slice(4, 2), (slice(None), [1, 0, 1]), [-1, 0],
    ]:
        assert stored[index].tolist() == x[index].tolist(), index
    assert ckpt["s"][()].item() == 3.0 and ckpt["e"][:, 1].shape == (0,)
    assert np.array_equal(stored.numpy(), x)
    for wrong in [50, (0, 2), (0, 0, 0, 0), [50], 1.5, np.ones(50, bool)]:
        with pytest.raises(IndexError):
            stored[wrong]
    with pytest.raises(KeyError):
        ckpt["y"]
    again = pickle.loads(pickle.dumps(ckpt))
    assert again["x"][3, 1, 2].item() == x[3, 1, 2] and "Checkpoint" in repr(ckpt) and "<table>" in ckpt._repr_html_()
    ckpt.close()
    with pytest.raises(ValueError, match="closed"):
        stored[0]
    with pytest.raises(FileNotFoundError):
        planaria.open(tmp_path / "nothing")


def test_slices_read_little(tmp_path):
    planaria.save({"x": np.zeros((1 << 16, 64), np.float32)}, tmp_path / "c")
    ckpt = planaria.open(tmp_path / "c")
    def read():
        with open("/proc/self/io") as file:
            return int(file.read().split()[1])
    before = read()
    ckpt["x"][100:110]
    ckpt["x"][[0, 60000]]
    assert read() - before < 6 << 20


def test_verify_diff_inspect_and_damage(tmp_path):
    planaria.save({"w": np.arange(100000.0), "v": np.ones(3)}, tmp_path / "a")
    planaria.save({"w": np.arange(100000.0) + 1e-9, "u": np.ones(3)}, tmp_path / "b")
    good = planaria.verify(tmp_path / "a")
    assert good.ok and good.damaged == [] and good.checked_bytes >= 800000
    with pytest.raises(TypeError, match=r"\.ok"):
        bool(good)
    found = planaria.diff(tmp_path / "a", tmp_path / "b")
    assert not found.equal and found.only_left == ["v"] and found.only_right == ["u"] and list(found.changed) == ["w"]
    assert list(planaria.diff(tmp_path / "a", tmp_path / "b", tolerance=1e-6).changed) == []
    assert planaria.diff(tmp_path / "a", tmp_path / "a").equal
    with pytest.raises(ValueError):
        planaria.diff(tmp_path / "a", tmp_path / "b", tolerance=-1.0)
    seen = planaria.inspect(tmp_path / "a")
    assert seen.shapes["w"] == (100000,) and seen.dtypes["v"] == "f64" and seen.to_dict()["format"] == "planaria"
    data = tmp_path / "a" / os.path.basename(planaria.open(tmp_path / "a").files[0])
    raw = bytearray(data.read_bytes())
    raw[-400000] ^= 1
    data.write_bytes(raw)
    bad = planaria.verify(tmp_path / "a")
    assert not bad.ok and bad.damaged[0].file.endswith(data.name) and bad.damaged[0].stop > bad.damaged[0].start
    for read in [lambda: planaria.load(tmp_path / "a"), lambda: planaria.open(tmp_path / "a")["w"][:]]:
        with pytest.raises(planaria.DamagedError) as damage:
            read()
        # A block may lie in several tensors: the attribute is the first, the message names all.
        assert damage.value.tensor in ("v", "w") and "w" in str(damage.value) and damage.value.stop > damage.value.start and damage.value.file


@pytest.mark.parametrize("form", ["hf", "dcp", "paddle-unified", "planaria"])
def test_conversions_keep_every_value(tmp_path, form):
    planaria.save({"a": np.arange(6.0, dtype=np.float32).reshape(2, 3), "b": np.ones(2, np.float32)}, tmp_path / "src")
    report = planaria.convert(tmp_path / "src", tmp_path / "out", to=form, dtype="bf16", max_memory="64MB")
    assert report.tensors == 2 and planaria.inspect(tmp_path / "out").dtypes == {"a": "bf16", "b": "bf16"}
    back = planaria.load(tmp_path / "out")
    assert back["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(planaria.ExistsError):
        planaria.convert(tmp_path / "src", tmp_path / "out", to=form)
    assert sorted(os.listdir(tmp_path)) == ["out", "src"]
    planaria.save({"a": np.zeros(2, np.float32)}, tmp_path / "direct", format=form)
    assert planaria.load(tmp_path / "direct")["a"].tolist() == [0, 0]


def test_names_change_by_mapping(tmp_path):
    planaria.save({"old": np.arange(4.0)}, tmp_path / "c")
    into = {"new": np.zeros(4)}
    planaria.load(tmp_path / "c", into=into, mapping="old -> new")
    assert into["new"].tolist() == [0, 1, 2, 3]
    assert planaria.load(tmp_path / "c", mapping="old -> deep.new", framework="numpy")["deep"]["new"].tolist() == [0, 1, 2, 3]
    planaria.convert(tmp_path / "c", tmp_path / "d", to="planaria", mapping=["old -> other"])
    assert list(planaria.open(tmp_path / "d")) == ["other"]
    with pytest.raises(ValueError):
        planaria.convert(tmp_path / "c", tmp_path / "e", to="planaria", mapping="-> ->")


def test_a_mapping_is_held_to_the_same_rules(tmp_path):
    planaria.save({"old": np.arange(4.0), "rest": np.ones(1)}, tmp_path / "c")
    for into, attribute in [
        ({"new": np.zeros(4)}, "unexpected"), ({"new": np.zeros(4), "rest": np.zeros(1), "more": np.zeros(2)}, "missing"),
        ({"new": np.zeros(3), "rest": np.zeros(1)}, "shapes"), ({"new": np.zeros(4, np.int8), "rest": np.zeros(1)}, "dtypes"),
    ]:
        with pytest.raises(planaria.MismatchError) as refused:
            planaria.load(tmp_path / "c", into=into, mapping="old -> new")
        assert getattr(refused.value, attribute) and not into["new"].any()
    into = {"new": np.zeros(4)}
    report = planaria.load(tmp_path / "c", into=into, mapping="old -> new", strict=False)
    assert report.unexpected == ["rest"] and report.missing == [] and into["new"].tolist() == [0, 1, 2, 3]
    for call in (planaria.save, planaria.async_save):
        # What does not fit is refused at the call, and nothing is written.
        with pytest.raises(ValueError):
            call({"w": np.ones(3)}, tmp_path / "d", mapping="w[1:5] -> v")
        assert not (tmp_path / "d").exists()


def test_patterns_know_the_star_alone(tmp_path):
    planaria.save({"a[0]": np.zeros(1), "a0": np.ones(1), "b": np.ones(1)}, tmp_path / "c")
    assert list(planaria.load(tmp_path / "c", keys="a[0]")) == ["a[0]"]
    assert list(planaria.load(tmp_path / "c", keys=["a*"])) == ["a[0]", "a0"]
    assert list(planaria.load(tmp_path / "c", ignore="a[0]")) == ["a0", "b"]


def test_tensors_of_one_storage_are_written_once(tmp_path):
    ours, theirs = planaria.array(np.arange(8.0), copy=True), np.arange(8.0)
    state = {
        "a": ours, "b": ours[:], "half": ours[:4], "d": theirs, "e": theirs[:], "f": planaria.array(theirs), "g": planaria.array(theirs),
    }
    report = planaria.save(state, tmp_path / "c")
    with planaria.open(tmp_path / "c") as ckpt:
        assert report.tensors == 3 and ckpt.nbytes == 64 + 32 + 64
        # A name that stands for another is one all the same.
        assert set(ckpt) == set(state) == set(dict(ckpt.items())) and len(ckpt) == len(state) and "nope" not in ckpt
        assert ckpt["b"].name == ckpt["a"].name and "'b' is 'a'" in repr(ckpt)
    back = planaria.load(tmp_path / "c", framework="numpy")
    assert {name: array.tolist() for name, array in back.items()} == {name: np.asarray(array).tolist() for name, array in state.items()}
    into = {name: np.zeros_like(np.asarray(array)) for name, array in state.items()}
    planaria.load(tmp_path / "c", into=into)
    assert all(np.array_equal(into[name], np.asarray(state[name])) for name in state)


def test_leaves_that_only_look_alike_stay_apart(tmp_path):
    before = planaria.array(np.arange(4.0), copy=True)
    state = {"a": before, "b": before.snapshot()}
    state |= {f"t{n}": planaria.tensor(np.full(4, float(n))) for n in range(20)}
    state |= {f"u{n}": planaria.tensor(np.full((2, n), float(n))) for n in range(4)}
    planaria.save(state, tmp_path / "c")
    into = {"a": planaria.array(np.zeros(4), copy=True)}
    into["b"] = into["a"].snapshot()
    into |= {name: planaria.tensor(np.zeros(leaf.shape)) for name, leaf in state.items() if name not in into}
    planaria.load(tmp_path / "c", into=into)
    assert into["a"].tolist() == into["b"].tolist() == [0, 1, 2, 3]
    for name in into.keys() - {"a", "b"}:
        assert into[name].local().tolist() == state[name].local().tolist(), name


def test_async_save_snapshots_and_finishes(tmp_path):
    ours, theirs = planaria.array(np.arange(1000.0)), np.arange(1000.0)
    handle = planaria.async_save({"ours": ours, "theirs": theirs}, tmp_path / "c")
    handle.wait_snapshot()
    ours[:] = 0
    theirs[:] = 0
    seen = queue.Queue()
    handle.add_done_callback(seen.put)
    report = handle.result(timeout=60)
    assert report.tensors == 2 and handle.done() and handle.exception() is None
    back = planaria.load(tmp_path / "c", framework="numpy")
    assert back["ours"][999] == 999 and back["theirs"][999] == 999
    handle.add_done_callback(seen.put)
    assert [seen.get(timeout=60) for _ in range(2)] == [handle, handle]
    async def wait():
        return await planaria.async_save({"w": theirs}, tmp_path / "d")
    assert asyncio.run(wait()).tensors == 1
    blocked = tmp_path / "file"
    blocked.write_text("x")
    failed = planaria.async_save({"w": theirs}, blocked / "c")
    assert isinstance(failed.exception(timeout=60), planaria.CheckpointError)
    with pytest.raises(planaria.CheckpointError):
        failed.result()
    with pytest.raises(TypeError):
        pickle.dumps(handle)


def test_pending_saves_are_finished_at_exit(tmp_path):
    code = (
        "import planaria, sys, array;"
        f"planaria.async_save({{'w': array.array('d', [1.0] * 2000000)}} and {{'w': planaria.array(array.array('d', [1.0] * 2000000))}}, {str(tmp_path / 'c')!r})"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert planaria.verify(tmp_path / "c").ok


def test_a_cancelled_save_leaves_nothing(tmp_path):
    handle = planaria.async_save({"w": np.zeros(1 << 24)}, tmp_path / "c")
    handle.cancel()
    handle.exception(timeout=60)
    assert not (tmp_path / "c").exists() or planaria.verify(tmp_path / "c").ok


def test_progress_is_told(tmp_path):
    told = []
    planaria.save({"w": np.zeros(10)}, tmp_path / "c", progress=lambda *what: told.append(what))
    assert told[-1][0] == told[-1][1] > 0 and told[-1][2] == "save"
    planaria.load(tmp_path / "c", progress=False)
    with pytest.raises(TypeError):
        planaria.load(tmp_path / "c", progress=5)


def test_torch_modules_and_optimizers(tmp_path):
    torch = pytest.importorskip("torch")

    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 4, bias=False))
        model[1].weight = torch.nn.Parameter(torch.randn(4, 3))
        model.tied = model[1].weight
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def train(model, optim, steps):
        for _ in range(steps):
            optim.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optim.step()

    model, optim = make()
    train(model, optim, 3)
    schedule = torch.optim.lr_scheduler.StepLR(optim, 2)
    planaria.save({"model": model, "optim": optim, "schedule": schedule, "step": 3}, tmp_path / "c")
    train(model, optim, 2)
    want = {name: value.clone() for name, value in model.state_dict().items()}

    fresh, fresh_optim = make()
    fresh_schedule = torch.optim.lr_scheduler.StepLR(fresh_optim, 2)
    addresses = [p.data_ptr() for p in fresh.parameters()]
    state = {"model": fresh, "optim": fresh_optim, "schedule": fresh_schedule, "step": 0}
    planaria.load(tmp_path / "c", into=state)
    assert [p.data_ptr() for p in fresh.parameters()] == addresses and state["step"] == 3
    train(fresh, fresh_optim, 2)
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, want[name]), name
    with planaria.open(tmp_path / "c") as ckpt:
        assert {"model.tied", "model.1.weight"} <= set(ckpt) and ckpt["model.tied"].name == ckpt["model.1.weight"].name
    back = planaria.load(tmp_path / "c", framework="torch")
    assert back["model"]["tied"].data_ptr() == back["model"]["1"]["weight"].data_ptr() if "1" in back["model"] else True
    with pytest.raises(MismatchError):
        planaria.load(tmp_path / "c", into={"model": torch.nn.Linear(2, 2), "step": 0})


def test_safetensors_reads_what_is_saved(tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    planaria.save({"w": torch.arange(6.0).bfloat16()}, tmp_path / "c", format="hf")
    files = [f for f in os.listdir(tmp_path / "c") if f.endswith(".safetensors")]
    assert safetensors.load_file(tmp_path / "c" / files[0])["w"].tolist() == [0, 1, 2, 3, 4, 5]
    safetensors.save_file({"model.a": torch.ones(2)}, tmp_path / "other.safetensors")
    assert planaria.load(tmp_path / "other.safetensors")["model"]["a"].tolist() == [1, 1]


def test_named_tuples_and_ordered_dicts(tmp_path):
    Pair = collections.namedtuple("Pair", "a b")
    into = collections.OrderedDict(p=Pair(np.zeros(2), 1))
    planaria.save(collections.OrderedDict(p=Pair(np.ones(2), 5)), tmp_path / "c")
    planaria.load(tmp_path / "c", into=into)
    assert into["p"].b == 5 and into["p"].a.tolist() == [1, 1] and isinstance(into["p"], Pair)
    assert json.dumps(planaria.inspect(tmp_path / "c").values) == '{"p.1": 5}'


def test_thread_ranks_save_together(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def work(comm):
        return planaria.save({"w": np.arange(4.0)}, tmp_path / "c", comm=comm).tensors

    assert planaria.threads(3, work) == [1, 1, 1]
    assert planaria.load(tmp_path / "c")["w"].tolist() == [0, 1, 2, 3]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("form", ["hf", "dcp", "paddle-unified"])
def test_what_a_format_has_no_place_for_is_told(tmp_path, form):
    with pytest.warns(UserWarning, match=f"{form}.*'name', 'step'"):
        planaria.save({"w": np.ones(2, np.float32), "step": 3, "name": "x"}, tmp_path / "a", format=form)
    assert planaria.load(tmp_path / "a")["w"].tolist() == [1.0, 1.0]


def test_targets_that_cannot_be_filled_leave_the_others_alone(tmp_path):
    torch = pytest.importorskip("torch")
    planaria.save({"a": np.ones(3), "w": np.ones((3, 4)), "z": np.ones(2)}, tmp_path / "a")
    into = {"a": np.zeros(3), "w": torch.zeros(1, 4, dtype=torch.float64).expand(3, 4), "z": np.zeros(2)}
    with pytest.raises(ValueError, match="'w'.*share memory"):
        planaria.load(tmp_path / "a", into=into)
    assert not into["a"].any() and not into["z"].any()


def test_tensors_without_elements_are_refused_by_name(tmp_path):
    torch = pytest.importorskip("torch")
    for leaf in (torch.eye(3).to_sparse(), torch.empty(2, device="meta"), torch.nn.Linear):
        with pytest.raises(TypeError, match="'model.odd'"):
            planaria.save({"model": {"odd": leaf}}, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_advice_helps(tmp_path):
    planaria.save({"w": np.ones(3)}, tmp_path / "a")
    with pytest.raises(MismatchError) as told:
        planaria.load(tmp_path / "a", into={"w": np.zeros(4)}, strict=False)
    assert "ignore=" in str(told.value) and "strict=False" not in str(told.value)
