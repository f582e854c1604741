"""Signals, forks and threads: an interrupt is seen at once, a child can go on, threads may share."""

import os
import pathlib
import pickle
import subprocess
import sys
import sysconfig
import threading

import pytest

np = pytest.importorskip("numpy")

import planaria  # noqa: E402
import planaria.array_api as xp  # noqa: E402

HERE = str(pathlib.Path(__file__).parent)


def run(code, *arguments, timeout=120):
    begin = f"import sys; sys.path.insert(0, {HERE!r})\n"
    ran = subprocess.run([sys.executable, "-c", begin + code, *map(str, arguments)], capture_output=True, text=True, timeout=timeout)
    assert ran.returncode == 0, (ran.returncode, ran.stdout[-2000:], ran.stderr[-3000:])
    return ran.stdout


INTERRUPTED = """
import os, signal, threading, time
import numpy as np, planaria
# Nothing happens between two lines here, unless one of them waits.
sys.setswitchinterval(3600)
folder, what, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
state = {"w": np.zeros(1 << 24)}
begun, over, heard = 0, threading.Event(), []
def hear(*about):
    heard.append(about)
    signal.default_int_handler(*about)
signal.signal(signal.SIGINT, hear)
def begin():
    global begun
    begun += 1
def endless(comm):
    begin()
    if comm.rank == 0:
        comm.barrier()
    else:
        over.wait()
class Steps:
    def on_step(self, step):
        begin()
config = {
    "mesh": "dp=1", "data": {"sequence": 16, "source": [{"path": folder + "/text.txt"}]}, "checkpoint": {"every": 100000},
    "model": {"kind": "qwen2", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    "train": {"steps": 100000, "global_batch": 2 if times == 1 else 1 << 20, "micro_batch": 2},
}
open(folder + "/text.txt", "w").write("planaria grows back whole. " * 400)
def again(call):
    # Until it is interrupted, however fast the machine.
    while True:
        begin()
        call()
planaria.save(state, folder + "/old")
calls = {
    "save": lambda: again(lambda: planaria.save(state, folder + "/new", overwrite=True)),
    "load": lambda: again(lambda: planaria.load(folder + "/old", into=state)),
    "verify": lambda: again(lambda: planaria.verify(folder + "/old")),
    "diff": lambda: again(lambda: planaria.diff(folder + "/old", folder + "/old")),
    "convert": lambda: again(lambda: planaria.convert(folder + "/old", folder + "/new", to="dcp", overwrite=True)),
    "threads": lambda: planaria.threads(2, endless),
    "result": lambda: again(lambda: planaria.async_save(state, folder + "/new", overwrite=True).result()),
    "run": lambda: planaria.Trainer(config, run=folder + "/run").run(callbacks=[Steps()]),
    "merge": lambda: again(lambda: planaria.merge(recipe, folder + "/new", inputs="tensors", overwrite=True)),
    "save_file": lambda: again(lambda: planaria.torch.save_file(tensors, folder + "/new.safetensors")),
}
if what == "merge":
    for name in ("hf-a", "hf-b"):
        planaria.save(state, folder + "/" + name, format="hf")
    files = [{"model": f"{folder}/{name}/model.safetensors", "parameters": {"weight": 0.5}} for name in ("hf-a", "hf-b")]
    recipe = {"merge_method": "linear", "models": files}
if what == "save_file":
    import torch
    tensors = {"w": torch.zeros(1 << 24)}
def interrupt():
    global sent
    # In the second call, the second step, or where one step does not end, in the first.
    while begun < 2 and not (times == 2 and os.path.exists(folder + "/run/metrics.jsonl")):
        time.sleep(0.001)
    sent = begun
    for number in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        while len(heard) == number:
            time.sleep(0.001)
threading.Thread(target=interrupt, daemon=True).start()
try:
    calls[what]()
except KeyboardInterrupt:
    print(begun - sent, len(heard))
    if what == "load":
        # Nothing goes on in the background that would still write: what is asked for later is done later.
        state["w"][:] = 1
        assert planaria.verify(folder + "/old").ok and (state["w"] == 1).all()
over.set()
"""


