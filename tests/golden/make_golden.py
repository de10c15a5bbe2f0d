#!/usr/bin/env python3
"""make_golden.py -- losses and gradients of small models, computed by the transformers library.

    make_golden.py            write NAME.json for every case below, then check the files
    make_golden.py --check    check the existing files
    make_golden.py --float32  print the library's own error in float32, for choosing tolerances

The models are those of the transformers library, run in float64. The script contains no code of
Sheaf, so it also detects a misreading of a model that Sheaf and its own tests share.

No weight is stored. Each is a formula of its name and its index in row-major order (FORMULA below;
tests/support/golden.c is the same in C). Tokens, targets and loss weights come from the same hash
and are also stored. Every weight is a multiple of 2^-21 below 2 in size, hence exact in float32.

The differentiated function is the sum over tokens of weight * cross entropy(logits, target), with
upstream gradient 1. targets[b, t] is scored at position t: the library does not shift anything.

A query t attends to the keys [key_lo[b, t], t] of its sequence. This covers causal attention,
sliding windows and packed documents.

The library computes norms, rotary angles and the softmax in float32 for any type of the model.
`widen` disables that, and NoFloat32 fails the run if a tensor of fewer than 64 bits appears.

Checks of every file, from the stored text alone:
  - the formula gives the stored sample weights; loss and gradients are reproduced;
  - central differences of the loss agree with three stored entries of the gradient;
  - `sdpa` attention with an explicit mask built from key_lo agrees with `eager` attention and the
    library's own mask, so key_lo describes what the library did."""

import json
import math
import os
import sys

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

HERE = os.path.dirname(os.path.abspath(__file__))
ENTRIES = 64
FORMULA = (
    "v1, 64-bit wrap-around: h = fnv1a64(name); z = h + (index + 1) * 0x9E3779B97F4A7C15; "
    "z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9; z = (z ^ z >> 27) * 0x94D049BB133111EB; "
    "z = z ^ z >> 31; weight = ((z >> 44) - 2^19) * 2^-21, plus 1 for weights of norms")

