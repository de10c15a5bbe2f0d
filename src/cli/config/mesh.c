/* mesh.c -- the mesh and the number of ranks, settled together.
 *
 *     mesh.dp=-1   the ranks that the other axes leave: run.ranks / (tp cp pp); if run.ranks=auto
 *                  as few as ep x etp allows, 1 in a dense model
 *     run.ranks    auto: the product of the mesh; if given, it must equal the product
 *
 * dp is one axis or two (HSDP): dp_replicate replicas, each sharded over dp_shard ranks. Plain dp
 * is dp_shard with one replica. */
#include "cli/config/mesh.h"

#include <stdio.h>
#include <string.h>
#include "cli/config/layer_rules.h"
#include "cli/config/nodes.h"
#include "schedule/gen/generate.h"

static bool was_given(const Config *c, KeyId key) { return strcmp(c->origin[key], "default") != 0; }

/* Settles dp from its two axes. If dp is given too, it must be their product. */
static Err settle_two(Config *c)
{
    const int64_t both = c->mesh_dp_replicate * c->mesh_dp_shard;
    if (c->mesh_dp > 0 && c->mesh_dp != both)
        return err_fail(ERR_CONFIG,
                        "%s: mesh.dp=%lld, but mesh.dp_replicate x mesh.dp_shard is %lld x %lld = "
                        "%lld; give mesh.dp, or the two",
                        c->origin[KEY_mesh_dp], (long long)c->mesh_dp,
                        (long long)c->mesh_dp_replicate, (long long)c->mesh_dp_shard,
                        (long long)both);
    c->mesh_dp = both;
    return OK;
}

/* The fewest dp ranks whose experts mesh.ep and mesh.etp can share: 1 for a dense model. A launcher
 * has not said its number of ranks yet. */
static int64_t least_dp(const Config *c)
{
    const int64_t experts = c->mesh_ep * c->mesh_etp, rest = c->mesh_tp * c->mesh_cp;
    int64_t a = experts, b = rest;
    for (int64_t left; b > 0; a = b, b = left) left = a % b;
    return experts / a;
}

static Err settle_dp(Config *c, int64_t others)
{
    if (was_given(c, KEY_mesh_dp_replicate) || was_given(c, KEY_mesh_dp_shard))
        return settle_two(c);
    c->dp_follows = c->mesh_dp == -1;
    if (c->dp_follows) {
        if (c->run_ranks % others != 0)
            return err_fail(ERR_CONFIG,
                            "%s: run.ranks=%lld is no multiple of the other axes, tp x cp x pp = "
                            "%lld x %lld x %lld = %lld; set run.ranks=%lld or change the mesh",
                            c->origin[KEY_run_ranks], (long long)c->run_ranks,
                            (long long)c->mesh_tp, (long long)c->mesh_cp, (long long)c->mesh_pp,
                            (long long)others,
                            (long long)((c->run_ranks + others - 1) / others * others));
        c->mesh_dp = c->run_ranks ? c->run_ranks / others : least_dp(c);
    }
    c->mesh_dp_shard = c->mesh_dp;
    return OK;
}

/* Checks the name of a built-in schedule. A schedule file is read later, when the job is
 * compiled. */
static Err check_schedule(const Config *c)
{
    const char *names[32], *name = c->parallel_schedule;
    int n;
    const GeneratorRow *row = schedule_generators(&n);
    MUST(n <= 32, "%d schedules", n);
    for (int i = 0; i < n; i++) names[i] = row[i].name;
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return OK;
    if (schedule_is_file(name)) return OK;
    const char *nearest = text_nearest(name, names, n);
    return err_fail(ERR_CONFIG,
                    "%s: parallel.schedule=%.80s: there is none of that name%s%s%s; `sheaf help "
                    "parallel.schedule` lists them, and a file has a dot or a slash in its name",
                    c->origin[KEY_parallel_schedule], name, nearest ? ": did you mean " : "",
                    nearest ? nearest : "", nearest ? "?" : "");
}

enum { MAX_RANKS = 1 << 24 };

static Err too_many(const Config *c)
{
    return err_fail(ERR_CONFIG,
                    "mesh: dp x tp x cp x pp = %lld x %lld x %lld x %lld; a mesh has at most %d "
                    "ranks",
                    (long long)c->mesh_dp, (long long)c->mesh_tp, (long long)c->mesh_cp,
                    (long long)c->mesh_pp, MAX_RANKS);
}

bool config_parts_weights(const Config *c)
{
    return strcmp(c->parallel_zero_weights.text, "none") != 0 ||
           layer_rules_first(c, KEY_parallel_zero_weights);
}

