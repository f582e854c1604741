"""A whole training step of Qwen2-0.5B made of our kernels, beside torch.compile: what a trainer on them can reach.

Products go through torch (cuBLAS) into preallocated arrays; everything else is ours. bf16 weights, gradients and activations, f32 masters and
moments. The loss is taken in chunks of 2048 rows; SwiGLU's result is not kept.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from attention import Attention, Mma, cdiv, strides
from attention_tma import Forward, Keys, Queries
from basics import reduce_rows
from device import F64, I32, I64, Kernel
from indexing import index_kernel, index_of, put_sum
from timing import error
from training import adamw_tables, column_sums, constants, cross_entropy, exact, exact_tables, gated, gated_grad, rotate, tables
from variants import ENTROPY_THREADS, FORWARD_TMA, KEYS_TMA, NORMS, QUERIES_TMA, adamw_options, norm_options, options

DEV, BF = "cuda", torch.bfloat16
EPS, CHUNK = 1e-6, 2048


class Shape:
    def __init__(self, vocab=151_936, layers=24, dim=896, heads=14, kv=2, ffn=4864):
        self.vocab, self.layers, self.dim, self.heads, self.kv, self.ffn = vocab, layers, dim, heads, kv, ffn
        self.head_dim = dim // heads
        self.qkv = (heads + 2 * kv) * self.head_dim


# --- The peer: plain torch. ---

class Rms(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return F.rms_norm(x, (x.size(-1),), self.w, EPS)


def turn(x, cos, sin):
    h = x.size(-1) // 2
    return torch.cat([x[..., :h] * cos - x[..., h:] * sin, x[..., h:] * cos + x[..., :h] * sin], -1)


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.q, self.k, self.v = nn.Linear(s.dim, s.dim), nn.Linear(s.dim, s.kv * s.head_dim), nn.Linear(s.dim, s.kv * s.head_dim)
        self.o = nn.Linear(s.dim, s.dim, bias=False)
        self.g, self.u = nn.Linear(s.dim, s.ffn, bias=False), nn.Linear(s.dim, s.ffn, bias=False)
        self.dn, self.n1, self.n2 = nn.Linear(s.ffn, s.dim, bias=False), Rms(s.dim), Rms(s.dim)

    def forward(self, x, cos, sin):
        (b, t, d), s, y = x.shape, self.s, self.n1(x)
        q, k, v = (f(y).view(b, t, -1, s.head_dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(turn(q, cos, sin), turn(k, cos, sin), v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, d))
        y = self.n2(x)
        return x + self.dn(F.silu(self.g(y)) * self.u(y))


class Model(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s, self.e = s, nn.Embedding(s.vocab, s.dim)
        self.b, self.n = nn.ModuleList([Block(s) for _ in range(s.layers)]), Rms(s.dim)
        nn.init.normal_(self.e.weight, std=0.02)

    def forward(self, t):
        pos = torch.arange(t.size(1), device=t.device, dtype=torch.float32)
        angle = pos[:, None] * 1e6 ** (-torch.arange(0, self.s.head_dim, 2, device=t.device) / self.s.head_dim)
        cos, sin, x = angle.cos().to(self.e.weight.dtype), angle.sin().to(self.e.weight.dtype), self.e(t)
        for block in self.b:
            x = block(x, cos, sin)
        return self.n(x) @ self.e.weight.t()


def peer_loss(model, run, tokens):
    logits = run(tokens[:, :-1])
    return F.cross_entropy(logits.float().view(-1, logits.size(-1)), tokens[:, 1:].reshape(-1))


# --- Ours. ---

class Saved:
    """A layer's attention, as the launchers of attention_tma want it: views of the fused product and of shared gradients."""

    def __init__(self, s, batch, length, qkv, out, lse, shared):
        view = lambda x: x.view(batch, length, -1, s.head_dim)
        self.q, self.k, self.v = view(qkv).split([s.heads, s.kv, s.kv], 2)
        self.dq, self.dk, self.dv = view(shared["dqkv"]).split([s.heads, s.kv, s.kv], 2)
        self.out, self.dout, self.lse, self.delta = view(out), view(shared["da"]), lse, shared["delta"]
        self.s = Attention().fill(q=self.q, k=self.k, v=self.v, out=self.out, lse=lse, dout=self.dout, delta=self.delta, dq=self.dq, dk=self.dk,
                                  dv=self.dv, batch=batch, q_heads=s.heads, kv_heads=s.kv, q_len=length, k_len=length, parts=1, causal=1,
                                  scale=1 / math.sqrt(s.head_dim))
        for name in "q k v out dout dq dk dv".split():
            self.s.fill(**{name + "_stride": strides(getattr(self, name))})


