/* job.c -- keys converted to settings, one line each, and checks that need several keys. */
#include "cli/config/job.h"

#include <stdio.h>
#include <string.h>
#include "cli/config/mesh.h"
#include "cli/config/layer_rules.h"
#include "cli/machine.h"
#include "job/tp_choice.h"
#include "plan/cluster/cluster.h"

/* True if the list has this word as its only item. */
static bool is_word(const TextList *list, const char *word)
{
    return list->n == 1 && strcmp(list->at[0], word) == 0;
}

static Recompute recompute_word(const char *word, size_t n)
{
    static const char *const name[] = {"none", "selective", "full"};
    for (int i = 0; i < 3; i++)
        if (strlen(name[i]) == n && strncmp(word, name[i], n) == 0) return (Recompute)i;
    return RECOMPUTE_NAMED;
}

/* Parses "full@0-1": full recomputation on stages 0 and 1 of the pipeline. */
static Err stage_rule(const Config *c, const char *word, StageRecompute *out)
{
    const char *at = strchr(word, '@');
    int first, last, end = 0;
    out->recompute = recompute_word(word, (size_t)(at - word));
    if (sscanf(at + 1, "%d-%d%n", &first, &last, &end) != 2 || at[1 + end]) {
        if (sscanf(at + 1, "%d%n", &first, &end) != 1 || at[1 + end]) first = -1;
        last = first;
    }
    if (out->recompute == RECOMPUTE_NAMED || first < 0 || last < first || last >= c->mesh_pp)
        return err_fail(
            ERR_CONFIG,
            "%s: parallel.recompute=%.60s: a rule for stages must be none, selective or "
            "full, then @ and stages from 0 to %lld, as in full@0 or full@0-%lld",
            c->origin[KEY_parallel_recompute], word, (long long)c->mesh_pp - 1,
            (long long)c->mesh_pp - 1);
    out->first = first;
    out->last = last;
    return OK;
}

/* Reads parallel.recompute as rules for stages, if its items have an @. */
static Err stage_rules(const Config *c, JobSettings *s)
{
    const TextList *rules = &c->parallel_recompute;
    int with = 0; /* items that name stages */
    for (int i = 0; i < rules->n; i++) with += strchr(rules->at[i], '@') != NULL;
    if (with == 0) return OK;
    if (with < rules->n || with > MAX_STAGE_RULES)
        return err_fail(ERR_CONFIG,
                        "%s: parallel.recompute: %d of %d items have @ and stages; give stages to "
                        "all items, at most %d, or to none",
                        c->origin[KEY_parallel_recompute], with, rules->n, MAX_STAGE_RULES);
    for (int i = 0; i < with; i++) TRY(stage_rule(c, rules->at[i], &s->stage[i]));
    s->n_stage_rules = with;
    s->compile.recompute = RECOMPUTE_NONE;
    s->compile.recompute_names = NULL;
    return OK;
}

/* The GEMMs in FP8. Patterns are checked against the weights when the model is known. */
static Fp8Options fp8_options(const Config *c)
{
    const PrecisionRow *p = config_precision(c);
    const bool block = c->precision_scaling == SCALES_BLOCK;
    const Scaling scaling = block                                    ? SCALING_BLOCK
                            : c->precision_scaling == SCALES_DELAYED ? SCALING_DELAYED
                                                                     : SCALING_TENSOR;
    Fp8Options o = {
        .compute = p->compute, .gradient = block ? p->compute : p->gradient, .scaling = scaling};
    if (!dtype_is_fp8(p->compute) || is_word(&c->precision_fp8, "none")) return o;
    o.spare_ends = is_word(&c->precision_fp8, "auto");
    o.names = o.spare_ends ? "*" : c->precision_fp8.text;
    return o;
}

