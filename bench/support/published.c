/* published.c -- reads a row, or says why it cannot be expressed. */
#include "support/published.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The value of a key in "gated=1;tied=0;...", as a number. */
static double note(const char *notes, const char *key, double missing)
{
    const size_t length = strlen(key);
    for (const char *s = notes; s && *s; s = strchr(s, ';'), s = s ? s + 1 : NULL)
        if (strncmp(s, key, length) == 0 && s[length] == '=') return atof(s + length + 1);
    return missing;
}

static const struct {
    const char *gpu, *cluster;
} clusters[] = {{"A100", "a100-sxm"},     {"H100", "h100-sxm"},    {"H200", "h200-sxm"},
                {"V100", "v100-sxm"},     {"B200", "b200-sxm"},    {"MI250X", "mi250x"},
                {"GB200", "gb200-nvl72"}, {"GB300", "gb300-nvl72"}};

/* The characters of a key's value, up to the next ';'. 0: the notes do not have it. */
static int note_text(const char *notes, const char *key, const char **value)
{
    const size_t length = strlen(key);
    for (const char *s = notes; s && *s; s = strchr(s, ';'), s = s ? s + 1 : NULL) {
        if (strncmp(s, key, length) != 0 || s[length] != '=') continue;
        *value = s + length + 1;
        return (int)strcspn(*value, ";");
    }
    return 0;
}

static const char *find_cluster(const char *gpu, PublishedRow *out)
{
    for (size_t i = 0; i < sizeof clusters / sizeof *clusters; i++)
        if (strncmp(gpu, clusters[i].gpu, strlen(clusters[i].gpu)) == 0) {
            snprintf(out->cluster, sizeof out->cluster, "%s", clusters[i].cluster);
            out->gpu = clusters[i].gpu;
            return NULL;
        }
    return "no cluster file for its GPU";
}

static int64_t count(const CsvTable *t, int row, const char *column)
{
    return (int64_t)csv_number(t, row, column, 0);
}

/* At least 1. */
static int size_of(const CsvTable *t, int row, const char *column)
{
    return (int)csv_number(t, row, column, 1);
}

/* Flops of a step as MoE folding counts them: GEMMs of the experts that a token has, attention
 * without regard to its mask. */
static double counted_flops(const CsvTable *t, int row)
{
    const char *notes = csv_text(t, row, "notes");
    const double width = csv_number(t, row, "hidden", 0),
                 seq_len = csv_number(t, row, "seq_len", 0);
    const double heads = csv_number(t, row, "heads", 1);
    const double kv = width * csv_number(t, row, "kv_heads", heads) / heads;
    const double expert = 3 * width * note(notes, "expert_ffn", 0);
    const double layer =
        2 * width * (width + kv) + csv_number(t, row, "topk", 1) * expert + 2 * seq_len * width;
    const double token =
        csv_number(t, row, "layers", 0) * layer + width * csv_number(t, row, "vocab", 0);
    return 6 * token * csv_number(t, row, "global_batch", 0) * seq_len;
}

static const char *read_time(const CsvTable *t, int row, PublishedRow *out)
{
    const double rate = csv_number(t, row, "tokens_per_s_per_gpu", 0);
    const double tflops = csv_number(t, row, "tflops_per_gpu", 0);
    out->step_s = 1e-3 * csv_number(t, row, "step_ms", 0);
    if (out->step_s <= 0 && tflops > 0 && note(csv_text(t, row, "notes"), "mfu_pct", 0) > 0 &&
        strstr(csv_text(t, row, "notes"), "full (non-causal) attention"))
        out->step_s = counted_flops(t, row) / (1e12 * tflops * csv_number(t, row, "gpus", 0));
    if (out->step_s <= 0 && rate > 0)
        out->step_s = csv_number(t, row, "global_batch", 0) * csv_number(t, row, "seq_len", 0) /
                      (rate * csv_number(t, row, "gpus", 0));
    return out->step_s > 0 ? NULL : "no time";
}

/* Features that a plan of this version does not have. */
static const char *check_kind(const CsvTable *t, int row)
{
    const char *notes = csv_text(t, row, "notes"), *precision = csv_text(t, row, "precision");
    if (strstr(precision, "fp4")) return "FP4";
    if (strstr(precision, "fp8") && csv_number(t, row, "experts", 0) > 1) return "FP8 experts";
    if (note(notes, "lora", 0) == 1 || strstr(notes, "phase=lora")) return "LoRA";
    if (strstr(notes, "attn=mla")) return "MLA";
    if (strcmp(csv_text(t, row, "source"), "nanotron") == 0 && size_of(t, row, "pp") > 1 &&
        note(notes, "after_pp_fix", 1) == 0)
        return "nanotron pp before its fix";
    return NULL;
}

