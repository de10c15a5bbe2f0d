/* config_rows.c -- the table of config.json keys: families, type, limits and target of each.
 *
 * Three lists. Rows: keys that are read, or features with some supported values. Aliases: other
 * names of a row that Hugging Face accepts. Bookkeeping: keys that change nothing in training. A
 * key in none of them is unknown, which is an error unless the caller ignores the key. */
#include "model/config_rows.h"

#include <string.h>

enum {
    GPT2 = 1 << FAMILY_GPT2,
    LLAMA = 1 << FAMILY_LLAMA,
    MISTRAL = 1 << FAMILY_MISTRAL,
    QWEN2 = 1 << FAMILY_QWEN2,
    QWEN3 = 1 << FAMILY_QWEN3,
    MIXTRAL = 1 << FAMILY_MIXTRAL,
    QWEN2_MOE = 1 << FAMILY_QWEN2_MOE,
    QWEN3_MOE = 1 << FAMILY_QWEN3_MOE,
    OLMOE = 1 << FAMILY_OLMOE,
    DOTS1 = 1 << FAMILY_DOTS1,
    QWEN_MOE = QWEN2_MOE | QWEN3_MOE,
    MOE = MIXTRAL | QWEN_MOE | OLMOE | DOTS1,
    QWEN = QWEN2 | QWEN3 | QWEN_MOE,
    ROTARY = LLAMA | MISTRAL | QWEN | MOE,
    STDIT = 1 << FAMILY_STDIT,
    TEXT = GPT2 | ROTARY,
    ALL = TEXT | STDIT
};

#define AT(member) offsetof(Draft, member)
#define INT(key, families, required, m, low, high, meaning)                                        \
    {                                                                                              \
        key, families, required, ROW_INT, false, AT(m), low, high, NULL, meaning                   \
    }
#define INT_OR_NULL(key, families, required, m, low, high, meaning)                                \
    {                                                                                              \
        key, families, required, ROW_INT, true, AT(m), low, high, NULL, meaning                    \
    }
#define FLOAT(key, families, m, low, high, meaning)                                                \
    {                                                                                              \
        key, families, 0, ROW_FLOAT, false, AT(m), low, high, NULL, meaning                        \
    }
#define BOOL(key, families, m, meaning)                                                            \
    {                                                                                              \
        key, families, 0, ROW_BOOL, false, AT(m), 0, 0, NULL, meaning                              \
    }
#define ONLY(key, families, only, meaning)                                                         \
    {                                                                                              \
        key, families, 0, ROW_ONLY, false, 0, 0, 0, only, meaning                                  \
    }

