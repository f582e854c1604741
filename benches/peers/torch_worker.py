"""torch's side of the benchmarks. Argument: number of threads. Reads lines `CASE MILLISECONDS`, answers one JSON line each.

The case names and shapes are those of benches/src/table.rs."""
import json
import sys

import torch
import torch.nn.functional as F

from inputs import checksum, coin, integers, normal
from measure import measure, peak, watch

MOST_SAMPLES = 60


def learn(*tensors):
    for t in tensors:
        t.requires_grad_()
    return tensors


def with_grad(inputs, fn):
    """Forward and backward with respect to all inputs; the gradients are dropped each time."""
    out = fn()
    shape = out.shape if out.dim() else (1,)
    seed_grad = normal(90, *shape).reshape(out.shape)

    def run():
        for i in inputs:
            i.grad = None
        fn().backward(seed_grad)
        return [i.grad for i in inputs]
    return run


def setter(x, index, value):
    def run():
        x[index] = value
        return x
    return run


def masks(name):
    if name == 'mask_get_rows':
        x, m = normal(1, 16384, 256), coin(2, 16384)
        return lambda: x[m]
    x, m = normal(1, 4096, 1024), coin(2, 4096, 1024)
    if name == 'mask_get_full':
        return lambda: x[m]
    if name == 'mask_set_scalar':
        return setter(x, m, 0.5)
    return setter(x, m, normal(3, int(m.sum())))


def gathers(name):
    if name == 'idx_get_rows':
        x, i = normal(1, 50257, 768), integers(2, 50257, 4096)
        return lambda: x[i]
    if name == 'idx_get_rows_bwd':
        x, i = normal(1, 50257, 256), integers(2, 50257, 4096)
        learn(x)
        return with_grad([x], lambda: x[i])
    if name == 'idx_get_2':
        x, i, j = normal(1, 256, 128, 256), integers(2, 256, 2048), integers(3, 256, 2048)
        return lambda: x[i, :, j]
    if name == 'gather':
        x, i = normal(1, 4096, 4096), integers(2, 4096, 4096, 1024)
        return lambda: x.gather(1, i)
    x, i, v = torch.zeros(4096, 4096), integers(2, 4096, 4096, 1024), normal(3, 4096, 1024)
    return lambda: x.scatter_add(1, i, v)


def puts(name):
    if name == 'put_rows_acc':
        x, i, v = normal(1, 50257, 256), integers(2, 50257, 8192), normal(3, 8192, 256)
        return lambda: x.index_put_((i,), v, accumulate=True)
    n = 1 << (18 if name == 'put_bwd' else 20)
    x, i, j, v = normal(1, 4096, 1024), integers(2, 4096, n), integers(3, 1024, n), normal(4, n)
    if name == 'put_bwd':
        learn(x, v)
        return with_grad([x, v], lambda: x.index_put((i, j), v, accumulate=True))
    if name == 'put_elem':
        # Which of several writes to one place wins is unspecified, so the value is the same for all of them.
        v = torch.full((n,), 0.25)
    return lambda: x.index_put_((i, j), v, accumulate=name == 'put_elem_acc')


def copies(name):
    if name == 'slice_copy':
        x = normal(1, 4096, 4096)
        return lambda: x[::2, 1:-1].contiguous()
    if name == 'slice_set':
        x, v = normal(1, 4096, 4096), normal(2, 2048, 4094)
        return setter(x, (slice(None, None, 2), slice(1, -1)), v)
    if name == 'transpose_copy':
        x = normal(1, 4096, 4096)
        return lambda: x.t().contiguous()
    if name == 'permute_copy':
        x = normal(1, 8, 512, 16, 64)
        return lambda: x.permute(0, 2, 1, 3).contiguous()
    x = normal(1, 1 << 24)
    return lambda: x.clone()


def masked_fills(name):
    m, x = torch.ones(512, 512).triu(1).bool(), normal(1, 8, 8, 512, 512)
    if name == 'masked_fill':
        return lambda: x.masked_fill(m, float('-inf'))
    learn(x)
    return with_grad([x], lambda: x.masked_fill(m, -1e9))


