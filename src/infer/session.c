/* session.c -- compiles the programs of a session, and runs its calls. */
#include "infer/session.h"

static Err compile_call(const JobSettings *base, const SessionShape *shape, Arena *arena, Job *job)
{
    JobSettings set = *base;
    set.kind = JOB_GENERATE;
    set.session = *shape;
    const bool clips = base->config->frames > 0; /* a call has whole clips */
    set.batch = clips ? (BatchShape){shape->sequences, base->config->max_positions}
                      : (BatchShape){1, shape->rows};
    set.micros = 1;
    set.split = false;
    set.schedule = "1f1b";
    set.n_stage_rules = 0;
    set.parallel.units = NULL;
    set.compile = (CompileOptions){.chunk_elements = base->compile.chunk_elements,
                                   .device_memory = base->compile.device_memory};
    return job_compile(&set, arena, job);
}

/* Ranks along dp would repeat the same calls, so there are none, unless they have other experts. */
static Err check_mesh(const ParallelSettings *p)
{
    const MeshSizes *m = &p->mesh;
    const int dp = (m->dp_replicate ? m->dp_replicate : 1) * (m->dp_shard ? m->dp_shard : 1);
    if (dp > 1 && m->ep <= 1 && m->etp <= 1)
        return err_fail(ERR_CONFIG,
                        "mesh.dp=%d: the ranks of a session share one model; set mesh.dp=1 and use "
                        "mesh.tp, mesh.cp or mesh.pp",
                        dp);
    return OK;
}

Err session_compile(const JobSettings *base, const SessionShape *shape, Arena *arena,
                    SessionJobs *jobs)
{
    SessionShape few = *shape;
    JobSettings set = *base;
    TRY(check_mesh(&base->parallel));
    set.parallel = (ParallelSettings){.mesh = base->parallel.mesh,
                                      .rank = base->parallel.rank,
                                      .in_order = base->parallel.in_order,
                                      .split = base->parallel.split};
    few.rows = few.logit_rows = shape->sequences;
    jobs->shape = *shape;
    jobs->n = shape->cached && shape->rows > shape->sequences ? 2 : 1;
    if (jobs->n == 1) return compile_call(&set, shape, arena, &jobs->call[0]);
    TRY(compile_call(&set, &few, arena, &jobs->call[CALL_FEW]));
    return compile_call(&set, shape, arena, &jobs->call[CALL_MANY]);
}

static ProgramSet programs_of(const SessionJobs *jobs)
{
    ProgramSet set = {.n = jobs->n};
    for (int i = 0; i < jobs->n; i++) set.program[i] = &jobs->call[i].linked;
    return set;
}

int64_t session_bytes(const SessionJobs *jobs)
{
    const ProgramSet set = programs_of(jobs);
    size_t bytes = 0;
    for (int a = 0; a < N_ARENAS; a++) bytes += program_set_bytes(&set, (ArenaId)a);
    for (int i = 0; i < set.n; i++) bytes += set.program[i]->pinned_bytes;
    return (int64_t)bytes;
}

int64_t session_cache_bytes(const SessionJobs *jobs)
{
    return (int64_t)jobs->call[0].linked.bytes[ARENA_SESSION];
}

static int last_stage(const Mesh *m)
{
    const unsigned pp = mesh_axes(m, VIEW_DENSE, "pp");
    return mesh_move(m, VIEW_DENSE, pp, mesh_parts(m, VIEW_DENSE, pp) - 1, 0);
}

Err session_open(Session *s, const SessionSettings *settings)
{
    *s = (Session){.settings = *settings};
    const SessionJobs *jobs = settings->jobs;
    WorldRank *w = settings->world;
    s->sampling_rank = last_stage(&jobs->call[0].mesh);
    s->programs = programs_of(jobs);
    for (int i = 0; i < jobs->n; i++) {
        const RankSettings set = {.program = &jobs->call[i].linked,
                                  .device = settings->device,
                                  .ordinal = w ? w->rank : 0,
                                  .comm = w ? w->comm : NULL,
                                  .team = settings->team,
                                  .set = &s->programs,
                                  .number = i,
                                  .state_of = i ? &s->rank[0] : NULL,
                                  .watch = w && w->status ? &w->status->watch : NULL};
        TRY(rank_open(&s->rank[i], &set));
    }
    return OK;
}

