"""Per-sample timing with a witness of contention; benches/src/measure.rs does the same.

Each sample is [wall_s, cpu_s, delay_s]. The delay is the time this process's threads were ready but not
running (from schedstat), so a sample with a small delay was not disturbed by other processes."""
import gc
import os
import time


def _delay():
    total = 0
    for task in os.listdir('/proc/self/task'):
        try:
            with open(f'/proc/self/task/{task}/schedstat') as f:
                total += int(f.read().split()[1])
        except OSError:
            pass
    return total / 1e9


def _status(name):
    with open('/proc/self/status') as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith(name))


def watch():
    """The resident memory now, in bytes; forgets its peak so far. None where the system does not tell."""
    try:
        with open('/proc/self/clear_refs', 'w') as f:
            f.write('5')
        return _status('VmRSS:')
    except (OSError, StopIteration):
        return None


def peak(before):
    """The peak since `watch`, above what there was, and as a whole."""
    if before is None:
        return None
    highest = _status('VmHWM:')
    return [max(highest - before, 0), highest]


def measure(fn, seconds, most):
    """Samples of fn for about `seconds`, at least 2 and at most `most`."""
    gc.disable()
    samples = []
    end = time.perf_counter() + seconds
    while len(samples) < most and (len(samples) < 2 or time.perf_counter() < end):
        d0, c0, t0 = _delay(), time.process_time(), time.perf_counter()
        fn()
        t1, c1, d1 = time.perf_counter(), time.process_time(), _delay()
        samples.append([t1 - t0, c1 - c0, d1 - d0])
    gc.enable()
    gc.collect()
    return samples
