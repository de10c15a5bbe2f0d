#!/usr/bin/env python3
"""The GEMMs of bench/gemm.c in PyTorch, its peer: GF/s, the best of several runs.

    bench/torch_gemm.py [--threads 1] [--type bf16] [--clock cpu] [--alone 300]
                        [--size 2048x768x3072]

--alone N: the best of N GEMMs, each timed alone. --clock cpu: CPU time instead of wall time, for one
thread, as `gemm clock=cpu`.
"""
import argparse
import time

import torch

SIZES = [(2048, 768, 768), (2048, 768, 3072), (2048, 2048, 8192)]


def rate(run, flops, clock, alone):
    best, times = 0.0, 1
    for i in range(1 + alone if alone else 6):
        start = clock()
        for _ in range(times):
            run()
        each = (clock() - start) / times
        times = 1 if alone else int(0.1 / each) + 1
        if i > 0:  # the first run is a warm-up
            best = max(best, flops / each)
    return best / 1e9


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--type", choices=["f32", "bf16"], default="bf16")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--alone", type=int, default=0)
    parser.add_argument("--size", action="append", help="tokens x in x out; several times")
    args = parser.parse_args()
    if args.clock == "cpu" and args.threads > 1:
        parser.error(f"--clock cpu adds up the time of {args.threads} threads; set --threads 1")
    clock = time.perf_counter if args.clock == "wall" else time.process_time
    if args.alone < 0:
        parser.error(f"--alone {args.alone}: the number of GEMMs, 1 or more")
    sizes = SIZES
    if args.size:
        try:
            sizes = [(t, i, o) for t, i, o in (map(int, s.split("x")) for s in args.size)]
        except ValueError:
            parser.error(f"--size {' '.join(args.size)}: must be tokens x in x out, like 2048x768x3072")
    torch.set_num_threads(args.threads)
    dtype = torch.float32 if args.type == "f32" else torch.bfloat16
    for tokens, i, o in sizes:
        x, w, dy = (torch.rand(*s).to(dtype) for s in ((tokens, i), (o, i), (tokens, o)))
        flops = 2 * tokens * i * o
        runs = (lambda: x @ w.T, lambda: dy @ w, lambda: dy.T @ x)
        print(f"{args.type} PyTorch {torch.__version__}, {args.threads} threads, {tokens} x {i} x {o}: "
              + " ".join(f"{rate(r, flops, clock, args.alone):6.0f}" for r in runs), flush=True)


if __name__ == "__main__":
    main()