/* The limits follow from index types (tokens and positions are i32) and catch typing errors. */
static const Row rows[] = {
    {"model_type", ALL, ALL, ROW_TEXT, false, AT(model_type), 0, 0, NULL,
     "the family: gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen2_moe, qwen3_moe, olmoe, "
     "dots1 or stdit"},
    INT("vocab_size", TEXT, TEXT, c.vocab, 1, 1 << 24, "tokens in the vocabulary"),
    BOOL("tie_word_embeddings", TEXT, c.tied, "whether the head is the embedding's weight"),
    FLOAT("initializer_range", ALL, c.init_std, 0, 10, "standard deviation of initial weights"),

    INT("n_layer", GPT2, GPT2, c.n_layers, 1, 4096, "layers"),
    INT("n_embd", GPT2, GPT2, c.width, 1, 1 << 20, "width of the residual stream"),
    INT("n_head", GPT2, GPT2, c.n_heads, 1, 1 << 16, "attention heads"),
    INT("n_positions", GPT2, GPT2, c.max_positions, 1, 1 << 30, "rows of the position table"),
    INT_OR_NULL("n_inner", GPT2, 0, c.ff_width, 1, 1 << 24,
                "width of the feed-forward part; null: four times n_embd"),
    FLOAT("layer_norm_epsilon", GPT2, c.norm_eps, 1e-20, 0.1, "added to the variance"),
    ONLY("activation_function", GPT2, "gelu_new gelu_pytorch_tanh", "of the feed-forward part"),
    ONLY("attn_pdrop", GPT2, "0", "dropout of attention weights"),
    ONLY("embd_pdrop", GPT2, "0", "dropout of embeddings"),
    ONLY("resid_pdrop", GPT2, "0", "dropout before the residual adds"),
    ONLY("scale_attn_weights", GPT2, "true", "attention scores divided by sqrt(head size)"),
    ONLY("scale_attn_by_inverse_layer_idx", GPT2, "false",
         "attention scores divided by the layer's number"),
    ONLY("reorder_and_upcast_attn", GPT2, "false", "attention in another order and in f32"),
    ONLY("add_cross_attention", GPT2, "false", "attention to an encoder"),

    INT("num_hidden_layers", ROTARY | STDIT, ROTARY | STDIT, c.n_layers, 1, 4096, "layers"),
    INT("hidden_size", ROTARY | STDIT, ROTARY | STDIT, c.width, 1, 1 << 20,
        "width of the residual stream"),
    INT("num_attention_heads", ROTARY | STDIT, ROTARY | STDIT, c.n_heads, 1, 1 << 16,
        "query heads"),
    INT_OR_NULL("num_key_value_heads", ROTARY, ROTARY & ~(LLAMA | OLMOE | DOTS1), c.n_kv_heads, 1,
                1 << 16, "key and value heads; null: as many as query heads"),
    INT_OR_NULL("head_dim", ROTARY, QWEN3, c.head_size, 1, 1 << 16,
                "size of a head; null: hidden_size / num_attention_heads"),
    INT("intermediate_size", ROTARY | STDIT, ROTARY, c.ff_width, 1, 1 << 24,
        "width of the feed-forward part; of mixtral and olmoe: of an expert; of "
        "stdit by default four times hidden_size"),
    INT("num_local_experts", MIXTRAL, MIXTRAL, c.experts.n, 1, 1024, "experts of a layer"),
    INT("num_experts", QWEN_MOE | OLMOE, QWEN_MOE | OLMOE, c.experts.n, 1, 1024,
        "experts of a layer"),
    INT("num_experts_per_tok", MOE, MOE, c.experts.chosen, 1, 1024, "experts of a token"),
    INT("n_routed_experts", DOTS1, DOTS1, c.experts.n, 1, 1024, "experts of a layer"),
    INT("n_shared_experts", DOTS1, DOTS1, c.experts.n_shared, 1, 1024,
        "widths of an expert that make up the one that every token has"),
    INT("n_group", DOTS1, 0, c.experts.groups, 1, 1024,
        "groups of experts, of which a token's are chosen first: by their two best scores"),
    INT("topk_group", DOTS1, 0, c.experts.chosen_groups, 1, 1024, "groups of a token"),
    FLOAT("routed_scaling_factor", DOTS1, c.experts.scaling, 1e-6, 1e6, "factor on all gates"),
    INT("first_k_dense_replace", DOTS1, 0, c.experts.dense_first, 0, 4096,
        "layers without experts, the first ones"),
    INT("moe_intermediate_size", QWEN_MOE | DOTS1, QWEN_MOE | DOTS1, c.experts.width, 1, 1 << 24,
        "width of an expert"),
    INT("shared_expert_intermediate_size", QWEN2_MOE, QWEN2_MOE, c.experts.shared_width, 1, 1 << 24,
        "width of the expert that every token has"),
    BOOL("norm_topk_prob", QWEN_MOE | OLMOE | DOTS1, c.experts.renormalize,
         "whether the gates of a token sum to 1"),
    INT("decoder_sparse_step", QWEN_MOE, 0, c.experts.sparse_step, 1, 4096,
        "every layer whose number, counted from 1, it divides has experts"),
    {"mlp_only_layers", QWEN_MOE, 0, ROW_LIST, true, AT(c.experts.dense_layers), 0, 0, NULL,
     "numbers, counted from 0, of layers without experts"},
    ONLY("router_jitter_noise", MIXTRAL, "0", "noise on the input of the router"),
    ONLY("output_router_logits", MOE, "false",
         "a balance loss in the model's own loss; optim.aux_loss sets one"),
    ONLY("clip_qkv", OLMOE, "null", "limits of q, k and v"),
    BOOL("qkv_bias", QWEN2_MOE, c.qkv_bias, "biases of q, k and v projections"),
    INT("max_position_embeddings", ROTARY, ROTARY, c.max_positions, 1, 1 << 30,
        "the longest context that the model supports"),
    FLOAT("rms_norm_eps", ROTARY, c.norm_eps, 1e-20, 0.1, "added to the mean square"),
    BOOL("attention_bias", LLAMA | QWEN3 | QWEN3_MOE | OLMOE | DOTS1, c.qkv_bias,
         "biases of q, k, v and o projections"),
    BOOL("mlp_bias", LLAMA, c.mlp_bias, "biases of the feed-forward part"),
    ONLY("hidden_act", ROTARY, "silu swish", "of the feed-forward part's gate"),
    ONLY("attention_dropout", ROTARY, "0", "dropout of attention weights"),
    ONLY("pretraining_tp", LLAMA, "1", "linear layers computed in parts"),
    ONLY("partial_rotary_factor", ROTARY, "1", "the fraction of a head that rope rotates"),
    ONLY("rope_interleaved", ROTARY, "false null", "rope of adjacent elements instead of halves"),
    ONLY("use_mrope", QWEN, "false", "multimodal rope"),
    INT("num_frames", STDIT, STDIT, c.frames, 1, 1 << 20, "frames of a clip"),
    INT("latent_height", STDIT, STDIT, c.clip.height, 1, 1 << 16, "rows of latents of a frame"),
    INT("latent_width", STDIT, STDIT, c.clip.width, 1, 1 << 16, "columns of latents of a frame"),
    INT("latent_channels", STDIT, STDIT, c.clip.channels, 1, 1 << 12, "channels of a latent"),
    INT("patch_size", STDIT, STDIT, c.clip.patch, 1, 1 << 10,
        "a token is this many rows and columns of latents"),
    INT("attention_dims", STDIT, 0, c.clip.dims, 2, 3,
        "2: layers attend within frames and across frames in turn; 3: along height, width and "
        "frames in turn"),
    INT("text_length", STDIT, 0, c.clip.text_length, 0, 1 << 16,
        "states of a clip's text, which each layer attends to; 0: no text"),
    INT("text_width", STDIT, 0, c.clip.text_width, 0, MAX_TEXT_WIDTH,
        "numbers of a state of the text"),
    FLOAT("layer_norm_eps", STDIT, c.norm_eps, 1e-20, 0.1, "added to the variance"),
    ONLY("quantization_config", ALL, "null", "quantized weights"),
    ONLY("quantization_config.quant_method", ALL, "fp8", "the form of quantized weights"),
    ONLY("auto_map", ALL, "null", "custom model code"),
    ONLY("pruned_heads", ALL, "null {}", "heads removed from some layers"),

    FLOAT("rope_theta", ROTARY, c.rope.theta, 1, 1e15, "base of the rotary frequencies"),
    {"rope_scaling.rope_type", ROTARY, 0, ROW_TEXT, false, AT(rope_type), 0, 0, NULL,
     "default, linear or llama3: frequency scaling for contexts longer than in training"},
    FLOAT("rope_scaling.factor", ROTARY, c.rope.factor, 1, 1e6,
          "ratio of the longer context to the original one"),
    FLOAT("rope_scaling.low_freq_factor", ROTARY, c.rope.low, 1e-6, 1e6,
          "llama3: wavelengths above original / this are scaled"),
    FLOAT("rope_scaling.high_freq_factor", ROTARY, c.rope.high, 1e-6, 1e6,
          "llama3: wavelengths below original / this are kept"),
    INT("rope_scaling.original_max_position_embeddings", ROTARY, 0, c.rope.original, 1, 1 << 30,
        "llama3: the context before scaling"),

    INT_OR_NULL("sliding_window", MISTRAL | MIXTRAL | QWEN2 | QWEN3, MISTRAL, c.window, 1, 1 << 30,
                "a token attends to this many tokens, itself included; null: to all before it"),
    INT_OR_NULL("sliding_window", QWEN_MOE, 0, c.window, 0, 1 << 30,
                "a token attends to this many tokens, itself included; null or 0: to all before "
                "it"),
    ONLY("sliding_window", DOTS1, "null",
         "a window of attention in the layers from "
         "max_window_layers on"),
    ONLY("use_sliding_window", DOTS1, "false null", "whether sliding_window applies"),
    BOOL("use_sliding_window", QWEN, use_window, "whether sliding_window applies"),
    INT("max_window_layers", QWEN | DOTS1, 0, window_layers, 0, 1 << 20,
        "layers below this one have no window"),
    {"layer_types", MISTRAL | MIXTRAL | QWEN | DOTS1, 0, ROW_LIST, true, AT(layer_types), 0, 0,
     NULL, "full_attention or sliding_attention of each layer; all must be alike"},
};

