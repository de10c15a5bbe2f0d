#!/usr/bin/env python3
"""make.py -- small folders written by the transformers library, with the text that it generates.

    make.py            write NAME/ for every case below
    make.py FOLDER     write them to FOLDER instead

Each contains config.json, model.safetensors (bf16, computed in float32) and expected.json: a prompt,
the 200 tokens of greedy generation, and the 200 with a repetition penalty; both with the smallest
distance between the two largest scores over all positions. Seeds are tried until that distance is
so large that the tokens do not depend on the order of sums."""

import json
import os
import shutil
import sys

import torch
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENS, PENALTY, MARGIN = 200, 1.3, 1.5e-3

# Sizes differ within a case, so that no two dims can be confused.
CASES = {
    "gpt2": dict(model_type="gpt2", n_embd=24, n_head=3, n_layer=2, n_inner=40, n_positions=230, vocab_size=97,
                 attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0),
    "llama": dict(model_type="llama", hidden_size=24, intermediate_size=36, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=101, rms_norm_eps=1e-5,
                  max_position_embeddings=256, tie_word_embeddings=False,
                  rope_parameters=dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=1.0,
                                       high_freq_factor=4.0, original_max_position_embeddings=64)),
    "mistral": dict(model_type="mistral", hidden_size=28, intermediate_size=34, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=89, rms_norm_eps=1e-5,
                    max_position_embeddings=256, sliding_window=23, tie_word_embeddings=False),
    "qwen2": dict(model_type="qwen2", hidden_size=18, intermediate_size=26, num_hidden_layers=2,
                  num_attention_heads=3, num_key_value_heads=1, vocab_size=93, rms_norm_eps=1e-6,
                  max_position_embeddings=256, use_sliding_window=False, tie_word_embeddings=True),
    "qwen3": dict(model_type="qwen3", hidden_size=20, intermediate_size=30, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, head_dim=10, vocab_size=95, rms_norm_eps=1e-6,
                  max_position_embeddings=256, tie_word_embeddings=False),
    "mixtral": dict(model_type="mixtral", hidden_size=20, intermediate_size=18, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=91, rms_norm_eps=1e-5,
                    num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=256,
                    tie_word_embeddings=False),
    "qwen2_moe": dict(model_type="qwen2_moe", hidden_size=18, intermediate_size=26, num_hidden_layers=2,
                      num_attention_heads=3, num_key_value_heads=1, vocab_size=87, rms_norm_eps=1e-6,
                      num_experts=5, num_experts_per_tok=2, moe_intermediate_size=14,
                      shared_expert_intermediate_size=22, mlp_only_layers=[0],
                      max_position_embeddings=256, use_sliding_window=False, tie_word_embeddings=False),
    "qwen3_moe": dict(model_type="qwen3_moe", hidden_size=20, intermediate_size=30, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, head_dim=10, vocab_size=95,
                      num_experts=6, num_experts_per_tok=3, moe_intermediate_size=16, norm_topk_prob=True,
                      rms_norm_eps=1e-6, max_position_embeddings=256, tie_word_embeddings=False),
    "dots1": dict(model_type="dots1", hidden_size=20, intermediate_size=30, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=95, rms_norm_eps=1e-6,
                  n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3, n_group=4, topk_group=2,
                  moe_intermediate_size=12, norm_topk_prob=True, routed_scaling_factor=1.5,
                  first_k_dense_replace=1, sliding_window=None, max_position_embeddings=256,
                  tie_word_embeddings=False),
}


def build(config, seed):
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(**config)
    config._experts_implementation = "eager"  # the other one wants aligned sizes
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0, 0.35)
            if "norm" in name and name.endswith("weight") or ".ln_" in name and name.endswith("weight"):
                p.add_(1)
            p.copy_(p.bfloat16().float())  # not model.to: that would round the rotary frequencies too
        for name, b in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                b.copy_(torch.empty_like(b).normal_(0, 0.2).bfloat16().float())
    return model


def go_on(model, prompt, **how):
    """The tokens, and the smallest distance between the two largest scores."""
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False,
                         eos_token_id=None, pad_token_id=0, output_scores=True,
                         return_dict_in_generate=True, **how)
    margin = min((s[0].topk(2).values[0] - s[0].topk(2).values[1]).item() for s in out.scores)
    return out.sequences[0, len(prompt):].tolist(), margin


def make(name, config, base):
    folder = os.path.join(base, name)
    shutil.rmtree(folder, ignore_errors=True)
    for seed in range(1000):
        model = build(config, seed)
        prompt = torch.randint(config["vocab_size"], (7,)).tolist()
        greedy, margin = go_on(model, prompt)
        if margin < MARGIN or len(set(greedy)) < 12:
            continue
        punished, other = go_on(model, prompt, repetition_penalty=PENALTY)
        if other >= MARGIN:
            break
    model.to(torch.bfloat16).save_pretrained(folder)
    generation = os.path.join(folder, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    expected = dict(prompt=prompt, greedy=greedy, penalty=PENALTY, punished=punished,
                    margin=round(min(margin, other), 5), seed=seed, transformers=transformers.__version__)
    with open(os.path.join(folder, "expected.json"), "w") as f:
        json.dump(expected, f)
        f.write("\n")
    print(name, "seed", seed, "margin", expected["margin"], "tokens", len(set(greedy)), len(set(punished)))


if __name__ == "__main__":
    for case, words in CASES.items():
        make(case, words, sys.argv[1] if len(sys.argv) > 1 else HERE)
