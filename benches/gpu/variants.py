"""Which files are compiled with which options: needs neither torch nor a GPU."""

# (BM, BN, WARPS, BLOCKS, Q_IN_REGISTERS), the fastest of those tried first
FORWARD = {64: [(128, 64, 4, 2, 1), (64, 64, 4, 3, 1)], 128: [(128, 64, 4, 2, 0), (128, 64, 8, 1, 1)]}
# (BM, WARPS, BLOCKS, KEYS_IN_REGISTERS)
KEYS = {64: [(64, 4, 2, 1), (64, 4, 3, 0)], 128: [(64, 4, 2, 0), (64, 8, 1, 0)]}
# (BN, WARPS, BLOCKS, QUERIES_IN_REGISTERS)
QUERIES = {64: [(64, 4, 3, 1), (64, 8, 2, 0)], 128: [(64, 8, 1, 1), (64, 4, 2, 0)]}


def forward_options(dim, v, element="bf16", mask=0):
    names = ("BM", "BN", "WARPS", "BLOCKS", "Q_IN_REGISTERS")
    return [f"-DELEMENT={element}", f"-DDIM={dim}", f"-DMASK={mask}"] + [f"-D{n}={x}" for n, x in zip(names, v)]


def keys_options(dim, v, element="bf16", mask=0):
    names = ("BM", "WARPS", "BLOCKS", "KEYS_IN_REGISTERS")
    return [f"-DELEMENT={element}", f"-DDIM={dim}", f"-DMASK={mask}"] + [f"-D{n}={x}" for n, x in zip(names, v)]


def queries_options(dim, v, element="bf16", mask=0):
    names = ("BN", "WARPS", "BLOCKS", "QUERIES_IN_REGISTERS")
    return [f"-DELEMENT={element}", f"-DDIM={dim}", f"-DMASK={mask}"] + [f"-D{n}={x}" for n, x in zip(names, v)]


# (GROUPS, BN, STAGES, TURNS, POLYNOMIAL)
FORWARD_TMA = {64: [(3, 128, 2, 1, 0), (3, 128, 2, 0, 0), (2, 128, 2, 1, 0), (3, 128, 2, 1, 8)], 128: [(2, 128, 2, 1, 0), (2, 128, 2, 0, 0)]}
# (GROUPS, BM, STAGES) and (GROUPS, BN, STAGES)
KEYS_TMA = {64: [(2, 64, 4), (2, 64, 3)], 128: [(2, 64, 3), (2, 64, 2)]}
QUERIES_TMA = {64: [(2, 128, 2), (3, 64, 3)], 128: [(2, 128, 2), (2, 64, 3)]}


def tma_options(names, dim, v, element):
    return [f"-DELEMENT={element}", f"-DDIM={dim}"] + [f"-D{n}={x}" for n, x in zip(names, v)]


def forward_tma_options(dim, v, element="bf16"):
    return tma_options(("GROUPS", "BN", "STAGES", "TURNS", "POLYNOMIAL"), dim, v, element)


def keys_tma_options(dim, v, element="bf16"):
    return tma_options(("GROUPS", "BM", "STAGES"), dim, v, element)


def queries_tma_options(dim, v, element="bf16"):
    return tma_options(("GROUPS", "BN", "STAGES"), dim, v, element)


def options(**defines):
    return [f"-D{k}={v}" for k, v in defines.items()]


def mask_options(element):
    return options(ELEMENT=element)


def radix_options(key="u32", payload="u32"):
    return options(KEY=key, PAYLOAD=payload)


def index_options(element="u32", offset="u32", packets=0):
    return options(ELEMENT=element, WORD=offset, PACKETS=packets)


def segment_options(element="f32", packets=0, word="u32"):
    return options(ELEMENT=element, WORD=word, PACKETS=packets)


# (LANES, PER, GROUPS) by columns of bf16, first the one to use.
NORMS = {896: [(128, 1, 8), (64, 2, 8)], 1536: [(64, 3, 8), (64, 3, 4)], 3584: [(256, 2, 2)], 100: [(128, 1, 4)]}