void session_close(Session *s)
{
    for (int i = N_CALLS - 1; i >= 0; i--)
        if (s->rank[i].live_rows) rank_close(&s->rank[i]);
}

/* The part of the KV cache that this rank holds: positions part, part + parts, ... */
typedef struct {
    int64_t parts, part;
    int64_t rows; /* per sequence */
} CachePart;

static CachePart cache_part(const Session *s)
{
    const Job *job = &s->settings.jobs->call[0];
    const unsigned cp = mesh_axes(&job->mesh, VIEW_DENSE, "cp");
    return (CachePart){.parts = mesh_parts(&job->mesh, VIEW_DENSE, cp),
                       .part = mesh_part(&job->mesh, VIEW_DENSE, cp, job->settings.parallel.rank),
                       .rows = job_cache_rows(job)};
}

/* The number of positions below `position` that the part holds. */
static int64_t rows_below(const CachePart *c, int64_t position)
{
    return (position - c->part + c->parts - 1) / c->parts;
}

/* The key range of a row: keys up to its own position, within the window. Indices are rows of this
 * rank's part of the KV cache, or of the call without a cache. */
static void set_ranges(const Session *s, const CachePart *c, const SessionRow *row, int64_t at,
                       int32_t *ranges)
{
    const int64_t window = s->settings.jobs->call[0].settings.config->window;
    const int64_t before = window && row->position > window - 1 ? window - 1 : row->position;
    const int64_t first = row->position - before, end = row->position + 1;
    const int64_t base = row->sequence * c->rows;
    const bool cached = s->settings.jobs->shape.cached;
    ranges[0] = (int32_t)(cached ? base + rows_below(c, first) : at - before);
    ranges[1] = (int32_t)(cached ? base + rows_below(c, end) : at + 1);
    ranges[2] = ranges[3] = 0;
}

/* The row of this rank's KV cache that holds the key of a row; -1: another rank holds it. */
static int32_t place_of(const CachePart *c, const SessionRow *row)
{
    if (row->position % c->parts != c->part) return -1;
    return (int32_t)(row->sequence * c->rows + row->position / c->parts);
}

static int64_t fill(const Session *s, Rank *r, const SessionRow *row, int64_t n)
{
    const SessionShape *shape = &s->settings.jobs->shape;
    int32_t *token = rank_input(r, 0, INPUT_TOKENS).data;
    int32_t *position = rank_input(r, 0, INPUT_POSITIONS).data;
    int32_t *ranges = rank_input(r, 0, INPUT_RANGES).data;
    int32_t *place = rank_input(r, 0, INPUT_PLACES).data;
    int32_t *logit_rows = rank_input(r, 0, INPUT_LOGIT_ROWS).data;
    const CachePart cache = cache_part(s);
    int64_t n_logit_rows = 0;
    for (int64_t i = 0; i < n; i++) {
        MUST(row[i].sequence < shape->sequences && row[i].position < shape->context,
             "sequence %lld, position %lld", (long long)row[i].sequence,
             (long long)row[i].position);
        token[i] = row[i].token;
        position[i] = (int32_t)row[i].position;
        place[i] = place_of(&cache, &row[i]);
        set_ranges(s, &cache, &row[i], i, &ranges[4 * i]);
        if (row[i].needs_logits) logit_rows[n_logit_rows++] = (int32_t)i;
    }
    return n_logit_rows;
}

Err session_call(Session *s, const SessionRow *row, int64_t n, Tensor *logits)
{
    const SessionJobs *jobs = s->settings.jobs;
    const int which = jobs->n > 1 && n > jobs->call[CALL_FEW].model.rows ? CALL_MANY : CALL_FEW;
    Rank *r = &s->rank[which];
    StepResult result;
    MUST(n <= jobs->call[which].model.rows, "%lld rows", (long long)n);
    rank_set_logit_rows(r, fill(s, r, row, n));
    rank_set_rows(r, 0, n);
    TRY(rank_step(r, &(StepSettings){.step = 1}, &result));
    return rank_logits(r, logits);
}
