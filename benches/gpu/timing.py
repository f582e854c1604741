"""Medians of device times, and errors against references."""
import torch


def median_ms(calls, repeats=20, warm=4):
    """The median time of `calls[i]()` taken in turn (so that inputs rotate), in ms.

    The device is kept busy while a call is queued, so that the host's speed does not count.
    """
    for i in range(warm):
        calls[i % len(calls)]()
    torch.cuda.synchronize()
    times = []
    for i in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(3_000_000)
        begin.record()
        calls[i % len(calls)]()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    times.sort()
    return times[len(times) // 2]


def error(out, reference):
    """|out - reference| / |reference| in f64; not a number never passes."""
    out, reference = out.double(), reference.double()
    if not torch.isfinite(reference).all():
        same = torch.where(torch.isfinite(reference), True, (out == reference) | (out.isnan() & reference.isnan()))
        if not same.all():
            return float("inf")
        finite = torch.isfinite(reference)
        out, reference = out[finite], reference[finite]
    norm = reference.norm().item()
    return ((out - reference).norm() / (norm if norm > 0 else 1)).item()


def same_bits(a, b):
    """Whether two tensors have equal bytes."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


class Record:
    """Rows of a result table: checks (error against a limit, bits equal when repeated) and times."""

    def __init__(self):
        self.checks, self.times, self.failures = [], [], []

    def check(self, name, value, limit, repeat=None):
        good = value <= limit and repeat is not False
        self.checks.append({"name": name, "error": value, "limit": limit, "repeats": repeat, "good": bool(good)})
        if not good:
            print(f"WRONG {name}: error {value:.3g}, limit {limit:.3g}, same bits {repeat}", flush=True)

    def time(self, name, ms, peer=None, **more):
        self.times.append({"name": name, "ms": ms, "peer_ms": peer, **more})
        extra = " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in more.items())
        print(f"{name:58s} {ms:9.4f} ms" + (f"  torch {peer:9.4f}  x{peer / ms:5.2f}" if peer else "") + f"  {extra}", flush=True)

    def guard(self, name, work):
        """Runs one piece of work; a failure is recorded and the rest goes on."""
        try:
            work()
        except Exception as e:  # noqa: BLE001: whatever it is, the other pieces still run
            self.failures.append({"name": name, "error": repr(e)[:1500]})
            print(f"FAILED {name}: {e!r}"[:1200], flush=True)
