/* mesh.c -- the mesh and the number of ranks, settled together.
 *
 *     mesh.dp=-1   the ranks that the other axes leave: run.ranks / (tp cp pp); 1 if run.ranks=auto
 *     run.ranks    auto: the product of the mesh; if given, it must equal the product
 *
 * dp is one axis or two (HSDP): dp_replicate replicas, each sharded over dp_shard ranks. Plain dp
 * is dp_shard with one replica. */
#include "cli/config/mesh.h"

#include <string.h>
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
        c->mesh_dp = c->run_ranks ? c->run_ranks / others : 1;
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

/* ZeRO 2 and 3 imply parallel.reduce=each: they hold no whole gradients between micro-batches. */
static Err settle_reduce(Config *c)
{
    if (c->parallel_zero < 2 || c->parallel_reduce == REDUCE_EACH) return OK;
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
    TRY(settle_dp(c, others));
    if (c->mesh_dp > MAX_RANKS / others) return too_many(c);
    const int64_t product = c->mesh_dp * others;
    if (c->run_ranks == 0) c->run_ranks = product;
    if (c->run_ranks != product)
        return err_fail(ERR_CONFIG,
                        "%s: run.ranks=%lld, but the mesh dp x tp x cp x pp = %lld x %lld x %lld x "
                        "%lld has %lld ranks; set run.ranks=%lld, or mesh.dp=-1: the rest",
                        c->origin[KEY_run_ranks], (long long)c->run_ranks, (long long)c->mesh_dp,
                        (long long)c->mesh_tp, (long long)c->mesh_cp, (long long)c->mesh_pp,
                        (long long)product, (long long)product);
    if (c->numerics_fold > 1 && c->mesh_dp * c->mesh_pp > 1)
        return err_fail(ERR_CONFIG,
                        "%s: numerics.fold=%lld: one rank imitates the order of sums of several, "
                        "and mesh.%s is %lld; set one of them to 1",
                        c->origin[KEY_numerics_fold], (long long)c->numerics_fold,
                        c->mesh_dp > 1 ? "dp" : "pp",
                        (long long)(c->mesh_dp > 1 ? c->mesh_dp : c->mesh_pp));
    return OK;
}

ParallelSettings config_parallel(const Config *c)
{
    return (ParallelSettings){.mesh = {.dp_replicate = (int)c->mesh_dp_replicate,
                                       .dp_shard = (int)c->mesh_dp_shard,
                                       .tp = (int)c->mesh_tp,
                                       .pp = (int)c->mesh_pp},
                              .zero = (int)c->parallel_zero,
                              .live = (int)c->parallel_live,
                              .fold = (int)c->numerics_fold,
                              .reduce_each = c->parallel_reduce == REDUCE_EACH,
                              .sequence = c->parallel_sequence,
                              .keep_gathered = !c->parallel_regather,
                              .schedule = c->parallel_schedule,
                              .evict = c->parallel_evict,
                              .split = c->parallel_split,
                              .chunks = (int)c->parallel_chunks,
                              .slices = (int)c->parallel_slices,
                              .group = (int)c->parallel_group};
}