@pytest.mark.parametrize("what", ["save", "load", "verify", "diff", "convert", "threads", "result", "run", "merge", "save_file"])
def test_an_interrupt_ends_the_call_it_comes_in_and_leaves_nothing_behind(what, tmp_path):
    if what == "save_file":
        pytest.importorskip("torch")
    more, heard = map(int, run(INTERRUPTED, tmp_path, what, 1).split())
    # A run finishes its step and saves first.
    assert more <= 1 and heard == 1
    left = {name for name in os.listdir(tmp_path)} - {"old", "new", "text.txt", "run", "hf-a", "hf-b", "new.safetensors"}
    assert left == set()
    if "new" in os.listdir(tmp_path):
        assert planaria.verify(tmp_path / "new").ok
    if what == "run":
        assert planaria.verify(tmp_path / "run").ok


def test_a_second_interrupt_ends_a_run_in_a_step_that_takes_hours(tmp_path):
    assert run(INTERRUPTED, tmp_path, "run", 2).split() == ["0", "2"]


def test_signals_are_left_to_python_in_other_threads(tmp_path):
    code = """
import signal, threading
import numpy as np, planaria
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
def work():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    planaria.save({"w": np.zeros(1 << 22)}, sys.argv[1])
thread = threading.Thread(target=work)
thread.start(); thread.join()
assert seen == [1]
"""
    run(code, tmp_path / "c")


FORKED = """
import os, time, threading
import numpy as np, planaria, planaria.array_api as xp
folder = sys.argv[1]
x = planaria.array(np.arange(1 << 20, dtype=np.float32))
y = (x * 2).sum() if hasattr(x, "sum") else xp.sum(x * 2)     # the pool of the parent is at work
comm, handle = planaria.alone(), planaria.async_save({"w": x}, folder + "/a")
parent = os.getpid()

def child(depth):
    # Arrays go on, with threads of their own.
    assert xp.sum(x + 1).item() > 0 and (x.copy() == x).numpy().all()
    x[0] = 5
    assert x[0].item() == 5
    place = f"{folder}/child-{depth}"
    planaria.save({"w": x}, place)
    assert planaria.load(place)["w"][0].item() == 5 and planaria.verify(place).ok
    assert planaria.threads(2, lambda c: c.all_reduce([1.0]).item()) == [2.0, 2.0]
    refused = [comm.barrier, lambda: comm.all_reduce([1.0]), handle.done, handle.result, handle.wait_snapshot, handle.cancel]
    refused += [handle.exception, lambda: handle.add_done_callback(print), lambda: handle.__await__()]
    refused += [lambda: comm.rank, lambda: comm.size]
    assert str(parent) in repr(handle) and str(parent) in repr(comm)
    for call in refused:
        try:
            call()
        except RuntimeError as error:
            assert str(parent) in str(error), error
        else:
            raise AssertionError(call)

def fork(depth):
    # From a thread, as data loaders do.
    made = []
    def work():
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child(depth)
                if depth < 2:
                    fork(depth + 1)
                code = 0
            except BaseException:
                import traceback
                traceback.print_exc()
            finally:
                os._exit(code)
        made.append(pid)
    thread = threading.Thread(target=work)
    thread.start(); thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(made[0], 0)[1]) == 0

fork(0)
handle.result()
assert x[0].item() == 0
"""


def test_forked_children_and_theirs_go_on_with_arrays_and_refuse_handles(tmp_path):
    run(FORKED, tmp_path)


ENDS = """
import os, signal, time
def ends(pid, within=20):
    deadline = time.time() + within
    while time.time() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child hangs at its end")
"""


def test_a_child_ends_while_ranks_of_its_parent_run():
    code = ENDS + """
import threading, planaria
inside, over = threading.Event(), threading.Event()
def rank(comm):
    inside.set()
    over.wait(60)
    return comm.rank
made = []
thread = threading.Thread(target=lambda: made.append(planaria.threads(2, rank)))
thread.start()
inside.wait()
pid = os.fork()
if pid == 0:
    # Through Python's own end, which waits for ranks.
    sys.exit(7)
assert ends(pid) == 7
over.set()
thread.join()
assert made == [[0, 1]]
"""
    run(code)


