"""Softmax, reductions, running sums and sorting: checked against torch on the CPU in f64 or bit for bit, timed beside torch."""
import torch

from device import F64, I32, I64, Kernel
from indexing import NAMES, cdiv, twice
from timing import median_ms
from variants import ORDERS, radix_options, reduce_options, scan_options, softmax_options, sort_options

DEV = "cuda"
WIDE = 132 * 16
LOOSE = {torch.bfloat16: 4e-3, torch.float32: 1e-6, torch.float64: 1e-12, torch.int32: 0.0, torch.int64: 0.0}


def real_of(x):
    return {torch.bfloat16: torch.float32, torch.float16: torch.float32}.get(x.dtype, x.dtype)


def softmax(x, log, lanes, packets):
    y = torch.full_like(x, float("nan"))
    k = Kernel("softmax.cu", softmax_options(NAMES[x.dtype], log, lanes, packets), "softmax")
    k(WIDE, 256, x, y, I64(x.shape[0]), I64(x.shape[1]))
    return y


def softmax_grad(dy, y, log, lanes, packets):
    dx = torch.full_like(y, float("nan"))
    k = Kernel("softmax.cu", softmax_options(NAMES[y.dtype], log, lanes, packets), "softmax_grad")
    k(WIDE, 256, dy, y, dx, I64(y.shape[0]), I64(y.shape[1]))
    return dx


def name_of(x):
    return {torch.uint8: "u8"}.get(x.dtype) or NAMES[x.dtype]


def reduce_rows(x, op, map=0, place=0, scale=1.0):
    """Over the last dim of a matrix: values, or (values, places)."""
    (rows, cols), name = x.shape, name_of(x)
    tiles = max(1, cdiv(cols, 4096))
    o = reduce_options(name, name, op, map, place)
    parts, places = torch.empty(rows, tiles, dtype=real_of(x), device=DEV), torch.empty(rows, tiles, dtype=torch.int64, device=DEV)
    out, at = torch.empty(rows, dtype=x.dtype, device=DEV), torch.empty(rows, dtype=torch.int64, device=DEV)
    Kernel("reduce.cu", o, "reduce_rows")(min(rows * tiles, 132 * 64), 256, x, I64(rows), I64(cols), I64(tiles), parts, places, out, at, F64(scale))
    if tiles > 1:
        Kernel("reduce.cu", o, "reduce_tiles")(min(rows, WIDE), 256, parts, places, I64(rows), I64(tiles), out, at, F64(scale))
    return (out, at) if place else out


def reduce_columns(x, op, map=0, place=0, scale=1.0):
    """Over the middle dim of [outer, count, inner]."""
    (outer, count, inner), name = x.shape, name_of(x)
    tiles = max(1, cdiv(count, 256))
    o = reduce_options(name, name, op, map, place)
    parts, places = torch.empty(outer, tiles, inner, dtype=real_of(x), device=DEV), torch.empty(outer, tiles, inner, dtype=torch.int64, device=DEV)
    out, at = torch.empty(outer, inner, dtype=x.dtype, device=DEV), torch.empty(outer, inner, dtype=torch.int64, device=DEV)
    grid = (cdiv(inner, 32), min(outer * tiles, 65535))
    sizes = (I64(outer), I64(count), I64(inner), I64(tiles))
    Kernel("reduce.cu", o, "reduce_columns")(grid, 256, x, *sizes, parts, places, out, at, F64(scale))
    if tiles > 1:
        Kernel("reduce.cu", o, "reduce_column_tiles")(WIDE, 256, parts, places, I64(outer), I64(tiles), I64(inner), out, at, F64(scale))
    return (out, at) if place else out