/* ZeRO 2 and 3 imply parallel.reduce=each: they hold no whole gradients between micro-batches. */
static Err settle_reduce(Config *c)
{
    if (c->parallel_zero < 2 || c->parallel_reduce == REDUCE_EACH) return OK;
    if (layer_rules_first(c, KEY_parallel_zero) || config_parts_weights(c))
        return OK; /* for the weights whose level allows it */
    if (!was_given(c, KEY_parallel_reduce)) {
        c->parallel_reduce = REDUCE_EACH; /* the printed configuration then loads again */
        return OK;
    }
    return err_fail(
        ERR_CONFIG,
        "%s: parallel.reduce=last with parallel.zero=%lld: levels 2 and 3 keep no whole "
        "gradients, so they are summed after each micro-batch; leave parallel.reduce "
        "out, or set parallel.zero=1",
        c->origin[KEY_parallel_reduce], (long long)c->parallel_zero);
}

static Err no_effect(const Config *c, KeyId key, const char *value)
{
    const char *path = key_at(key)->path;
    return err_fail(ERR_CONFIG,
                    "%s: %s=%s: has no effect at mesh.cp=1; set mesh.cp=2 or more, or %s=auto",
                    c->origin[key], path, value, path);
}

/* cp_heads=auto stays 0, also where the configuration is stored: the job chooses it with the way
 * to shard attention. */
static Err check_cp(const Config *c)
{
    const ParallelSettings p = config_parallel(c);
    if (p.mesh.cp_heads)
        TRY(mesh_check_heads(c->origin[KEY_mesh_cp_heads], p.mesh.cp, p.mesh.cp_heads));
    const char *rule = layer_rules_first(c, KEY_parallel_context);
    const bool doubled = p.context == CONTEXT_DOUBLE_RING ||
                         (rule && strncmp(rule, "double-ring@", strlen("double-ring@")) == 0);
    if (p.cp_inner && !doubled)
        return err_fail(ERR_CONFIG,
                        "%s: mesh.cp_inner=%d: has no effect with parallel.context=%s; set "
                        "parallel.context=double-ring, or leave it out",
                        c->origin[KEY_mesh_cp_inner], p.cp_inner, context_name(p.context));
    if (p.mesh.cp > 1) return OK;
    if (p.context || rule)
        return no_effect(c, KEY_parallel_context, rule ? rule : context_name(p.context));
    if (p.tokens) return no_effect(c, KEY_parallel_tokens, token_map_name(p.tokens));
    if (p.mesh.stream_weights)
        return err_fail(ERR_CONFIG,
                        "%s: parallel.weights=stream: has no effect at mesh.cp=1; set mesh.cp=2 or "
                        "more, or parallel.weights=whole",
                        c->origin[KEY_parallel_weights]);
    return OK;
}

static Err check_tp(const Config *c)
{
    const TextList *list = &c->parallel_tp_weights;
    const char *origin = c->origin[KEY_parallel_tp_weights];
    for (int i = 0; i < list->n; i++)
        if (list->n > 1 &&
            (strcmp(list->at[i], "megatron") == 0 || strcmp(list->at[i], "search") == 0))
            return err_fail(ERR_CONFIG,
                            "%s: parallel.tp_weights=%.80s: %s stands alone; give it alone or give "
                            "patterns alone",
                            origin, list->text, list->at[i]);
    if (list->n == 0)
        return err_fail(ERR_CONFIG, "%s: parallel.tp_weights is empty; write megatron", origin);
    if (c->mesh_tp == 1 && strcmp(list->text, "megatron") != 0)
        return err_fail(ERR_CONFIG,
                        "%s: parallel.tp_weights=%.80s: has no effect at mesh.tp=1; set mesh.tp=2 "
                        "or more, or leave it out",
                        origin, list->text);
    if (c->parallel_state_price > 0 && !config_searches_tp(c))
        return err_fail(ERR_CONFIG,
                        "%s: parallel.state_price=%g: has no effect with parallel.tp_weights=%.80s;"
                        " set parallel.tp_weights=search, or leave it out",
                        c->origin[KEY_parallel_state_price], c->parallel_state_price, list->text);
    return OK;
}

/* Checks that no axis but tp has ranks with fold. Gradients of dp x cp ranks are summed in one
 * reduction, whose order one rank of several cp ranks cannot reproduce. */
static Err check_fold(const Config *c)
{
    const struct {
        const char *name;
        int64_t size;
    } axis[] = {{"dp", c->mesh_dp}, {"cp", c->mesh_cp}, {"pp", c->mesh_pp}};
    for (int i = 0; i < 3 && c->numerics_fold > 1; i++)
        if (axis[i].size > 1)
            return err_fail(ERR_CONFIG,
                            "%s: numerics.fold=%lld: one rank imitates the order of sums of "
                            "several, and mesh.%s is %lld; set one of them to 1",
                            c->origin[KEY_numerics_fold], (long long)c->numerics_fold, axis[i].name,
                            (long long)axis[i].size);
    return OK;
}

