#!/usr/bin/env python3
"""One training step of a GPT-2 or a Mixtral in PyTorch on the CPU, peer of bench/step: same shapes,
AdamW, clip.

    torch_step.py [--batch 4] [--tokens 1024] [--threads 2] [--steps 3] [--bf16]
                  [--model bench/small.json | bench/small_moe.json]
                  [--experts loop | grouped] [--compile]

Prints milliseconds per step (median), tokens/s, GF/s by 6N + 12LdT (N: the parameters that a token
uses), CPU seconds per step, and peak memory. The default model has 124M parameters. bench/README.md lists the settings for a fair comparison. Needs
torch (Debian's python3-torch or PyPI's torch)."""
import argparse
import json
import resource
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from torch_mixtral import Mixtral


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, q, k, v):
        if hasattr(F, "scaled_dot_product_attention"):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        T = q.shape[-2]
        mask = torch.ones(T, T, dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        return scores.masked_fill(mask, float("-inf")).softmax(-1) @ v

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(D, 2))
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, layers=12, width=768, heads=12, vocab=50257, positions=1024):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.t()
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def sizes(path):
    """Layers, width, heads, vocabulary and positions of a config.json; default: gpt2-124m."""
    shape = {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    if path:
        with open(path) as file:
            shape = json.load(file)
    return [shape[k] for k in ("n_layer", "n_embd", "n_head", "vocab_size", "n_positions")]


def model_of(a):
    """The model, its layers, width and vocabulary, and the parameters that a token uses."""
    if a.model and json.load(open(a.model))["model_type"] == "mixtral":
        model = Mixtral(a.model, a.experts)
        return model, model.layers, model.width, model.vocab, model.used_parameters()
    layers, width, heads, vocab, positions = sizes(a.model)
    model = Gpt2(layers, width, heads, vocab, positions)
    return model, layers, width, vocab, sum(p.numel() for p in model.parameters())


def main():
    args = argparse.ArgumentParser()
    for name, default in (("batch", 4), ("tokens", 1024), ("threads", 2), ("steps", 3)):
        args.add_argument("--" + name, type=int, default=default)
    args.add_argument("--bf16", action="store_true")
    args.add_argument("--compile", action="store_true")
    args.add_argument("--model")
    args.add_argument("--experts", choices=("loop", "grouped"), default="loop")
    a = args.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    model, layers, width, vocab, count = model_of(a)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, foreach=False)
    run = torch.compile(model) if a.compile else model
    ids = torch.randint(0, vocab, (a.batch, a.tokens + 1))
    took, cpu = [], []
    for _ in range(a.steps + (3 if a.compile else 1)):
        start, start_cpu = time.perf_counter(), time.process_time()
        with torch.autocast("cpu", torch.bfloat16, enabled=a.bf16):
            loss = run(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        took.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
    s = statistics.median(took[-a.steps:])
    n = a.batch * a.tokens
    flops = n * (6 * count + 12 * layers * width * a.tokens)
    peak = 1024e-9 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"torch {torch.__version__}: {1e3 * s:.1f} ms, {n / s:.0f} tokens/s, {flops / s / 1e9:.1f} GF/s; "
          f"{statistics.median(cpu[-a.steps:]):.2f} CPU s; {peak:.2f} GB")


if __name__ == "__main__":
    main()
