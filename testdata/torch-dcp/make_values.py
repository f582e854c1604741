"""Makes `foreign`, `values` and `repeated` beside it with torch's own writer. Needs torch and numpy."""

import collections, datetime, math, pathlib, pickle, random, shutil, sys

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

out = pathlib.Path(__file__).parent


def values():
    """Python values of every kind that JSON lacks, nested with tensors between them."""
    rng = random.Random(3)
    return {
        "floats": [math.inf, -math.inf, math.nan, -0.0, 0.1 + 0.2, 1e308, 5e-324, *[rng.uniform(-1, 1) for _ in range(50)]],
        "ints": [0, -1, 2**63 - 1, -(2**63), 2**63, -(2**64), 2**200, 10**400],
        "tuple": (1, (2.0, ()), [3, ("x",)]),
        "bytes": [b"", b"\x00\xff", bytes(range(256)) * 20, bytearray(b"abc")],
        "sets": [set(), {3}, frozenset(), frozenset({"a"})],
        "torch": [torch.Size([2, 3]), torch.bfloat16, torch.device("cuda", 1), torch.device("cpu"), torch.strided],
        "none": None,
        "bools": [True, False],
        "unsorted": ({"z": 1, "a": 2}, collections.OrderedDict(z=1, a=2)),
        "odd_keys": ({1: "one", (2, 3): None, "$tuple": [1], None: 0.5},),
        "counter": (collections.deque([1, 2], maxlen=4), collections.Counter("aab"), complex(1, -2), range(3)),
        "numpy": (np.arange(6, dtype=np.int16).reshape(2, 3), np.float64(2.5), np.float32(1.25)),
        "when": (datetime.date(2024, 2, 29), pathlib.PurePosixPath("a/b")),
        "text": "ü\n\x1b[31m\u0000",
        "model": {"layer.weight": torch.arange(6.0).reshape(2, 3), "deep": {"layer": {"bias": torch.ones(2)}}},
        "list": [torch.zeros(2), {"inner": torch.full((1,), 7.0), "note": "kept"}, [torch.ones(1), "end"]],
        "optim": {"state": {"layer.weight": {"exp_avg": torch.zeros(2, 3), "step": torch.tensor(4.0)}},
                  "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.95), "params": ["layer.weight"], "fused": None}]},
    }


def foreign():
    """Element types that we carry and do not compute with, and one that we do."""
    bytes_ = torch.arange(12, dtype=torch.uint8).reshape(3, 4)
    complex_ = torch.arange(24, dtype=torch.float64).reshape(3, 4, 2)
    return {
        "c64": torch.view_as_complex(complex_.float()),
        "c128": torch.view_as_complex(complex_)[:, 1:3],
        "e8m0": bytes_.view(torch.float8_e8m0fnu),
        "e4m3fnuz": bytes_.view(torch.float8_e4m3fnuz),
        "e5m2fnuz": bytes_.view(torch.float8_e5m2fnuz),
        "f4": bytes_.view(torch.float4_e2m1fn_x2),
        "w": torch.arange(6.0),
    }


def main():
    for name in ("foreign", "values", "repeated"):
        shutil.rmtree(out / name, ignore_errors=True)
    dcp.save(foreign(), checkpoint_id=out / "foreign", no_dist=True)
    dcp.save(values(), checkpoint_id=out / "values", no_dist=True)
    # Two chunks, each listed 300 times, and their places as often.
    dcp.save({"w": torch.arange(8.0)}, checkpoint_id=out / "repeated", no_dist=True)
    file = out / "repeated" / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    metadata.state_dict_metadata["w"].chunks *= 300
    file.write_bytes(pickle.dumps(metadata))


if __name__ == "__main__":
    sys.exit(main())