Err config_check_fp8(const Config *c)
{
    const bool fp8 = c->precision_compute == COMPUTE_FP8;
    const KeyId key[] = {KEY_precision_fp8, KEY_precision_scaling, KEY_precision_weights};
    const bool set[] = {!is_word(&c->precision_fp8, "auto") || layer_rules_first(c, key[0]),
                        c->precision_scaling != SCALES_TENSOR,
                        c->precision_weights != WEIGHTS_IN_AUTO};
    for (int i = 0; i < 3 && !fp8; i++)
        if (set[i] && strcmp(c->origin[key[i]], "default") != 0 &&
            strcmp(c->origin[key[i]], "plan") != 0)
            return err_fail(ERR_CONFIG,
                            "%s: %s has no effect with precision.compute=%s; set "
                            "precision.compute=fp8",
                            c->origin[key[i]], key_at(key[i])->path, config_precision(c)->name);
    if (fp8 && set[2] && is_word(&c->precision_fp8, "none") && !layer_rules_first(c, key[0]))
        return err_fail(ERR_CONFIG,
                        "%s: precision.weights has no effect with precision.fp8=none; leave one of "
                        "them out",
                        c->origin[KEY_precision_weights]);
    if (fp8 && c->parallel_weights == WEIGHTS_STREAM)
        return err_fail(ERR_CONFIG,
                        "%s: parallel.weights=stream: weights that travel are bf16; set "
                        "precision.compute=bf16, or leave parallel.weights out",
                        c->origin[KEY_parallel_weights]);
    return OK;
}

/* Sets what depends on the device: whether weights are coded, and experts run in FP8. */
static Err code_weights(const Config *c, Option device, Fp8Options *out)
{
    const bool cuda = device == DEVICE_CUDA;
    out->experts = !cuda; /* grouped GEMMs of 8 bits have not run on a GPU */
    out->code_weights = dtype_is_fp8(out->compute) && c->precision_weights != WEIGHTS_IN_BF16 &&
                        (c->precision_weights == WEIGHTS_IN_FP8 || !cuda);
    if (!cuda || c->precision_weights != WEIGHTS_IN_FP8) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: precision.weights=fp8: its kernels have not run on a GPU yet; set "
                    "precision.weights=bf16, or run.device=cpu, which emulates FP8",
                    c->origin[KEY_precision_weights]);
}

/* Patterns are passed as text; the compiler matches them against the value names of each unit. */
static CompileOptions compile_options(const Config *c)
{
    const TextList *recompute = &c->parallel_recompute, *offload = &c->parallel_offload;
    CompileOptions o = {.recompute = RECOMPUTE_NAMED};
    if (is_word(recompute, "none"))
        o.recompute = RECOMPUTE_NONE;
    else if (is_word(recompute, "selective"))
        o.recompute = RECOMPUTE_SELECTIVE;
    else if (is_word(recompute, "full"))
        o.recompute = RECOMPUTE_FULL;
    else
        o.recompute_names = recompute->text;
    if (!is_word(offload, "none")) o.offload_names = offload->text;
    o.fp8 = fp8_options(c);
    if (c->numerics_logits > 0) o.chunk_elements = c->numerics_logits * 1000000;
    return o;
}

static OptimSettings optim_settings(const Config *c)
{
    return (OptimSettings){.kind = c->optim_kind == RULE_SGD ? OPTIM_SGD : OPTIM_ADAMW,
                           .beta1 = c->optim_beta1,
                           .beta2 = c->optim_beta2,
                           .eps = c->optim_eps,
                           .weight_decay = c->optim_weight_decay,
                           .clip = c->optim_clip,
                           .skip = c->optim_skip,
                           .bias_rate = c->optim_balance_bias,
                           .block = c->numerics_block};
}

TransportSettings config_transport(const Config *c, const Device *device, bool processes)
{
    const bool nccl = c->run_comm == COMM_BY_NCCL, mpi = c->run_comm == COMM_BY_MPI;
    return (TransportSettings){.device = device,
                               .requested = nccl  ? TRANSPORT_NCCL
                                            : mpi ? TRANSPORT_MPI
                                                  : TRANSPORT_AUTO,
                               .processes = processes};
}

