"""A Mixtral in PyTorch for torch_step.py: attention as in Llama, and in each layer a router that sends
a token to some of the experts.

The rows of an expert are contiguous: choices are sorted by expert, rows are selected by index, and
results are added by index. `experts` selects how they are multiplied: "loop", a GEMM for each expert
with gate and up as one matrix, or "grouped", torch's grouped_mm for all experts in one call."""
import json

import torch
import torch.nn as nn
import torch.nn.functional as F


class Experts(nn.Module):
    def __init__(self, width, inner, count, chosen, how):
        super().__init__()
        self.count, self.chosen, self.how = count, chosen, how
        self.router = nn.Linear(width, count, bias=False)
        self.up = nn.Parameter(torch.empty(count, 2 * inner, width))
        self.down = nn.Parameter(torch.empty(count, width, inner))
        self.balance = None

    def loop(self, rows, load):
        out = []
        for e, part in enumerate(rows.split(load.tolist())):
            gate, up = F.linear(part, self.up[e]).chunk(2, -1)
            out.append(F.linear(F.silu(gate) * up, self.down[e]))
        return torch.cat(out)

    def grouped(self, rows, load):
        ends = load.cumsum(0).int()
        narrow = torch.is_autocast_enabled("cpu")
        cast = (lambda t: t.bfloat16()) if narrow else (lambda t: t)
        both = F.grouped_mm(cast(rows), cast(self.up).transpose(1, 2), offs=ends)
        gate, up = both.chunk(2, -1)
        return F.grouped_mm(F.silu(gate) * up, cast(self.down).transpose(1, 2), offs=ends)

    def forward(self, x):
        p = self.router(x).float().softmax(-1)
        gates, experts = p.topk(self.chosen, -1)
        gates = gates / gates.sum(-1, keepdim=True)
        order = experts.flatten().argsort()
        load = torch.bincount(experts.flatten(), minlength=self.count)
        self.balance = self.count / (self.chosen * len(x)) * (load * p.mean(0)).sum()
        token = order // self.chosen
        rows = (self.loop if self.how == "loop" else self.grouped)(x.index_select(0, token), load)
        rows = rows * gates.flatten()[order, None].to(rows.dtype)
        return torch.zeros_like(x, dtype=rows.dtype).index_add(0, token, rows)


class Layer(nn.Module):
    def __init__(self, c, how):
        super().__init__()
        d, self.heads, self.key_heads = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        self.head = d // self.heads
        self.norm1, self.norm2 = nn.RMSNorm(d, c["rms_norm_eps"]), nn.RMSNorm(d, c["rms_norm_eps"])
        self.qkv = nn.Linear(d, (self.heads + 2 * self.key_heads) * self.head, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.experts = Experts(d, c["intermediate_size"], c["num_local_experts"], c["num_experts_per_tok"], how)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x, cos, sin):
        B, T, D = x.shape
        h, k = self.heads, self.key_heads
        qkv = self.qkv(self.norm1(x)).view(B, T, h + 2 * k, self.head).transpose(1, 2)
        q, key, value = qkv.split((h, k, k), 1)
        q, key = self.rotate(q, cos, sin).to(value.dtype), self.rotate(key, cos, sin).to(value.dtype)
        o = F.scaled_dot_product_attention(q, key, value, is_causal=True, enable_gqa=h != k)
        x = x + self.out(o.transpose(1, 2).reshape(B, T, D))
        return x + self.experts(self.norm2(x).view(B * T, D)).view(B, T, D)


class Mixtral(nn.Module):
    def __init__(self, path, how="loop"):
        super().__init__()
        with open(path) as file:
            c = json.load(file)
        self.layers, self.width, self.vocab = c["num_hidden_layers"], c["hidden_size"], c["vocab_size"]
        self.tokens = nn.Embedding(self.vocab, self.width)
        self.blocks = nn.ModuleList(Layer(c, how) for _ in range(self.layers))
        self.norm = nn.RMSNorm(self.width, c["rms_norm_eps"])
        self.head = nn.Linear(self.width, self.vocab, bias=False)
        half = self.width // c["num_attention_heads"] // 2
        angle = torch.arange(c["max_position_embeddings"])[:, None] * 1e6 ** (-torch.arange(half) / half)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())
        for p in self.parameters():
            if p.dim() >= 2:
                nn.init.normal_(p, 0, 0.02)

    def used_parameters(self):
        """The parameters that a token uses: K of E experts."""
        count = 0
        for name, p in self.named_parameters():
            experts = self.blocks[0].experts
            count += p.numel() * experts.chosen // experts.count if p.dim() == 3 else p.numel()
        return count

    def forward(self, ids, targets):
        T = ids.shape[1]
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, self.cos[:T], self.sin[:T])
        logits = self.head(self.norm(x))
        balance = sum(block.experts.balance for block in self.blocks)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()) + 0.01 * balance
