#!/usr/bin/env python3
"""The PyTorch peer of cuda_step: the same training step, compiled, bf16 by autocast, fused AdamW.

    bench/cuda/torch_step.py gpt2-124m 64 1024

Warms up for ten seconds, then prints the milliseconds of a step (median of 20), tokens/s, the peak of
allocated memory and the seconds of the first step."""
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

SIZES = {  # layers, width, heads, key heads, feed-forward, vocabulary
    "gpt2-124m": (12, 768, 12, 12, 3072, 50304),
    "gpt2-350m": (24, 1024, 16, 16, 4096, 50304),
    "gpt2-774m": (36, 1280, 20, 20, 5120, 50304),
    "gpt2-1558m": (48, 1600, 25, 25, 6400, 50304),
    "llama3.2-1b": (16, 2048, 32, 8, 8192, 128256),
}


class Layer(nn.Module):
    def __init__(self, size, llama):
        super().__init__()
        _, d, h, k, f, _ = size
        self.heads, self.key_heads, self.llama = h, k, llama
        norm, c = (nn.RMSNorm if llama else nn.LayerNorm), d // h
        self.n1, self.n2 = norm(d), norm(d)
        self.qkv = nn.Linear(d, (h + 2 * k) * c, bias=not llama)
        self.out = nn.Linear(d, d, bias=not llama)
        self.up = nn.Linear(d, 2 * f if llama else f, bias=not llama)
        self.down = nn.Linear(f, d, bias=not llama)

    def rotate(self, x, table):
        a, b = x.chunk(2, -1)
        cos, sin = table
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x, table):
        batch, tokens, d = x.shape
        h, k, c = self.heads, self.key_heads, d // self.heads
        qkv = self.qkv(self.n1(x)).view(batch, tokens, h + 2 * k, c).transpose(1, 2)
        q, key, value = qkv.split((h, k, k), 1)
        if self.llama:
            q, key = self.rotate(q, table), self.rotate(key, table)
        o = F.scaled_dot_product_attention(q, key, value, is_causal=True, enable_gqa=h != k)
        x = x + self.out(o.transpose(1, 2).reshape(batch, tokens, d))
        m = self.up(self.n2(x))
        if self.llama:
            gate, up = m.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(m, approximate="tanh"))


class Model(nn.Module):
    def __init__(self, size, tokens, llama):
        super().__init__()
        layers, d, h, _, _, vocab = size
        self.embed = nn.Embedding(vocab, d)
        self.place = None if llama else nn.Embedding(tokens, d)
        self.layers = nn.ModuleList(Layer(size, llama) for _ in range(layers))
        self.norm = nn.RMSNorm(d) if llama else nn.LayerNorm(d)
        half = d // h // 2
        angle = torch.arange(tokens)[:, None] * 500000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos().bfloat16())
        self.register_buffer("sin", angle.sin().bfloat16())
        for p in self.parameters():
            if p.ndim == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.embed(ids)
        if self.place is not None:
            x = x + self.place.weight
        for layer in self.layers:
            x = layer(x, (self.cos, self.sin))
        logits = F.linear(self.norm(x), self.embed.weight)  # tied
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main():
    name, batch, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_float32_matmul_precision("high")
    model = Model(SIZES[name], tokens, name.startswith("llama")).cuda()
    optim = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    compiled = torch.compile(model)
    ids, targets = (torch.randint(0, SIZES[name][5], (batch, tokens), device="cuda") for _ in range(2))

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        optim.zero_grad(set_to_none=True)

    start = time.time()
    step()
    torch.cuda.synchronize()
    first = time.time() - start
    while time.time() - start < first + 10:
        step()
        torch.cuda.synchronize()
    times = []
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    ms = sorted(times)[len(times) // 2]
    print(f"PyTorch {torch.__version__}: {ms:.2f} ms, {batch * tokens / ms * 1e3:.0f} tokens/s, "
          f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB, first step {first:.0f} s")


main()