Err config_check_cuda(const Config *c)
{
    if (c->precision_compute == COMPUTE_FP8 && c->precision_scaling == SCALES_DELAYED)
        return err_fail(ERR_CONFIG,
                        "%s: precision.scaling=delayed: its kernels have not run on a GPU yet; set "
                        "precision.scaling=tensor, or run.device=cpu, which emulates it",
                        c->origin[KEY_precision_scaling]);
    if (c->parallel_overflow == OVERFLOW_ROUNDS)
        return err_fail(ERR_CONFIG,
                        "%s: parallel.overflow=rounds: its kernels have not run on a GPU yet; set "
                        "parallel.overflow=error with a larger parallel.expert_rows, or "
                        "run.device=cpu",
                        c->origin[KEY_parallel_overflow]);
    return OK;
}

Err config_device(const Config *c, Option *out)
{
    const bool f64 = c->precision_compute == COMPUTE_F64;
    const char *name = c->run_device == DEVICE_CUDA ? "cuda" : "cpu";
    const bool ref = c->run_device == DEVICE_REF || (c->run_device == DEVICE_AUTO && f64);
    if (ref && c->precision_compute == COMPUTE_BF16)
        return err_fail(
            ERR_CONFIG,
            "%s: precision.compute=bf16: ref computes in f32 and f64; set run.device=cpu",
            c->origin[KEY_precision_compute]);
    if (c->run_device == DEVICE_CUDA) TRY(config_check_cuda(c));
    if (!ref && f64)
        return err_fail(
            ERR_CONFIG,
            "%s: run.device=%s computes in f32 and bf16; f64 runs on ref: set run.device=ref",
            c->origin[KEY_run_device], name);
    *out = ref ? DEVICE_REF : c->run_device;
    return OK;
}

const PrecisionRow *config_precision(const Config *c)
{
    return precision_row((Precision)(c->precision_compute - COMPUTE_F32)); /* in the same order */
}

LrSettings config_lr(const Config *c)
{
    return (LrSettings){.decay = (Decay)(c->optim_schedule - LR_COSINE),
                        .lr = c->optim_lr,
                        .min_lr = c->optim_min_lr,
                        .warmup = c->optim_warmup,
                        .steps = c->run_steps};
}

TokenFormat config_token_format(const Config *c)
{
    return (TokenFormat)(c->data_format - DATA_AUTO); /* in the same order */
}

void config_run_name(const char *file, const char *model, char *out, size_t bytes)
{
    const char *name = file ? file : model, *slash = strrchr(name, '/');
    if (slash && slash[1]) name = slash + 1;
    const char *dot = file ? strrchr(name, '.') : NULL;
    snprintf(out, bytes, "runs/%.*s",
             (int)(dot && dot > name ? (size_t)(dot - name) : strlen(name)), name);
}

/* The prepacking functions of the device, or NULL. Only the cpu backend has its own panel format.
 * Prepacked copies cost memory, so they need weights that stay on the rank for the whole step. */
static Err prepack_table(const Config *c, Option device, const DevicePrepack **out)
{
    const char *origin = c->origin[KEY_parallel_prepack];
    const Device *cpu;
    *out = NULL;
    if (!c->parallel_prepack) return OK;
    if (device != DEVICE_CPU)
        return err_fail(ERR_CONFIG,
                        "%s: parallel.prepack=true: GEMMs on %s do not use prepacked weights; set "
                        "run.device=cpu or parallel.prepack=false",
                        origin, device == DEVICE_CUDA ? "cuda" : "ref");
    if (c->parallel_zero == 3 && !layer_rules_first(c, KEY_parallel_zero) &&
        !config_parts_weights(c))
        return err_fail(ERR_CONFIG,
                        "%s: parallel.prepack=true with parallel.zero=3: weights are gathered for "
                        "each use, so no prepacked weight can be reused; set parallel.zero=2 or "
                        "parallel.prepack=false",
                        origin);
    TRY(device_open("cpu", NULL, &cpu));
    *out = cpu->prepack;
    return OK;
}