# Sizes differ within a case and between cases, so that no two dims can be confused. Configurations
# use the keys of published checkpoints: older ones rope_theta and rope_scaling, newer ones
# rope_parameters.
CASES = {
    "gpt2": dict(
        T=13, batch=3, weights="binary",
        config=dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=28, n_head=4,
                    n_layer=2, n_inner=44, n_positions=17, vocab_size=61,
                    activation_function="gelu_new", layer_norm_epsilon=1e-5, attn_pdrop=0.0,
                    embd_pdrop=0.0, resid_pdrop=0.0, tie_word_embeddings=True, bos_token_id=0,
                    eos_token_id=0)),
    "gpt2_packed": dict(  # two documents per sequence; positions restart
        T=14, batch=2, weights="fraction", documents=[[5, 9], [10, 4]],
        config=dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=20, n_head=5,
                    n_layer=3, n_inner=None, n_positions=19, vocab_size=53,
                    activation_function="gelu_new", layer_norm_epsilon=1e-5, attn_pdrop=0.0,
                    embd_pdrop=0.0, resid_pdrop=0.0, tie_word_embeddings=True, bos_token_id=0,
                    eos_token_id=0)),
    # Wavelengths 6.3, 29 and 135 against 64/4 and 64/1: one kept, one blended, one stretched.
    "llama": dict(
        T=13, batch=3, weights="binary",
        config=dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=36,
                    num_attention_heads=6, num_key_value_heads=2, num_hidden_layers=2,
                    intermediate_size=44, vocab_size=61, max_position_embeddings=256,
                    rms_norm_eps=1e-5, hidden_act="silu", rope_theta=100.0,
                    rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                      high_freq_factor=4.0, original_max_position_embeddings=64),
                    attention_bias=False, mlp_bias=False, attention_dropout=0.0,
                    tie_word_embeddings=False)),
    "llama_tied": dict(  # as many key heads as query heads, and linear scaling
        T=11, batch=2, weights="fraction",
        config=dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=24,
                    num_attention_heads=3, num_key_value_heads=3, num_hidden_layers=3,
                    intermediate_size=52, vocab_size=59, max_position_embeddings=32,
                    rms_norm_eps=1e-5, hidden_act="silu", rope_theta=10000.0,
                    rope_scaling=dict(type="linear", factor=2.5),
                    attention_bias=False, mlp_bias=False, attention_dropout=0.0,
                    tie_word_embeddings=True)),
    "llama_packed": dict(
        T=15, batch=2, weights="binary", documents=[[6, 9], [15]],
        config=dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=40,
                    num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
                    intermediate_size=28, vocab_size=71, max_position_embeddings=48,
                    rms_norm_eps=1e-6, hidden_act="silu", rope_theta=10000.0, rope_scaling=None,
                    attention_bias=False, mlp_bias=False, attention_dropout=0.0,
                    tie_word_embeddings=False)),
    "mistral": dict(  # a window of 5 keys, including the query's own
        T=17, batch=2, weights="binary",
        config=dict(model_type="mistral", architectures=["MistralForCausalLM"], hidden_size=30,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=6, num_hidden_layers=2,
                    intermediate_size=38, vocab_size=67, max_position_embeddings=64,
                    sliding_window=5, rms_norm_eps=1e-5, hidden_act="silu", rope_theta=10000.0,
                    attention_dropout=0.0, tie_word_embeddings=False)),
    "qwen2": dict(  # biases on q, k and v only
        T=12, batch=3, weights="fraction",
        config=dict(model_type="qwen2", architectures=["Qwen2ForCausalLM"], hidden_size=32,
                    num_attention_heads=4, num_key_value_heads=1, num_hidden_layers=2,
                    intermediate_size=46, vocab_size=73, max_position_embeddings=64,
                    use_sliding_window=False, sliding_window=6, max_window_layers=2,
                    rms_norm_eps=1e-6, hidden_act="silu", rope_theta=1000000.0,
                    attention_dropout=0.0, tie_word_embeddings=True)),
    "qwen3": dict(  # norms of q and k per head; 6 heads of 10 are wider than the model
        T=13, batch=3, weights="binary",
        config=dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], hidden_size=26,
                    num_attention_heads=6, num_key_value_heads=2, head_dim=10, num_hidden_layers=2,
                    intermediate_size=42, vocab_size=61, max_position_embeddings=64,
                    use_sliding_window=False, sliding_window=None, rms_norm_eps=1e-6,
                    hidden_act="silu",
                    rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
                    attention_bias=False, attention_dropout=0.0, tie_word_embeddings=False)),
    "mixtral": dict(
        T=13, batch=3, weights="binary",
        config=dict(model_type="mixtral", architectures=["MixtralForCausalLM"], hidden_size=28,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=6, num_hidden_layers=2,
                    intermediate_size=22, vocab_size=59, max_position_embeddings=64,
                    num_local_experts=5, num_experts_per_tok=2, sliding_window=None,
                    rms_norm_eps=1e-5, hidden_act="silu",
                    rope_parameters=dict(rope_type="default", rope_theta=10000.0),
                    router_jitter_noise=0.0, output_router_logits=False, attention_dropout=0.0,
                    tie_word_embeddings=False)),
    "qwen2_moe": dict(  # a shared expert; gates that are not renormalized; layer 1 is dense
        T=12, batch=2, weights="fraction",
        config=dict(model_type="qwen2_moe", architectures=["Qwen2MoeForCausalLM"], hidden_size=24,
                    num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=3,
                    intermediate_size=34, vocab_size=53, max_position_embeddings=64,
                    num_experts=6, num_experts_per_tok=3, moe_intermediate_size=18,
                    shared_expert_intermediate_size=30, norm_topk_prob=False,
                    decoder_sparse_step=1, mlp_only_layers=[1], use_sliding_window=False,
                    rms_norm_eps=1e-6, hidden_act="silu", qkv_bias=True,
                    rope_parameters=dict(rope_type="default", rope_theta=10000.0),
                    output_router_logits=False, attention_dropout=0.0, tie_word_embeddings=False)),
    "qwen3_moe": dict(  # every second layer has experts
        T=11, batch=3, weights="binary",
        config=dict(model_type="qwen3_moe", architectures=["Qwen3MoeForCausalLM"], hidden_size=26,
                    num_attention_heads=6, num_key_value_heads=2, head_dim=10, num_hidden_layers=2,
                    intermediate_size=42, vocab_size=61, max_position_embeddings=64,
                    num_local_experts=7, num_experts_per_tok=3, moe_intermediate_size=20,
                    norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[],
                    use_sliding_window=False, sliding_window=None, rms_norm_eps=1e-6,
                    hidden_act="silu",
                    rope_parameters=dict(rope_type="default", rope_theta=1000000.0),
                    output_router_logits=False, attention_bias=False, attention_dropout=0.0,
                    tie_word_embeddings=False)),
    "olmoe": dict(  # norms of q and k over all heads together
        T=14, batch=2, weights="fraction",
        config=dict(model_type="olmoe", architectures=["OlmoeForCausalLM"], hidden_size=24,
                    num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
                    intermediate_size=20, vocab_size=57, max_position_embeddings=64,
                    num_experts=6, num_experts_per_tok=2, norm_topk_prob=False, clip_qkv=None,
                    rms_norm_eps=1e-5, hidden_act="silu",
                    rope_parameters=dict(rope_type="default", rope_theta=10000.0),
                    output_router_logits=False, attention_bias=False, attention_dropout=0.0,
                    tie_word_embeddings=False, pad_token_id=None, eos_token_id=0)),
    "dots1": dict(  # DeepSeek's router: sigmoid, groups, a selection bias, a factor on gates
        T=13, batch=2, weights="binary",
        config=dict(model_type="dots1", architectures=["Dots1ForCausalLM"], hidden_size=26,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_hidden_layers=3,
                    intermediate_size=38, vocab_size=59, max_position_embeddings=64,
                    n_routed_experts=12, n_shared_experts=2, num_experts_per_tok=3, n_group=4,
                    topk_group=2, moe_intermediate_size=11, norm_topk_prob=True,
                    routed_scaling_factor=2.5, first_k_dense_replace=1, sliding_window=None,
                    rms_norm_eps=1e-6, hidden_act="silu",
                    rope_parameters=dict(rope_type="default", rope_theta=10000.0),
                    attention_bias=False, attention_dropout=0.0, tie_word_embeddings=False)),
}