def scan(x, op, exclusive=0):
    (rows, cols), name = x.shape, name_of(x)
    tiles, o = cdiv(cols, 2048), scan_options(name, name, op)
    y, sums = torch.empty_like(x), None
    sizes = (I64(rows), I64(cols), I64(tiles))
    grid = min(rows * tiles, 132 * 64)
    if tiles > 1:
        sums = torch.empty(rows, tiles, dtype=real_of(x), device=DEV)
        Kernel("scan.cu", o, "scan_tiles")(grid, 256, x, *sizes, sums)
        Kernel("scan.cu", o, "scan_sums")(min(rows, WIDE), 256, sums, I64(rows), I64(tiles))
    Kernel("scan.cu", o, "scan_rows")(grid, 256, x, *sizes, sums, y, I32(exclusive))
    return y


def sort(x, descending=0, kept=None):
    """Values and places of the sorted rows of a matrix; the first `kept` of each."""
    (rows, cols), name = x.shape, name_of(x)
    kept, n, o = kept or cols, x.numel(), sort_options(name)
    bits = ORDERS[name][0] + (rows - 1).bit_length()
    assert bits <= 64
    keys = torch.empty(n, dtype=torch.int64, device=DEV)
    Kernel("sort.cu", o, "sort_keys")(WIDE, 256, x, I64(rows), I64(cols), I32(descending), keys)
    passes, radix, tiles = cdiv(bits, 8), radix_options("u64", "u32"), cdiv(n, 4096)
    histogram = torch.zeros(passes, 256, dtype=torch.int64, device=DEV)
    Kernel("radix.cu", radix, "radix_histogram")(132 * 4, 256, keys, I64(n), I32(passes), histogram)
    Kernel("radix.cu", radix, "radix_scan")(passes, 256, histogram)
    status, order = torch.zeros(passes, tiles * 256 + 1, dtype=torch.int64, device=DEV), None
    for p in range(passes):
        new_keys, new_order = torch.empty_like(keys), torch.empty(n, dtype=torch.int32, device=DEV)
        Kernel("radix.cu", radix, "radix_pass")(tiles, 256, keys, order, I64(n), I32(8 * p), histogram[p], status[p], status[p][tiles * 256:], new_keys, new_order)
        keys, order = new_keys, new_order
    values, indices = torch.empty(rows, kept, dtype=x.dtype, device=DEV), torch.empty(rows, kept, dtype=torch.int64, device=DEV)
    Kernel("sort.cu", o, "sort_take")(WIDE, 256, x, order, I64(rows), I64(cols), I64(kept), values, indices)
    return values, indices


def check_softmax(record):
    for dtype, forms in ((torch.bfloat16, ((32, 1), (256, 1), (32, 0), (256, 0))), (torch.float32, ((32, 1), (256, 0))), (torch.float64, ((256, 0),))):
        for lanes, packets in forms:
            for rows, cols in ((300, 128), (40, 8192)) if packets else ((300, 77), (3, 5001)):
                for log in (0, 1):
                    x, dy = (torch.randn(rows, cols) * 3).to(dtype), torch.randn(rows, cols).to(dtype)
                    wide = x.double().log_softmax(1) if log else x.double().softmax(1)
                    name, limit = f"softmax {dtype} log {log} {rows}x{cols} lanes {lanes}", LOOSE[dtype]
                    twice(record, name, lambda: softmax(x.to(DEV), log, lanes, packets), wide, limit)
                    y = wide.to(dtype)
                    yd, g = y.double(), dy.double()
                    want = g - yd.exp() * g.sum(1, keepdim=True) if log else yd * (g - (g * yd).sum(1, keepdim=True))
                    twice(record, name + " gradient", lambda: softmax_grad(dy.to(DEV), y.to(DEV), log, lanes, packets), want, limit)


