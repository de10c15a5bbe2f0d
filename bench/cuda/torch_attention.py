#!/usr/bin/env python3
"""Attention at the shapes of cuda_attention.c: ours and PyTorch's by turns, on one card.

    python3 bench/cuda/torch_attention.py build/release/bench/cuda_attention [sheaf-cuda.so] [ROUNDS]

Causal shapes run through scaled_dot_product_attention on cuDNN and on FlashAttention-2; packed ones
through torch.nn.attention.varlen, with the same documents as ours. Prints the median of ROUNDS (3)
rounds, and the time of PyTorch's fastest over ours. torch 2.10 or newer, a CUDA GPU.
"""
import math
import os
import re
import statistics
import subprocess
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# batch, tokens, heads, key heads, channels, mean length of documents (0: whole sequences)
SHAPES = [(64, 1024, 12, 12, 64, 0), (8, 4096, 32, 8, 64, 0), (1, 32768, 32, 8, 64, 0),
          (4, 8192, 32, 8, 128, 0), (1, 32768, 32, 8, 128, 0), (64, 1024, 12, 12, 64, 700),
          (8, 4096, 32, 32, 64, 700), (1, 32768, 32, 32, 128, 2000)]
REPEATS = 20


def document_ends(batch, tokens, mean):
    """As document_ranges of cuda_attention.c."""
    seed, ends = 12345, [0]
    while ends[-1] < batch * tokens:
        seed = (1103515245 * seed + 12345) % 2147483648
        n = max(20, int(-mean * math.log((seed + 0.5) / 2147483648)))
        ends.append(min(ends[-1] + n, (ends[-1] // tokens + 1) * tokens))
    return ends


def milliseconds(run):
    """Of one run, in a sequence of REPEATS."""
    for _ in range(2):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(REPEATS):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / REPEATS


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def forward_and_backward(attend, inputs):
    out = attend()
    slope = torch.randn_like(out)
    forward = milliseconds(lambda: attend())
    backward = milliseconds(
        lambda: torch.autograd.grad(out, inputs, slope, retain_graph=True))
    return forward, backward


def causal_times(batch, tokens, heads, key_heads, channels):
    q = random(batch, heads, tokens, channels)
    k, v = (random(batch, key_heads, tokens, channels) for _ in range(2))
    times = {}
    for name, backend in ("cuDNN", SDPBackend.CUDNN_ATTENTION), ("FA2", SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel(backend):
            times[name] = forward_and_backward(
                lambda: F.scaled_dot_product_attention(
                    q, k, v, is_causal=True, enable_gqa=heads != key_heads), (q, k, v))
    return times


def packed_times(batch, tokens, heads, key_heads, channels, mean):
    from torch.nn.attention.varlen import varlen_attn
    ends = document_ends(batch, tokens, mean)
    longest = max(b - a for a, b in zip(ends, ends[1:]))
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    q, k, v = (random(batch * tokens, n, channels) for n in (heads, key_heads, key_heads))

    def attend():
        try:
            o = varlen_attn(q, k, v, offsets, offsets, longest, longest, is_causal=True)
        except TypeError:  # newer versions have a window instead
            o = varlen_attn(q, k, v, offsets, offsets, longest, longest, window_size=(-1, 0))
        return o[0] if isinstance(o, tuple) else o

    return {"varlen": forward_and_backward(attend, (q, k, v))}


def our_times(program, number):
    program.stdin.write(f"{number}\n")
    program.stdin.flush()
    line = program.stdout.readline()
    found = re.findall(r"(ours|by cuDNN): forward ([0-9.]+) ms .*?backward ([0-9.]+) ms", line)
    if not found:
        sys.exit(f"{sys.argv[1]} answers: {line.strip() or 'nothing'}")
    return {name: (float(f), float(b)) for name, f, b in found}


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    files = [x for x in sys.argv[2:] if not x.isdigit()]
    rounds = next((int(x) for x in sys.argv[2:] if x.isdigit()), 3)
    folder = os.path.dirname(os.path.dirname(os.path.abspath(sys.argv[1])))
    library = files[0] if files else os.path.join(folder, "sheaf-cuda.so")
    program = subprocess.Popen([sys.argv[1], library, "-"], stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)
    for number, shape in enumerate(SHAPES):
        seen = {}
        for _ in range(rounds):
            theirs = packed_times(*shape) if shape[5] else causal_times(*shape[:5])
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            for name, times in {**our_times(program, number), **theirs}.items():
                seen.setdefault(name, []).append(times)
        print("{} x {}, heads {}/{} of {}, documents {}".format(*shape))
        median = {name: [statistics.median(t) for t in zip(*times)] for name, times in seen.items()}
        best = [min(t[i] for name, t in median.items() if name in ("cuDNN", "FA2", "varlen"))
                for i in range(2)]
        for name, (forward, backward) in median.items():
            print(f"  {name:16} forward {forward:7.3f} ms, x{best[0] / forward:.2f};"
                  f"  backward {backward:7.3f} ms, x{best[1] / backward:.2f}", flush=True)
    program.stdin.close()
    program.wait()


main()
