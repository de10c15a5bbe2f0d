/* job.c -- runs the compiler's parts in order; schedule.c makes the action lists. */
#include "job/job.h"

#include "base/math.h"
#include "ir/pairs.h"
#include "job/job_parts.h"
#include "job/slices.h"

int64_t job_cache_rows(const Job *job)
{
    const unsigned cp = mesh_axes(&job->mesh, VIEW_DENSE, "cp");
    const int64_t parts = mesh_parts(&job->mesh, VIEW_DENSE, cp);
    return (job->settings.session.context + parts - 1) / parts;
}

/* True if attention is causal within whole sequences: no window, no full mask, no slices, no KV
 * cache, no tokens on other ranks. */
static bool is_causal(const Job *job)
{
    const JobSettings *s = &job->settings;
    return s->causal && s->config->window == 0 && !s->config->full_mask && job->slices.n == 1 &&
           s->kind != JOB_GENERATE && s->parallel.mesh.cp <= 1;
}

static void mark_causal(Model *m, int64_t seq_len)
{
    for (int k = 0; k < m->n_kinds; k++)
        for (int i = 0; i < m->kind[k].n_nodes; i++) {
            Node *n = &m->kind[k].node[i];
            if (op_attends(n->op)) n->attr.kernel.attention.causal = seq_len;
        }
}

/* The weights of experts declare the view whose axes shard them. */
static Err choose_view(Job *job, Arena *arena)
{
    ModelConfig *c;
    if (!job_shards_experts(&job->settings.parallel.mesh)) return OK;
    TRY(ARENA_NEW(arena, 1, &c));
    *c = *job->settings.config;
    c->experts.view = VIEW_EXPERT;
    job->settings.config = c;
    return OK;
}

/* The largest number up to `most` that divides both. */
static int64_t common_part(int64_t a, int64_t b, int64_t most)
{
    while (most > 1 && (a % most || b % most)) most--;
    return most;
}

/* Axes of the expert view shard the parameters that declare it. */
static Err check_experts(const Job *job)
{
    const MeshSizes *m = &job->settings.parallel.mesh;
    const ExpertConfig *x = &job->settings.config->experts;
    const View *v = &job->mesh.view[VIEW_DENSE];
    const int64_t stage = job->mesh.world / v->size[0];
    bool any = false;
    if (!job_shards_experts(m)) return OK;
    for (int p = 0; p < job->model.n_packs; p++)
        any = any || job->model.pack[p].view == VIEW_EXPERT;
    if (!any)
        return err_fail(ERR_CONFIG,
                        "mesh.%s=%d: %s has no experts; set mesh.ep=1 and mesh.etp=1, or leave "
                        "them out",
                        m->ep > 1 ? "ep" : "etp", m->ep > 1 ? m->ep : m->etp, job->model.name);
    if (x->n > 0 && m->ep > 1 && x->n % m->ep != 0)
        return err_fail(ERR_CONFIG,
                        "mesh.ep=%d does not divide the %lld experts of a layer of %s; set "
                        "mesh.ep=%lld",
                        m->ep, (long long)x->n, job->model.name,
                        (long long)common_part(x->n, stage / max_int(m->etp, 1), m->ep));
    if (x->n > 0 && m->etp > x->width)
        return err_fail(ERR_CONFIG,
                        "mesh.etp=%d: an expert of %s has a width of %lld, too little for so many "
                        "ranks; set mesh.etp=%lld",
                        m->etp, job->model.name, (long long)x->width,
                        (long long)mesh_largest_part((int)stage, x->width));
    return OK;
}

static Err check_parallel(const Job *job)
{
    const ParallelSettings *p = &job->settings.parallel;
    const int dp = mesh_parts(&job->mesh, VIEW_DENSE, mesh_axes(&job->mesh, VIEW_DENSE, "dp"));
    if (p->rank < 0 || p->rank >= job->mesh.world)
        return err_fail(ERR_CONFIG, "rank %d: the mesh has ranks 0 to %d", p->rank,
                        job->mesh.world - 1);
    TRY(check_experts(job));
    if (p->fold <= 1) return OK;
    if (p->mesh.pp > 1)
        return err_fail(
            ERR_CONFIG,
            "numerics.fold=%d with mesh.pp=%d: fold reproduces the order of sums of that "
            "many dp ranks on one rank; set mesh.pp=1 or numerics.fold=1",
            p->fold, p->mesh.pp);
    if (dp > 1)
        return err_fail(
            ERR_CONFIG,
            "numerics.fold=%d with dp=%d: fold reproduces the order of sums of that many "
            "dp ranks on one rank; set mesh.dp=1 or numerics.fold=1",
            p->fold, dp);
    if (p->mesh.cp > 1)
        return err_fail(
            ERR_CONFIG,
            "numerics.fold=%d with mesh.cp=%d: gradients of dp x cp ranks are summed in one "
            "reduction, whose order fold cannot reproduce; set mesh.cp=1 or numerics.fold=1",
            p->fold, p->mesh.cp);
    char key[REASON_BYTES];
    const char *out = job_reduces_each(job, key);
    if (out)
        return err_fail(ERR_CONFIG,
                        "numerics.fold=%d with %s: gradients are reduced after each micro-batch, "
                        "and fold reproduces reductions after the last; set %s",
                        p->fold, key, out);
    if (job->settings.micros % p->fold != 0)
        return err_fail(
            ERR_CONFIG,
            "numerics.fold=%d: the rank's %d micro-batches cannot be divided into that many "
            "equal groups; change batch.global",
            p->fold, job->settings.micros);
    return OK;
}

