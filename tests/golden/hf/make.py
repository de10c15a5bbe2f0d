#!/usr/bin/env python3
"""make.py -- small folders written by the transformers library, with the logits that it computes.

    make.py            write NAME/ for every case below
    make.py FOLDER     write them to FOLDER instead

Each contains config.json, model.safetensors or shards with an index, and expected.json: a prompt,
and the logits of each of its positions in float32. Weights are random, including norms and biases,
and large enough that each of them affects the logits. `gpt2_hub` is like the folders of 2019 on the
hub: names without a prefix, masks among the tensors, the tied head stored too. `llama_fp8` has the
linear weights of its layers in 8 bits, with a scale for each block of elements in weight_scale_inv,
as the checkpoints of DeepSeek-V3 and Qwen3-FP8; blocks are small, and do not divide the shapes."""

import json
import os
import shutil
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = os.path.dirname(os.path.abspath(__file__))

# Sizes differ within a case, so that no two dims can be confused.
CASES = {
    "gpt2": dict(config=dict(
        model_type="gpt2", n_embd=24, n_head=3, n_layer=2, n_inner=40, n_positions=16, vocab_size=37,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)),
    "gpt2_hub": dict(hub=True, config=dict(
        model_type="gpt2", n_embd=12, n_head=2, n_layer=2, n_positions=14, vocab_size=29,
        bos_token_id=1, eos_token_id=1)),
    "llama": dict(config=dict(
        model_type="llama", hidden_size=24, intermediate_size=36, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=41, rms_norm_eps=1e-5,
        max_position_embeddings=64, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=16))),
    "llama_bf16": dict(dtype=torch.bfloat16, shard="4KB", config=dict(
        model_type="llama", hidden_size=20, intermediate_size=28, num_hidden_layers=3,
        num_attention_heads=5, num_key_value_heads=5, vocab_size=43, rms_norm_eps=1e-6,
        max_position_embeddings=32, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)),
    "mistral_f16": dict(dtype=torch.float16, config=dict(
        model_type="mistral", hidden_size=28, intermediate_size=34, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=31, rms_norm_eps=1e-5,
        max_position_embeddings=48, sliding_window=5, tie_word_embeddings=False)),
    "qwen2": dict(config=dict(
        model_type="qwen2", hidden_size=18, intermediate_size=26, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, vocab_size=39, rms_norm_eps=1e-6,
        max_position_embeddings=40, use_sliding_window=False, tie_word_embeddings=True)),
    "qwen3": dict(config=dict(
        model_type="qwen3", hidden_size=20, intermediate_size=30, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=10, vocab_size=35, rms_norm_eps=1e-6,
        max_position_embeddings=36, tie_word_embeddings=False)),
    "mixtral": dict(config=dict(
        model_type="mixtral", hidden_size=20, intermediate_size=14, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=33, rms_norm_eps=1e-5,
        num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=36,
        tie_word_embeddings=False)),
    "qwen2_moe": dict(dtype=torch.bfloat16, shard="6KB", config=dict(
        model_type="qwen2_moe", hidden_size=18, intermediate_size=26, num_hidden_layers=2,
        num_attention_heads=3, num_key_value_heads=1, vocab_size=31, rms_norm_eps=1e-6,
        num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12,
        shared_expert_intermediate_size=22, mlp_only_layers=[0], max_position_embeddings=40,
        use_sliding_window=False, tie_word_embeddings=False)),
    "qwen3_moe": dict(config=dict(
        model_type="qwen3_moe", hidden_size=20, intermediate_size=30, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=10, vocab_size=35, rms_norm_eps=1e-6,
        num_experts=6, num_experts_per_tok=3, moe_intermediate_size=14, norm_topk_prob=True,
        max_position_embeddings=36, tie_word_embeddings=False)),
    "olmoe": dict(config=dict(
        model_type="olmoe", hidden_size=24, intermediate_size=14, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, vocab_size=37, rms_norm_eps=1e-5,
        num_experts=4, num_experts_per_tok=2, max_position_embeddings=36, pad_token_id=None,
        eos_token_id=0, tie_word_embeddings=False)),
    "dots1": dict(config=dict(
        model_type="dots1", hidden_size=20, intermediate_size=30, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=35, rms_norm_eps=1e-6,
        n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2,
        moe_intermediate_size=12, norm_topk_prob=True, routed_scaling_factor=1.5,
        first_k_dense_replace=1, sliding_window=None, max_position_embeddings=36,
        tie_word_embeddings=False)),
    "llama_fp8": dict(fp8=(8, 16), shard="14KB", config=dict(
        model_type="llama", hidden_size=24, intermediate_size=36, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=41, rms_norm_eps=1e-5,
        max_position_embeddings=64, tie_word_embeddings=False)),
}
T = 11


