# seeds.sh -- to be sourced from the root of the repository: writes valid inputs for the fuzz
# targets to $folder/seeds/TARGET.
# Numbers are little-endian: 20240520 is 88 d8 34 01.
seed() { mkdir -p "$folder/seeds/$1" && cat >"$folder/seeds/$1/$2"; }
zeros() { head -c "$1" /dev/zero; }
u8() { printf '%b' "$(printf '\\x%02x' "$@")"; }
{ u8 3 255 255 0x88 0xd8 0x34 1 1 0 0 0 2 0 0 0 && zeros 1012 && u8 7 0 80 196; } | seed fuzz_tokens llmc16
{ u8 3 255 255 0xa1 0xd9 0x34 1 7 0 0 0 1 0 0 0 && zeros 1012 && u8 0 244 1 0; } | seed fuzz_tokens llmc32
{ u8 4 6 0 1 0 2 0 3 0 && printf 'MMIDIDX\0\0' && u8 1 0 0 0 0 0 0 0 8 2 0 0 0 0 0 0 0 3 0 0 0 0 0 0 0 \
    1 0 0 0 2 0 0 0 0 0 0 0 0 0 0 0 2 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0 2 0 0 0 0 0 0 0; } |
    seed fuzz_tokens megatron
{ u8 2 255 255 && printf '{"text": "a\\u00e4"}\n{"text": "b", "n": [1, {}]}\n'; } | seed fuzz_tokens jsonl
printf '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 256, "intermediate_size": 176, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}' |
    seed fuzz_model_config llama
printf '{"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 256}' |
    seed fuzz_model_config gpt2
printf '{"model_type": "stdit", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_frames": 3, "latent_height": 4, "latent_width": 6, "latent_channels": 2, "patch_size": 2, "text_length": 3, "text_width": 5}' |
    seed fuzz_model_config stdit
{ u8 0x93 && printf 'NUMPY' && u8 1 0 70 0 && printf "%-69s\n" "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1, 3, 1), }" && zeros 24; } |
    seed fuzz_npy floats
{ u8 0x93 && printf 'NUMPY' && u8 2 0 70 0 0 0 && printf "%-69s\n" "{'descr': '<f2', 'fortran_order': False, 'shape': (5,), }" && zeros 10; } |
    seed fuzz_npy halves
for file in tests/golden/tokenizer/{gpt2,llama3}.json; do
    { cat "$file" && u8 0 && head -c 300 tests/golden/tokenizer/texts.jsonl; } | seed fuzz_tokenizer "$(basename "$file")"
done
printf '{"metadata": {"total_size": 8}, "weight_map": {"a.weight": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}' |
    seed fuzz_hf_index index
for file in tests/golden/hf/*/config.json; do
    seed fuzz_model_config "$(basename "$(dirname "$file")")" <"$file"
done
for file in examples/*.yaml; do seed fuzz_run_file "$(basename "$file")" <"$file"; done
for file in tests/golden/safetensors/*.safetensors tests/golden/checkpoint/*/*.safetensors; do
    seed fuzz_safetensors "$(basename "$file")" <"$file"
done
seed fuzz_manifest small <tests/golden/checkpoint/step-00000020/manifest.json
for file in tests/golden/schedule/*.txt; do seed fuzz_schedule "$(basename "$file")" <"$file"; done
for file in share/clusters/*.yaml; do seed fuzz_cluster "$(basename "$file")" <"$file"; done