# Experts are one tensor of the model and three tensors each in files.
EXPERT_FILES = {
    "mixtral": ("block_sparse_moe.", "w1", "w3", "w2"),
    None: ("mlp.", "gate_proj", "up_proj", "down_proj"),
}


def in_files(kind, name, p):
    """The tensors of a parameter as files name and store them."""
    if ".mlp." not in name:
        return [(name, p)]
    before, rest = name.split("mlp.", 1)
    folder, gate, up, down = EXPERT_FILES.get(kind, EXPERT_FILES[None])
    if rest == "experts.gate_up_proj":
        half = p.shape[1] // 2
        return [(f"{before}{folder}experts.{e}.{w}.weight", p[e, i * half:(i + 1) * half])
                for e in range(p.shape[0]) for i, w in enumerate((gate, up))]
    if rest == "experts.down_proj":
        return [(f"{before}{folder}experts.{e}.{down}.weight", p[e]) for e in range(p.shape[0])]
    return [(before + folder + rest, p)]


# The formula.

MASK = (1 << 64) - 1


def fnv1a64(name):
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    return h


def random_bits(name, index):
    z = fnv1a64(name) + (index + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def is_norm(name):
    layer, kind = name.split(".")[-2:]
    return kind == "weight" and ("norm" in layer or layer.startswith("ln_"))


def weight(name, index):
    return ((random_bits(name, index) >> 44) - 2**19) / 2**21 + (1 if is_norm(name) else 0)


def draw(name, count, below):
    return [(random_bits(name, i) >> 32) % below for i in range(count)]


# The library, in 64 bits.

def widen():
    """From here on what the library calls float32 is float64."""
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double


class NoFloat32(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor) and x.is_floating_point() and x.element_size() < 8:
                raise TypeError(f"{func} made a tensor of type {x.dtype}")
        return out


def window_of(config):
    return config.get("sliding_window") if config.get("use_sliding_window", True) else None


def model_of(case, attention):
    given = dict(case["config"])
    kind = given.pop("model_type")
    config = transformers.AutoConfig.for_model(kind, **given)
    written = config.to_dict()
    rope = dict(given.get("rope_scaling") or {}, rope_theta=given.get("rope_theta"))
    if "type" in rope:  # the old spelling
        rope["rope_type"] = rope.pop("type")
    for key, value in given.items():  # what the library renames or drops must be known here
        if key == "sliding_window":
            assert written[key] == window_of(case["config"])
        elif key in ("rope_theta", "rope_scaling"):
            assert all(written["rope_parameters"][k] == v for k, v in rope.items())
        else:
            assert written[key] == value, f"{key}: {value} became {written[key]}"
    config._attn_implementation = attention
    config._experts_implementation = "eager"
    model = getattr(transformers, given["architectures"][0])(config).to(torch.get_default_dtype())
    model.train()  # the dropouts are 0; nothing else differs from eval
    for whole, data in model.named_parameters():  # tied ones come once
        for name, p in in_files(kind, whole, data.data):
            assert is_norm(name) == (p.ndim == 1 and name.endswith(".weight")), name
            values = [weight(name, i) for i in range(p.numel())]
            p.copy_(torch.tensor(values).reshape(p.shape))
    for name, b in model.named_buffers():
        if name.endswith(EXCESS):
            b.copy_(torch.tensor([weight(name, i) for i in range(b.numel())]))
    return model


EXCESS = ".e_score_correction_bias"  # its gradient is the excess of each expert's load


def watch_routers(model):
    """Excess by name, once the model has run: E times the choices of an expert, less all choices."""
    excess = {}

    def watch(name, router):
        def hook(_module, _args, out):
            chosen = out[2]
            counts = torch.bincount(chosen.reshape(-1), minlength=router.num_experts)
            excess[name + EXCESS] = (router.num_experts * counts - chosen.numel()).to(
                torch.get_default_dtype())
        return hook

    for name, module in model.named_modules():
        if hasattr(module, EXCESS[1:]):
            module.register_forward_hook(watch(name, module))
    return excess


def explicit_mask(case):
    """[batch, 1, T, T], 0 if the query of the row attends to the key of the column, else -inf."""
    T, low = case["T"], torch.tensor(case["key_lo"]).reshape(case["batch"], 1, case["T"], 1)
    key, query = torch.arange(T), torch.arange(T).reshape(T, 1)
    seen = (key >= low) & (key <= query)
    return torch.zeros(seen.shape).masked_fill(~seen, -math.inf)


def logits_of(model, case, mask):
    shape = case["batch"], case["T"]
    return model(input_ids=torch.tensor(case["tokens"]).reshape(shape),
                 position_ids=torch.tensor(case["positions"]).reshape(shape),
                 attention_mask=explicit_mask(case) if mask else None,
                 use_cache=False).logits.reshape(shape[0] * shape[1], -1)


def loss_of(logits, case):
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(case["targets"]),
                                               reduction="none")
    return (losses * torch.tensor(case["weights"])).sum()


