#!/usr/bin/env python3
"""make_stdit.py -- loss and gradients of small diffusion transformers, in PyTorch, in float64.

    make_stdit.py            write the files of stdit/, then check them
    make_stdit.py --check    check the existing files

The model is written here from its description, with torch.nn.functional alone; the script contains
no code of Sheaf. Weights and data are formulas of a name and an index, as in make_golden.py:

    latents, text   data.latents, data.text          noise  8 x data.noise
    t               0.5 + data.times                 token weights  0 for every fifth, else
                                                     1 + data.weights

The differentiated function is the sum over tokens of weight * mean over the patch of
(predicted - velocity)^2. Checks: gradients are reproduced, and central differences agree. Biases of
keys change no softmax: their gradients are 0 but for rounding, and are compared as such."""

import json
import os
import sys

import torch
import torch.nn.functional as F

from make_golden import weight

HERE = os.path.dirname(os.path.abspath(__file__))
ENTRIES = 24
BASE = dict(model_type="stdit", num_hidden_layers=2, layer_norm_eps=1e-6)
CASES = {
    "stdit": dict(batch=3, config=dict(BASE, num_frames=3, latent_height=4, latent_width=6,
                                       latent_channels=2, patch_size=2, hidden_size=20,
                                       num_attention_heads=4, intermediate_size=28)),
    "stdit_text": dict(batch=2, config=dict(BASE, num_frames=4, latent_height=3, latent_width=2,
                                            latent_channels=3, patch_size=1, hidden_size=18,
                                            num_attention_heads=3, intermediate_size=26,
                                            text_length=5, text_width=7)),
    "stdit_3d": dict(batch=2, config=dict(BASE, num_hidden_layers=3, num_frames=3, latent_height=2,
                                          latent_width=4, latent_channels=1, patch_size=1,
                                          hidden_size=16, num_attention_heads=2,
                                          intermediate_size=20, attention_dims=3)),
}


def numbers(name, *shape):
    count = 1
    for n in shape:
        count *= n
    return torch.tensor([weight(name, i) for i in range(count)]).reshape(shape)


class Weights(dict):
    """Parameters, made when they are first read."""

    def take(self, name, *shape):
        if name not in self:
            self[name] = numbers(name, *shape).requires_grad_()
        return self[name]


class Model:
    def __init__(self, case):
        c = self.c = case["config"]
        self.B, self.W = case["batch"], Weights()
        p = c["patch_size"]
        self.rows, self.columns = c["latent_height"] // p, c["latent_width"] // p
        self.places = self.rows * self.columns
        self.frames, self.D = c["num_frames"], c["hidden_size"]
        self.P = c["latent_channels"] * p * p
        self.T = self.B * self.frames * self.places

    def dense(self, x, name, out):
        w, b = self.W.take(name + ".weight", out, x.shape[-1]), self.W.take(name + ".bias", out)
        return x @ w.T + b

    def norm(self, x, prefix, part, h):
        """adaLN of x [B, tokens, D] by the vectors of each clip."""
        shift = self.dense(h, f"{prefix}adaln.{part}_shift", self.D)
        scale = self.dense(h, f"{prefix}adaln.{part}_scale", self.D)
        x = F.layer_norm(x, (self.D,), eps=self.c["layer_norm_eps"])
        return x * (1 + scale[:, None]) + shift[:, None]

    def time(self, prefix, t):
        frequency = 10000.0 ** (-torch.arange(128) / 128)
        angle = 1000 * t[:, None] * frequency
        features = torch.cat([torch.cos(angle), torch.sin(angle)], -1)
        return F.gelu(self.dense(features, prefix + "adaln.time", self.D), approximate="tanh")

    def attention(self, q, k, v):
        """[batch, tokens, D] each."""
        h = self.c["num_attention_heads"]
        split = [x.reshape(*x.shape[:2], h, -1).transpose(1, 2) for x in (q, k, v)]
        return F.scaled_dot_product_attention(*split).transpose(1, 2).reshape(q.shape)

    def along(self, kind, q, k, v):
        """Attention along one dim of [B, F, rows, columns]: that dim last, the others first."""
        grid = (self.B, self.frames, self.rows, self.columns, self.D)
        order = dict(spatial=(0, 1, 2, 3, 4), width=(0, 1, 2, 3, 4), height=(0, 1, 3, 2, 4),
                     temporal=(0, 2, 3, 1, 4))[kind]
        length = dict(spatial=self.places, width=self.columns, height=self.rows,
                      temporal=self.frames)[kind]
        moved = [x.reshape(grid).permute(order) for x in (q, k, v)]
        out = self.attention(*[x.reshape(-1, length, self.D) for x in moved])
        back = [order.index(i) for i in range(5)]
        return out.reshape(moved[0].shape).permute(back).reshape(self.B, -1, self.D)

    def layer(self, i, x, t, text):
        prefix = f"layers.{i}."
        three = self.c.get("attention_dims", 2) == 3
        kind = ("height", "width", "temporal")[i % 3] if three else ("spatial", "temporal")[i % 2]
        h, D = self.time(prefix, t), self.D
        a = self.norm(x, prefix, "attn", h)
        q, k, v = (self.dense(a, f"{prefix}self_attn.{n}_proj", D) for n in "qkv")
        out = self.dense(self.along(kind, q, k, v), prefix + "self_attn.o_proj", D)
        x = x + self.dense(h, prefix + "adaln.attn_gate", D)[:, None] * out
        if text is not None:
            n = F.layer_norm(x, (D,), self.W.take(prefix + "cross_norm.weight", D),
                             self.W.take(prefix + "cross_norm.bias", D),
                             self.c["layer_norm_eps"])
            q = self.dense(n, prefix + "cross_attn.q_proj", D)
            k, v = (self.dense(text, f"{prefix}cross_attn.{m}_proj", D) for m in "kv")
            out = torch.cat([self.attention(q[b:b + 1], k[b:b + 1], v[b:b + 1])
                             for b in range(self.B)])
            x = x + self.dense(out, prefix + "cross_attn.o_proj", D)
        m = F.gelu(self.dense(self.norm(x, prefix, "mlp", h), prefix + "mlp.up_proj",
                              self.c["intermediate_size"]), approximate="tanh")
        gate = self.dense(h, prefix + "adaln.mlp_gate", D)[:, None]
        return x + gate * self.dense(m, prefix + "mlp.down_proj", D)

    def loss(self):
        c, each = self.c, self.frames * self.places
        x0 = numbers("data.latents", self.B, each, self.P)
        noise = 8 * numbers("data.noise", self.B, each, self.P)
        t = 0.5 + numbers("data.times", self.B)
        counted = torch.tensor([0.0 if n % 5 == 3 else 1 + weight("data.weights", n)
                                for n in range(self.T)]).reshape(self.B, each)
        text = None
        if "text_length" in c:
            text = numbers("data.text", self.B, c["text_length"], c["text_width"])
        noised = (1 - t)[:, None, None] * x0 + t[:, None, None] * noise
        place = self.W.take("embed.place.weight", self.places, self.D)
        frame = self.W.take("embed.frame.weight", self.frames, self.D)
        x = self.dense(noised, "embed.patch", self.D)
        x = x + place.repeat(self.frames, 1) + frame.repeat_interleave(self.places, 0)
        for i in range(c["num_hidden_layers"]):
            x = self.layer(i, x, t, text)
        x = self.norm(x, "", "head", self.time("", t))
        off = self.dense(x, "head", self.P) - (noise - x0)
        return (counted * (off * off).mean(-1)).sum()


