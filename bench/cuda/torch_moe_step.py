#!/usr/bin/env python3
"""The PyTorch peer of cuda_step for a mixture of experts: rows sorted by expert, PyTorch's grouped GEMM,
compiled, bf16 by autocast, fused AdamW.

    bench/cuda/torch_moe_step.py bench/cuda/moe-64x768.json 8 4096

Reads the config.json that cuda_step reads. Warms up for ten seconds, then prints the milliseconds of
a step (median of 20), tokens/s, the peak of allocated memory and the seconds of the first step."""
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.count, self.chosen = c["num_local_experts"], c["num_experts_per_tok"]
        width, inner = c["hidden_size"], c["intermediate_size"]
        self.router = nn.Linear(width, self.count, bias=False)
        self.gate_up = nn.Parameter(torch.empty(self.count, width, 2 * inner))
        self.down = nn.Parameter(torch.empty(self.count, inner, width))

    def forward(self, x):
        gates, experts = self.router(x).float().softmax(-1).topk(self.chosen, -1)
        gates = gates / gates.sum(-1, keepdim=True)
        experts = experts.flatten()
        order = experts.argsort(stable=True)
        ends = torch.bincount(experts, minlength=self.count).cumsum(0).to(torch.int32)
        token = order // self.chosen
        gate, up = torch._grouped_mm(x[token].bfloat16(), self.gate_up.bfloat16(), offs=ends).chunk(2, -1)
        y = torch._grouped_mm(F.silu(gate) * up, self.down.bfloat16(), offs=ends)
        y = y * gates.flatten()[order, None].bfloat16()
        return torch.zeros_like(x, dtype=y.dtype).index_add_(0, token, y)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        width, self.size = c["hidden_size"], c["head_dim"]
        self.heads, self.key_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, (self.heads + 2 * self.key_heads) * self.size, bias=False)
        self.out = nn.Linear(self.heads * self.size, width, bias=False)
        self.experts = Experts(c)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x, cos, sin):
        batch, tokens, width = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, tokens, -1, self.size).transpose(1, 2)
        q, k, v = heads.split((self.heads, self.key_heads, self.key_heads), 1)
        o = F.scaled_dot_product_attention(self.rotate(q, cos, sin), self.rotate(k, cos, sin), v,
                                           is_causal=True, enable_gqa=True)
        x = x + self.out(o.transpose(1, 2).reshape(batch, tokens, -1))
        rows = self.norms[1](x).view(batch * tokens, width)
        return x + self.experts(rows).view(batch, tokens, width)


class Model(nn.Module):
    def __init__(self, c, tokens):
        super().__init__()
        self.embed = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Layer(c) for _ in range(c["num_hidden_layers"]))
        self.norm = nn.RMSNorm(c["hidden_size"])
        half = c["head_dim"] // 2
        angle = torch.arange(tokens)[:, None] * c["rope_theta"] ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos().bfloat16())
        self.register_buffer("sin", angle.sin().bfloat16())
        for p in self.parameters():
            if p.ndim > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.embed.weight)  # tied
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        config = json.load(f)
    batch, tokens = int(sys.argv[2]), int(sys.argv[3])
    torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        model = Model(config, tokens)
    optim = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    compiled = torch.compile(model)
    ids, targets = (torch.randint(0, config["vocab_size"], (batch, tokens), device="cuda") for _ in range(2))

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
