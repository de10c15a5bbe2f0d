#!/usr/bin/env python3
"""The products of bench/gemm.c in PyTorch, the peer: GF/s, the best of some turns.

    bench/torch_gemm.py [--threads 1] [--type bf16]
"""
import argparse
import time

import torch

SIZES = [(2048, 768, 768), (2048, 768, 3072), (2048, 2048, 8192)]


def rate(run, flops):
    best, times = 0.0, 1
    for turn in range(6):
        start = time.perf_counter()
        for _ in range(times):
            run()
        each = (time.perf_counter() - start) / times
        times = int(0.1 / each) + 1
        if turn > 0:
            best = max(best, flops / each)
    return best / 1e9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--type", choices=["f32", "bf16"], default="bf16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = torch.float32 if args.type == "f32" else torch.bfloat16
    for tokens, i, o in SIZES:
        x, w, dy = (torch.rand(*s).to(dtype) for s in ((tokens, i), (o, i), (tokens, o)))
        flops = 2 * tokens * i * o
        runs = (lambda: x @ w.T, lambda: dy @ w, lambda: dy.T @ x)
        print(f"{args.type} PyTorch {torch.__version__}, {args.threads} threads, {tokens} x {i} x {o}: "
              + " ".join(f"{rate(r, flops):6.0f}" for r in runs), flush=True)


if __name__ == "__main__":
    main()