enum { N_ROWS = sizeof rows / sizeof *rows };
_Static_assert((int)N_ROWS <= (int)MAX_CONFIG_ROWS, "a larger MAX_CONFIG_ROWS");

static const struct {
    const char *alias;
    unsigned families;
    const char *key;
} aliases[] = {
    {"num_hidden_layers", GPT2, "n_layer"},
    {"hidden_size", GPT2, "n_embd"},
    {"num_attention_heads", GPT2, "n_head"},
    {"max_position_embeddings", GPT2, "n_positions"},
    {"n_ctx", GPT2, "n_positions"},
    {"num_local_experts", QWEN3_MOE, "num_experts"},
    {"num_local_experts", DOTS1, "n_routed_experts"},
    {"rope_scaling.type", ROTARY, "rope_scaling.rope_type"},
    {"rope_scaling.rope_theta", ROTARY, "rope_theta"},
    {"rope_parameters.type", ROTARY, "rope_scaling.rope_type"},
    {"rope_parameters.rope_type", ROTARY, "rope_scaling.rope_type"},
    {"rope_parameters.rope_theta", ROTARY, "rope_theta"},
    {"rope_parameters.factor", ROTARY, "rope_scaling.factor"},
    {"rope_parameters.low_freq_factor", ROTARY, "rope_scaling.low_freq_factor"},
    {"rope_parameters.high_freq_factor", ROTARY, "rope_scaling.high_freq_factor"},
    {"rope_parameters.original_max_position_embeddings", ROTARY,
     "rope_scaling.original_max_position_embeddings"},
    {"rope_parameters.partial_rotary_factor", ROTARY, "partial_rotary_factor"},
};