def run(case, attention="eager", mask=False):
    """Logits [batch * T, vocab], loss, and gradients by name."""
    model = model_of(case, attention)
    excess = watch_routers(model)
    logits = logits_of(model, case, mask)
    loss = loss_of(logits, case)
    loss.backward()
    kind = case["config"]["model_type"]
    return logits.detach(), loss.item(), {
        name: grad for whole, p in model.named_parameters()
        for name, grad in in_files(kind, whole, p.grad)} | excess


# Making a file.

def complete(name, case):
    """The case with its tokens, targets, loss weights, positions and first keys."""
    T, batch, vocab = case["T"], case["batch"], case["config"]["vocab_size"]
    documents = case.get("documents", [[T]] * batch)
    positions, key_lo = [], []
    for lengths in documents:
        assert sum(lengths) == T
        starts = [sum(lengths[:i]) for i, n in enumerate(lengths) for _ in range(n)]
        positions += [t - start for t, start in enumerate(starts)]
        window = window_of(case["config"]) or T
        key_lo += [max(start, t - window + 1) for t, start in enumerate(starts)]
    n = batch * T
    weights = {"binary": [min(w, 1) for w in draw(name + ".weights", n, 4)],
               "fraction": [w / 8 for w in draw(name + ".weights", n, 9)]}[case["weights"]]
    assert 0 in weights
    return dict(config=case["config"], T=T, batch=batch, tokens=draw(name + ".tokens", n, vocab),
                targets=draw(name + ".targets", n, vocab), weights=weights, positions=positions,
                key_lo=key_lo)


