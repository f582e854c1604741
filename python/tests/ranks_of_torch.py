"""Programs that run as ranks of torch.distributed, each in a process of its own.

`python ranks_of_torch.py FOLDER NAME:SIZE ...` runs one after the other. torch takes seconds to import, so ranks are forked
from a process that has done so, before it has any threads.
"""

import os
import signal
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import planaria
import planaria.torch


def collectives(folder, rank, size):
    comm = planaria.torch.comm()
    assert (comm.rank, comm.size) == (rank, size)
    assert comm.all_reduce(planaria.array([1.0 * rank])).item() == sum(range(size))
    # Long letters, and both ways at once.
    long = torch.full((300_000,), float(rank))
    assert comm.all_gather(long).numpy().reshape(size, -1)[:, 7].tolist() == list(range(size))
    assert comm.broadcast(torch.tensor([rank, 5]), root=size - 1).tolist() == [size - 1, 5]
    comm.barrier()
    # Collectives of the program and ours do not meet.
    other = torch.ones(3)
    work = dist.all_reduce(other, async_op=True)
    assert comm.all_reduce(planaria.array([2.0])).item() == 2.0 * size
    work.wait()
    assert other.tolist() == [size] * 3
    first = dist.new_group([0])
    if rank == 0:
        assert planaria.torch.comm(first).size == 1
    else:
        try:
            planaria.torch.comm(first)
        except planaria.CommError as error:
            assert "not one of the group" in str(error)


def weights():
    """Sizes that no number of ranks divides."""
    return torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5)


def save(folder, rank, size):
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    state = {
        "rows": distribute_tensor(weights(), mesh, [Shard(0)]),
        "columns": distribute_tensor(weights() + 100, mesh, [Shard(1)]),
        "whole": distribute_tensor(weights() + 200, mesh, [Replicate()]),
        "plain": torch.ones(3),
        "step": 7,
    }
    report = planaria.save(state, folder + "/step-7")
    assert report.tensors == 4
    handles = [planaria.async_save(state, f"{folder}/async-{n}") for n in range(2)]
    for handle in handles:
        handle.wait_snapshot()
        assert handle.result().tensors == 4
    summand = DTensor.from_local(weights(), mesh, [Partial()])
    try:
        planaria.save({"x": summand}, folder + "/partial")
        raise AssertionError("a summand was saved")
    except planaria.LayoutError as error:
        assert "redistribute" in str(error), error
    assert not os.path.exists(folder + "/partial")


def callback(folder, rank, size):
    """What the callback of transformers does on several ranks: the first saves what all have, all save their pieces."""
    from planaria.transformers import _Saving

    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    states = {"whole": {"w": weights()}, "pieces": {"w": distribute_tensor(weights(), mesh, [Shard(0)])}}
    for name, state in states.items():
        saving = _Saving(f"{folder}/callback-{name}", keep=1)
        for step in (1, 2):
            saving.begin(step, {"model": state, "step": step}, rank == 0)
            assert (saving.handle is not None) == (rank == 0 or name == "pieces")
        saving.end()
        dist.barrier()
        assert os.listdir(saving.url) == ["step-00000002"]
        assert torch.equal(planaria.load(saving.place(2), framework="torch")["model"]["w"], weights())


def load(folder, rank, size):
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("tp",))
    state = {
        "rows": distribute_tensor(torch.zeros(7, 5), mesh, [Shard(1)]),
        "columns": distribute_tensor(torch.zeros(7, 5), mesh, [Shard(0)]),
        "whole": distribute_tensor(torch.zeros(7, 5), mesh, [Shard(0)]),
        "plain": torch.zeros(3),
        "step": 0,
    }
    addresses = [state[name].to_local().data_ptr() for name in ("rows", "columns", "whole")]
    report = planaria.load(folder + "/step-7", into=state)
    assert state["step"] == 7 and len(report.loaded) == 5, report
    for name, add in (("rows", 0), ("columns", 100), ("whole", 200)):
        assert torch.equal(state[name].full_tensor(), weights() + add), name
    assert [state[name].to_local().data_ptr() for name in ("rows", "columns", "whole")] == addresses