enum { N_ALIASES = sizeof aliases / sizeof *aliases };

/* Names, versions, token ids and class of the tokenizer, types of stored weights, forms of a call's
 * output, and settings of generation and of classification heads. None changes the loss or its
 * gradient. The members of transformers' PretrainedConfig come first. */
static const char *const bookkeeping[] = {
    "architectures",
    "torch_dtype",
    "dtype",
    "use_bfloat16",
    "transformers_version",
    "transformers.js_config",
    "_name_or_path",
    "name_or_path",
    "_commit_hash",
    "tokenizer_class",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "unk_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "use_cache",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "return_dict",
    "use_return_dict",
    "return_dict_in_generate",
    "keys_to_ignore_at_inference",
    "torchscript",
    "tf_legacy_loss",
    "gradient_checkpointing",
    "task_specific_params",
    "problem_type",
    "id2label",
    "label2id",
    "num_labels",
    "_num_labels",
    "summary_*",
    "classifier_dropout",
    "output_past",
    "finetuning_task",
    "is_decoder",
    "is_encoder_decoder",
    "tie_encoder_decoder",
    "cross_attention_hidden_size",
    "chunk_size_feed_forward",
    "prefix",
    "_attn_implementation*",
    "attn_implementation",
    "base_model_tp_plan",
    "base_model_pp_plan",
    "router_aux_loss_coef", /* of a loss that output_router_logits adds */
    /* generation, in files from before generation_config.json */
    "max_length",
    "min_length",
    "max_new_tokens",
    "do_sample",
    "early_stopping",
    "num_beams",
    "num_beam_groups",
    "num_return_sequences",
    "diversity_penalty",
    "repetition_penalty",
    "length_penalty",
    "exponential_decay_length_penalty",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "remove_invalid_values",
    /* the form of weights in FP8, which their tensors show; that of activations in inference */
    "quantization_config.activation_scheme",
    "quantization_config.fmt",
    "quantization_config.modules_to_not_convert",
    "quantization_config.weight_block_size",
    /* marks of the programs that wrote the file */
    "is_llama_config",
    "unsloth_*",
};

int row_count(void) { return N_ROWS; }

const Row *row_at(int i) { return &rows[i]; }

const char *row_key(const char *key, Family family)
{
    for (int i = 0; i < N_ALIASES; i++)
        if ((aliases[i].families >> family & 1) && strcmp(aliases[i].alias, key) == 0)
            return aliases[i].key;
    return key;
}

const char *row_sibling(const char *key, Family family)
{
    for (int i = 0; i < N_ALIASES; i++)
        if (strcmp(aliases[i].key, key) == 0 && row_find(aliases[i].alias, family) >= 0)
            return aliases[i].alias;
    return NULL;
}

int row_find(const char *key, Family family)
{
    const char *own = row_key(key, family);
    for (int i = 0; i < N_ROWS; i++)
        if ((rows[i].families >> family & 1) && strcmp(rows[i].key, own) == 0) return i;
    const bool rope = strcmp(key, "rope_scaling") == 0 || strcmp(key, "rope_parameters") == 0;
    if (rope && (ROTARY >> family & 1)) return ROW_OBJECT;
    for (size_t i = 0; i < sizeof bookkeeping / sizeof *bookkeeping; i++)
        if (text_glob(bookkeeping[i], key)) return ROW_BOOKKEEPING;
    return ROW_UNKNOWN;
}

const char *row_nearest(const char *key, unsigned families)
{
    const char *known[N_ROWS + N_ALIASES];
    int n = 0;
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].families & families) known[n++] = rows[i].key;
    for (int i = 0; i < N_ALIASES; i++)
        if (aliases[i].families & families) known[n++] = aliases[i].alias;
    return text_nearest(key, known, n);
}
