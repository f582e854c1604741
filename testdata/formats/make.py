"""Makes the files beside it as torch.save, paddle.save and PaddleFormers write them. Needs torch and numpy.

Paddle itself is not needed: paddle.save pickles numpy arrays, bare or wrapped as below.
"""

import io, json, pathlib, pickle, struct, sys, zipfile
import numpy as np
import torch

out = pathlib.Path(__file__).parent

rng = np.random.default_rng(7)
NAMES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8",
         "int8": "I8", "bool": "BOOL", "bfloat16": "BF16"}


def write(path, tensors, metadata=None):
    """A safetensors file from (name, dtype, shape, bytes), as plain as possible."""
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, dtype, shape, raw in tensors:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def of_numpy(name, array, dtype=None):
    return (name, dtype or NAMES[array.dtype.name], array.shape, np.ascontiguousarray(array).tobytes())


def of_torch(name, t):
    raw = t.detach().contiguous().view(torch.uint8).numpy().tobytes() if t.numel() and t.ndim else (
        t.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() if t.numel() else b"")
    return (name, NAMES[str(t.dtype).removeprefix("torch.")], tuple(t.shape), raw)


# torch.save: nested, strided, shared, parameters, scalars, empty, Python values.
base = torch.randn(6, 8)
state = {
    "step": 12,
    "lr": 1e-3,
    "model": {
        "w": torch.nn.Parameter(torch.randn(3, 4)),
        "t": base.t(),
        "rows": base[2:5],
        "cols": base[:, 1:7:2],
        "expanded": torch.arange(3.0).expand(4, 3),
        "bf": torch.randn(5).bfloat16(),
        "i": torch.arange(7),
        "m": torch.tensor([True, False]),
        "scalar": torch.tensor(3.5, dtype=torch.float64),
        "empty": torch.empty(0, 4),
    },
    "groups": [{"params": [0, 1], "betas": (0.9, 0.999)}, {"exp_avg": torch.ones(2)}],
    "odd": {1, 2},
}
torch.save(state, out / "nested.pt")
flat = [of_torch("model." + k, v) for k, v in state["model"].items()] + [of_torch("groups.1.exp_avg", torch.ones(2))]
write(out / "nested.pt.expected.safetensors", flat)
torch.save({"w": torch.ones(3)}, out / "legacy.pt", _use_new_zipfile_serialization=False)
buffer = io.BytesIO()
torch.save({"w": torch.ones(300)}, buffer)
with zipfile.ZipFile(buffer) as plain, zipfile.ZipFile(out / "deflated.pt", "w", zipfile.ZIP_DEFLATED) as packed:
    for name in plain.namelist():
        packed.writestr(name, plain.read(name))
torch.save({"sparse": torch.eye(3).to_sparse()}, out / "sparse.pt")
torch.save({"w": torch.ones(4), "q": torch.quantize_per_tensor(torch.arange(6.0).reshape(2, 3), 0.5, 1, torch.qint8)}, out / "quantized.pt")
torch.save({"neg": torch._neg_view(torch.ones(2))}, out / "neg_view.pt")
torch.save({"bomb": torch.ones(1).expand(1 << 40)}, out / "expand_bomb.pt")
torch.save({"a": {"b": torch.ones(2)}, "a.b": torch.zeros(3)}, out / "collision.pt")
# Each list holds the one before it twice: 2^60 values when written out; then the same around a tensor.
shared, around = [], torch.ones(2)
for _ in range(60):
    shared, around = [shared, shared], [around, around]
torch.save({"shared": shared, "w": torch.ones(2)}, out / "shared.pt")
torch.save({"around": around}, out / "shared_tensor.pt")
torch.save({"array": np.arange(5.0), "w": torch.ones(2)}, out / "numpy.pt")
torch.serialization.set_crc32_options(False)
torch.save({"w": torch.arange(4.0)}, out / "no_sums.pt")
torch.serialization.set_crc32_options(True)


# paddle.save: a state dict holds bare arrays; anything else holds tuples of name and array.
class Tensor:
    def __init__(self, name, data):
        self.name, self.data = name, data

    def __reduce__(self):
        return (tuple, ((self.name, self.data),))


# paddle.save of a tensor by itself.
(out / "tensor.pdparams").write_bytes(pickle.dumps(Tensor("w_0", np.arange(6, dtype=np.float32).reshape(2, 3)), 4))


