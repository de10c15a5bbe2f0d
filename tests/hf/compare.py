#!/usr/bin/env python3
"""compare.py SHEAF TEST_HF_LOGITS -- Sheaf and the transformers library read each other's folders.

For gpt2, llama (grouped keys, llama3 and linear rotary scaling), mistral (a window), qwen2 and
qwen3, with random weights:

    theirs  written by save_pretrained: Sheaf's logits agree with the library's to 1e-4 (float32), on
            one rank and on tp=2 pp=2
    ours    trained further by Sheaf for some steps on two ranks, written by `sheaf reshape --hf` in
            shards: the library reads it without missing or unexpected tensors, and logits agree
    back    theirs, through a checkpoint of ours on four ranks, gives the same tensors to the bit
    types   --dtype bf16 and f16 round as torch does

A tokenizer is copied too, and AutoTokenizer reads it. Status 77: the libraries are not installed."""

import json
import os
import subprocess
import sys
import tempfile

try:
    import tokenizers
    import torch
    import transformers
except ImportError as missing:
    print(f"SKIPPED: no folder was compared: {missing}; `pip install torch transformers tokenizers` and set "
          "SHEAF_TEST_PYTHON to that python")
    sys.exit(77)

T = 61
COMMON = dict(vocab_size=300, hidden_size=96, intermediate_size=160, num_hidden_layers=3, num_attention_heads=6,
              max_position_embeddings=128)
LLAMA3 = dict(rope_type="llama3", rope_theta=1000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
CASES = {
    "gpt2": dict(model_type="gpt2", vocab_size=300, n_embd=96, n_head=6, n_layer=3, n_positions=128),
    "gpt2_untied": dict(model_type="gpt2", vocab_size=299, n_embd=60, n_head=5, n_layer=2, n_positions=80,
                        n_inner=100, tie_word_embeddings=False),
    "llama": dict(model_type="llama", num_key_value_heads=2, tie_word_embeddings=False, rope_parameters=LLAMA3, **COMMON),
    "llama_tied": dict(model_type="llama", num_key_value_heads=6, tie_word_embeddings=True, attention_bias=True,
                       mlp_bias=True, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0), **COMMON),
    "mistral": dict(model_type="mistral", num_key_value_heads=3, sliding_window=17, head_dim=20, **COMMON),
    "qwen2": dict(model_type="qwen2", num_key_value_heads=2, tie_word_embeddings=True, **COMMON),
    "qwen2_window": dict(model_type="qwen2", num_key_value_heads=2, use_sliding_window=True, sliding_window=11,
                         max_window_layers=0, **COMMON),
    "qwen3": dict(model_type="qwen3", num_key_value_heads=2, head_dim=24, **COMMON),
}


def fail(text):
    print("FAILED:", text)
    sys.exit(1)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def make(config, folder, seed):
    """A folder of random weights, large enough that each affects the logits."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(0, 0.08)
            if p.dim() == 1 and name.endswith("weight"):
                p.add_(1)
    model.save_pretrained(folder)


def read(folder):
    """The library's model of a folder, without missing or unexpected tensors."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True,
                                                                    attn_implementation="eager")
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if info.get(what):
            fail(f"{folder}: {what}: {info[what]}")
    return model.eval()


def expect(folder):
    """expected.json: a prompt, and the library's logits."""
    model = read(folder)
    tokens = torch.randint(256, (1, T))
    with torch.no_grad():
        logits = model(tokens).logits[0]
    if not 0.1 < logits.std() < 30:
        fail(f"{folder}: logits of deviation {logits.std()} say little")
    with open(os.path.join(folder, "expected.json"), "w") as f:
        json.dump(dict(tokens=tokens[0].tolist(), logits=logits.double().tolist()), f)


def same_tensors(a, b, dtype=torch.float32):
    """Every tensor of b equals that of a, converted to the type."""
    one, two = (transformers.AutoModelForCausalLM.from_pretrained(x, dtype=torch.float32).state_dict() for x in (a, b))
    if one.keys() != two.keys():
        fail(f"{a}, {b}: {sorted(one.keys() ^ two.keys())}")
    for name, x in one.items():
        if not torch.equal(x.to(dtype).float(), two[name]):
            fail(f"{a}, {b}: {name} differs")


def add_tokenizer(folder):
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, special_tokens=["<|endoftext|>"],
                                             initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model.train_from_iterator(["a model goes out and comes back"], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<|endoftext|>").save_pretrained(folder)


def check(sheaf, logits, name, config, top, seed):
    theirs, ours, through, trained = (os.path.join(top, f"{name}_{x}") for x in ("theirs", "ours", "through", "run"))
    make(config, theirs, seed)
    add_tokenizer(theirs)
    expect(theirs)
    run(logits, theirs)

    run(sheaf, "reshape", theirs, through, "mesh.tp=2", "mesh.pp=2")
    run(sheaf, "reshape", through, through + "_hf", "--hf")
    same_tensors(theirs, through + "_hf")
    for dtype, of in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        run(sheaf, "reshape", theirs, f"{theirs}_{dtype}", "--hf", "--dtype", dtype)
        same_tensors(theirs, f"{theirs}_{dtype}", of)

    dropout = [f"model.{x}_pdrop=0" for x in ("attn", "embd", "resid")] if "gpt2" in name else []
    tokens = os.path.join(top, f"{name}.bin")
    run(sheaf, "data", "build", "LICENSE", "--tokenizer", f"{theirs}/tokenizer.json", "-o", tokens)
    run(sheaf, "train", f"model.init={theirs}", *dropout, f"data.train={tokens}", "data.seq_len=48", "batch.global=4",
        "run.steps=3", "run.ranks=2", "mesh.dp=2", "parallel.zero=3", "run.threads=1", f"run.dir={trained}",
        "optim.lr=1e-2", "optim.warmup=1", f"data.tokenizer={theirs}/tokenizer.json")
    printed = run(sheaf, "reshape", trained, ours, "--hf", "--shard-size", "200KB")
    if not os.path.exists(os.path.join(ours, "model.safetensors.index.json")):
        fail(f"{ours}: no shards: {printed}")
    expect(ours)
    run(logits, ours)
    for folder in (ours, through + "_hf"):
        ids = transformers.AutoTokenizer.from_pretrained(folder)("it comes back").input_ids
        if ids != transformers.AutoTokenizer.from_pretrained(theirs)("it comes back").input_ids:
            fail(f"{folder}: its tokenizer is another")
    print(f"{name}: read there and here, logits agree", flush=True)


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as top:
        os.environ["XDG_CACHE_HOME"] = os.path.join(top, "cache")
        for seed, (name, config) in enumerate(CASES.items()):
            check(sys.argv[1], sys.argv[2], name, config, top, seed + 1)
    print(f"{len(CASES)} models agree; transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