def check_reduce(record):
    plain = (lambda x, d: x.sum(d), lambda x, d: x.prod(d), lambda x, d: x.amax(d), lambda x, d: x.amin(d))
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64):
        for rows, cols in ((1, 1), (7, 4097), (3, 20_000), (500, 33), (1, 1_000_000)):
            for op in range(4):
                whole = not dtype.is_floating_point
                x = torch.randint(-9, 9, (rows, cols), dtype=dtype) if whole else (torch.rand(rows, cols) * 0.02 + 0.99 if op == 1 else torch.randn(rows, cols) + 0.2).to(dtype)
                wide = x if whole else x.double()
                if op == 1 and cols > 20_000:
                    continue
                want = plain[op](wide, 1).to(dtype) if whole or op > 1 else plain[op](wide, 1)
                limit = 0.0 if whole or op > 1 else LOOSE[dtype] * (20 if op == 1 else 1)
                twice(record, f"reduce rows {dtype} {rows}x{cols} op {op}", lambda: reduce_rows(x.to(DEV), op), want, limit)
                y = x.view(1, cols, rows) if cols <= 20_000 else x.view(10, -1, 20)
                wide = y if whole else y.double()
                want = plain[op](wide, 1).to(dtype) if whole or op > 1 else plain[op](wide, 1)
                twice(record, f"reduce columns {dtype} {tuple(y.shape)} op {op}", lambda: reduce_columns(y.to(DEV).contiguous(), op), want, limit)
                if op > 1:
                    first = wide.argmax(1) if op == 2 else wide.argmin(1)
                    hit = (wide == plain[op](wide, 1).unsqueeze(1)).int().argmax(1)
                    twice(record, f"places of columns {dtype} {tuple(y.shape)} op {op}", lambda: reduce_columns(y.to(DEV).contiguous(), op, 0, 1)[1], hit)
                    hit = (x == plain[op](x, 1).unsqueeze(1)).int().argmax(1)
                    twice(record, f"places of rows {dtype} {rows}x{cols} op {op}", lambda: reduce_rows(x.to(DEV), op, 0, 1)[1], hit)
    x = torch.randn(5, 9000)
    x[2, 8000], x[2, 8500] = float("nan"), float("nan")
    twice(record, "places: the first NaN is the extreme", lambda: reduce_rows(x.to(DEV), 2, 0, 1)[1], x.argmax(1))
    b = (torch.rand(40, 5000) < 0.0003).to(torch.uint8)
    twice(record, "any", lambda: reduce_rows(b.to(DEV), 4), b.bool().any(1).to(torch.uint8))
    twice(record, "all", lambda: reduce_rows(1 - b.to(DEV), 5), (1 - b).bool().all(1).to(torch.uint8))
    twice(record, "sum of squares, mean", lambda: reduce_rows(x[:2].to(DEV), 0, 1, 0, 1 / 9000), (x[:2].double() ** 2).mean(1), 1e-6)


def check_scan(record):
    plain = (lambda x: x.cumsum(1), lambda x: x.cumprod(1), lambda x: x.cummax(1)[0], lambda x: x.cummin(1)[0])
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64):
        for rows, cols in ((1, 1), (5, 2049), (300, 77), (2, 700_000)):
            for op in range(4):
                whole = not dtype.is_floating_point
                if op == 1 and cols > 3000:
                    continue
                x = torch.randint(-9, 9, (rows, cols), dtype=dtype) if whole else (torch.rand(rows, cols) * 0.02 + 0.99 if op == 1 else torch.randn(rows, cols) + 0.2).to(dtype)
                want = plain[op](x if whole or op > 1 else x.double()).to(dtype if whole or op > 1 else torch.float64)
                limit = 0.0 if whole or op > 1 else LOOSE[dtype] * (20 if op == 1 else 1)
                twice(record, f"scan {dtype} {rows}x{cols} op {op}", lambda: scan(x.to(DEV), op), want, limit)
    x = torch.randn(3, 5000)
    want = torch.cat([torch.zeros(3, 1), x.double().cumsum(1)[:, :-1]], 1)
    twice(record, "scan exclusive", lambda: scan(x.to(DEV), 0, 1), want, 1e-6)


