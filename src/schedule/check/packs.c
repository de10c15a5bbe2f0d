/* packs.c -- checks GATHERs and REDUCEs against the tables from which they were made.
 *
 *     gather.0 gather.3 F3.0 drop.3 ...      a tied head reads two packs, so both must be gathered
 *
 * schedule_check looks at one item at a time. Here a RUN is checked against every pack that it
 * reads or adds to, its own or another unit's. */
#include "schedule/check/packs.h"

#include "schedule/check/check_parts.h"

typedef struct {
    const Schedule *s;
    const PackRules *rules;
    bool *gathered;  /* [packs] */
    int *open;       /* [units]: its KEEP_NO packs that are gathered now */
    int live;        /* units with such packs */
    int *reduced;    /* [packs]: micro-batches of the pack that are reduced, from the first */
    int *holders;    /* [packs] */
    int32_t *writes; /* [packs][micros]: RUNs still to come that add to the pack */
} PackWalk;

static bool adds(const Schedule *s, const Action *a)
{
    return a->kind == A_RUN && schedule_writes(s, a);
}

static Err walk_run(PackWalk *p, int stage, int at)
{
    const Action *a = &p->s->list[stage][at];
    const UnitPacks *unit = &p->rules->packs[a->unit];
    const PackSet *reads = &unit->reads[a->phase];
    for (int k = 0; k < reads->n; k++)
        if (p->rules->row[reads->pack[k]].sharded && !p->gathered[reads->pack[k]])
            return schedule_fail(p->s, stage, at,
                                 "it reads the parameters of pack %d, which are not gathered here",
                                 reads->pack[k]);
    for (int k = 0; adds(p->s, a) && k < unit->adds.n; k++)
        p->writes[(int64_t)unit->adds.pack[k] * p->s->micros + a->micro]--;
    return OK;
}

static Err walk_gather(PackWalk *p, int stage, int at)
{
    const Action *a = &p->s->list[stage][at];
    const PackSwitches *row = &p->rules->row[a->unit];
    const bool gather = a->kind == A_GATHER;
    if (!row->sharded)
        return schedule_fail(p->s, stage, at, "its parameters are not sharded: nothing to gather");
    if (p->gathered[a->unit] == gather)
        return schedule_fail(p->s, stage, at,
                             gather ? "it is gathered already" : "it is not gathered here");
    p->gathered[a->unit] = gather;
    int *open = &p->open[schedule_pack_unit(p->s, a->unit)];
    if (row->keep == KEEP_NO && gather) p->live += (*open)++ == 0;
    if (row->keep == KEEP_NO && !gather) p->live -= --*open == 0;
    if (p->live > p->rules->live)
        return schedule_fail(p->s, stage, at, "%d units are gathered at once; allowed are %d",
                             p->live, p->rules->live);
    return OK;
}

static Err walk_reduce(PackWalk *p, int stage, int at)
{
    const Action *a = &p->s->list[stage][at];
    const int end = a->micro < 0 ? p->s->micros : a->micro + 1;
    int left = 0;
    for (int i = p->reduced[a->unit]; i < end; i++)
        left += p->writes[(int64_t)a->unit * p->s->micros + i];
    if (left > 0)
        return schedule_fail(p->s, stage, at,
                             "RUNs, of all units that hold its parameters, that still add to its "
                             "gradients: %d",
                             left);
    p->reduced[a->unit] = end;
    return OK;
}

/* Checks that every pack was dropped, and every sum that needs it was reduced. */
static Err check_end(const PackWalk *p)
{
    const Schedule *s = p->s;
    for (int pack = 0; pack < schedule_packs(s); pack++) {
        const int stage = schedule_stage_of(s, schedule_pack_unit(s, pack));
        if (p->gathered[pack])
            return schedule_missing(s, stage, action_of(A_DROP, pack), "it is gathered to the end");
        const bool needs = p->rules->group && p->holders[pack] > 0 &&
                           (p->rules->group[pack] > 0 || p->holders[pack] > 1);
        if (needs && p->reduced[pack] < s->micros)
            return schedule_missing(s, stage, action_of(A_REDUCE, pack),
                                    "%d of %d micro-batches are reduced; %d units hold its "
                                    "parameters",
                                    p->reduced[pack], s->micros, p->holders[pack]);
    }
    return OK;
}

static Err packs_init(PackWalk *p, Arena *temp)
{
    const Schedule *s = p->s;
    const int units = schedule_units(s), packs = schedule_packs(s);
    TRY(ARENA_NEW(temp, packs, &p->gathered));
    TRY(ARENA_NEW(temp, units, &p->open));
    TRY(ARENA_NEW(temp, packs, &p->reduced));
    TRY(ARENA_NEW(temp, packs, &p->holders));
    TRY(ARENA_NEW(temp, (int64_t)packs * s->micros, &p->writes));
    for (int u = 0; u < units; u++)
        for (int k = 0; k < p->rules->packs[u].adds.n; k++)
            p->holders[p->rules->packs[u].adds.pack[k]]++;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->n[stage]; i++) {
            const Action *a = &s->list[stage][i];
            const PackSet *set = adds(s, a) ? &p->rules->packs[a->unit].adds : NULL;
            for (int k = 0; set && k < set->n; k++)
                p->writes[(int64_t)set->pack[k] * s->micros + a->micro]++;
        }
    return OK;
}

static Err check_all(PackWalk *p, Arena *temp)
{
    const Schedule *s = p->s;
    TRY(packs_init(p, temp));
    for (int stage = 0; stage < s->stages; stage++) {
        p->live = 0;
        for (int at = 0; at < s->n[stage]; at++) {
            const ActionKind kind = (ActionKind)s->list[stage][at].kind;
            if (kind == A_RUN) TRY(walk_run(p, stage, at));
            if (kind == A_GATHER || kind == A_DROP) TRY(walk_gather(p, stage, at));
            if (kind == A_REDUCE) TRY(walk_reduce(p, stage, at));
        }
    }
    return check_end(p);
}

Err schedule_check_packs(const Schedule *s, const PackRules *rules, Arena *temp)
{
    PackWalk p = {.s = s, .rules = rules};
    TRY(schedule_check_ranges(s));
    TRY(packs_check(s, rules->packs));
    const size_t mark = arena_mark(temp);
    const Err err = check_all(&p, temp);
    arena_rewind(temp, mark);
    return err;
}
