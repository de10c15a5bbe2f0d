/* tp_choice.c -- the costs that a job adds to the search of its units, and what it finds. */
#include "job/tp_choice.h"

#include <string.h>
#include "base/math.h"
#include "base/text.h"
#include "compile/tp_search.h"
#include "job/job_parts.h"

/* Seconds of a step for each element of a weight that a rank has: the price of its state, the
 * update, and its transfers over data ranks. */
static double element_seconds(const JobSettings *s, const CostRates *r, double byte_s)
{
    const MeshSizes *m = &s->parallel.mesh;
    const double narrow = (double)dtype_bytes(s->dtype),
                 wide = (double)dtype_bytes(dtype_wide(s->dtype));
    const double moments = s->optim.kind == OPTIM_ADAMW ? 2 : 0, master = narrow == wide ? 0 : 1;
    const int dp = max_int(m->dp_replicate, 1) * max_int(m->dp_shard, 1), cp = max_int(m->cp, 1);
    const int zero = s->parallel.zero;
    const double shards = zero > 0 ? max_int(m->dp_shard, 1) * cp : 1;
    const double large = 1 << 28; /* bytes: no latency counts */
    const CostGroup data = cost_group_strided(r, dp * cp, max_int(m->tp, 1));
    const double reduces = zero >= 2 || s->parallel.reduce_each ? s->micros : 1;
    const double gathers = zero == 3 ? 2 * s->micros : zero > 0 ? 1 : 0;
    const double state = (zero == 3 ? narrow / shards : narrow) +
                         (master + moments) * wide / shards + (zero >= 2 ? wide / shards : wide);
    double seconds = byte_s * state + (3 + 2 * moments) * wide / shards / r->memory_Bps;
    if (dp * cp == 1) return seconds;
    const CommKind reduce = zero > 0 ? COMM_REDUCE_SCATTER : COMM_ALL_REDUCE;
    seconds += reduces * wide * cost_transfer_seconds(r, reduce, data, large) / large;
    return seconds +
           gathers * narrow * cost_transfer_seconds(r, COMM_ALL_GATHER, data, large) / large;
}

/* The weights of a unit that other units hold too: both have them in one layout. */
static Err find_fixed(const Model *m, int unit, Arena *temp, const bool **out)
{
    const Unit *u = &m->unit[unit];
    bool *fixed;
    TRY(ARENA_NEW(temp, u->n_params + 1, &fixed));
    for (int k = 0; k < u->n_params; k++) {
        const Param *p = &m->param[u->param[k]];
        fixed[k] = p->n_holders > 1 || p->is_shared;
    }
    *out = fixed;
    return OK;
}

typedef struct {
    Job job;
    CostRates rates;
    double sequences; /* of a rank in a step */
    TpSearchResult found[MAX_KINDS];
} Chooser;

static Err search_kind(Chooser *c, int kind, double element_s, Arena *temp)
{
    const Model *m = &c->job.model;
    TpSearchOptions set = {.rates = &c->rates, .micros = c->sequences, .element_s = element_s};
    int unit = 0;
    while (m->unit[unit].kind != kind) unit++;
    TRY(find_fixed(m, unit, temp, &set.fixed));
    CompileOptions o = job_compile_options(&c->job, &c->job.unit[unit]);
    o.x = &c->job.stream[unit];
    o.backward = true;
    return tp_search(&m->kind[kind], &o, &set, temp, &c->found[kind]);
}

/* True if all kinds that have an open weight of that name have it in the same layout. */
static bool is_alike(const Chooser *c, const char *name, TpLayout l)
{
    const Model *m = &c->job.model;
    for (int k = 0; k < m->n_kinds; k++)
        for (int i = 0; i < m->kind[k].n_params; i++)
            if (strcmp(m->kind[k].param[i].name, name) == 0 && tp_weight_is_open(&m->kind[k], i) &&
                c->found[k].layout[i] != l)
                return false;
    return true;
}

/* True if an earlier kind has a weight of that name. */
static bool is_again(const Model *m, int kind, const char *name)
{
    for (int k = 0; k < kind; k++)
        for (int i = 0; i < m->kind[k].n_params; i++)
            if (strcmp(m->kind[k].param[i].name, name) == 0) return true;
    return false;
}