def strided(folder, rank, size):
    """What FSDP2 makes of a tensor that tensor parallelism has cut: the same dim cut again, inside."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    linear = torch.nn.Linear(5, 8, bias=False)
    torch.nn.init.zeros_(linear.weight)
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    parallelize_module(linear, mesh["tp"], ColwiseParallel())
    fully_shard(linear, mesh=mesh["dp"])
    assert ".1" in str(planaria.torch.layout(linear.weight)), planaria.torch.layout(linear.weight)
    whole = torch.arange(40.0).reshape(8, 5)
    if rank == 0:
        planaria.save({"weight": whole}, folder + "/whole", comm=planaria.alone())
    dist.barrier()
    planaria.load(folder + "/whole", into={"weight": linear.weight})
    assert torch.equal(linear.weight.full_tensor(), whole)
    planaria.save({"weight": linear.weight}, folder + "/again")
    assert torch.equal(planaria.load(folder + "/again", framework="torch", comm=planaria.alone())["weight"], whole)


def model(seed):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Linear(10, 3))


def trained(seed, steps, size, folder=None):
    made = model(seed)
    fully_shard(made, mesh=init_device_mesh("cpu", (size,), mesh_dim_names=("dp",)))
    optim = torch.optim.AdamW(made.parameters(), lr=0.1)
    if folder is not None:
        planaria.load(folder, into={"model": made, "optim": optim})
    for step in range(steps):
        made(torch.full((2, 6), float(step + 1))).square().sum().backward()
        optim.step()
        optim.zero_grad()
    return made, optim


def fsdp(folder, rank, size):
    made, optim = trained(1, 2, size)
    planaria.save({"model": made, "optim": optim}, f"{folder}/fsdp-{size}")
    made(torch.ones(2, 6)).square().sum().backward()
    optim.step()
    expected = {name: value.full_tensor() for name, value in made.state_dict().items()}
    again, optim = trained(2, 0, size, f"{folder}/fsdp-{size}")
    again(torch.ones(2, 6)).square().sum().backward()
    optim.step()
    for name, value in again.state_dict().items():
        assert torch.equal(value.full_tensor(), expected[name]), name


def resume_fsdp(folder, rank, size):
    """A state that two ranks saved goes on with any number."""
    again, optim = trained(2, 0, size, f"{folder}/fsdp-2")
    again(torch.ones(2, 6)).square().sum().backward()
    optim.step()
    alone, other = model(1), None
    other = torch.optim.AdamW(alone.parameters(), lr=0.1)
    planaria.load(f"{folder}/fsdp-2", into={"model": alone, "optim": other})
    alone(torch.ones(2, 6)).square().sum().backward()
    other.step()
    for name, value in again.state_dict().items():
        assert torch.allclose(value.full_tensor(), alone.state_dict()[name], atol=1e-6), name


def storage(folder, rank, size):
    mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    state = {
        "model": {"w": distribute_tensor(weights(), mesh, [Shard(0)]), "b": torch.arange(4)},
        "optim": {"lr": 0.5, "betas": (0.9, 0.99), "name": "adam"},
    }
    dcp.save(state, storage_writer=planaria.torch.Writer(folder + "/ours"))
    assert planaria.verify(folder + "/ours").ok
    dcp.save(state, checkpoint_id=folder + "/theirs")
    for place in ("ours", "theirs"):
        room = {
            "model": {"w": distribute_tensor(torch.zeros(7, 5), mesh, [Shard(1)]), "b": torch.zeros(4, dtype=torch.int64)},
        }
        if place == "ours":
            room["optim"] = {"lr": 0.0, "betas": None, "name": ""}
        dcp.load(room, storage_reader=planaria.torch.Reader(f"{folder}/{place}"))
        assert torch.equal(room["model"]["w"].full_tensor(), weights()), place
        assert room["model"]["b"].tolist() == [0, 1, 2, 3]
        if place == "ours":
            assert room["optim"] == {"lr": 0.5, "betas": (0.9, 0.99), "name": "adam"}, room


def rank_of(name, rank, size, folder):
    """What one process does; its exit code says whether it went well."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}-{size}.rendezvous", rank=rank, world_size=size)
    globals()[name](folder, rank, size)
    # One of them leaves its group to the end of the interpreter.
    if name != "collectives":
        dist.barrier()
        dist.destroy_process_group()


def run(name, size, folder):
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            rank_of(name, rank, size, folder)
            sys.exit(0)
        children.append(child)
    codes = {}
    while len(codes) < size:
        child, status = os.waitpid(-1, 0)
        codes[child] = os.waitstatus_to_exitcode(status)
        if codes[child] != 0:
            # The others would wait for it.
            for other in set(children) - set(codes):
                os.kill(other, signal.SIGKILL)
    ends = [codes[child] for child in children]
    print(f"{name}:{size}", "well" if ends == [0] * size else f"failed {ends}", flush=True)


if __name__ == "__main__":
    for program in sys.argv[2:]:
        run(*program.split(":")[:1], int(program.split(":")[1]), sys.argv[1])
