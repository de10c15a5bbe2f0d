/* presets.c -- models by name. Each preset is a list of config.json keys and values.
 *
 * For other sizes override a preset's keys: model.name=llama3-8b model.num_hidden_layers=4. The
 * tiny presets train on bytes (vocabulary 256) in seconds. */
#include "model/config_rows.h"

/* Latents of 51 frames of 512 x 512 pixels, as an autoencoder with factors 8 and 1 makes them. */
#define STDIT(layers, width, heads)                                                                \
    "model_type=stdit num_frames=51 latent_height=64 latent_width=64 latent_channels=4 "           \
    "patch_size=2 num_hidden_layers=" layers " hidden_size=" width " num_attention_heads=" heads

#define GPT2(layers, width, heads)                                                                 \
    "model_type=gpt2 vocab_size=50257 n_positions=1024 n_layer=" layers " n_embd=" width           \
    " n_head=" heads

static const struct {
    const char *name, *words;
} presets[] = {
    {"gpt2-tiny", "model_type=gpt2 vocab_size=256 n_positions=1024 n_layer=2 n_embd=64 n_head=4"},
    {"gpt2", GPT2("12", "768", "12")},
    {"gpt2-124m", GPT2("12", "768", "12")},
    {"gpt2-medium", GPT2("24", "1024", "16")},
    {"gpt2-350m", GPT2("24", "1024", "16")},
    {"gpt2-large", GPT2("36", "1280", "20")},
    {"gpt2-774m", GPT2("36", "1280", "20")},
    {"gpt2-xl", GPT2("48", "1600", "25")},
    {"gpt2-1558m", GPT2("48", "1600", "25")},
    {"llama-tiny", "model_type=llama vocab_size=256 max_position_embeddings=1024 "
                   "num_hidden_layers=2 hidden_size=64 intermediate_size=176 "
                   "num_attention_heads=4 num_key_value_heads=2 rms_norm_eps=1e-5"},
    {"llama2-7b", "model_type=llama vocab_size=32000 max_position_embeddings=4096 "
                  "num_hidden_layers=32 hidden_size=4096 intermediate_size=11008 "
                  "num_attention_heads=32 num_key_value_heads=32 rms_norm_eps=1e-5"},
    {"llama3-8b", "model_type=llama vocab_size=128256 max_position_embeddings=8192 "
                  "num_hidden_layers=32 hidden_size=4096 intermediate_size=14336 "
                  "num_attention_heads=32 num_key_value_heads=8 rms_norm_eps=1e-5 "
                  "rope_theta=500000"},
    {"llama3-70b", "model_type=llama vocab_size=128256 max_position_embeddings=8192 "
                   "num_hidden_layers=80 hidden_size=8192 intermediate_size=28672 "
                   "num_attention_heads=64 num_key_value_heads=8 rms_norm_eps=1e-5 "
                   "rope_theta=500000"},
    {"llama3.1-405b", "model_type=llama vocab_size=128256 max_position_embeddings=131072 "
                      "num_hidden_layers=126 hidden_size=16384 intermediate_size=53248 "
                      "num_attention_heads=128 num_key_value_heads=8 rms_norm_eps=1e-5 "
                      "rope_theta=500000 rope_scaling.rope_type=llama3 rope_scaling.factor=8 "
                      "rope_scaling.low_freq_factor=1 rope_scaling.high_freq_factor=4 "
                      "rope_scaling.original_max_position_embeddings=8192"},
    {"llama3.2-1b", "model_type=llama vocab_size=128256 max_position_embeddings=131072 "
                    "num_hidden_layers=16 hidden_size=2048 intermediate_size=8192 "
                    "num_attention_heads=32 num_key_value_heads=8 head_dim=64 rms_norm_eps=1e-5 "
                    "rope_theta=500000 rope_scaling.rope_type=llama3 rope_scaling.factor=32 "
                    "rope_scaling.low_freq_factor=1 rope_scaling.high_freq_factor=4 "
                    "rope_scaling.original_max_position_embeddings=8192 tie_word_embeddings=true"},
    {"mistral-7b", "model_type=mistral vocab_size=32000 max_position_embeddings=32768 "
                   "num_hidden_layers=32 hidden_size=4096 intermediate_size=14336 "
                   "num_attention_heads=32 num_key_value_heads=8 rms_norm_eps=1e-5 "
                   "sliding_window=4096"},
    {"qwen2-0.5b", "model_type=qwen2 vocab_size=151936 max_position_embeddings=131072 "
                   "num_hidden_layers=24 hidden_size=896 intermediate_size=4864 "
                   "num_attention_heads=14 num_key_value_heads=2 rms_norm_eps=1e-6 "
                   "rope_theta=1000000 tie_word_embeddings=true"},
    {"qwen2-7b", "model_type=qwen2 vocab_size=152064 max_position_embeddings=131072 "
                 "num_hidden_layers=28 hidden_size=3584 intermediate_size=18944 "
                 "num_attention_heads=28 num_key_value_heads=4 rms_norm_eps=1e-6 "
                 "rope_theta=1000000"},
    {"qwen3-0.6b", "model_type=qwen3 vocab_size=151936 max_position_embeddings=40960 "
                   "num_hidden_layers=28 hidden_size=1024 intermediate_size=3072 "
                   "num_attention_heads=16 num_key_value_heads=8 head_dim=128 rms_norm_eps=1e-6 "
                   "rope_theta=1000000 tie_word_embeddings=true"},
    {"mixtral-tiny", "model_type=mixtral vocab_size=256 max_position_embeddings=1024 "
                     "num_hidden_layers=2 hidden_size=64 intermediate_size=96 "
                     "num_attention_heads=4 num_key_value_heads=2 num_local_experts=4 "
                     "num_experts_per_tok=2 rms_norm_eps=1e-5"},
    {"mixtral-8x7b", "model_type=mixtral vocab_size=32000 max_position_embeddings=32768 "
                     "num_hidden_layers=32 hidden_size=4096 intermediate_size=14336 "
                     "num_attention_heads=32 num_key_value_heads=8 num_local_experts=8 "
                     "num_experts_per_tok=2 rms_norm_eps=1e-5 rope_theta=1000000"},
    {"qwen3-moe-tiny", "model_type=qwen3_moe vocab_size=256 max_position_embeddings=1024 "
                       "num_hidden_layers=3 hidden_size=64 intermediate_size=176 "
                       "num_attention_heads=4 num_key_value_heads=2 head_dim=16 rms_norm_eps=1e-6 "
                       "num_experts=8 num_experts_per_tok=3 moe_intermediate_size=48 "
                       "norm_topk_prob=true decoder_sparse_step=1"},
    {"dots1-tiny", "model_type=dots1 vocab_size=256 max_position_embeddings=1024 "
                   "num_hidden_layers=3 hidden_size=64 intermediate_size=176 "
                   "num_attention_heads=4 num_key_value_heads=2 head_dim=16 rms_norm_eps=1e-6 "
                   "n_routed_experts=8 n_shared_experts=1 num_experts_per_tok=3 n_group=4 "
                   "topk_group=2 moe_intermediate_size=48 first_k_dense_replace=1 "
                   "norm_topk_prob=true routed_scaling_factor=2.5"},
    {"qwen3-30b-a3b", "model_type=qwen3_moe vocab_size=151936 max_position_embeddings=40960 "
                      "num_hidden_layers=48 hidden_size=2048 intermediate_size=6144 "
                      "num_attention_heads=32 num_key_value_heads=4 head_dim=128 "
                      "rms_norm_eps=1e-6 rope_theta=1000000 num_experts=128 "
                      "num_experts_per_tok=8 moe_intermediate_size=768 norm_topk_prob=true "
                      "decoder_sparse_step=1"},
    {"stdit-tiny", "model_type=stdit num_frames=6 latent_height=8 latent_width=8 "
                   "latent_channels=1 patch_size=4 num_hidden_layers=4 hidden_size=64 "
                   "num_attention_heads=4 intermediate_size=128"},
    {"stdit-720m", STDIT("30", "1152", "16")},
    {"stdit-3b", STDIT("40", "2048", "32")},
};

enum { N_PRESETS = sizeof presets / sizeof *presets };

const char *model_preset_name(int i) { return i < N_PRESETS ? presets[i].name : NULL; }

const char *model_preset_words(int i) { return i < N_PRESETS ? presets[i].words : NULL; }