class LoD:
    def __init__(self, data):
        self.data = data

    def __reduce__(self):
        return (eval, ("data", {"data": self.data}))


w = rng.normal(size=(4, 6)).astype("f4")
b = rng.integers(0, 65536, size=(5,)).astype("u2")
params = {"lin.weight": w, "lin.bias": b, "fortran": np.asfortranarray(w), "ids": np.arange(3),
          "empty": np.zeros((0, 3), "f4"), "scalar": np.float32(2.5).reshape(()),
          "StructuredToParameterName@@": {"lin.weight": "linear_0.w_0"}}
for protocol in (3, 4, 5):
    (out / f"p{protocol}.pdparams").write_bytes(pickle.dumps(params, protocol=protocol))
twice = {"a": {"b": w[0]}, "a.b": w[1]}
(out / "collision.pdparams").write_bytes(pickle.dumps(twice, protocol=4))
(out / "p2.pdparams").write_bytes(pickle.dumps({"lin.weight": w}, protocol=2))
expected = [of_numpy(k, v, "BF16" if k == "lin.bias" else None) for k, v in params.items() if "@@" not in k]
write(out / "pdparams.expected.safetensors", expected)
optimizer = {"linear_0.w_0_moment1_0": Tensor("m1", w * 2), "master_weights": {"linear_0.w_0": Tensor("mw", w)},
             "lod": LoD(w + 1), "LR_Scheduler": {"last_epoch": 3, "last_lr": 0.5}}
(out / "state.pdopt").write_bytes(pickle.dumps(optimizer, protocol=4))
write(out / "state.pdopt.expected.safetensors", [
    of_numpy("linear_0.w_0_moment1_0", w * 2), of_numpy("master_weights.linear_0.w_0", w), of_numpy("lod", w + 1)])
cut = {"UnpackBigParamInfor@@": {"big": {"OriginShape": (4, 6), "slices": ["big@@.0", "big@@.1"]}},
       "big@@.0": w.flatten()[:9], "big@@.1": w.flatten()[9:]}
(out / "cut.pdparams").write_bytes(pickle.dumps(cut, protocol=3))
write(out / "cut.pdparams.expected.safetensors", [of_numpy("big", w)])


class Evil:
    def __reduce__(self):
        return (exec, ("open('planaria-was-here','w')",))


(out / "evil.pdparams").write_bytes(pickle.dumps({"w": w, "x": Evil()}, protocol=4))


# A unified checkpoint: model, masters and optimizer with their indexes; and one without an index.
def unified(folder, prefix, shards, extra=None, index=True):
    folder.mkdir(exist_ok=True)
    table, total = {}, 0
    for i, tensors in enumerate(shards):
        name = f"{prefix}-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        write(folder / name, tensors, {"format": "np"})
        for t in tensors:
            table[t[0]] = name
            total += len(t[3])
    if index:
        text = {"metadata": {"total_size": total}, "weight_map": table, **(extra or {})}
        (folder / f"{prefix}.safetensors.index.json").write_text(json.dumps(text, indent=4))


q, k = rng.normal(size=(4, 4)).astype("f2"), rng.normal(size=(2, 4)).astype("f2")
one = np.float32(0.9).reshape(1)
uc = out / "unified"
unified(uc, "model", [[of_numpy("q", q)], [of_numpy("k", k)]])
unified(uc, "master_weights", [[of_numpy("q", q.astype("f4"))], [of_numpy("k", k.astype("f4"))]])
unified(uc, "optimizer", [[of_numpy("q/moment1_0", q.astype("f4")), of_numpy("q/beta1_pow_acc_0", one)]],
        {"master_weights": True, "quant_ckpt_resume_times": 0})
(uc / "config.json").write_text('{"model_type": "tiny"}')
un = out / "unmerged"
unified(un, "model", [[of_numpy("q", q)]])
(un / "optimizer.safetensors.index.json").write_text('{"quant_ckpt_resume_times": 0, "optim_shard_num": 1}')
write(un / "optimizer.tp00_pp01.safetensors", [of_numpy("q/moment1_0", q[:2].astype("f4"))])
unified(out / "noindex", "model", [[of_numpy("q", q)], [of_numpy("k", k)]], index=False)