def norms(name):
    kind = name.removesuffix('_bwd')
    if kind in ('layer_norm', 'rms_norm'):
        x, w, c = normal(1, 4096, 1024), torch.ones(1024), torch.zeros(1024)
    else:
        x, w, c = normal(1, 32, 64, 56, 56), torch.ones(64), torch.zeros(64)
    mean, var = torch.zeros(64), torch.ones(64)
    fn = {'layer_norm': lambda: F.layer_norm(x, (1024,), w, c),
          'rms_norm': lambda: F.rms_norm(x, (1024,), w, 1e-6),
          'batch_norm': lambda: F.batch_norm(x, mean, var, w, c, training=True),
          'group_norm': lambda: F.group_norm(x, 32, w, c)}[kind]
    if kind == name:
        return fn
    inputs = [x, w] if kind == 'rms_norm' else [x, w, c]
    learn(*inputs)
    return with_grad(inputs, fn)


def losses(name):
    kind = name.removesuffix('_bwd')
    if kind == 'softmax':
        x = normal(1, 4096, 1024)
        fn = lambda: F.softmax(x, -1)
    else:
        x, t = normal(1, 1024, 32000), integers(2, 32000, 1024)
        fn = lambda: F.cross_entropy(x, t)
    if kind == name:
        return fn
    learn(x)
    return with_grad([x], fn)


def adamw(name):
    count, size = (1, 10_000_000) if name == 'adamw_10m' else (40, 250_000)
    params = [torch.nn.Parameter(normal(1 + i, size)) for i in range(count)]
    for i, p in enumerate(params):
        p.grad = normal(100 + i, size) * .01
    optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=.01, fused=True)

    def run():
        optimizer.step()
        return params
    return run


def elementwise(name):
    n = 1 << (20 if name == 'add1m' else 24)
    x = normal(1, n)
    if name in ('add1m', 'add16m'):
        y = normal(2, n)
        return lambda: x + y
    if name == 'add16m_out':
        y, z = normal(2, n), normal(3, n)
        return lambda: torch.add(x, y, out=z)
    if name == 'add_bcast16m':
        x, y = x.view(4096, 4096), normal(2, 4096)
        return lambda: x + y
    if name == 'gelu16m':
        return lambda: F.gelu(x)
    if name == 'gelu_tanh16m':
        return lambda: F.gelu(x, approximate='tanh')
    learn(x)
    return with_grad([x], lambda: F.gelu(x))


def sums(name):
    if name == 'sum16m':
        x = normal(1, 1 << 24)
        return lambda: x.sum()
    x = normal(1, 4096, 4096)
    return (lambda: x.sum(0)) if name == 'sum_dim0' else (lambda: x.sum(1))


def blocks(name):
    if name == 'linear_bwd':
        x, w, c = learn(normal(1, 1024, 768), normal(2, 3072, 768), normal(3, 3072))
        return with_grad([x, w, c], lambda: F.linear(x, w, c))
    q, k, v = learn(*(normal(i, 4, 8, 256, 64) for i in (1, 2, 3)))
    return with_grad([q, k, v], lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))


def overheads(name):
    if name == 'small_add_overhead':
        x, y = normal(1, 8), normal(2, 8)

        def run():
            for _ in range(1000):
                z = x + y
            return z
        return run
    x = normal(1, 8, 8)

    def run():
        for _ in range(1000):
            z = x[1:3, ::2]
        return z
    return run