def norm_options(lanes, per, groups, element="bf16", center=0, packets=1):
    return options(ELEMENT=element, WEIGHT=element, CENTER=center, LANES=lanes, PER=per, PACKETS=packets, GROUPS=groups)


ENTROPY_THREADS = (256, 512)


def plain_options(element, span, mask=0):
    return options(ELEMENT=element, SPAN=span, MASK=mask)


def attention_wanted():
    out = [("attention_plain.cu", plain_options(e, s)) for e in ("f32", "f64", "bf16", "f16") for s in (1, 2, 3, 4, 8)]
    out += [("attention_plain.cu", plain_options(e, s, m)) for e, s, m in (("bf16", 3, 1), ("f32", 1, 2))]
    for dim in (64, 128):
        out += [("attention_forward.cu", forward_options(dim, v)) for v in FORWARD[dim]]
        out += [("attention_grad_keys.cu", keys_options(dim, v)) for v in KEYS[dim]]
        out += [("attention_grad_queries.cu", queries_options(dim, v)) for v in QUERIES[dim]]
        out += [("attention_forward_tma.cu", forward_tma_options(dim, v)) for v in FORWARD_TMA[dim]]
        out.append(("attention_forward_tma.cu", forward_tma_options(dim, FORWARD_TMA[dim][0], "f16")))
        out += [("attention_grad_keys_tma.cu", keys_tma_options(dim, v)) for v in KEYS_TMA[dim]]
        out += [("attention_grad_queries_tma.cu", queries_tma_options(dim, v)) for v in QUERIES_TMA[dim]]
        out.append(("attention_grad_keys_tma.cu", keys_tma_options(dim, KEYS_TMA[dim][0], "f16")))
        out.append(("attention_grad_queries_tma.cu", queries_tma_options(dim, QUERIES_TMA[dim][0], "f16")))
        for element, mask in (("f16", 0), ("bf16", 1), ("bf16", 2)):
            out.append(("attention_forward.cu", forward_options(dim, FORWARD[dim][0], element, mask)))
            out.append(("attention_grad_keys.cu", keys_options(dim, KEYS[dim][0], element, mask)))
            out.append(("attention_grad_queries.cu", queries_options(dim, QUERIES[dim][0], element, mask)))
    return out


def indexing_wanted():
    out = [("mask.cu", mask_options(e)) for e in ("u8", "u16", "u32", "u64")]
    out += [("radix.cu", radix_options(k, p)) for k, p in (("u16", "u32"), ("u32", "u32"), ("u64", "u32"), ("u64", "u64"))]
    out += [("index.cu", index_options(e, o, p)) for e in ("u8", "u16", "u32", "u64") for o in ("u32", "u64") for p in (0, 1)]
    out += [("segment_small.cu", ())]
    for element in ("bf16", "f16", "f32", "f64", "i32", "i64"):
        out += [("segment.cu", segment_options(element, packets)) for packets in (0, 1)]
    return out


def adamw_options(param, grad, master, max=0):
    return options(PARAM=param, GRAD=grad, MOMENT="f32", MASTER=master, MAX=max) + ["--fmad=false"]