def build(case, seed):
    """A model with random weights, rounded to the type that it is stored in."""
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(**case["config"])
    config._experts_implementation = "eager"  # the other one wants aligned sizes
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0, 0.35)
            if "norm" in name and name.endswith("weight") or ".ln_" in name and name.endswith("weight"):
                p.add_(1)
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.normal_(0, 0.2)
        model.to(case.get("dtype", torch.float32))
    return model


def write_hub(model, folder):
    """The same tensors as in a folder of 2019: no prefix, buffers, and the tied head."""
    path = os.path.join(folder, "model.safetensors")
    tensors = {k.removeprefix("transformer."): v for k, v in load_file(path).items()}
    n = model.config.n_positions
    for i in range(model.config.n_layer):
        tensors[f"h.{i}.attn.bias"] = torch.tril(torch.ones(n, n)).view(1, 1, n, n)
        tensors[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    save_file(tensors, path, metadata={"format": "pt"})


def quantize(w, block):
    """Codes, scales and the values that they stand for; without the library's own quantizer."""
    rows, columns = block
    scale = torch.zeros(-(-w.shape[0] // rows), -(-w.shape[1] // columns))
    code = torch.zeros(w.shape, dtype=torch.float8_e4m3fn)
    value = torch.zeros(w.shape)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
            scale[i, j] = w[at].abs().max() / 448
            code[at] = (w[at] / scale[i, j]).clamp(-448, 448).to(torch.float8_e4m3fn)
            value[at] = code[at].float() * scale[i, j]
    return code, scale, value


def write_fp8(model, folder, block):
    """Replaces the linear weights of the layers, in the files and in the model."""
    config = os.path.join(folder, "config.json")
    with open(config) as f:
        text = json.load(f)
    text["quantization_config"] = dict(
        activation_scheme="dynamic", fmt="e4m3", quant_method="fp8", weight_block_size=list(block),
        modules_to_not_convert=["lm_head"])
    with open(config, "w") as f:
        json.dump(text, f, indent=2)
    index = os.path.join(folder, "model.safetensors.index.json")
    with open(index) as f:
        listed = json.load(f)
    parameters = dict(model.named_parameters())
    for file in sorted(set(listed["weight_map"].values())):
        path = os.path.join(folder, file)
        tensors = load_file(path)
        for name in [n for n in tensors if n.endswith("proj.weight")]:
            tensors[name], scale, value = quantize(tensors[name], block)
            tensors[name + "_scale_inv"] = scale
            listed["weight_map"][name + "_scale_inv"] = file
            with torch.no_grad():
                parameters[name].copy_(value)
        save_file(tensors, path, metadata={"format": "pt"})
    with open(index, "w") as f:
        json.dump(listed, f, indent=2)


def make(name, case, seed, base):
    folder = os.path.join(base, name)
    shutil.rmtree(folder, ignore_errors=True)
    model = build(case, seed)
    model.save_pretrained(folder, max_shard_size=case.get("shard", "5GB"))
    if case.get("hub"):
        write_hub(model, folder)
    generation = os.path.join(folder, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    tokens = torch.randint(model.config.vocab_size, (1, T))
    if case.get("fp8"):
        write_fp8(model, folder, case["fp8"])
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager").eval()
    model.config._experts_implementation = "eager"
    with torch.no_grad():
        logits = model(tokens).logits[0]
    with open(os.path.join(folder, "expected.json"), "w") as f:
        rows = [[float(f"{x:.9g}") for x in row] for row in logits.tolist()]
        text = ",\n  ".join(json.dumps(r) for r in rows)
        f.write(f'{{"tokens": {json.dumps(tokens[0].tolist())},\n "logits": [\n  {text}]}}\n')
    print(name, sum(e.stat().st_size for e in os.scandir(folder)), "bytes")


def main():
    base = sys.argv[1] if len(sys.argv) > 1 else HERE
    for seed, (name, case) in enumerate(CASES.items()):
        make(name, case, seed + 1, base)


if __name__ == "__main__":
    main()