def train(name):
    """The model of `src/cases/train.rs`, with the same numbers in it."""
    vocabulary, width, heads, layers, inner, batch, length = 4096, 256, 4, 4, 1024, 8, 128
    seed = iter(range(1, 1000))

    def weight(*shape, scale):
        return (normal(next(seed), *shape) * scale).requires_grad_()

    def linear(a, b):
        return weight(b, a, scale=a ** -.5), torch.zeros(b, requires_grad=True)

    def norm():
        return torch.ones(width, requires_grad=True), torch.zeros(width, requires_grad=True)

    tokens, positions = weight(vocabulary, width, scale=1.), weight(length, width, scale=.02)
    blocks = [(norm(), norm(), linear(width, 3 * width), linear(width, width), linear(width, inner),
               linear(inner, width)) for _ in range(layers)]
    last, head = norm(), weight(vocabulary, width, scale=1 / 16)
    bias = torch.full((length, length), float('-inf')).triu(1)
    ids = integers(500, vocabulary, batch, length)
    params = [tokens, positions, head, *last, *(p for b in blocks for pair in b for p in pair)]

    def loss():
        x = F.embedding(ids, tokens) + positions
        for n1, n2, qkv, out, up, down in blocks:
            y = F.linear(F.layer_norm(x, (width,), *n1), *qkv)
            q, k, v = y.view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            a = (q @ k.transpose(-1, -2)) * (width // heads) ** -.5 + bias
            x = x + F.linear((F.softmax(a, -1) @ v).transpose(1, 2).reshape(batch, length, width), *out)
            y = F.gelu(F.linear(F.layer_norm(x, (width,), *n2), *up), approximate='tanh')
            x = x + F.linear(y, *down)
        logits = F.linear(F.layer_norm(x, (width,), *last), head)
        return F.cross_entropy(logits.view(-1, vocabulary), ids.view(-1))

    if name == 'train_fwd':
        def run():
            with torch.no_grad():
                return loss()
        return run
    optimizer = torch.optim.AdamW(params, lr=1e-3, fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        optimizer.step()
        return value.detach()
    return step


def gemm(name):
    _, dtype, *sizes = name.split('_')
    b, m, k, n = map(int, sizes)
    a, c = normal(1, b, m, k), normal(2, b, k, n)
    if b == 1:
        a, c = a[0], c[0]
    if dtype == 'bf16':
        a, c = a.bfloat16(), c.bfloat16()
    out = torch.matmul(a, c)
    return lambda: torch.matmul(a, c, out=out)


BUILDERS = [
    (masks, ['mask_get_full', 'mask_get_rows', 'mask_set_scalar', 'mask_set_values']),
    (gathers, ['idx_get_rows', 'idx_get_rows_bwd', 'idx_get_2', 'gather', 'scatter_add']),
    (puts, ['put_elem', 'put_elem_acc', 'put_rows_acc', 'put_bwd']),
    (copies, ['slice_copy', 'slice_set', 'transpose_copy', 'permute_copy', 'copy16m']),
    (masked_fills, ['masked_fill', 'masked_fill_bwd']),
    (norms, [n + b for n in ('layer_norm', 'rms_norm', 'batch_norm', 'group_norm') for b in ('', '_bwd')]),
    (losses, ['softmax', 'softmax_bwd', 'cross_entropy', 'cross_entropy_bwd']),
    (adamw, ['adamw_10m', 'adamw_10m_40t']),
    (elementwise, ['add1m', 'add16m', 'add16m_out', 'add_bcast16m', 'gelu16m', 'gelu_tanh16m', 'gelu16m_bwd']),
    (sums, ['sum16m', 'sum_dim0', 'sum_dim1']),
    (blocks, ['linear_bwd', 'sdpa_causal_bwd']),
    (train, ['train_step', 'train_fwd']),
    (overheads, ['small_add_overhead', 'small_getitem_overhead']),
]


def build(name):
    for builder, names in BUILDERS:
        if name in names:
            return builder(name)
    if name.startswith('gemm_'):
        return gemm(name)
    raise NotImplementedError(name)


def answer(name, milliseconds):
    try:
        before = watch()
        run = build(name)
        first = run()
        check = checksum(first if isinstance(first, list) else [first])
        del first
        samples = measure(run, milliseconds / 1000, MOST_SAMPLES)
        return {'s': samples, 'check': check, 'peak': peak(before)}
    except Exception as error:
        return {'unsupported': repr(error)[:400]}


def main():
    torch.set_num_threads(int(sys.argv[1]))
    print('ready', flush=True)
    for line in sys.stdin:
        name, milliseconds = line.split()
        torch.set_grad_enabled(not name.startswith('gemm_'))
        print(json.dumps(answer(name, float(milliseconds))), flush=True)


if __name__ == '__main__':
    main()
