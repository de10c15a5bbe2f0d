#!/usr/bin/env python3
"""fp8_codes.py -- hashes of PyTorch's codes of 8 bits, beside those that test_cuda_fp8 prints.

Values are every bf16, and 10^6 f32 by their bits. They are clamped to the range of the type first,
since PyTorch gives NaN beyond it; NaN is 0x7f. `python3 tests/cuda/fp8_codes.py [cuda]`
"""
import sys

import numpy
import torch


def fnv(codes):
    h = 2166136261
    for c in codes.tobytes():
        h = ((h ^ c) * 16777619) & 0xFFFFFFFF
    return h


device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
values = {
    "bf16": torch.from_numpy((numpy.arange(1 << 16, dtype=numpy.uint32) << 16).view(numpy.float32)).bfloat16(),
    "f32": torch.from_numpy(
        (numpy.arange(1000000, dtype=numpy.uint64) * 2654435761).astype(numpy.uint32).view(numpy.float32)
    ),
}
for name, dtype in (("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)):
    for source, x in values.items():
        x = x.to(device)
        largest = torch.finfo(dtype).max
        y = x.clamp(-largest, largest).to(dtype).view(torch.uint8)
        y = torch.where(x.isnan(), torch.full_like(y, 0x7F), y)
        print(f"{name} of {source}: codes {fnv(y.cpu().numpy()):08x}")