static int moments_of(const JobSettings *s)
{
    return s->kind != JOB_GENERATE && s->optim.kind == OPTIM_ADAMW ? 2 : 0;
}

Err job_link(Job *job, const ProgramTable *programs, const Layout *use, Arena *arena)
{
    const JobSettings *set = &job->settings;
    const LinkInput in = {.model = &job->model,
                          .programs = programs,
                          .n_moments = moments_of(set),
                          .no_master = set->inference || set->kind == JOB_GENERATE,
                          .mesh = &job->mesh,
                          .rank = set->parallel.rank,
                          .use = use,
                          .block = set->optim.block,
                          .switches = job->switches,
                          .fold = set->parallel.fold,
                          .slice_at = job->slices.cut,
                          .part_scales = set->compile.fp8.scaling != SCALING_TENSOR,
                          .in_order = set->parallel.in_order,
                          .note_freed = set->note_freed,
                          .workspace = set->workspace,
                          .packings = set->packings,
                          .sizes_only = set->sizes_only};
    return schedule_link(&job->units, job_stage(job), &in, arena, &job->linked);
}

static Err build_model(const JobSettings *s, Arena *arena, Model *out)
{
    if (s->kind == JOB_GENERATE)
        return model_build_session(s->config, s->dtype, &s->session, arena, out);
    return model_build(s->config, s->dtype, s->batch, arena, out);
}

/* Gives the weights that are sharded over cp the view of the mesh that does that. */
static Err share_weights(Job *job)
{
    Model *m = &job->model;
    const MeshSizes *sizes = &job->settings.parallel.mesh;
    const int tp = sizes->tp > 1 ? sizes->tp : 1;
    const int64_t keys = job->settings.config->n_kv_heads;
    if (!sizes->stream_weights || sizes->cp <= 1) return OK;
    if (keys % tp != 0)
        return err_fail(ERR_CONFIG,
                        "parallel.weights=stream with mesh.tp=%d, which does not divide the %lld "
                        "key heads: ranks of tp have copies of their weights, which cannot be "
                        "sharded over mesh.cp again; set a mesh.tp that divides them, or "
                        "parallel.weights=whole",
                        tp, (long long)keys);
    for (int k = 0; k < m->n_kinds; k++)
        for (int i = 0; i < m->kind[k].n_params; i++)
            if (strategy_streams_weight(&strategy_tp, &m->kind[k], i))
                TRY(model_set_view(m, k, i, VIEW_WEIGHT));
    return OK;
}

Err job_share(const JobSettings *settings, Arena *arena, Job *job)
{
    *job = (Job){.settings = *settings};
    TRY(choose_view(job, arena));
    TRY(build_model(&job->settings, arena, &job->model));
    TRY(share_weights(job));
    TRY(job_check_units(job, arena));
    TRY(job_part_packs(job, arena));
    TRY(job_choose_strategy(job, arena));
    TRY(check_parallel(job));
    TRY(job_generate(job, arena));
    TRY(job_slices(job, arena, &job->slices));
    TRY(job_slice_tokens(job, arena));
    if (is_causal(job)) mark_causal(&job->model, settings->batch.seq_len);
    TRY(job_make_moves(job, arena));
    return job_settle_units(job, arena);
}

/* The second half of the compiler, on the shared half in `job`. */
static Err compile_rank(Job *job, Arena *arena)
{
    Layout *use;
    TRY(job_compile_programs(job, arena));
    TRY(job_make_units(job, job_stage(job), arena));
    TRY(strategy_use(&job->strategy, &job->model, &job->mesh, arena, &use));
    return job_link(job, &job->programs, use, arena);
}

Err job_compile(const JobSettings *settings, Arena *arena, Job *job)
{
    TRY(job_share(settings, arena, job));
    return compile_rank(job, arena);
}

Err job_compile_rank(const Job *shared, int rank, Arena *arena, Job *job)
{
    *job = *shared;
    job->settings.parallel.rank = rank;
    TRY(check_parallel(job));
    return compile_rank(job, arena);
}

Err job_open_rank(const Job *job, Comm *comm, Team *team, Rank *out)
{
    const RankSettings set = {.program = &job->linked,
                              .device = &device_ref,
                              .comm = comm,
                              .team = team,
                              .optim = job->settings.optim};
    return rank_open(out, &set);
}