class Step:
    """Weights, activations and launches of one training step."""

    def __init__(self, model, batch, length):
        s = self.s = model.s
        n = self.n = batch * length
        self.batch, self.length = batch, length
        new = lambda *shape, dtype=BF: torch.empty(*shape, device=DEV, dtype=dtype)
        copy = lambda *parts: torch.cat([p.detach() for p in parts]).to(BF).contiguous()
        self.weights = {"e": copy(model.e.weight), "n": copy(model.n.w)}
        for i, b in enumerate(model.b):
            self.weights |= {f"qkv{i}": copy(b.q.weight, b.k.weight, b.v.weight), f"bias{i}": copy(b.q.bias, b.k.bias, b.v.bias), f"o{i}": copy(b.o.weight),
                             f"gu{i}": copy(b.g.weight, b.u.weight), f"dn{i}": copy(b.dn.weight), f"n1{i}": copy(b.n1.w), f"n2{i}": copy(b.n2.w)}
        self.grads = {k: torch.empty_like(w) for k, w in self.weights.items()}
        self.masters = {k: w.float() for k, w in self.weights.items()}
        moments = {k: (torch.zeros_like(m), torch.zeros_like(m)) for k, m in self.masters.items()}
        self.update = adamw_tables([(w, self.masters[k], self.grads[k], *moments[k]) for k, w in self.weights.items()], [0] * len(self.weights))
        self.moments, self.norm_tables = moments, exact_tables(list(self.grads.values()))
        self.constants = torch.tensor([constants(1, lr=1e-4, decay=0.01, beta2=0.999, scale=1.0)], dtype=torch.float32, device=DEV)
        self.head_grad = new(s.vocab, s.dim, dtype=torch.float32)
        self.cos, self.sin = tables(length, s.head_dim // 2)
        shared = self.shared = {"dqkv": new(n, s.qkv), "da": new(n, s.dim), "delta": new(batch, s.heads, length, dtype=torch.float32), "act": new(n, s.ffn),
                                "dact": new(n, s.ffn), "branch": new(n, s.dim), "dy": new(n, s.dim), "dh": (new(n, s.dim), new(n, s.dim)),
                                "scores": new(CHUNK, s.vocab), "parts": new(2, cdiv(n, 128), s.dim, dtype=torch.float32), "loss": new(n, dtype=torch.float32)}
        self.layers = []
        for i in range(s.layers):
            a = {k: new(n, w) for k, w in (("h", s.dim), ("y1", s.dim), ("qkv", s.qkv), ("a", s.dim), ("h2", s.dim), ("y2", s.dim), ("gu", 2 * s.ffn))}
            a |= {"r1": new(n, dtype=torch.float32), "r2": new(n, dtype=torch.float32)}
            a["attention"] = Saved(s, batch, length, a["qkv"], a["a"], new(batch, s.heads, length, dtype=torch.float32), shared)
            self.layers.append(a)
        self.last = {"h": new(n, s.dim), "y": new(n, s.dim), "r": new(n, dtype=torch.float32)}
        self.scale = torch.full((1,), 1 / n, device=DEV)
        self.lanes, self.per, self.groups = NORMS[s.dim][0]
        o = norm_options(self.lanes, self.per, self.groups)
        self.norm_forward, self.norm_grad = Kernel("norm.cu", o, "norm_forward"), Kernel("norm.cu", o, "norm_grad")
        self.fold = Kernel("columns.cu", options(ELEMENT="f32", OUT="bf16", PACKETS=0), "column_fold")
        d = s.head_dim
        self.attend, self.attend_keys, self.attend_queries = Forward(d, FORWARD_TMA[d][0]), Keys(d, KEYS_TMA[d][0]), Queries(d, QUERIES_TMA[d][0])
        self.delta = Mma(d).delta_kernel
        self.fault = torch.full((8, 4), -1, dtype=torch.int64, device=DEV)
        self.pick_head_product()

    def pick_head_product(self):
        """Sums of the head's gradient in f32 where torch can, else in bf16."""
        ds, y = torch.zeros(CHUNK, 64, device=DEV, dtype=BF), torch.zeros(CHUNK, 64, device=DEV, dtype=BF)
        try:
            out = torch.zeros(64, 64, device=DEV)
            torch.addmm(out, ds.t(), y, out_dtype=torch.float32, out=out)
            self.head_form = "f32 in place"
        except Exception:  # noqa: BLE001: an older torch
            self.head_form = "bf16 in place"

    def norm(self, x, residual, added, weight, y, rstd):
        rows, cols = y.shape
        grid = min(cdiv(rows, 256 // self.lanes), 132 * 64)
        self.norm_forward(grid, 256, x, residual, added, weight, None, y, None, rstd, I64(rows), I32(cols), F64(EPS))

    def norm_back(self, dy, h, name, rstd, carried, dx):
        rows, cols = h.shape
        tiles, parts = cdiv(rows, 128), self.shared["parts"]
        room = self.groups * self.lanes * self.per * 8 * 4
        self.norm_grad(tiles, self.lanes * self.groups, dy, h, self.weights[name], None, rstd, carried, dx, parts[0], parts[1], I64(rows), I32(cols), shared=room)
        self.fold(cdiv(cols, 32), 256, parts[0], I64(tiles), I64(cols), self.grads[name], I32(0))

    def forward(self, tokens):
        s, w, sh = self.s, self.weights, self.shared
        for i, a in enumerate(self.layers):
            if i == 0:
                index, inner, _ = index_of(w["e"], [tokens])
                index_kernel(w["e"], inner, "index_read")(132 * 16, 256, index, w["e"], I64(inner), a["h"], self.fault)
                self.norm(a["h"], None, None, w["n10"], a["y1"], a["r1"])
            else:
                self.norm(sh["branch"], self.layers[i - 1]["h2"], a["h"], w[f"n1{i}"], a["y1"], a["r1"])
            torch.addmm(w[f"bias{i}"], a["y1"], w[f"qkv{i}"].t(), out=a["qkv"])
            rotate(a["qkv"], a["qkv"], s.heads + s.kv, s.head_dim, s.head_dim // 2, None, self.length, self.cos, self.sin, 1, 0, 1)
            self.attend(a["attention"])
            torch.mm(a["a"], w[f"o{i}"].t(), out=sh["branch"])
            self.norm(sh["branch"], a["h"], a["h2"], w[f"n2{i}"], a["y2"], a["r2"])
            torch.mm(a["y2"], w[f"gu{i}"].t(), out=a["gu"])
            gated(a["gu"], sh["act"], 0, 1)
            torch.mm(sh["act"], w[f"dn{i}"].t(), out=sh["branch"])
        self.norm(sh["branch"], self.layers[-1]["h2"], self.last["h"], w["n"], self.last["y"], self.last["r"])

    def loss(self, labels):
        """The mean loss; leaves the gradient of the last norm's result and of the head."""
        w, sh, losses = self.weights["e"], self.shared, []
        for c in range(0, self.n, CHUNK):
            y, scores = self.last["y"][c:c + CHUNK], sh["scores"][:min(CHUNK, self.n - c)]
            torch.mm(y, w.t(), out=scores)
            losses.append(cross_entropy(scores, scores, labels[c:c + CHUNK], self.scale, ENTROPY_THREADS[0], 1)[0])
            torch.mm(scores, w, out=sh["dy"][c:c + CHUNK])
            if self.head_form == "f32 in place":
                torch.addmm(self.head_grad, scores.t(), y, beta=float(c > 0), out_dtype=torch.float32, out=self.head_grad)
            else:
                torch.addmm(self.grads["e"], scores.t(), y, beta=float(c > 0), out=self.grads["e"])
        return reduce_rows(torch.cat(losses).view(1, -1), 0, scale=1 / self.n)

    def backward(self, tokens):
        s, w, g, sh = self.s, self.weights, self.grads, self.shared
        dh, spare = sh["dh"]
        self.norm_back(sh["dy"], self.last["h"], "n", self.last["r"], None, dh)
        for i in reversed(range(s.layers)):
            a = self.layers[i]
            torch.mm(dh, w[f"dn{i}"], out=sh["dact"])
            gated_grad(sh["dact"], a["gu"], a["gu"], sh["act"], 0, 1)
            torch.mm(dh.t(), sh["act"], out=g[f"dn{i}"])
            torch.mm(a["gu"].t(), a["y2"], out=g[f"gu{i}"])
            torch.mm(a["gu"], w[f"gu{i}"], out=sh["dy"])
            self.norm_back(sh["dy"], a["h2"], f"n2{i}", a["r2"], dh, spare)
            dh, spare = spare, dh
            torch.mm(dh, w[f"o{i}"], out=sh["da"])
            torch.mm(dh.t(), a["a"], out=g[f"o{i}"])
            c = a["attention"]
            self.delta(132 * 8, 256, c.s)
            self.attend_keys(c), self.attend_queries(c)
            rotate(sh["dqkv"], sh["dqkv"], s.heads + s.kv, s.head_dim, s.head_dim // 2, None, self.length, self.cos, self.sin, -1, 0, 1)
            g[f"bias{i}"].copy_(column_sums(sh["dqkv"], "f32", 1))
            torch.mm(sh["dqkv"].t(), a["y1"], out=g[f"qkv{i}"])
            torch.mm(sh["dqkv"], w[f"qkv{i}"], out=sh["dy"])
            self.norm_back(sh["dy"], a["h"], f"n1{i}", a["r1"], dh, spare)
            dh, spare = spare, dh
        if self.head_form == "f32 in place":
            g["e"].copy_(self.head_grad)
        put_sum(g["e"], [tokens], dh, self.fault)

    def optimize(self):
        exact(list(self.grads.values()), self.norm_tables)
        rows, pieces, count = self.update
        run = Kernel("adamw.cu", adamw_options("bf16", "bf16", 1), "adamw")
        run(count, 256, rows, pieces, self.constants)

    def whole(self, tokens, labels):
        self.forward(tokens)
        loss = self.loss(labels)
        self.backward(tokens)
        self.optimize()
        return loss


def torch_grads(model):
    """A torch model's gradients under our names."""
    out = {"e": model.e.weight.grad, "n": model.n.w.grad}
    for i, b in enumerate(model.b):
        out |= {f"qkv{i}": torch.cat([b.q.weight.grad, b.k.weight.grad, b.v.weight.grad]), f"bias{i}": torch.cat([b.q.bias.grad, b.k.bias.grad, b.v.bias.grad]),
                f"o{i}": b.o.weight.grad, f"gu{i}": torch.cat([b.g.weight.grad, b.u.weight.grad]), f"dn{i}": b.dn.weight.grad, f"n1{i}": b.n1.w.grad, f"n2{i}": b.n2.w.grad}
    return out


def check(record):
    """Loss and gradients beside torch in f32; torch's own bf16 says what to expect."""
    torch.manual_seed(0)
    with torch.device(DEV):
        model, wide = Model(Shape(layers=6)).to(BF), Model(Shape(layers=6))
    tokens = torch.randint(0, 151_936, (2, 2049), device=DEV)
    step = Step(model, 2, 2048)
    step.forward(tokens[:, :-1].reshape(-1))
    ours = step.loss(tokens[:, 1:].reshape(-1)).item()
    step.backward(tokens[:, :-1].reshape(-1))
    bf_loss = peer_loss(model, model, tokens)
    bf_loss.backward()
    theirs = torch_grads(model)
    wide.load_state_dict(model.float().state_dict())
    loss = peer_loss(wide, wide, tokens)
    loss.backward()
    want = torch_grads(wide)
    print(f"loss ours {ours:.6f}, torch bf16 {bf_loss.item():.6f}, torch f32 {loss.item():.6f}; head gradient {step.head_form}")
    record.check("step: loss", abs(ours - loss.item()) / loss.item(), 1e-3)
    worst = 0.0
    for name, g in step.grads.items():
        mine, peer = error(g, want[name]), error(theirs[name], want[name])
        worst = max(worst, mine / max(peer, 1e-9))
        record.check(f"step: gradient of {name}, torch bf16 {peer:.4f}", mine, max(1.3 * peer, 2e-2))
    print(f"worst ratio of our gradients' error to torch bf16's: {worst:.2f}", flush=True)
    again = {k: v.clone() for k, v in step.grads.items()}
    step.forward(tokens[:, :-1].reshape(-1)), step.loss(tokens[:, 1:].reshape(-1)), step.backward(tokens[:, :-1].reshape(-1))
    same = all(torch.equal(again[k], v) for k, v in step.grads.items())
    record.check("step: gradients have the same bits again", float(not same), 0)
    losses = []
    for _ in range(6):
        losses.append(step.whole(tokens[:, :-1].reshape(-1), tokens[:, 1:].reshape(-1)).item())
    print("losses of six steps on one batch:", " ".join(f"{v:.4f}" for v in losses), flush=True)
    record.check("step: the loss falls", float(not losses[-1] < losses[0] - 0.1), 0)


def median_of(run, repeats=10, warm=3):
    for _ in range(warm):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def time_all(record):
    batch, length = 8, 2048
    tokens = torch.randint(0, 151_936, (batch, length + 1), device=DEV)
    ids, labels = tokens[:, :-1].reshape(-1), tokens[:, 1:].reshape(-1)
    gib = lambda: torch.cuda.max_memory_allocated() / 2**30

    def ours():
        torch.manual_seed(0)
        with torch.device(DEV):
            model = Model(Shape()).to(BF)
        step = Step(model, batch, length)
        del model
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        eager = median_of(lambda: step.whole(ids, labels), 6, 2)
        record.time("step 0.5B, ours, launched one by one", eager, tokens_s=batch * length / eager * 1e3, gib=gib())
        side = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(side):
            step.whole(ids, labels)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=side):
                loss = step.whole(ids, labels)
        ms = median_of(graph.replay)
        losses = []
        for _ in range(5):
            graph.replay()
            losses.append(loss.item())
        record.time("step 0.5B, ours, as a graph", ms, tokens_s=batch * length / ms * 1e3, gib=gib(), losses=" ".join(f"{v:.4f}" for v in losses))
        # Alone, these leave gradients of no use, so they come after everything that trains.
        for name, run in (("forward", lambda: step.forward(ids)), ("loss", lambda: step.loss(labels)), ("backward", lambda: step.backward(ids)), ("optimizer", step.optimize)):
            record.time(f"  of it: {name}", median_of(run, 4, 1))
        from torch.profiler import ProfilerActivity, profile as trace
        with trace(activities=[ProfilerActivity.CUDA]) as t:
            graph.replay()
            torch.cuda.synchronize()
        rows = sorted(t.key_averages(), key=lambda e: -e.device_time_total)[:28]
        for e in rows:
            print(f"    {e.device_time_total / 1e3:9.3f} ms {e.count:5d} x  {e.key[:110]}", flush=True)

    def peer():
        torch.manual_seed(0)
        with torch.device(DEV):
            model = Model(Shape()).to(BF)
        opt, run = torch.optim.AdamW(model.parameters(), 1e-4, fused=True), torch.compile(model)

        def step():
            peer_loss(model, run, tokens).backward()
            opt.step()
            opt.zero_grad(set_to_none=True)
        ms = median_of(step, 8, 3)
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        record.time("step 0.5B, torch.compile", ms, tokens_s=batch * length / ms * 1e3, gib=gib())

    record.guard("ours", ours)
    torch.cuda.empty_cache()
    record.guard("peer", peer)


def sanitize(_record):
    torch.cuda.synchronize()


def profile(_record):
    torch.cuda.synchronize()