def test_a_child_ends_whose_parent_has_ranks_of_torch(tmp_path):
    pytest.importorskip("torch")
    code = ENDS + """
import planaria, torch.distributed as dist
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/meet", rank=0, world_size=1)
comm = planaria.torch.comm()
pid = os.fork()
if pid == 0:
    sys.exit(7)
assert ends(pid) == 7
assert comm.all_reduce([1.0]).tolist() == [1.0]
dist.destroy_process_group()
"""
    run(code, tmp_path)


def test_a_running_trainer_is_refused_in_a_child(tmp_path):
    code = INTERRUPTED.split("planaria.save(")[0] + """
trainer = planaria.Trainer(config, run=folder + "/run")
steps = trainer.steps()
next(steps)
pid = os.fork()
if pid == 0:
    code = 0
    try:
        for call in (trainer.stop, trainer.save, trainer.run, lambda: next(trainer.steps()), lambda: next(steps)):
            try:
                call()
                code = 1
            except RuntimeError as error:
                code = code or (0 if str(os.getppid()) in str(error) else 2)
    finally:
        os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
trainer.stop()
for _ in steps:
    pass
"""
    run(code, tmp_path, "none", 1)


def test_workers_of_multiprocessing_go_on(tmp_path):
    code = """
import multiprocessing, numpy as np, planaria, planaria.array_api as xp
x = planaria.array(np.arange(1 << 20, dtype=np.float32))
xp.sum(x)
def work(k):
    return xp.sum(x[:k] + 1).item()
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(work, [1, 10, 1000]) == [1.0, 55.0, 500500.0]
"""
    run(code)


def test_only_what_has_a_value_is_pickled(tmp_path):
    planaria.save({"w": planaria.array([1.0])}, tmp_path / "c")
    ckpt, mesh = planaria.open(tmp_path / "c"), planaria.mesh(dp=2)
    layout = mesh.layout((4,), "dp:S0")
    for kept in (planaria.DType("bf16"), mesh, layout):
        assert pickle.loads(pickle.dumps(kept)) == kept
    assert pickle.loads(pickle.dumps(ckpt)).url == ckpt.url
    handle = planaria.async_save({"w": planaria.array([1.0])}, tmp_path / "d")
    others = [planaria.plan(layout, layout, dtype="f32"), ckpt["w"], planaria.tensor([1.0]), planaria.alone(), handle]
    others.append(planaria.no_grad())
    for other in others:
        with pytest.raises(TypeError, match=type(other).__name__):
            pickle.dumps(other)
    handle.result()


def test_the_lock_stays_off_where_there_is_none():
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this interpreter has a lock")
    # A module that needs the lock turns it on when it is imported.
    run("import planaria, planaria.array_api; assert not sys._is_gil_enabled()")


def test_many_threads_on_one_array_stay_safe():
    x = planaria.array(np.zeros(1 << 14, np.float32))
    shared = {"w": x}
    wrong = []

    def work(number):
        try:
            for turn in range(40):
                kind = (number + turn) % 8
                if kind == 0:
                    x[1:] = x[:-1]
                elif kind == 1:
                    x[:: number + 1] += 1.0
                elif kind == 2:
                    before = x.snapshot()
                    x[0] = float(turn)
                    assert before.shape == x.shape
                elif kind == 3:
                    x.at[planaria.array([0, 0, turn])].add(1.0)
                elif kind == 4:
                    x.numpy()[turn] = 3.0
                elif kind == 5:
                    assert xp.sum(x * 0.0).item() == 0.0
                elif kind == 6:
                    assert len(pickle.dumps(x)) > x.nbytes
                else:
                    memoryview(x).release()
                    planaria.from_dlpack(x).tolist()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and np.isfinite(shared["w"].numpy()).all()
