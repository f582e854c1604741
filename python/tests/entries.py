"""Every public entry point, found by looking, and a call of each: what the tests of the interpreter lock, of leaks and of wrong
arguments go over. One that is new and not in the table makes them fail.
"""

import functools
import importlib.util
import inspect
import logging
import os
import re
import sys
import tempfile
import threading
import time
import types

import numpy as np

import planaria
import planaria.array_api as xp
import planaria.torch

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None


def _classes():
    """Classes whose methods are entry points; reports and errors are plain data."""
    for name in planaria.__all__:
        thing = getattr(planaria, name)
        if inspect.isclass(thing) and not issubclass(thing, (Exception, planaria._reports.Report)):
            yield thing
    at = planaria.array([1.0]).at
    yield from (type(at), type(at[0]), planaria.torch.Reader, planaria.torch.Writer)
    if HAS_TRANSFORMERS:
        yield planaria.transformers.CheckpointCallback


CLASSES = {cls.__name__: cls for cls in _classes()}

CALLED_BY_OTHERS = ("Reader.", "Writer.", "CheckpointCallback.")
"""Methods that torch and transformers call, with objects of theirs."""

PROTOCOL = {
    "__new__", "__init__", "__hash__", "__repr__", "__str__", "__replace__", "__setattr__", "__delattr__", "__delitem__",
    "__getattribute__", "__getattr__", "__class_getitem__", "__buffer__", "__release_buffer__", "__enter__", "__exit__",
}
"""What every class has, or has by way of another; buffers are views."""

COMPARISONS = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
"""Kernels of arrays and tensors; of other classes they compare a few numbers."""


def public():
    """Names of all entry points: functions, ``xp.`` functions, ``torch.`` functions, and ``Class.method``."""
    found = []
    for name in planaria.__all__:
        if not inspect.isclass(getattr(planaria, name)):
            found.append(name)
    found += [f"xp.{name}" for name, thing in vars(xp).items() if not name.startswith("_") and inspect.isfunction(thing)]
    found += [f"torch.{name}" for name in planaria.torch.__all__ if name not in ("Reader", "Writer")]
    for name, cls in CLASSES.items():
        for method, value in vars(cls).items():
            hidden = method.startswith("_") and not method.startswith("__")
            hidden |= method in COMPARISONS and cls not in (planaria.Array, planaria.Tensor)
            if callable(value) and not hidden and method not in PROTOCOL and not inspect.isclass(value):
                found.append(f"{name}.{method}")
    return sorted(found)


