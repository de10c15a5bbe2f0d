#!/usr/bin/env python3
"""Errors of Sheaf's bf16 kernels and of PyTorch's, on the same inputs, against the formula in f64.

    tests/cuda/run.sh tests/cuda/peer_errors.c
    python3 tests/cuda/peer_errors.py build/cuda-tests/peer

Prints relative norms of the errors. Exit status 1 if one of ours is over 1e-2, or over PyTorch's by
more than 5% + 1e-6: norms of errors that are rounded alike differ by less than 5%, those of f32 sums
by less than 1e-6."""
import os
import sys

import torch
import torch.nn.functional as F

TYPES = {"bf16": (torch.bfloat16, 2), "f32": (torch.float32, 4), "i32": (torch.int32, 4)}


def load(path):
    tensors, data, at = {}, open(path, "rb").read(), 0
    while at < len(data):
        end = data.index(b"\n", at)
        name, kind, *dims = data[at:end].decode().split()
        dims = [int(d) for d in dims]
        dtype, width = TYPES[kind]
        count = 1
        for d in dims:
            count *= d
        at = end + 1 + count * width
        tensors[name] = torch.frombuffer(bytearray(data[end + 1 : at]), dtype=dtype).reshape(dims)
    return tensors


def gradients(f, inputs, dy):
    leaves = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(f(*leaves), leaves, dy)


def gelu(x):
    return F.gelu(x, approximate="tanh")


def swiglu(gate, up):
    return F.silu(gate) * up


def attend(q, k, v):
    heads_first = [x.transpose(0, 1)[None] for x in (q, k, v)]
    return F.scaled_dot_product_attention(*heads_first, is_causal=True, scale=0.125)[0].transpose(0, 1)


def token_loss(t):
    logits = t("in0").detach().requires_grad_()
    loss = F.cross_entropy(logits, t("in1").long(), reduction="sum")
    return [torch.autograd.grad(loss, logits)[0], loss.detach().reshape(1)]


def embedding_dw(t):
    table = torch.zeros(1000, t("in0").shape[1], dtype=t("in0").dtype, device="cuda", requires_grad=True)
    out = F.embedding(t("in1").long(), table)
    return [torch.autograd.grad(out, table, t("in0"))[0]]


def layernorm(x, w, b):
    return F.layer_norm(x, (x.shape[1],), w, b, 1e-5)


def rmsnorm(x, w):
    return F.rms_norm(x, (x.shape[1],), w, 1e-5)


# PyTorch's results for the inputs, in the order of our outputs; None: not compared.
OPS = {
    "linear": lambda t: [F.linear(t("in0"), t("in1"), t("in2"))],
    "linear_dx": lambda t: [t("in0") @ t("in1")],
    "linear_dw": lambda t: [t("in0").T @ t("in1")],
    "linear_add": lambda t: [t("in2") + F.linear(t("in0"), t("in1"), t("in3"))],
    "linear_gelu": lambda t: [gelu(F.linear(t("in0"), t("in1"), t("in2"))), F.linear(t("in0"), t("in1"), t("in2"))],
    "linear_dgelu": lambda t: gradients(gelu, [t("in2")], t("in0") @ t("in1")),
    "linear_dswiglu": lambda t: gradients(swiglu, [t("in2"), t("in3")], t("in0") @ t("in1")),
    "bias_dw": lambda t: [t("in0").sum(0)],
    "layernorm": lambda t: [layernorm(t("in0"), t("in1"), t("in2")), None, None],
    "layernorm_back": lambda t: gradients(layernorm, [t("in1"), t("in2"), torch.zeros_like(t("in2"))], t("in0")),
    "rmsnorm": lambda t: [rmsnorm(t("in0"), t("in1")), None],
    "rmsnorm_back": lambda t: gradients(rmsnorm, [t("in1"), t("in2")], t("in0")),
    "gelu": lambda t: [gelu(t("in0"))],
    "gelu_dx": lambda t: gradients(gelu, [t("in1")], t("in0")),
    "swiglu": lambda t: [swiglu(t("in0"), t("in1"))],
    "swiglu_dx": lambda t: gradients(swiglu, [t("in1"), t("in2")], t("in0")),
    "token_loss_dx": token_loss,
    "embedding_dw": embedding_dw,
    "attention": lambda t: [attend(t("in0"), t("in1"), t("in2")), None],
    "attention_dx": lambda t: gradients(attend, [t("in0"), t("in1"), t("in2")], t("in4")),
}
OPS["attention_own"] = OPS["attention"]
OPS["attention_own_dx"] = OPS["attention_dx"]
PINGPONG = ["linear_gelu", "linear_dgelu", "linear_dswiglu"]
for name in PINGPONG:
    OPS[name + "_pingpong"] = OPS[name]


def results(op, tensors, wide):
    def get(name):
        x = tensors[name].cuda()
        return x.double() if wide and x.is_floating_point() else x

    return OPS[op](get)


def distance(x, exact):
    return ((x.double() - exact).norm() / exact.norm()).item()


def main(folder):
    bad = 0
    print(f"PyTorch {torch.__version__}\n{'':18} {'Sheaf':>10} {'PyTorch':>10}")
    for op in OPS:
        path = os.path.join(folder, op + ".call")
        if op.endswith("_pingpong") and not os.path.exists(path):
            print(f"{op:18} is missing: this GPU has no ping-pong kernel")
            continue
        tensors = load(path)
        exact, theirs = results(op, tensors, True), results(op, tensors, False)
        for i, want in enumerate(exact):
            if want is None:
                continue
            ours, peer = distance(tensors[f"out{i}"].cuda(), want), distance(theirs[i], want)
            worse = ours > 1e-2 or ours > 1.05 * peer + 1e-6
            bad += worse
            print(f"{op + (f' {i}' if len(exact) > 1 else ''):18} {ours:10.2e} {peer:10.2e}{'   WORSE' if worse else ''}")
    print("none is worse" if not bad else f"{bad} are worse")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