static const char *read_model(const CsvTable *t, int row, ModelConfig *c)
{
    const char *notes = csv_text(t, row, "notes");
    const bool gated = note(notes, "gated", 0) == 1;
    *c = (ModelConfig){.name = csv_text(t, row, "model"),
                       .family = gated ? FAMILY_LLAMA : FAMILY_GPT2,
                       .n_layers = count(t, row, "layers"),
                       .width = count(t, row, "hidden"),
                       .n_heads = count(t, row, "heads"),
                       .n_kv_heads = count(t, row, "kv_heads"),
                       .ff_width = count(t, row, "ffn"),
                       .vocab = (int64_t)csv_number(t, row, "vocab", 50257),
                       .max_positions = count(t, row, "seq_len"),
                       .norm_eps = 1e-5,
                       .rope = {.theta = 1e4, .factor = 1},
                       .tied = note(notes, "tied", gated ? 0 : 1) == 1,
                       .qkv_bias = !gated,
                       .o_bias = !gated,
                       .mlp_bias = !gated,
                       .init_std = 0.02};
    if (csv_number(t, row, "experts", 0) > 1) {
        c->family = FAMILY_MIXTRAL;
        c->experts = (ExpertConfig){.n = count(t, row, "experts"),
                                    .chosen = (int64_t)csv_number(t, row, "topk", 1),
                                    .width = (int64_t)note(notes, "expert_ffn", 0),
                                    .score = ROUTE_SOFTMAX,
                                    .renormalize = true,
                                    .scaling = 1,
                                    .aux_loss = 0.01};
    }
    if (c->n_layers < 1 || c->width < 1 || c->n_heads < 1 || c->max_positions < 1 ||
        (c->experts.n > 0 ? c->experts.width : c->ff_width) < 1)
        return "no shape";
    if (c->n_kv_heads < 1 || !gated) c->n_kv_heads = c->n_heads;
    c->head_size = (int64_t)note(notes, "head_dim", (double)(c->width / c->n_heads));
    return NULL;
}

/* Experts on axes of their own. Without folding, tp shards an expert as it does a dense layer, and
 * ep is a part of dp. Megatron needs sequence parallelism for experts; its optimizer shards its
 * state unless the row says otherwise. */
static void set_experts(const CsvTable *t, int row, JobSettings *j)
{
    const char *notes = csv_text(t, row, "notes");
    const bool folds = strstr(notes, "Folding") != NULL;
    ParallelSettings *p = &j->parallel;
    p->mesh.ep = size_of(t, row, "ep");
    p->mesh.etp = (int)note(notes, "etp", folds ? 1 : p->mesh.tp);
    p->expert_rows = 1; /* routing is balanced */
    p->zero = (int)csv_number(t, row, "zero", 1);
    p->sequence = p->mesh.tp > 1;
}

/* GEMMs of all layers in FP8, with a scale for each tensor, or as MXFP8 for each block. */
static void set_fp8(const char *precision, JobSettings *j)
{
    if (!strstr(precision, "fp8")) return;
    j->compile.fp8 =
        (Fp8Options){.names = "*", .compute = E4M3, .gradient = E5M2, .scaling = SCALING_TENSOR};
    if (strcmp(precision, "mxfp8") == 0) j->compile.fp8.scaling = SCALING_BLOCK;
}

/* Ranks that are connected as those of a node: a domain of NVLink holds a power of two of them. */
static int node_of(const CsvTable *t, int row)
{
    const int domain = (int)note(csv_text(t, row, "notes"), "nvlink_domain", 0);
    int node = 1;
    while (2 * node <= domain) node *= 2;
    return domain > 1 ? node : size_of(t, row, "gpus_per_node");
}

static const char *read_plan(const CsvTable *t, int row, PublishedRow *out)
{
    const char *recompute = csv_text(t, row, "recompute");
    const int dp = size_of(t, row, "dp"), pp = size_of(t, row, "pp"), vp = size_of(t, row, "vp");
    const int64_t micro = count(t, row, "micro_batch"), global = count(t, row, "global_batch");
    if (micro < 1 || global < 1) return "no batch";
    if (global % (micro * dp) != 0) return "a batch that does not divide";
    out->micros = (int)(global / (micro * dp));
    out->node = node_of(t, row);
    out->node_gbps = note(csv_text(t, row, "notes"), "ag_in", 0);
    JobSettings *j = &out->job;
    *j = (JobSettings){.kind = JOB_STEP,
                       .config = &out->model,
                       .dtype = BF16,
                       .batch = {micro, out->model.max_positions},
                       .micros = out->micros,
                       .causal = true,
                       .schedule = pp > 1 && vp > 1 ? "interleaved" : "1f1b",
                       .compile = {.device_memory = true},
                       .optim = {.kind = OPTIM_ADAMW, .clip = 1, .block = 65536}};
    j->parallel.mesh = (MeshSizes){
        .dp_shard = dp, .tp = size_of(t, row, "tp"), .pp = pp, .cp = size_of(t, row, "cp")};
    j->parallel.zero = (int)csv_number(t, row, "zero", 0);
    j->parallel.sequence = csv_number(t, row, "sequence_parallel", 0) == 1;
    set_fp8(csv_text(t, row, "precision"), j);
    if (out->model.experts.n > 0) set_experts(t, row, j);
    j->parallel.chunks = pp > 1 && vp > 1 ? vp : 0;
    if (strcmp(recompute, "full") == 0) j->compile.recompute = RECOMPUTE_FULL;
    if (strcmp(recompute, "selective") == 0) j->compile.recompute = RECOMPUTE_SELECTIVE;
    return NULL;
}

void published_row(const CsvTable *t, int row, PublishedRow *out)
{
    const char *release;
    *out = (PublishedRow){.skip = check_kind(t, row)};
    const int length = note_text(csv_text(t, row, "notes"), "release", &release);
    if (length > 0) snprintf(out->release, sizeof out->release, "%.*s", length, release);
    if (!out->skip) out->skip = read_time(t, row, out);
    if (!out->skip) out->skip = read_model(t, row, &out->model);
    if (!out->skip) out->skip = find_cluster(csv_text(t, row, "gpu_type"), out);
    if (!out->skip) out->skip = read_plan(t, row, out);
}