def check_sort(record):
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.int64, torch.uint8):
        for rows, cols in ((1, 100_003), (50, 777), (1, 1)):
            if rows > 1 and dtype in (torch.float64, torch.int64):
                continue
            x = (torch.randn(rows, cols) * 90).to(dtype)
            if dtype.is_floating_point and cols > 100:
                x[0, 5], x[0, 50], x[0, 7], x[0, 8], x[0, 9] = float("nan"), float("nan"), float("inf"), 0.0, -0.0
            for descending in (0, 1):
                v, i = x.sort(dim=1, descending=bool(descending), stable=True)
                twice(record, f"sort {dtype} {rows}x{cols} descending {descending}: places", lambda: sort(x.to(DEV), descending)[1], i)
                # Taken as integers: torch's gather on the CPU changes the bits of a bf16 NaN.
                bits = x.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])
                twice(record, f"sort {dtype} {rows}x{cols} descending {descending}: values", lambda: sort(x.to(DEV), descending)[0].view(bits.dtype), bits.gather(1, i))
    x = torch.randn(50, 1000)
    twice(record, "top 7", lambda: sort(x.to(DEV), 1, 7)[0], x.topk(7, dim=1)[0])


def check(record):
    for part in (check_softmax, check_reduce, check_scan, check_sort):
        record.guard(part.__name__, lambda: part(record))


def time_all(record):
    x = torch.randn(8192, 8192, device=DEV)
    b = torch.randn(16_384, 2048, device=DEV, dtype=torch.bfloat16)
    record.time("sum of all 8192 x 8192 f32", median_ms([lambda: reduce_rows(x.view(1, -1), 0)]), median_ms([lambda: x.sum()]))
    record.time("sum of rows", median_ms([lambda: reduce_rows(x, 0)]), median_ms([lambda: x.sum(1)]))
    record.time("sum of columns", median_ms([lambda: reduce_columns(x.view(1, 8192, 8192), 0)]), median_ms([lambda: x.sum(0)]))
    record.time("argmax of rows", median_ms([lambda: reduce_rows(x, 2, 0, 1)]), median_ms([lambda: x.argmax(1)]))
    record.time("cumsum of rows", median_ms([lambda: scan(x, 0)]), median_ms([lambda: x.cumsum(1)]))
    record.time("cumsum of all", median_ms([lambda: scan(x.view(1, -1), 0)]), median_ms([lambda: x.view(-1).cumsum(0)]))
    record.time("softmax 16384 x 2048 bf16", median_ms([lambda: softmax(b, 0, 256, 1)]), median_ms([lambda: b.softmax(1)]))
    record.time("softmax, a warp a row", median_ms([lambda: softmax(b, 0, 32, 1)]))
    record.time("softmax gradient", median_ms([lambda: softmax_grad(b, b, 0, 256, 1)]), median_ms([lambda: torch._softmax_backward_data(b, b, 1, torch.bfloat16)]))
    f = torch.randn(1, 4_000_000, device=DEV)
    record.time("sort 4M f32", median_ms([lambda: sort(f)], 8), median_ms([lambda: f.sort(stable=True)], 8))
    r = torch.randn(64, 151_936, device=DEV, dtype=torch.bfloat16)
    record.time("sort 64 x 151936 bf16, top 50", median_ms([lambda: sort(r, 1, 50)], 8), median_ms([lambda: r.topk(50)], 8))


def sanitize(_record):
    x = torch.randn(5, 5000).to(DEV)
    softmax(x, 0, 32, 1), reduce_rows(x, 0), reduce_columns(x.view(1, 5, 5000), 2, 0, 1), scan(x, 0), sort(x)
    torch.cuda.synchronize()


def profile(_record):
    x = torch.randn(8192, 8192, device=DEV)
    reduce_rows(x, 0), reduce_columns(x.view(1, 8192, 8192), 0), scan(x, 0)
    torch.cuda.synchronize()
