"""Indexing: masks, integer arrays, accumulation in a fixed order; checked against torch on the CPU and f64, timed beside torch."""
import ctypes
import math

import torch

from device import I32, I64, U32, U64, Kernel, P, Struct
from timing import error, median_ms, same_bits
from variants import index_options, mask_options, radix_options, segment_options

DEV = "cuda"
BITS = {1: ("u8", torch.uint8, ctypes.c_uint8), 2: ("u16", torch.int16, ctypes.c_uint16), 4: ("u32", torch.int32, ctypes.c_uint32),
        8: ("u64", torch.int64, ctypes.c_uint64)}
NAMES = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32", torch.float64: "f64", torch.int32: "i32", torch.int64: "i64"}
WIDE = 132 * 16  # blocks of kernels that stride
OPS = ("sum", "prod", "amax", "amin")


class Index(Struct):
    _fields_ = [("at", P * 8), ("extent", I64 * 8), ("stride", I64 * 8), ("count", I64), ("dims", I32)]


class Segments(Struct):
    _fields_ = [(n, P) for n in "keys positions starts number values out longer parts".split()] + [
        ("value_stride", I64), ("inner", I64), ("include", I32), ("mean", I32), ("op", I32)]


def cdiv(a, b):
    return -(-a // b)


def new_fault():
    """A slot of late.cuh for each indexed dim."""
    return torch.full((8, 4), -1, dtype=torch.int64, device=DEV)


def mask_kernel(x, name):
    return Kernel("mask.cu", mask_options(BITS[x.element_size()][0]), name)


def mask_starts(mask, count):
    tiles = cdiv(count, 4096)
    sums = torch.empty(tiles, dtype=torch.int32, device=DEV)
    starts = torch.empty(tiles + 1, dtype=torch.int64, device=DEV)
    if tiles:
        Kernel("mask.cu", mask_options("u32"), "mask_count")(tiles, 256, mask, I64(count), sums)
    Kernel("mask.cu", mask_options("u32"), "tile_scan")(1, 1024, sums, I64(tiles), starts)
    return starts, tiles


def select(x, mask):
    """x[mask] for two contiguous tensors of one shape."""
    n = x.numel()
    starts, tiles = mask_starts(mask, n)
    total = int(starts[-1].item())
    out = torch.empty(total, dtype=x.dtype, device=DEV)
    if tiles:
        mask_kernel(x, "mask_select")(tiles, 256, mask, x, I64(n), starts, out)
    return out


def positions(mask):
    n = mask.numel()
    starts, tiles = mask_starts(mask, n)
    out = torch.empty(int(starts[-1].item()), dtype=torch.int64, device=DEV)
    if tiles:
        Kernel("mask.cu", mask_options("u32"), "mask_positions")(tiles, 256, mask, I64(n), starts, out)
    return out


def fill(x, mask, value, out):
    name, view, kind = BITS[x.element_size()]
    bits = torch.tensor([value], dtype=x.dtype).view(view).item() & ((1 << 8 * x.element_size()) - 1)
    mask_kernel(x, "masked_fill")(WIDE, 256, mask, x, kind(bits), I64(x.numel()), out)
    return out


def scatter_masked(x, mask, source, out):
    n = x.numel()
    starts, tiles = mask_starts(mask, n)
    mask_kernel(x, "masked_scatter")(tiles, 256, mask, x, source, I64(source.numel()), I64(n), starts, out)
    return out


def index_of(x, indices):
    """Index of the leading dims of a contiguous tensor, and how many elements a row has."""
    inner = 1
    for n in x.shape[len(indices):]:
        inner *= n
    strides, run = [], 1
    for n in reversed(x.shape[:len(indices)]):
        strides.insert(0, run)
        run *= n
    index = Index().fill(at=list(indices), extent=list(x.shape[:len(indices)]), stride=strides, count=indices[0].numel(), dims=len(indices))
    return index, inner, run


def index_kernel(x, inner, name, offset=None):
    packets = int(inner * x.element_size() % 16 == 0)
    offset = offset or ("u32" if x.numel() < 2**31 else "u64")
    return Kernel("index.cu", index_options(BITS[x.element_size()][0], offset, packets), name)


def read(x, indices, fault, offset=None):
    index, inner, _ = index_of(x, indices)
    out = torch.empty(indices[0].shape + x.shape[len(indices):], dtype=x.dtype, device=DEV)
    index_kernel(x, inner, "index_read", offset)(WIDE, 256, index, x, I64(inner), out, fault)
    return out


def write(x, indices, values, fault, unique=False):
    index, inner, rows = index_of(x, indices)
    keys = torch.empty(index.count, dtype=torch.int32, device=DEV)
    index_kernel(x, inner, "index_keys")(WIDE, 256, index, U64(rows), keys, fault)
    winner, named = None, (keys, I64(index.count), U64(rows))
    if not unique:
        winner = torch.zeros(rows, dtype=torch.int32, device=DEV)
        index_kernel(x, inner, "key_claim")(WIDE, 256, *named, winner)
    if values.numel() == 1:
        values = values.expand(16).contiguous()
        stride = 0
    else:
        stride = inner
    index_kernel(x, inner, "key_write")(WIDE, 256, *named, values, I64(stride), I64(inner), winner, x)
    return x


def write_elements(x, indices, values, fault):
    """As write, for elements: only places named more than once are argued about."""
    index, inner, rows = index_of(x, indices)
    assert inner == 1
    n = index.count
    bits = torch.zeros(2, rows // 32 + 1, dtype=torch.int32, device=DEV)
    keys, winner = torch.empty(n, dtype=torch.int32, device=DEV), torch.empty(rows, dtype=torch.int32, device=DEV)
    again = torch.empty(n + 1, dtype=torch.int32, device=DEV)
    again[:1].zero_()
    stride = I64(0 if values.numel() == 1 else 1)
    index_kernel(x, 1, "index_keys")(WIDE, 256, index, U64(rows), keys, fault)
    index_kernel(x, 1, "key_mark")(WIDE, 256, keys, I64(n), U64(rows), bits[0], bits[1])
    index_kernel(x, 1, "key_write_once")(WIDE, 256, keys, I64(n), U64(rows), values, stride, bits[1], winner, again, x)
    index_kernel(x, 1, "key_claim_again")(132 * 4, 256, keys, again, winner)
    index_kernel(x, 1, "key_write_again")(132 * 4, 256, keys, values, stride, again, winner, x)
    return x


def sort_pairs(keys, bits):
    """Stable sort of u32 keys held as int32 with the positions they had."""
    n, passes = keys.numel(), max(1, cdiv(bits, 8))
    options, tiles = radix_options(), cdiv(keys.numel(), 4096)
    histogram = torch.zeros(passes, 256, dtype=torch.int64, device=DEV)
    Kernel("radix.cu", options, "radix_histogram")(132 * 4, 256, keys, I64(n), I32(passes), histogram)
    Kernel("radix.cu", options, "radix_scan")(passes, 256, histogram)
    status = torch.zeros(passes, tiles * 256 + 1, dtype=torch.int64, device=DEV)
    payload, run = None, Kernel("radix.cu", options, "radix_pass")
    for p in range(passes):
        new_keys, new_payload = torch.empty_like(keys), torch.empty_like(keys)
        run(tiles, 256, keys, payload, I64(n), I32(8 * p), histogram[p], status[p], status[p][tiles * 256:], new_keys, new_payload)
        keys, payload = new_keys, new_payload
    return keys, payload


def reduce_sorted(keys, order, limit, values, out, inner, op=0, include=1, mean=0):
    """out[key] (op)= values of the entries with that key."""
    n, element = keys.numel(), NAMES[values.dtype]
    packets = int(inner > 1 and inner * values.element_size() % 16 == 0)
    options, tiles = segment_options(element, packets), cdiv(n, 4096)
    longer = torch.empty(n // 128 + 2, dtype=torch.int32, device=DEV)
    longer[:1].zero_()
    s = Segments().fill(keys=keys, positions=order, values=values, out=out, longer=longer, value_stride=inner, inner=inner, include=include, mean=mean, op=op)
    if inner == 1:
        real = {torch.bfloat16: torch.float32, torch.float16: torch.float32}.get(values.dtype, values.dtype)
        s.fill(parts=torch.empty(n // 64 + 1, dtype=real, device=DEV))
        Kernel("segment.cu", options, "segment_elements")(WIDE, 256, s, I64(n), U64(limit))
        Kernel("segment.cu", options, "segment_runs")((64, cdiv(n, 32768)), 256, s, I64(n))
        Kernel("segment.cu", options, "segment_fold")(132, 256, s, I64(n))
        return out
    sums = torch.empty(tiles, dtype=torch.int32, device=DEV)
    tile_starts = torch.empty(tiles + 1, dtype=torch.int64, device=DEV)
    starts = torch.empty(n + 1, dtype=torch.int32, device=DEV)
    Kernel("segment.cu", options, "segment_count")(tiles, 256, keys, I64(n), U64(limit), sums)
    Kernel("mask.cu", mask_options("u32"), "tile_scan")(1, 1024, sums, I64(tiles), tile_starts)
    Kernel("segment.cu", options, "segment_starts")(tiles, 256, keys, I64(n), U64(limit), tile_starts, starts)
    s.fill(starts=starts, number=tile_starts[tiles:])
    Kernel("segment.cu", options, "segment_rows")(WIDE, 256, s)
    Kernel("segment.cu", options, "segment_rows_longer")(132 * 4, 256, s)
    return out


def reduce_small(keys, limit, values, out, inner, op, include, mean):
    """Sort, segments and sums of at most 16384 rows: three launches."""
    n, packets = keys.numel(), int(inner * values.element_size() % 16 == 0)
    options = segment_options(NAMES[values.dtype], packets)
    room = torch.empty(3, n + 1, dtype=torch.int32, device=DEV)
    longer, number = torch.empty(n // 128 + 2, dtype=torch.int32, device=DEV), torch.empty(1, dtype=torch.int64, device=DEV)
    small = Kernel("segment_small.cu", (), "segment_small")
    small(1, 1024, keys, I32(n), I32(limit.bit_length()), U64(limit), room[0], room[1], room[2], number, longer, shared=16384 * 8 + 32 * 256 * 2)
    s = Segments().fill(keys=room[0], positions=room[1], starts=room[2], number=number, values=values, out=out, longer=longer, value_stride=inner,
                        inner=inner, include=include, mean=mean, op=op)
    Kernel("segment.cu", options, "segment_rows")(WIDE, 256, s)
    Kernel("segment.cu", options, "segment_rows_longer")(132 * 4, 256, s)
    return out


def put_sum(x, indices, values, fault, op=0, include=1, mean=0):
    index, inner, rows = index_of(x, indices)
    keys = torch.empty(indices[0].numel(), dtype=torch.int32, device=DEV)
    index_kernel(x, inner, "index_keys")(WIDE, 256, index, U64(rows), keys, fault)
    if inner > 1 and keys.numel() <= 16384:
        return reduce_small(keys, rows, values, x, inner, op, include, mean)
    keys, order = sort_pairs(keys, rows.bit_length())
    return reduce_sorted(keys, order, rows, values, x, inner, op, include, mean)


def walk_of(shape, *strides):
    """The struct Walk of walk.cuh."""
    words = [math.prod(shape), len(shape), *shape, *[1] * (8 - len(shape))]
    for steps in strides:
        words += [*steps, *[0] * (8 - len(steps))]
    return (I64 * len(words))(*words)


def without(strides, dim):
    return [0 if d == dim else step for d, step in enumerate(strides)]


def gather(x, dim, index, fault):
    out = torch.empty(index.shape, dtype=x.dtype, device=DEV)
    walk = walk_of(index.shape, out.stride(), without(x.stride(), dim), index.stride())
    index_kernel(x, 1, "along_read")(WIDE, 256, walk, out, x, index, I64(x.shape[dim]), I64(x.stride(dim)), U32(1), fault)
    return out


def scatter_reduce(x, dim, index, values, op, fault, include=1, mean=0):
    keys = torch.empty(index.numel(), dtype=torch.int32, device=DEV)
    walk = walk_of(index.shape, without(x.stride(), dim), index.stride())
    index_kernel(x, 1, "along_keys")(WIDE, 256, walk, index, I64(x.shape[dim]), I64(x.stride(dim)), U64(x.numel()), keys, fault)
    keys, order = sort_pairs(keys, x.numel().bit_length())
    return reduce_sorted(keys, order, x.numel(), values, x, 1, op, include, mean)


def twice(record, name, make, expected, limit=0.0):
    """Two runs, compared with each other and with what is expected (bits where the limit is 0)."""
    a, b = make(), make()
    torch.cuda.synchronize()
    off = error(a.cpu(), expected) if limit else float(not (a.shape == expected.shape and same_bits(a.cpu(), expected)))
    record.check(name, off, limit, same_bits(a, b))


def check_masks(record):
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.float64):
        for n, density in ((0, 0.5), (1, 1.0), (4097, 0.3), (1_000_003, 0.3), (300_000, 0.0), (300_000, 1.0), (5000, 0.01)):
            x = (torch.randn(n) * 50).to(dtype)
            mask = torch.rand(n) < density
            xd, md = x.to(DEV), mask.to(DEV)
            name = f"{dtype} {n} {density}"
            twice(record, f"select {name}", lambda: select(xd, md), x[mask])
            twice(record, f"positions {name}", lambda: positions(md), mask.nonzero().flatten())
            if n == 0:
                continue
            poison = lambda: torch.full_like(xd, 7)
            twice(record, f"fill {name}", lambda: fill(xd, md, 3, poison()), x.masked_fill(mask, 3))
            source = (torch.randn(n) * 50).to(dtype)
            twice(record, f"masked_scatter {name}", lambda: scatter_masked(xd, md, source.to(DEV), poison()), x.masked_scatter(mask, source))
            here = lambda: (lambda y: scatter_masked(y, md, source.to(DEV), y))(xd.clone())
            twice(record, f"masked_scatter in place {name}", here, x.masked_scatter(mask, source))
        shifted, m = (torch.randn(10_001) * 50).to(dtype), torch.rand(10_001) < 0.5
        xd, md = shifted.to(DEV), m.to(DEV)
        twice(record, f"select off alignment {dtype}", lambda: select(xd[1:], md[1:]), shifted[1:][m[1:]])
        twice(record, f"fill off alignment {dtype}", lambda: fill(xd[1:], md[1:], 2, torch.empty_like(xd)[1:]), shifted[1:].masked_fill(m[1:], 2))


def check_reads(record):
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.float64):
        x = (torch.randn(37, 50, 24) * 50).to(dtype)
        i, j = torch.randint(-37, 37, (401,)), torch.randint(-50, 50, (401,))
        xd, at = x.to(DEV), [i.to(DEV), j.to(DEV)]
        for offset in ("u32", "u64"):
            twice(record, f"x[i] {dtype} {offset}", lambda: read(xd, at[:1], new_fault(), offset), x[i])
            twice(record, f"x[i, j] {dtype} {offset}", lambda: read(xd, at, new_fault(), offset), x[i, j])
        k = torch.randint(0, 24, (401,))
        twice(record, f"x[i, j, k] {dtype}", lambda: read(xd, at + [k.to(DEV)], new_fault()), x[i, j, k])
        for dim in range(3):
            shape = list(x.shape)
            shape[dim] = 19
            index = torch.randint(0, x.shape[dim], shape)
            twice(record, f"gather {dtype} dim {dim}", lambda: gather(xd, dim, index.to(DEV), new_fault()), x.gather(dim, index))
        # The last entry of a place counts.
        values = (torch.randn(401, 24) * 50).to(dtype)
        want = x.clone()
        for n in range(401):
            want[i[n], j[n]] = values[n]
        twice(record, f"x[i, j] = v {dtype}", lambda: write(xd.clone(), at, values.to(DEV), new_fault()), want)
    for rows, n in ((50, 4000), (100_000, 30_000)):
        x, at, v = torch.randn(rows), torch.randint(-rows, rows, (n,)), torch.randn(n)
        want = x.clone()
        for i, p in enumerate(at.tolist()):
            want[p] = v[i]
        twice(record, f"x[i] = v, {n} elements of {rows}", lambda: write_elements(x.to(DEV), [at.to(DEV)], v.to(DEV), new_fault()), want)
    x, fault = torch.randn(10, 4, device=DEV), new_fault()
    bad = torch.tensor([3, 9, -11, 4, 10], device=DEV)
    read(x, [bad], fault)
    record.check("a bad index is reported, lowest position first", float(fault[0].tolist()[1:3] != [2, -11]), 0)


def check_sort(record):
    for n, bits in ((1, 8), (4096, 8), (4097, 16), (1_000_000, 26), (777_777, 5)):
        keys = torch.randint(0, 2**bits, (n,), dtype=torch.int32)
        want, order = keys.sort(stable=True)
        kd = keys.to(DEV)
        twice(record, f"sort {n} of {bits} bits: keys", lambda: sort_pairs(kd, bits)[0], want)
        twice(record, f"sort {n} of {bits} bits: positions", lambda: sort_pairs(kd, bits)[1], order.int())


def check_sums(record):
    limits = {torch.bfloat16: 4e-3, torch.float32: 1e-6, torch.float64: 1e-12, torch.int32: 0.0}
    for dtype, limit in limits.items():
        for n, rows, inner in ((50_000, 700, 1), (50_000, 70_000, 1), (50_000, 1, 1), (3_000_000, 2, 1), (129, 1, 1), (3000, 40, 24), (3000, 40, 7), (5000, 2, 16), (16_384, 5000, 8), (1, 3, 4), (70_000, 3, 8), (70_000, 9000, 3)):
            x, v = (torch.randn(rows, inner) * 9).to(dtype), (torch.randn(n, inner) * 9).to(dtype)
            at = torch.randint(0, rows, (n,))
            wide = torch.float64 if dtype.is_floating_point else dtype
            want = x.to(wide).index_add(0, at, v.to(wide))
            xd, vd, ad = x.to(DEV), v.to(DEV), at.to(DEV)
            twice(record, f"put_sum {dtype} {n} into {rows}x{inner}", lambda: put_sum(xd.clone(), [ad], vd, new_fault()), want, limit)
    for op, name in enumerate(OPS):
        for include in (1, 0):
            x, v = torch.rand(31, 9, 5) + 0.6, torch.rand(31, 30, 5) + 0.6
            index = torch.randint(0, 9, v.shape)
            want = x.double().scatter_reduce(1, index, v.double(), name, include_self=bool(include))
            run = lambda: scatter_reduce(x.to(DEV), 1, index.to(DEV), v.to(DEV), op, new_fault(), include)
            twice(record, f"scatter_reduce {name} include {include}", run, want, 1e-6)
    want = x.double().scatter_reduce(1, index, v.double(), "mean")
    twice(record, "scatter_reduce mean", lambda: scatter_reduce(x.to(DEV), 1, index.to(DEV), v.to(DEV), 0, new_fault(), 1, 1), want, 1e-6)


def check(record):
    for part in (check_masks, check_reads, check_sort, check_sums):
        record.guard(part.__name__, lambda: part(record))


def time_all(record):
    x = torch.randn(8192, 8192, device=DEV)
    flat, mask = x.view(-1), torch.rand(8192, 8192, device=DEV) < 0.3
    out = torch.empty_like(x)
    record.time("x[mask]", median_ms([lambda: select(flat, mask)]), median_ms([lambda: x[mask]]))
    starts, tiles = mask_starts(mask, x.numel())
    chosen = torch.empty(int(starts[-1].item()), device=DEV)
    k = {n: mask_kernel(x, n) for n in ("mask_count", "mask_select")}
    sums = torch.empty(tiles, dtype=torch.int32, device=DEV)
    record.time("  of it: count", median_ms([lambda: k["mask_count"](tiles, 256, mask, I64(x.numel()), sums)]))
    record.time("  of it: scan", median_ms([lambda: mask_kernel(x, "tile_scan")(1, 1024, sums, I64(tiles), starts)]))
    record.time("  of it: write", median_ms([lambda: k["mask_select"](tiles, 256, mask, x, I64(x.numel()), starts, chosen)]))
    record.time("masked_fill", median_ms([lambda: fill(x, mask, 0.0, torch.empty_like(x))]), median_ms([lambda: x.masked_fill(mask, 0.0)]))
    src = torch.randn(x.numel(), device=DEV)
    record.time("masked_scatter", median_ms([lambda: scatter_masked(flat, mask, src, out)]), median_ms([lambda: x.masked_scatter(mask, src)], 8))
    rows, v = torch.randint(0, 8192, (8192,), device=DEV), torch.randn(8192, 8192, device=DEV)
    f = new_fault()
    record.time("x[rows]", median_ms([lambda: read(x, [rows], f)]), median_ms([lambda: x[rows]]))
    record.time("index_put rows", median_ms([lambda: write(x, [rows], v, f)]), median_ms([lambda: x.index_put_((rows,), v)]))
    record.time("index_put rows accumulate", median_ms([lambda: put_sum(x, [rows], v, f)], 8), median_ms([lambda: x.index_put_((rows,), v, accumulate=True)], 8))
    r, c, e = torch.randint(0, 8192, (4_000_000,), device=DEV), torch.randint(0, 8192, (4_000_000,), device=DEV), torch.randn(4_000_000, device=DEV)
    record.time("x[r, c] 4M", median_ms([lambda: read(x, [r, c], f)]), median_ms([lambda: x[r, c]]))
    record.time("index_put 4M, winner of every place", median_ms([lambda: write(x, [r, c], e, f)]))
    record.time("index_put 4M", median_ms([lambda: write_elements(x, [r, c], e, f)]), median_ms([lambda: x.index_put_((r, c), e)]))
    record.time("index_put 4M accumulate", median_ms([lambda: put_sum(x, [r, c], e, f)]), median_ms([lambda: x.index_put_((r, c), e, accumulate=True)], 8))
    keys = torch.empty(4_000_000, dtype=torch.int32, device=DEV)
    index, inner, n = index_of(x, [r, c])
    record.time("  of it: keys", median_ms([lambda: index_kernel(x, 1, "index_keys")(WIDE, 256, index, U64(n), keys, f)]))
    record.time("  of it: sort 27 bits", median_ms([lambda: sort_pairs(keys, 27)]), median_ms([lambda: keys.sort(stable=True)]))
    sk, so = sort_pairs(keys, 27)
    record.time("  of it: segments", median_ms([lambda: reduce_sorted(sk, so, n, e, x, 1)]))
    one = torch.zeros(4_000_000, dtype=torch.int64, device=DEV)
    record.time("index_put 4M accumulate into one place", median_ms([lambda: put_sum(x, [one, one], e, f)], 8))
    record.time("x[mask] = s", median_ms([lambda: fill(x, mask, 0.5, x)]), median_ms([lambda: x.__setitem__(mask, 0.5)]))
    g = torch.randint(0, 8192, (8192, 2048), device=DEV)
    record.time("gather dim 1 16M", median_ms([lambda: gather(x, 1, g, f)]), median_ms([lambda: x.gather(1, g)]))
    ids = torch.randint(0, 151_936, (16_384,), device=DEV)
    dy = torch.randn(16_384, 896, device=DEV, dtype=torch.bfloat16)
    grad = torch.zeros(151_936, 896, device=DEV, dtype=torch.bfloat16)
    peer = median_ms([lambda: torch.ops.aten.embedding_dense_backward(dy, ids, 151_936, -1, False)])
    record.time("embedding gradient 16k of 152k x 896", median_ms([lambda: put_sum(grad.zero_(), [ids], dy, f)]), peer)
    ids = torch.where(torch.rand(16_384, device=DEV) < 0.3, 7, ids)
    peer = median_ms([lambda: torch.ops.aten.embedding_dense_backward(dy, ids, 151_936, -1, False)])
    record.time("embedding gradient, 30 % one id", median_ms([lambda: put_sum(grad.zero_(), [ids], dy, f)]), peer)


def sanitize(record):
    x, m = torch.randn(9001).to(DEV), (torch.rand(9001) < 0.4).to(DEV)
    fault = new_fault()
    out = x.clone()
    select(x, m), fill(x, m, 1.0, out), scatter_masked(x, m, x, out)
    t, i = torch.randn(40, 24).to(DEV), torch.randint(0, 40, (9000,)).to(DEV)
    read(t, [i], fault), write(t, [i], torch.randn(9000, 24).to(DEV), fault)
    write_elements(x, [i], torch.randn(9000).to(DEV), fault)
    put_sum(t, [i], torch.randn(9000, 24).to(DEV), fault), put_sum(x, [i], torch.randn(9000).to(DEV), fault)
    torch.cuda.synchronize()


def profile(record):
    x = torch.randn(8192, 8192, device=DEV)
    mask = torch.rand(8192, 8192, device=DEV) < 0.3
    select(x.view(-1), mask), fill(x, mask, 0.0, torch.empty_like(x))
    r, c, e = torch.randint(0, 8192, (4_000_000,), device=DEV), torch.randint(0, 8192, (4_000_000,), device=DEV), torch.randn(4_000_000, device=DEV)
    put_sum(x, [r, c], e, new_fault())
    torch.cuda.synchronize()
