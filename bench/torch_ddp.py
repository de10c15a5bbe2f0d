#!/usr/bin/env python3
"""The step of torch_step.py under PyTorch's DistributedDataParallel over gloo: peer of bench/ranks.

    torch_ddp.py [--batch 4] [--tokens 1024] [--ranks 2] [--steps 2] [--model bench/small.json]

Processes of one thread each share the sequences of a step. Prints milliseconds per step (the best)
and tokens/s."""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from torch_step import Gpt2, sizes


def work(rank, a):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(a.port))
    dist.init_process_group("gloo", rank=rank, world_size=a.ranks)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Gpt2(*sizes(a.model)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    ids = torch.randint(0, sizes(a.model)[3], (a.batch // a.ranks, a.tokens + 1))
    took = []
    for _ in range(a.steps + 1):
        dist.barrier()
        start = time.perf_counter()
        model(ids[:, :-1], ids[:, 1:]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        took.append(time.perf_counter() - start)
    if rank == 0:
        s, n = min(took[1:]), a.batch * a.tokens
        print(f"torch {torch.__version__}, DDP over gloo, {a.ranks} ranks x 1 thread: {1e3 * s:.0f} ms, {n / s:.0f} tok/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    args = argparse.ArgumentParser()
    for name, default in (("batch", 4), ("tokens", 1024), ("ranks", 2), ("steps", 2), ("port", 29511)):
        args.add_argument("--" + name, type=int, default=default)
    args.add_argument("--model")
    a = args.parse_args()
    mp.spawn(work, args=(a,), nprocs=a.ranks)