def spread(count, want):
    """Up to `want` indices below count, evenly spaced, including the first and the last."""
    if count <= want:
        return list(range(count))
    return [i * (count - 1) // (want - 1) for i in range(want)]


def record(name, grad):
    flat = grad.reshape(-1)
    return dict(name=name, shape=list(grad.shape), norm=grad.norm().item(),
                max=grad.abs().max().item(),
                entries=[[i, flat[i].item()] for i in spread(flat.numel(), ENTRIES)])


def make(name):
    case = complete(name, CASES[name])
    with NoFloat32():
        logits, loss, grads = run(case)
    vocab = logits.shape[1]
    case["loss"] = loss
    case["logits"] = [[n, v, logits[n, v].item()] for n in spread(logits.shape[0], 8)
                      for v in spread(vocab, 7)]
    case["params"] = [record(n, g) for n, g in grads.items()]
    names = list(grads)
    some = [names[j] for j in spread(len(names), 4)] + [next(filter(is_norm, names))]
    case["spots"] = [[n, i, weight(n, i)] for n in some for i in [grads[n].numel() * 2 // 3]]
    return case


def text_of(name, case):
    """JSON with one line per item; numbers as repr writes them, so they read back exactly."""
    head = dict(format="sheaf golden 1", name=name, torch=torch.__version__.split("+")[0],
                transformers=transformers.__version__, formula=FORMULA)
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in (head | case).items()
             if k not in ("config", "params")]
    lines.append('"config": ' + json.dumps(case["config"], indent=1))
    lines.append('"params": [\n' + ",\n".join(json.dumps(p) for p in case["params"]) + "\n]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def path_of(name):
    return os.path.join(HERE, name + ".json")


def load(name):
    assert os.path.getsize(path_of(name)) < 200_000
    with open(path_of(name)) as file:
        return json.load(file)


# Checking a file.

def farthest(grads, other):
    """The largest difference, relative to the largest entry of its tensor."""
    return max(((grads[n] - other[n]).abs().max() / grads[n].abs().max()).item() for n in grads)


def check_stored(case, logits, loss, grads):
    assert all(weight(n, i) == v for n, i, v in case["spots"])
    assert abs(loss - case["loss"]) <= 1e-13 * abs(loss)
    assert all(abs(logits[n, v].item() - x) < 1e-12 for n, v, x in case["logits"])
    assert [p["name"] for p in case["params"]] == list(grads)
    for p in case["params"]:
        g = grads[p["name"]]
        assert p["shape"] == list(g.shape)
        assert abs(p["norm"] - g.norm().item()) <= 1e-12 * p["norm"], p["name"]
        assert all(abs(g.reshape(-1)[i].item() - x) <= 1e-12 * p["max"] for i, x in p["entries"])


def check_differences(case):
    """Central differences at the largest stored entry of the first, a middle and the last tensor."""
    worst, model = 0, model_of(case, "eager")
    kind = case["config"]["model_type"]
    params = [p for p in case["params"] if not p["name"].endswith(EXCESS)]
    weights = {name: part for whole, p in model.named_parameters()
               for name, part in in_files(kind, whole, p.data)}
    for p in (params[0], params[len(params) // 2], params[-1]):
        index, want = max(p["entries"], key=lambda e: abs(e[1]))
        flat, step, sides = weights[p["name"]].view(-1), 2**-16, []
        for sign in (1, -1):
            flat[index] += sign * step
            with torch.no_grad():
                sides.append(loss_of(logits_of(model, case, False), case).item())
            flat[index] -= sign * step
        worst = max(worst, abs((sides[0] - sides[1]) / (2 * step) - want) / p["max"])
    assert worst < 1e-7, worst
    return worst


def check(name):
    case = load(name)
    with NoFloat32():
        logits, loss, grads = run(case)
        check_stored(case, logits, loss, grads)
        differences = check_differences(case)
        others = [run(case, "sdpa"), run(case, "eager", mask=True), run(case, "sdpa", mask=True)]
    worst = max(farthest(grads, g) for _, _, g in others)
    assert worst < 1e-11 and all(abs(l - loss) < 1e-12 * loss for _, l, _ in others), worst
    least = min(p["max"] for p in case["params"])
    print(f"{name}: loss {loss:.12f}, {len(grads)} gradients, least of the largest entries "
          f"{least:.1e}; differences {differences:.0e}, other ways {worst:.0e}")


def show_float32(name):
    case = load(name)
    _, loss, grads = run(case)
    worst = max(abs(grads[p["name"]].reshape(-1)[i].item() - x) / p["max"]
                for p in case["params"] for i, x in p["entries"])
    print(f"{name}: in float32 the loss is {abs(loss / case['loss'] - 1):.0e} off, gradients "
          f"{worst:.0e} of the largest entry")


def main():
    torch.set_num_threads(1)
    if sys.argv[1:2] not in ([], ["--check"], ["--float32"], ["--only"]):
        sys.exit("usage: make_golden.py [--check | --float32 | --only NAME ...]")
    if sys.argv[1:] == ["--float32"]:
        for name in CASES:
            show_float32(name)
        return
    widen()
    only = sys.argv[2:] if sys.argv[1:2] == ["--only"] else list(CASES)
    for name in only:
        if sys.argv[1:2] != ["--check"]:
            text = text_of(name, make(name))
            with open(path_of(name), "w") as file:
                file.write(text)
        check(name)


if __name__ == "__main__":
    main()