/* run.ranks is not the product of the mesh. The way out along dp: what is left, or as many shards
 * as replicas leave. */
static Err other_ranks(const Config *c, int64_t others)
{
    const int64_t product = c->mesh_dp * others, each = c->mesh_dp_replicate * others;
    const bool two = was_given(c, KEY_mesh_dp_replicate) || was_given(c, KEY_mesh_dp_shard);
    char rest[64] = ", or mesh.dp=-1: the rest";
    if (two) *rest = '\0';
    if (two && c->run_ranks % each == 0)
        snprintf(rest, sizeof rest, ", or mesh.dp_shard=%lld", (long long)(c->run_ranks / each));
    return err_fail(ERR_CONFIG,
                    "%s: run.ranks=%lld, but the mesh dp x tp x cp x pp = %lld x %lld x %lld x "
                    "%lld has %lld ranks; set run.ranks=%lld%s",
                    c->origin[KEY_run_ranks], (long long)c->run_ranks, (long long)c->mesh_dp,
                    (long long)c->mesh_tp, (long long)c->mesh_cp, (long long)c->mesh_pp,
                    (long long)product, (long long)product, rest);
}

Err config_settle_mesh(Config *c)
{
    if (c->mesh_tp * c->mesh_cp > MAX_RANKS || c->mesh_pp > MAX_RANKS / (c->mesh_tp * c->mesh_cp))
        return too_many(c);
    const int64_t others = c->mesh_tp * c->mesh_cp * c->mesh_pp;
    if (c->mesh_dp == 0)
        return err_fail(ERR_CONFIG, "%s: mesh.dp=0: at least 1, or -1: the ranks that others leave",
                        c->origin[KEY_mesh_dp]);
    TRY(check_schedule(c));
    TRY(settle_reduce(c));
    TRY(check_cp(c));
    TRY(check_tp(c));
    TRY(settle_dp(c, others));
    if (c->mesh_dp > MAX_RANKS / others) return too_many(c);
    const int64_t product = c->mesh_dp * others;
    if (c->run_ranks == 0) c->run_ranks = product;
    if (c->run_ranks != product) return other_ranks(c, others);
    TRY(config_check_nodes(c));
    TRY(mesh_check_experts(c->origin[c->mesh_ep > 1 ? KEY_mesh_ep : KEY_mesh_etp],
                           product / c->mesh_pp, c->mesh_ep, c->mesh_etp));
    return check_fold(c);
}

/* The levels of single weights for all units without a rule; NULL: none. */
static const char *weight_levels(const Config *c)
{
    const char *text = c->parallel_zero_weights.text;
    return strcmp(text, "none") == 0 ? NULL : text;
}

bool config_searches_tp(const Config *c)
{
    return strcmp(c->parallel_tp_weights.text, "search") == 0;
}

/* The rules of layouts along tp; NULL: Megatron's, or none yet. */
static const char *tp_rules(const Config *c)
{
    const char *text = c->parallel_tp_weights.text;
    return strcmp(text, "megatron") == 0 || config_searches_tp(c) ? NULL : text;
}

ParallelSettings config_parallel(const Config *c)
{
    return (ParallelSettings){.mesh = {.dp_replicate = (int)c->mesh_dp_replicate,
                                       .dp_shard = (int)c->mesh_dp_shard,
                                       .tp = (int)c->mesh_tp,
                                       .pp = (int)c->mesh_pp,
                                       .cp = (int)c->mesh_cp,
                                       .cp_heads = (int)c->mesh_cp_heads,
                                       .ep = (int)c->mesh_ep,
                                       .etp = (int)c->mesh_etp,
                                       .stream_weights = c->parallel_weights == WEIGHTS_STREAM},
                              .zero = (int)c->parallel_zero,
                              .zero_weights = weight_levels(c),
                              .tp_weights = tp_rules(c),
                              .live = (int)c->parallel_live,
                              .fold = (int)c->numerics_fold,
                              .reduce_each = c->parallel_reduce == REDUCE_EACH,
                              .sequence = c->parallel_sequence,
                              .context = (ContextKind)(c->parallel_context - CONTEXT_BY_AUTO),
                              .tokens = (TokenMap)(c->parallel_tokens - TOKENS_BY_AUTO),
                              .cp_inner = (int)c->mesh_cp_inner,
                              .keep_gathered = !c->parallel_regather,
                              .expert_rows = c->parallel_expert_rows,
                              .rounds = c->parallel_overflow == OVERFLOW_ROUNDS,
                              .schedule = c->parallel_schedule,
                              .evict = c->parallel_evict,
                              .split = c->parallel_split,
                              .chunks = (int)c->parallel_chunks,
                              .slices = (int)c->parallel_slices,
                              .group = (int)c->parallel_group};
}
