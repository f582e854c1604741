"""torch: ranks of torch.distributed, DTensors and FSDP2 on any world size, storage for its checkpoints, safetensors files."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import planaria  # noqa: E402
import planaria.torch  # noqa: E402

PROGRAM = pathlib.Path(__file__).parent / "ranks_of_torch.py"


RANKS = ("collectives:3", "save:3", "callback:2", "load:2", "strided:4", "fsdp:2", "resume_fsdp:3", "storage:2")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """All programs of ranks, run once; where they wrote, and what came of them."""
    folder = tmp_path_factory.mktemp("ranks")
    told = {}
    command = [sys.executable, str(PROGRAM), str(folder), *RANKS]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=900)
        except subprocess.TimeoutExpired:
            # The ranks are in its session.
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
    for line in out.splitlines():
        name, _, how = line.partition(" ")
        told[name] = how
    return folder, told, err


@pytest.mark.parametrize("program", RANKS)
def test_ranks_of_torch(ranks, program):
    """Collectives; DTensors on another number of ranks; a dim cut twice; FSDP2 with its optimizer; torch's own checkpoints."""
    _, told, err = ranks
    assert told.get(program) == "well", f"{program}: {told.get(program, 'did not end')}\n{err[-4000:]}"


def test_what_ranks_saved_is_read_by_one_process(ranks):
    folder, _, _ = ranks
    for name in ("step-7", "async-0", "async-1"):
        made = planaria.load(folder / name, framework="torch")
        assert torch.equal(made["rows"] + 100, made["columns"]) and made["step"] == 7
    made = planaria.load(folder / "ours", framework="torch")
    assert torch.equal(made["model"]["w"], torch.arange(35.0).reshape(7, 5))
    assert made["optim"]["betas"] == (0.9, 0.99)


def test_storage_works_in_one_process(tmp_path):
    import torch.distributed.checkpoint as dcp

    dcp.save({"a": torch.arange(3), "n": 4}, storage_writer=planaria.torch.Writer(tmp_path / "x"), no_dist=True)
    room = {"a": torch.zeros(3, dtype=torch.int64), "n": 0}
    dcp.load(room, storage_reader=planaria.torch.Reader(tmp_path / "x"), no_dist=True)
    assert room["a"].tolist() == [0, 1, 2] and room["n"] == 4
    # What torch raises for a failed rank is not an Exception.
    with pytest.raises(BaseException, match="committed"):
        dcp.save({"a": torch.arange(3)}, storage_writer=planaria.torch.Writer(tmp_path / "x"), no_dist=True)


def test_files_are_those_of_safetensors(tmp_path):
    theirs = pytest.importorskip("safetensors.torch")
    state = {"b": torch.arange(6).reshape(2, 3), "a": torch.randn(4, 2).to(torch.bfloat16), "t": torch.randn(3, 4).T, "e": torch.zeros(0)}
    planaria.torch.save_file(state, tmp_path / "x.safetensors", metadata={"format": "pt"})
    read = theirs.load_file(tmp_path / "x.safetensors")
    again = planaria.torch.load_file(tmp_path / "x.safetensors")
    for found in (read, again):
        assert found.keys() == state.keys()
        assert all(torch.equal(found[name], state[name]) and found[name].dtype == state[name].dtype for name in state)
    theirs.save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "y.safetensors", metadata={"format": "pt"})
    assert (tmp_path / "x.safetensors").read_bytes() == (tmp_path / "y.safetensors").read_bytes()
    with pytest.raises(TypeError):
        planaria.torch.save_file({1: torch.zeros(1)}, tmp_path / "z.safetensors")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.safetensors", "y.safetensors"]


def test_without_torch_distributed_there_is_no_communicator():
    with pytest.raises(planaria.CommError, match="init_process_group"):
        planaria.torch.comm()