class World:
    """Things of about ``n`` elements to call with."""

    def __init__(self, n):
        self.n = n
        self._temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.folder = self._temporary.name
        self._next = 0

    def new(self):
        """A place that nobody has written to."""
        self._next += 1
        return f"{self.folder}/new-{self._next}"

    def _random(self):
        return np.random.default_rng(7)

    @functools.cached_property
    def f(self):
        return planaria.array(self._random().random((max(self.n // 64, 1), 64), dtype=np.float32))

    @functools.cached_property
    def g(self):
        return planaria.array(self.f.numpy() + np.float32(0.5))

    @functools.cached_property
    def i(self):
        return planaria.array(self._random().integers(1, 60, size=(max(self.n // 64, 1), 64)))

    @functools.cached_property
    def b(self):
        return self.i > 30

    @functools.cached_property
    def v(self):
        return xp.reshape(self.f, (-1,))

    @functools.cached_property
    def order(self):
        return planaria.array(self._random().permutation(self.v.size))

    @functools.cached_property
    def square(self):
        side = max(int(self.n**0.5) // 2, 2)
        return planaria.array(self._random().random((side, side), dtype=np.float32))

    @functools.cached_property
    def t(self):
        return planaria.tensor(self.f)

    @functools.cached_property
    def s(self):
        return planaria.tensor(self.square)

    @functools.cached_property
    def saved(self):
        place = self.new()
        planaria.save({"w": self.f, "v": self.v[: self.n // 2], "step": 1}, place)
        return place

    @functools.cached_property
    def ckpt(self):
        return planaria.open(self.saved)

    @functools.cached_property
    def config(self):
        text = f"{self.folder}/text.txt"
        with open(text, "w") as file:
            file.write("planaria grows back whole. " * 400)
        size = 16 if self.n < 1 << 16 else 64
        return {
            "mesh": "dp=1",
            "model": {"kind": "qwen2", "hidden_size": size, "intermediate_size": 2 * size, "num_hidden_layers": 1, "num_attention_heads": 2},
            "data": {"sequence": 16, "source": [{"path": text}]},
            "train": {"steps": 2, "global_batch": 2, "micro_batch": 2},
        }

    @functools.cached_property
    def ran(self):
        place = self.new()
        planaria.Trainer(self.config, run=place).run()
        return place

    @functools.cached_property
    def tensors_of_torch(self):
        return {"w": self.f.torch().clone()}

    @functools.cached_property
    def room_of_torch(self):
        return self.tensors_of_torch["w"] * 0

    @functools.cached_property
    def file(self):
        place = self.new() + ".safetensors"
        planaria.torch.save_file(self.tensors_of_torch, place)
        return place

    @functools.cached_property
    def models(self):
        for name in "ab":
            planaria.save({"w": self.f}, f"{self.folder}/{name}", format="hf")
        one = lambda name: {"model": f"{self.folder}/{name}/model.safetensors", "parameters": {"weight": 0.5}}
        return {"merge_method": "linear", "models": [one("a"), one("b")]}

    @functools.cached_property
    def model_of_torch(self):
        import torch

        return torch.nn.Linear(64, max(self.n // 64, 1))

    def seen_after_snapshots(self, see=planaria.Array.numpy):
        """A dozen copies are made when addresses are told: what each snapshot shares with the next."""
        arrays = [self.f.copy()]
        arrays += [arrays[0].snapshot() for _ in range(12)]
        while arrays:
            see(arrays.pop())

    def snapshot(self):
        """Waits for a snapshot, and then for the save: nothing of it is under way when the next one begins."""
        handle = self.handle(self.tensors_of_torch)
        handle.wait_snapshot()
        handle.result()

    def handle(self, state=None):
        return planaria.async_save(state or {"w": self.f}, self.new())


def _after(turns, method, *arguments):
    """A collective whose second rank comes late, after this many turns in the interpreter: the first waits for it."""

    def call(w):
        rest = [make(w) for make in arguments]

        def rank(comm):
            if comm.rank == 1 and w.n > 1 << 16:
                for _ in range(turns):
                    time.sleep(0)
            getattr(comm, method)(*rest)

        return lambda: planaria.threads(2, rank)

    return call


def _set(target, index, value):
    target[index] = value


def _operator(name):
    bits = re.fullmatch(r"__([ir]?(and|or|xor|lshift|rshift)|invert)__", name)
    left = lambda w: w.i if bits else w.f
    if name in ("__neg__", "__abs__", "__invert__"):
        return lambda w: functools.partial(getattr(left(w), name))
    if "matmul" in name:
        return lambda w: functools.partial(getattr(w.square, name), w.square)
    if name.startswith("__i") and name != "__invert__":
        # In place, on a copy of its own.
        def call(w):
            mine, other = left(w).copy(), left(w)
            return lambda: getattr(mine, name)(other)

        return call
    return lambda w: functools.partial(getattr(left(w), name), left(w))


OPERATORS = """__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__
__pow__ __rpow__ __matmul__ __rmatmul__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__ __lshift__ __rlshift__ __rshift__ __rrshift__
__iadd__ __isub__ __imul__ __itruediv__ __ifloordiv__ __imod__ __ipow__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__ __neg__
__abs__ __invert__ __lt__ __le__ __gt__ __ge__""".split()

TENSOR_OPERATORS = "__add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__ __neg__ __abs__ __lt__ __le__ __gt__ __ge__"

CALLS = {
    "array": lambda w: lambda: planaria.array(w.f.numpy(), copy=True),
    "from_dlpack": lambda w: lambda: planaria.from_dlpack(w.f.numpy(), copy=True),
    "save": lambda w: lambda: planaria.save({"w": w.f}, w.new()),
    "async_save": lambda w: lambda: w.handle().result(),
    "load": lambda w: lambda: planaria.load(w.saved),
    "open": lambda w: lambda: planaria.open(w.saved)["w"][::2],
    "verify": lambda w: lambda: planaria.verify(w.saved),
    "diff": lambda w: lambda: planaria.diff(w.saved, w.saved),
    "convert": lambda w: lambda: planaria.convert(w.saved, w.new(), to="dcp"),
    "merge": lambda w: lambda: planaria.merge(w.models, w.new(), inputs="tensors"),
    "threads": _after(200, "barrier"),
    "tensor": lambda w: lambda: planaria.tensor(w.f.numpy()) * 1.0,
    "grad": lambda w: _gradient(w, lambda y, x: planaria.grad(y, [x])),
    "inspect": lambda w: lambda: planaria.inspect(w.saved),
    "Array.numpy": lambda w: w.seen_after_snapshots,
    "Place.add": lambda w: functools.partial(w.v.copy().at[w.order].add, w.v),
    "Writer.write_data": lambda w: lambda: _storage(w, planaria.torch.Writer(w.new())),
    "Reader.read_data": lambda w: lambda: _storage(w, planaria.torch.Reader(w.file)),
    "plan_run": lambda w: lambda: planaria.plan_run(w.config, ranks=1),
    "torch.save_file": lambda w: lambda: planaria.torch.save_file(w.tensors_of_torch, w.new() + ".safetensors"),
    "torch.load_file": lambda w: lambda: planaria.torch.load_file(w.file),
    "Comm.all_reduce": _after(200, "all_reduce", lambda w: w.v),
    "Comm.all_gather": _after(200, "all_gather", lambda w: w.v),
    "Comm.reduce_scatter": _after(200, "reduce_scatter", lambda w: w.v),
    "Comm.broadcast": _after(200, "broadcast", lambda w: w.v),
    "Comm.all_to_all": _after(200, "all_to_all", lambda w: w.v),
    "Comm.barrier": _after(200, "barrier"),
    "Stored.__getitem__": lambda w: lambda: w.ckpt["w"][1:, ::2],
    "Stored.read": lambda w: lambda: w.ckpt["w"].read(),
    "Stored.numpy": lambda w: lambda: w.ckpt["w"].numpy(),
    "Stored.torch": lambda w: lambda: w.ckpt["w"].torch(),
    "SaveHandle.result": lambda w: lambda: w.handle().result(),
    "SaveHandle.exception": lambda w: lambda: w.handle().exception(),
    "SaveHandle.wait_snapshot": lambda w: w.snapshot,
    "Trainer.run": lambda w: lambda: planaria.Trainer(w.config, run=w.new()).run(),
    "Trainer.steps": lambda w: lambda: list(planaria.Trainer(w.config, run=w.new()).steps()),
    "Array.astype": lambda w: lambda: w.f.astype("f64"),
    "Array.copy": lambda w: lambda: w.f.copy(),
    "Array.__deepcopy__": lambda w: lambda: w.f.__deepcopy__({}),
    "Array.__getitem__": lambda w: lambda: w.v[w.order],
    "Array.__setitem__": lambda w: functools.partial(_set, w.v.copy(), w.order, w.v),
    "Array.__eq__": lambda w: lambda: w.f == w.g,
    "Array.__ne__": lambda w: lambda: w.f != w.g,
    "Tensor.__eq__": lambda w: lambda: w.t == w.t,
    "Tensor.__ne__": lambda w: lambda: w.t != w.t,
    "Tensor.__getitem__": lambda w: lambda: w.t[planaria.array(w.order.numpy() % w.f.shape[0])],
    "Tensor.__matmul__": lambda w: lambda: w.s @ w.s,
    "Tensor.__rmatmul__": lambda w: lambda: w.square @ w.s,
    "Tensor.reshard": lambda w: lambda: _resharded(w),
    "Tensor.full": lambda w: lambda: _resharded(w),
    "Tensor.backward": lambda w: _gradient(w, lambda y, x: y.backward()),
    "Tensor.softmax": lambda w: lambda: w.t.softmax(1),
    "Tensor.astype": lambda w: lambda: w.t.astype("f64"),
    "Tensor.item": lambda w: lambda: w.t.sum().item(),
}


def _storage(w, storage):
    """Saves or loads by torch.distributed.checkpoint, in this process alone."""
    import torch.distributed.checkpoint as dcp

    # What torch logs of itself is kept by the runner of tests.
    logging.disable(logging.CRITICAL)
    try:
        if isinstance(storage, planaria.torch.Writer):
            dcp.save(w.tensors_of_torch, storage_writer=storage, no_dist=True)
        else:
            dcp.load({"w": w.room_of_torch}, storage_reader=storage, no_dist=True)
    finally:
        logging.disable(logging.NOTSET)


def _called_back(w):
    """A callback that saves one step after the other."""
    callback, now = planaria.transformers.CheckpointCallback(w.new(), keep=1), types.SimpleNamespace(global_step=0)
    now.is_world_process_zero = True

    def call():
        now.global_step += 1
        callback.on_save(None, now, None, model=w.model_of_torch)
        callback.on_train_end(None, now, None)

    return call


if HAS_TRANSFORMERS:
    CALLS |= {f"CheckpointCallback.{name}": _called_back for name in ("on_save", "on_train_end")}


def _gradient(w, then):
    def call():
        x = planaria.tensor(w.f, requires_grad=True)
        then((x * x * x).sum(), x)

    return call


def _resharded(w):
    def rank(comm):
        mesh = planaria.mesh(tp=2)
        there = planaria.tensor(w.f, mesh.layout(w.f.shape, "tp:S0"), comm=comm)
        return there.reshard("tp:S1").full()

    return planaria.threads(2, rank)


for _name in OPERATORS:
    CALLS[f"Array.{_name}"] = _operator(_name)
for _name in TENSOR_OPERATORS.split():
    CALLS[f"Tensor.{_name}"] = lambda w, name=_name: lambda: getattr(w.t, name)(*([] if name in ("__neg__", "__abs__") else [w.t]))
for _name in "sum mean max min exp log sqrt tanh sigmoid relu".split():
    CALLS[f"Tensor.{_name}"] = lambda w, name=_name: lambda: getattr(w.t, name)()
for _name in """abs acos acosh asin asinh atan atanh ceil cos cosh exp expm1 floor isfinite isinf isnan log log10 log1p log2 negative
positive reciprocal round sign signbit sin sinh sqrt square tan tanh trunc""".split():
    CALLS[f"xp.{_name}"] = lambda w, name=_name: lambda: getattr(xp, name)(w.f)
for _name in """add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal logaddexp maximum minimum
multiply nextafter not_equal pow remainder subtract""".split():
    CALLS[f"xp.{_name}"] = lambda w, name=_name: lambda: getattr(xp, name)(w.f, w.g)
for _name in "bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift".split():
    CALLS[f"xp.{_name}"] = lambda w, name=_name: lambda: getattr(xp, name)(w.i, w.i)
for _name in "logical_and logical_or logical_xor".split():
    CALLS[f"xp.{_name}"] = lambda w, name=_name: lambda: getattr(xp, name)(w.b, w.b)
for _name in "sum prod max min mean var std any all count_nonzero argmax argmin".split():
    CALLS[f"xp.{_name}"] = lambda w, name=_name: lambda: getattr(xp, name)(w.f, axis=0)
for _name in "cumulative_sum cumulative_prod sort argsort flip diff".split():
    CALLS[f"xp.{_name}"] = lambda w, name=_name: lambda: +getattr(xp, name)(w.f, axis=0)
for _name in "unique_all unique_counts unique_inverse unique_values nonzero tril triu".split():
    CALLS[f"xp.{_name}"] = lambda w, name=_name: lambda: getattr(xp, name)(w.i)
for _name in "full_like zeros_like ones_like".split():
    CALLS[f"xp.{_name}"] = lambda w, name=_name: lambda: getattr(xp, name)(w.f, *([3.0] if name == "full_like" else []))

CALLS |= {
    "xp.bitwise_invert": lambda w: lambda: xp.bitwise_invert(w.i),
    "xp.logical_not": lambda w: lambda: xp.logical_not(w.b),
    "xp.conj": lambda w: lambda: xp.conj(w.f),
    "xp.clip": lambda w: lambda: xp.clip(w.f, 0.2, 0.8),
    "xp.where": lambda w: lambda: xp.where(w.b, w.f, w.g),
    "xp.astype": lambda w: lambda: xp.astype(w.f, xp.float64),
    "xp.asarray": lambda w: lambda: xp.asarray(w.f.numpy(), copy=True),
    "xp.from_dlpack": lambda w: lambda: xp.from_dlpack(w.f.numpy(), copy=True),
    "xp.arange": lambda w: lambda: xp.arange(w.n),
    "xp.linspace": lambda w: lambda: xp.linspace(0, 1, w.n),
    "xp.eye": lambda w: lambda: xp.eye(w.square.shape[0]),
    "xp.full": lambda w: lambda: xp.full(w.n, 3.0),
    "xp.zeros": lambda w: lambda: xp.zeros(w.n) + 1,
    "xp.ones": lambda w: lambda: xp.ones(w.n),
    "xp.concat": lambda w: lambda: xp.concat([w.f, w.g], axis=1),
    "xp.stack": lambda w: lambda: xp.stack([w.f, w.g], axis=1),
    "xp.roll": lambda w: lambda: xp.roll(w.f, 3, axis=0),
    "xp.tile": lambda w: lambda: xp.tile(w.f, (2, 1)),
    "xp.repeat": lambda w: lambda: xp.repeat(w.f, 2, axis=1),
    "xp.take": lambda w: lambda: xp.take(w.v, w.order),
    "xp.take_along_axis": lambda w: lambda: xp.take_along_axis(w.v, w.order),
    "xp.searchsorted": lambda w: lambda: xp.searchsorted(xp.arange(64, dtype=xp.float32), w.v),
    "xp.isin": lambda w: lambda: xp.isin(w.i, xp.arange(8)),
    "xp.matmul": lambda w: lambda: xp.matmul(w.square, w.square),
    "xp.tensordot": lambda w: lambda: xp.tensordot(w.square, w.square, axes=1),
    "xp.vecdot": lambda w: lambda: xp.vecdot(w.f, w.g),
}

QUICK = {
    "alone": "makes a handle",
    "mpi": "needs mpirun; waits in the same door as every collective",
    "mesh": "arithmetic on a few numbers",
    "plan": "arithmetic on boxes",
    "plot": "writes text from points; reading a run's records goes through the door of files",
    "schedule": "arithmetic on a few actions",
    "torch.comm": "makes a handle; waits are torch's own",
    "torch.layout": "arithmetic on a few numbers",
    "Array.__array__": "a view",
    "Array.__array_namespace__": "a module",
    "Array.__bool__": "one element",
    "Array.__complex__": "one element",
    "Array.__copy__": "a view",
    "Array.__dlpack__": "a view",
    "Array.__dlpack_device__": "a constant",
    "Array.__float__": "one element",
    "Array.__index__": "one element",
    "Array.__int__": "one element",
    "Array.__iter__": "views, made one by one",
    "Array.__len__": "a number",
    "Array.__pos__": "the same elements",
    "Array.__reduce_ex__": "makes objects of Python's",
    "Array.item": "one element",
    "Array.snapshot": "shares bytes; those others know the address of are copied in the door",
    "Array.to_device": "the same array",
    "Array.tolist": "makes objects of Python's",
    "Array.torch": "a view",
    "At.__getitem__": "reads an index",
    "Checkpoint.__getitem__": "reads nothing",
    "Checkpoint.__iter__": "names",
    "Checkpoint.__len__": "a number",
    "Checkpoint.__reduce__": "a name",
    "Checkpoint.close": "sets a flag",
    "Comm.__reduce__": "refuses",
    "DType.__reduce__": "a name",
    "Layout.__reduce__": "text",
    "Layout.boxes": "arithmetic on boxes",
    "Layout.local_shape": "arithmetic on boxes",
    "Mesh.__reduce__": "text",
    "Mesh.layout": "parses a few words",
    "Mesh.ranks": "numbers",
    "Picture.save": "writes a small file",
    "Plan.moves": "arithmetic on boxes",
    "Reader.prepare_global_plan": "nothing",
    "Reader.prepare_local_plan": "nothing",
    "Reader.read_metadata": "reads headers, as open does",
    "Reader.reset": "sets a name",
    "Reader.set_up_storage_reader": "nothing",
    "SaveHandle.__await__": "waits in an executor, in result",
    "SaveHandle.__reduce__": "refuses",
    "SaveHandle.add_done_callback": "adds to a list",
    "SaveHandle.cancel": "sets a flag",
    "SaveHandle.done": "looks at a flag",
    "Stored.__len__": "a number",
    "Tensor.__array__": "a view",
    "Tensor.__bool__": "one element",
    "Tensor.__float__": "one element",
    "Tensor.__int__": "one element",
    "Tensor.__len__": "a number",
    "Tensor.__reduce__": "refuses",
    "Tensor.detach": "a view",
    "Tensor.local": "a view",
    "Tensor.reshape": "a view",
    "Tensor.transpose": "a view",
    "Trainer.__reduce__": "refuses",
    "Trainer.save": "sets a flag",
    "Trainer.stop": "sets a flag",
    "Writer.finish": "nothing",
    "Writer.prepare_global_plan": "nothing",
    "Writer.prepare_local_plan": "nothing",
    "Writer.reset": "sets a name",
    "Writer.set_up_storage_writer": "nothing",
    "no_grad.__reduce__": "refuses",
    "xp.broadcast_arrays": "views",
    "xp.broadcast_shapes": "numbers",
    "xp.broadcast_to": "a view",
    "xp.can_cast": "a table",
    "xp.empty": "memory without values",
    "xp.empty_like": "memory without values",
    "xp.expand_dims": "a view",
    "xp.finfo": "a table",
    "xp.iinfo": "a table",
    "xp.isdtype": "a table",
    "xp.matrix_transpose": "a view",
    "xp.meshgrid": "views",
    "xp.moveaxis": "a view",
    "xp.permute_dims": "a view",
    "xp.reshape": "a view where it can be, else the door of copies",
    "xp.result_type": "a table",
    "xp.squeeze": "a view",
    "xp.unstack": "views",
}
"""Entry points that take no time that depends on how much there is, and why."""

SLOW = {
    name
    for name in CALLS
    if name.split(".")[0] in ("save async_save load open inspect verify diff convert merge threads plan_run torch".split())
    or name.startswith(("Comm.", "Stored.", "SaveHandle.", "Trainer.", "Tensor.reshard", "Tensor.full", *CALLED_BY_OTHERS))
}
"""Those that touch files or start threads."""


def instances():
    """One of each class, for whoever calls methods at random."""
    w = World(1 << 10)
    trainer = planaria.Trainer(w.config, run=w.new())
    made = [w.f, w.ckpt, planaria.alone(), planaria.DType("f32"), planaria.mesh(dp=2).layout((4, 4), "dp:S0"), planaria.mesh(dp=2)]
    made += [planaria.plot(made[4]), planaria.plan(made[4], made[4], dtype="f32"), w.handle(), planaria.schedule("1f1b", 2, 2)]
    made += [w.ckpt["w"], planaria.tensor([[1.0, 2.0]], requires_grad=True), trainer, w.f.at, w.f.at[0], planaria.no_grad()]
    return {type(one).__name__: one for one in made}


def resident():
    """Bytes of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


class Counter(threading.Thread):
    """A thread of Python's that counts how often it was let into the interpreter: while it watches, nobody is made to let go, so
    it counts only when somebody does by himself.
    """

    def __init__(self):
        super().__init__(daemon=True)
        self.count, self.stop = 0, False
        self._ready, self._switch = threading.Event(), sys.getswitchinterval()

    def run(self):
        self._ready.set()
        while not self.stop:
            self.count += 1
            # Whoever waits for the interpreter takes it here.
            time.sleep(0.0001)

    def __enter__(self):
        self.start()
        self._ready.wait()
        sys.setswitchinterval(3600)
        return self

    def __exit__(self, *_):
        sys.setswitchinterval(self._switch)
        self.stop = True
        self.join()

    def came_in(self, call, enough, most):
        """How often this thread came in during calls, of which as many are made as it takes to have enough, at most so many."""
        before = self.count
        for _ in range(most):
            call()
            if self.count - before >= enough:
                break
        return self.count - before