def training_wanted():
    out = [("norm.cu", norm_options(*v)) for vs in NORMS.values() for v in vs]
    out += [("norm.cu", norm_options(128, 1, 4, e, c, 0)) for e in ("bf16", "f16", "f32", "f64") for c in (0, 1)]
    out += [("norm.cu", norm_options(64, 2, 8, "bf16", 1, 1))]
    out += [("columns.cu", options(ELEMENT=e, OUT=o, PACKETS=p)) for e, o in (("bf16", "f32"), ("f32", "f32"), ("f32", "bf16"), ("f64", "f64")) for p in (0, 1)]
    out += [("rotary.cu", options(ELEMENT=e, PAIRS=pairs, PACKETS=p)) for e in ("bf16", "f32") for pairs in (0, 1) for p in (0, 1)]
    out += [("gated.cu", options(ELEMENT=e, ACT=a, PACKETS=p)) for e in ("bf16", "f32", "f64") for a in range(3) for p in (0, 1)]
    out += [("cross_entropy.cu", options(ELEMENT="bf16", GRAD=1, THREADS=t, PACKETS=1)) for t in ENTROPY_THREADS]
    out += [("cross_entropy.cu", options(ELEMENT=e, GRAD=1, THREADS=512, PACKETS=0)) for e in ("bf16", "f32", "f64")]
    for param, grad, master in (("bf16", "bf16", 1), ("bf16", "f32", 1), ("f32", "f32", 0), ("bf16", "bf16", 0)):
        out += [("adamw.cu", adamw_options(param, grad, master, m)) for m in (0, 1)]
    out += [("exact_norm.cu", options(ELEMENT=e)) for e in ("bf16", "f16", "f32")]
    return out


LIMITS = {"f32": ("-INFINITE", "INFINITE"), "f64": ("-INFINITE", "INFINITE"), "bf16": ("-INFINITE", "INFINITE"), "f16": ("-INFINITE", "INFINITE"),
          "i32": ("(-0x7fffffff-1)", "0x7fffffff"), "i64": ("(-0x7fffffffffffffffll-1)", "0x7fffffffffffffffll"), "u8": ("0", "255")}
# bits, float, signed, bits of infinity
ORDERS = {"f32": (32, 1, 1, "0x7f800000"), "f64": (64, 1, 1, "0x7ff0000000000000ull"), "bf16": (16, 1, 1, "0x7f80"), "f16": (16, 1, 1, "0x7c00"),
          "i32": (32, 0, 1, "0"), "i64": (64, 0, 1, "0"), "u8": (8, 0, 0, "0")}


def reduce_options(element, out, op, map=0, place=0):
    least, greatest = LIMITS[element]
    return options(ELEMENT=element, OUT=out, OP=op, MAP=map, PLACE=place, LEAST=least, GREATEST=greatest)


def scan_options(element, out, op):
    least, greatest = LIMITS[element]
    return options(ELEMENT=element, OUT=out, OP=op, LEAST=least, GREATEST=greatest)


def softmax_options(element, log, lanes, packets):
    return options(ELEMENT=element, LOG=log, LANES=lanes, PACKETS=packets)


def sort_options(element):
    bits, is_float, is_signed, infinity = ORDERS[element]
    return options(ELEMENT=element, KEY="u64", BITS=bits, FLOAT=is_float, SIGNED=is_signed, INFINITY_BITS=infinity, PAYLOAD="u32")


def basics_wanted():
    out = [("softmax.cu", softmax_options(e, log, lanes, p)) for e in ("bf16", "f32") for log in (0, 1) for lanes in (32, 256) for p in (0, 1)]
    out += [("softmax.cu", softmax_options("f64", log, 256, 0)) for log in (0, 1)]
    for e in ("f32", "bf16", "f64", "i32", "i64"):
        out += [("reduce.cu", reduce_options(e, e, op)) for op in range(4)] + [("reduce.cu", reduce_options(e, e, op, 0, 1)) for op in (2, 3)]
        out += [("scan.cu", scan_options(e, e, op)) for op in range(4)]
    out += [("reduce.cu", reduce_options("u8", "u8", op)) for op in (4, 5)] + [("reduce.cu", reduce_options("f32", "f32", 0, 1))]
    out += [("sort.cu", sort_options(e)) for e in ORDERS]
    return out


GEMV_TILES = (1, 2, 4, 8)


def generation_wanted():
    out = [("gemv.cu", options(ELEMENT="bf16", TILES=t, WARPS=w)) for t in GEMV_TILES for w in (4, 8)]
    return out + [("decode.cu", options(ELEMENT="bf16", DIM=d, WARPS=w)) for d in (64, 128) for w in (2, 4)]


def wanted():
    return attention_wanted() + indexing_wanted() + training_wanted() + basics_wanted() + generation_wanted()
