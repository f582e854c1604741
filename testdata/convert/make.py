"""Writes the conversion tables beside this file; needs torch 2.15 and numpy.

Each table is a gzip of little-endian columns: a u32 count, the source bits, then the bits of each target.
The tables of 16-bit types leave out the source: row i is code i.
"""

import gzip
import pathlib

import numpy as np
import torch

HERE = pathlib.Path(__file__).parent
TARGETS = {
    "f32": (torch.float32, torch.int32, "<u4"),
    "f64": (torch.float64, torch.int64, "<u8"),
    "f16": (torch.float16, torch.int16, "<u2"),
    "bf16": (torch.bfloat16, torch.int16, "<u2"),
    "e4m3": (torch.float8_e4m3fn, torch.uint8, "u1"),
    "e5m2": (torch.float8_e5m2, torch.uint8, "u1"),
    "i32": (torch.int32, torch.int32, "<u4"),
    "u8": (torch.uint8, torch.uint8, "u1"),
    "u64": (torch.uint64, torch.uint64, "<u8"),
}
NARROW = ["f16", "bf16", "e4m3", "e5m2"]


def write(name, source, bits, targets):
    """`source` is a tensor, `bits` its codes as an unsigned numpy array."""
    columns = [b"" if bits.itemsize == 2 else np.uint32(len(bits)).tobytes() + bits.tobytes()]
    for t in targets:
        dtype, view, packed = TARGETS[t]
        columns.append(source.to(dtype).view(view).numpy().view(packed).tobytes())
    (HERE / f"{name}.bin.gz").write_bytes(gzip.compress(b"".join(columns), 9, mtime=0))


def boundaries(dtype, view, codes):
    """Every code, every midpoint between neighbours, and the f32 on each side of both."""
    values = torch.from_numpy(codes).view(view).view(dtype).double().numpy()
    values = np.sort(values[np.isfinite(values)])
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2]).astype(np.float32)
    return np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))])


def main():
    rng = np.random.default_rng(7)
    codes16 = np.arange(65536, dtype=np.uint16)
    for name, dtype in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        write(name, torch.from_numpy(codes16.view(np.int16)).view(dtype), codes16, ["e4m3", "e5m2"])

    codes8 = np.arange(256, dtype=np.uint8)
    parts = [boundaries(torch.float8_e4m3fn, torch.uint8, codes8), boundaries(torch.float8_e5m2, torch.uint8, codes8)]
    for dtype in (torch.float16, torch.bfloat16):
        some = np.sort(rng.choice(codes16, 300, replace=False)).view(np.int16)
        parts.append(boundaries(dtype, torch.int16, some))
    edges = [448, 464, 480, 57344, 61440, 65504, 65520, 65536, 3.3895314e38, 3.3961775e38, 3.4028235e38, np.inf, np.nan]
    edges += [2.0**-149, 2.0**-133, 2.0**-134, 2.0**-24, 2.0**-25, 2.0**-10, 2.0**-17]
    edges = np.array(edges, dtype=np.float32)
    parts += [edges, -edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(np.inf))]
    parts.append(rng.integers(0, 2**32, 1500, dtype=np.uint32).view(np.float32))
    f32 = np.concatenate(parts)
    f32 = np.unique(f32.view(np.uint32)).view(np.float32)
    write("f32", torch.from_numpy(f32), f32.view(np.uint32), NARROW + ["f64"])

    # Ties of each narrow type, moved by less than f32 can see: here rounding twice shows.
    base = rng.choice(f32[np.isfinite(f32)], 1500).astype(np.float64)
    f64 = np.concatenate([base, base * (1 + 2.0**-40), base * (1 - 2.0**-40), rng.standard_normal(300) * 100])
    write("f64", torch.from_numpy(f64), f64.view(np.uint64), ["f32"] + NARROW)

    shifts = rng.integers(0, 63, 700)
    tie = (np.int64(1) << np.minimum(shifts, 61)) * 1
    i64 = np.concatenate([rng.integers(-(2**63), 2**63 - 1, 700) >> shifts, tie, tie + (tie >> 8) + 1, tie + (tie >> 11) + 1])
    i64 = np.concatenate([i64, tie + (tie >> 24) + 1, -tie - (tie >> 24) - 1, -tie - (tie >> 4) - 1])
    write("i64", torch.from_numpy(i64), i64.view(np.uint64), ["f32", "f64"] + NARROW + ["i32", "u8", "u64"])


if __name__ == "__main__":
    main()
