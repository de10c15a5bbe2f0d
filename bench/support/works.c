/* works.c -- the events of a step, added up by the work that they did. */
#include "support/works.h"

#include <string.h>

#include "ir/pairs.h"

typedef struct {
    const char *name;
    CostWork work;
    int calls;
    double plan_s, step_s;
} WorkSum;

enum { MAX_WORKS = 512 };

static WorkSum *sum_of(WorkSum *all, int *n, const char *name, const CostWork *work)
{
    for (int i = 0; i < *n; i++)
        if (all[i].name == name && memcmp(&all[i].work, work, sizeof *work) == 0) return &all[i];
    if (*n == MAX_WORKS) return NULL;
    all[*n] = (WorkSum){.name = name, .work = *work};
    return &all[(*n)++];
}

static CostWork work_of(const Job *job, const TraceEvent *e)
{
    const LinkedAction l = {.action = action_run((Phase)e->phase, e->unit, e->micro, 0)};
    const Program *p = linked_program(&job->linked, e->unit, e->micro, 0);
    const Instr *i = &p->instr[e->instr];
    CostWork work;
    memset(&work, 0, sizeof work);
    work = cost_instr_work(p, i);
    if (op_attends(i->op)) work.heavy = linked_flops(&job->linked, &l, p, i);
    return work;
}

static const char *name_of(const TraceEvent *e)
{
    if (e->instr >= 0) return op_info((OpId)e->op)->name;
    return e->action == A_UPDATE ? "(update)" : e->action == A_NORM ? "(norm)" : "(other)";
}

void works_head(FILE *f)
{
    fprintf(f, "setting,op,calls,m,n,k,width,queries,heavy,light,bytes,plan_s,step_s\n");
}

Err works_write(FILE *f, int setting, const Job *job, const RankTrace *trace, const CostRates *r,
                Arena *temp)
{
    const size_t mark = arena_mark(temp);
    WorkSum *all;
    int n = 0;
    TRY(ARENA_NEW(temp, MAX_WORKS, &all));
    for (int64_t i = 0; i < trace->n; i++) {
        const TraceEvent *e = &trace->at[i];
        CostWork work;
        memset(&work, 0, sizeof work);
        if (e->instr >= 0) work = work_of(job, e);
        WorkSum *s = sum_of(all, &n, name_of(e), &work);
        if (!s) continue;
        s->calls++;
        s->step_s += e->end_s - e->begin_s;
        if (e->instr >= 0) s->plan_s += cost_work_seconds(r, &work);
    }
    for (int i = 0; i < n; i++) {
        const CostWork *w = &all[i].work;
        fprintf(f, "%d,%s,%d,%.0f,%.0f,%.0f,%.0f,%.0f,%.6g,%.6g,%.6g,%.6g,%.6g\n", setting,
                all[i].name, all[i].calls, w->m, w->n, w->k, w->c, w->queries, w->heavy, w->light,
                w->bytes, all[i].plan_s, all[i].step_s);
    }
    fflush(f);
    arena_rewind(temp, mark);
    return OK;
}