Err config_cluster(const Config *c, Arena *arena, JobSettings *s)
{
    Cluster *cluster;
    if (!*c->run_cluster) return OK;
    TRY(ARENA_NEW(arena, 1, &cluster));
    TRY(cluster_read(c->run_cluster, arena, cluster));
    s->parallel.cluster = cluster;
    return OK;
}

/* Finds the layouts of weights along tp by the rates of run.cluster or default ones. */
static Err search_tp(const Config *c, JobSettings *s)
{
    Arena temp;
    TpChoice *found;
    JobSettings with = *s;
    if (!config_searches_tp(c)) return OK;
    TRY(config_cluster(c, c->arena, &with));
    TRY(ARENA_NEW(c->arena, 1, &found));
    TRY(arena_open(&temp, "layouts along tp", ARENA_PLENTY));
    const double byte_s = c->parallel_state_price / 1e3 / (double)(1 << 30);
    const Err err = job_choose_tp(&with, byte_s, c->arena, &temp, found);
    arena_close(&temp);
    TRY(err);
    s->parallel.tp_weights = found->rules;
    s->parallel.tp_choice = found;
    return OK;
}

static Err set_device(const Config *c, Option device, JobSettings *s)
{
    const DeviceEntry *entry = device_find(option_text(device));
    s->compile.device_memory = entry->own_memory;
    s->workspace = entry->workspace;
    return code_weights(c, device, &s->compile.fp8);
}

Err config_cluster_device(const Config *c, const Cluster *cluster, JobSettings *s)
{
    const bool gpus = cluster && !cluster->host_memory && s->dtype != F64;
    if (!gpus || c->run_device != DEVICE_AUTO) return OK;
    TRY(config_check_cuda(c));
    if (s->compile.prepack) TRY(prepack_table(c, DEVICE_CUDA, &s->compile.prepack));
    return set_device(c, DEVICE_CUDA, s);
}

Err config_job(const Config *c, const ModelConfig *model, JobSettings *out)
{
    const int64_t micros = config_micros(c);
    JobSettings s = {.kind = JOB_STEP,
                     .config = model,
                     .dtype = config_precision(c)->storage,
                     .batch = {c->batch_micro, c->data_seq_len},
                     .micros = (int)micros,
                     .causal = !c->data_pack,
                     .schedule = c->parallel_schedule,
                     .compile = compile_options(c),
                     .optim = optim_settings(c),
                     .parallel = config_parallel(c),
                     .origin = {.recompute = c->origin[KEY_parallel_recompute],
                                .tp_weights = c->origin[KEY_parallel_tp_weights],
                                .offload = c->origin[KEY_parallel_offload],
                                .zero_weights = c->origin[KEY_parallel_zero_weights],
                                .fp8 = c->origin[KEY_precision_fp8]}};
    Option device;
    TRY(machine_choice(c, &device));
    TRY(set_device(c, device, &s));
    TRY(prepack_table(c, device, &s.compile.prepack));
    TRY(stage_rules(c, &s));
    TRY(layer_rules_apply(c, model, &s));
    if (micros > MAX_SCHEDULE)
        return err_fail(ERR_CONFIG,
                        "%s: batch.global=%lld in micro-batches of %lld makes %lld of them; the "
                        "most is %d: set batch.micro=%lld or more",
                        c->origin[KEY_batch_global], (long long)c->batch_global,
                        (long long)c->batch_micro, (long long)micros, MAX_SCHEDULE,
                        (long long)((c->batch_global + MAX_SCHEDULE - 1) / MAX_SCHEDULE));
    TRY(search_tp(c, &s));
    *out = s;
    return OK;
}
