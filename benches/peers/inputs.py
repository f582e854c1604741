"""The inputs of the cases, the same bits as benches/src/inputs.rs makes: a hash of the element's position."""
import numpy as np
import torch


def _mix(x):
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x7FEB352D)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x846CA68B)
    x ^= x >> np.uint32(16)
    return x


def _hash(seed, shape):
    key = int(_mix(np.array([seed], dtype=np.uint32))[0])
    return _mix(np.arange(int(np.prod(shape)), dtype=np.uint32) ^ np.uint32(key)).reshape(shape)


def normal(seed, *shape):
    """f32, near to normal: the sum of the four bytes of the hash, centred and scaled."""
    h = _hash(seed, shape)
    total = (h & 255) + ((h >> 8) & 255) + ((h >> 16) & 255) + (h >> 24)
    values = (total.astype(np.float32) - np.float32(510)) * np.float32(1 / 147.8)
    return torch.from_numpy(values).clone()


def integers(seed, high, *shape):
    """i64 in 0..high."""
    h = _hash(seed, shape)
    return torch.from_numpy(((h.astype(np.uint64) * np.uint64(high)) >> np.uint64(32)).astype(np.int64)).clone()


def coin(seed, *shape):
    """bool, true for about half."""
    return torch.from_numpy(_hash(seed, shape) < (1 << 31)).clone()


def checksum(arrays):
    """[sum, scale] of position-weighted values; what is not finite counts as zero."""
    total = scale = 0.0
    for array in arrays:
        flat = torch.nan_to_num(array.detach().reshape(-1).double(), 0.0, 0.0, 0.0)
        weighted = flat * (torch.arange(flat.numel()) % 7 + 1)
        total += float(weighted.sum())
        scale += float(weighted.abs().sum())
    return [total, scale]