def entry(name, g):
    flat, n = g.reshape(-1), g.numel()
    index = sorted({i * (n - 1) // max(ENTRIES - 1, 1) for i in range(ENTRIES)} |
                   {int(flat.abs().argmax())})
    return dict(name=name, shape=list(g.shape), norm=g.norm().item(), max=g.abs().max().item(),
                entries=[[i, flat[i].item()] for i in index])


def make(name):
    case, model = CASES[name], Model(CASES[name])
    loss = model.loss()
    loss.backward()
    params = [entry(n, p.grad) for n, p in model.W.items()]
    return dict(format="sheaf stdit golden 1", batch=case["batch"], loss=loss.item(),
                config=case["config"], params=params)


def check(name, case):
    again = make(name)
    assert abs(again["loss"] - case["loss"]) <= 1e-13 * abs(case["loss"])
    worst, model = 0, Model(CASES[name])
    model.loss()
    largest = max(p["max"] for p in case["params"])
    for mine, p in zip(again["params"], case["params"]):
        assert mine["name"] == p["name"] and mine["shape"] == p["shape"]
        scale = max(p["max"], 1e-6 * largest)
        assert all(abs(a[1] - b[1]) <= 1e-12 * scale
                   for a, b in zip(mine["entries"], p["entries"]))
        index, want = max(p["entries"], key=lambda e: abs(e[1]))
        flat, step, sides = model.W[p["name"]].data.view(-1), 2**-16, []
        for sign in (1, -1):
            flat[index] += sign * step
            sides.append(model.loss().item())
            flat[index] -= sign * step
        worst = max(worst, abs((sides[0] - sides[1]) / (2 * step) - want) / max(p["max"], 1e-3 * largest))
    assert worst < 1e-7, worst
    print(f"{name}: loss {case['loss']:.12f}, {len(case['params'])} gradients; differences "
          f"{worst:.0e}")


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for name in CASES:
        path = os.path.join(HERE, "stdit", name + ".json")
        if sys.argv[1:] != ["--check"]:
            case = make(name)
            params = ",\n".join(json.dumps(p) for p in case.pop("params"))
            head = json.dumps(case)
            with open(path, "w") as file:
                file.write(head[:-1] + ',\n"params": [\n' + params + "\n]}\n")
        with open(path) as file:
            check(name, json.load(file))


if __name__ == "__main__":
    main()