/* Elements of a weight of a kind on a rank. */
static double elements_of(const Chooser *c, int kind, int param)
{
    const Graph *g = &c->job.model.kind[kind];
    const ParamInfo *p = &g->param[param];
    const double tp = max_int(c->job.settings.parallel.mesh.tp, 1);
    double n = 1;
    for (int i = 0; i < p->ndim; i++) n *= (double)p->n[i];
    const bool open = tp_weight_is_open(g, param);
    const bool whole =
        open ? c->found[kind].layout[param] == TP_WHOLE : tp_weight_default(g, param) == TP_WHOLE;
    return whole ? n : n / tp;
}

static double all_elements(const Chooser *c)
{
    const Model *m = &c->job.model;
    double n = 0;
    for (int u = 0; u < m->n_units; u++)
        for (int k = 0; k < m->unit[u].n_params; k++)
            if (m->param[m->unit[u].param[k]].holder[0] == u)
                n += elements_of(c, m->unit[u].kind, k);
    return n;
}

static Err write_rules(const Chooser *c, Arena *arena, const char **out)
{
    const Model *m = &c->job.model;
    Text t = text_in(arena);
    bool any = false;
    for (int k = 0; k < m->n_kinds; k++)
        for (int i = 0; i < m->kind[k].n_params; i++) {
            const char *name = m->kind[k].param[i].name;
            const TpLayout l = c->found[k].layout[i];
            if (!tp_weight_is_open(&m->kind[k], i) || l == tp_weight_default(&m->kind[k], i))
                continue;
            const bool alike = is_alike(c, name, l);
            if (alike && is_again(m, k, name)) continue;
            text_add(&t, "%s%s%s%s=%s", any ? "," : "", alike ? "" : m->kind[k].kind,
                     alike ? "" : "/", name, tp_layout_name(l));
            any = true;
        }
    const char *rules;
    TRY(text_done(&t, &rules));
    *out = any ? rules : NULL;
    return OK;
}

/* The job with one sequence, on one stage, and with as much dp as experts need. Seconds are linear
 * in the sequences of a rank, in micro-batches of whatever size. */
static JobSettings one_sequence(const JobSettings *s)
{
    JobSettings one = *s;
    ParallelSettings *p = &one.parallel;
    const int inner = max_int(p->mesh.cp, 1) * max_int(p->mesh.tp, 1),
              experts = max_int(p->mesh.ep, 1) * max_int(p->mesh.etp, 1);
    one.batch.sequences = one.micros = 1;
    one.schedule = p->schedule = "1f1b";
    one.n_stage_rules = 0;
    p->mesh.dp_replicate = p->mesh.dp_shard = p->mesh.pp = 1;
    while (p->mesh.dp_shard * inner % experts != 0) p->mesh.dp_shard++;
    p->rank = p->chunks = p->slices = p->group = 0;
    p->cuts = NULL;
    p->split = NULL;
    p->fold = 1;
    p->evict = false;
    p->tp_weights = NULL;
    p->tp_choice = NULL;
    return one;
}

static Err choose(const JobSettings *s, double byte_s, Arena *temp, Chooser *c)
{
    const JobSettings one = one_sequence(s);
    const CostRates rates = job_context_rates(s);
    TRY(job_share(&one, temp, &c->job));
    c->rates = cost_linear_rates(&rates);
    c->sequences = (double)s->micros * (double)s->batch.sequences;
    const double element_s = element_seconds(s, &rates, byte_s);
    for (int k = 0; k < c->job.model.n_kinds; k++) TRY(search_kind(c, k, element_s, temp));
    return OK;
}

Err job_choose_tp(const JobSettings *s, double byte_s, Arena *arena, Arena *temp, TpChoice *out)
{
    const size_t mark = arena_mark(temp);
    Chooser *c = NULL;
    *out = (TpChoice){.rates = s->parallel.cluster ? s->parallel.cluster->name : NULL};
    Err err = ARENA_NEW(temp, 1, &c);
    if (err == OK) err = choose(s, byte_s, temp, c);
    for (int k = 0; err == OK && k < c->job.model.n_kinds; k++) {
        const TpSearchResult *r = &c->found[k];
        const char *kind = NULL;
        err = arena_string(arena, c->job.model.kind[k].kind, &kind);
        out->kind[out->n_kinds++] = (TpChoiceKind){kind, r->seconds, r->megatron_s, r->exact};
    }
    if (err == OK) out->elements = all_elements(c);
    if (err == OK) err = write_rules(c, arena, &out->rules);
    arena_rewind(temp, mark);
    return err;
}
