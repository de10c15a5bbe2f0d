/* reduce.c -- finds the last RUN that adds to each group of micro-batches, and inserts a REDUCE.
 *
 *     group       0           1          2 micro-batches each
 *     unit 0      B0.1        B0.3       the last of unit 0 alone
 *     tied head   F5.1        F5.3       adds to the pack of 0 too, but earlier
 *     reduce      0.1         0.3 */
#include "schedule/reduce.h"

#include "schedule/check/check.h"

/* The REDUCEs of one pack. */
typedef struct {
    int holders;
    int group, n; /* micro-batches in a group; groups, 0 if there is nothing to reduce */
    int *last;    /* [n]: position of the last RUN that adds to the group, or -1 */
} PackSums;

/* The groups of gradients that a unit adds to one pack. */
typedef struct {
    int begun, waiting; /* groups begun so far; of those, groups not yet reduced */
} UnitGroups;

typedef struct {
    const Schedule *s;
    const ReduceInput *in;
    PackSums *pack;                       /* [packs] */
    UnitGroups (*adding)[MAX_UNIT_PACKS]; /* [units], in the order of their `adds` */
    int *sums;                            /* [units] */
} ReducePass;

/* Determines which packs are reduced, and in how many groups. */
static Err open_packs(ReducePass *r, Arena *temp)
{
    const Schedule *s = r->s;
    const bool in_order = schedule_in_order(s);
    for (int u = 0; u < schedule_units(s); u++)
        for (int k = 0; k < r->in->packs[u].adds.n; k++)
            r->pack[r->in->packs[u].adds.pack[k]].holders++;
    for (int p = 0; p < schedule_packs(s); p++) {
        PackSums *sums = &r->pack[p];
        const int group = r->in->group[p];
        if (group < 0 || group > s->micros)
            return err_fail(ERR_CHECK, "pack %d: reduced after %d micro-batches; there are %d", p,
                            group, s->micros);
        if (sums->holders == 0 || (sums->holders == 1 && group == 0)) continue;
        sums->group = group > 0 ? group : s->micros;
        sums->n = (s->micros + sums->group - 1) / sums->group;
        TRY(ARENA_NEW(temp, sums->n, &sums->last));
        for (int g = 0; g < sums->n; g++) sums->last[g] = -1;
        if (sums->n > 1 && r->in->late && r->in->late[p])
            return err_fail(ERR_CHECK, "pack %d is reduced after all RUNs, and in %d groups", p,
                            sums->n);
        if (sums->n > 1 && !in_order)
            return err_fail(ERR_CHECK,
                            "pack %d is reduced after every %d micro-batches, and the "
                            "schedule does not run micro-batches in order",
                            p, sums->group);
    }
    return OK;
}

static bool adds(const Schedule *s, const Action *a)
{
    return a->kind == A_RUN && schedule_writes(s, a);
}

static void find_last(ReducePass *r, int stage)
{
    for (int i = 0; i < r->s->n[stage]; i++) {
        const Action *a = &r->s->list[stage][i];
        if (!adds(r->s, a)) continue;
        const PackSet *set = &r->in->packs[a->unit].adds;
        for (int k = 0; k < set->n; k++) {
            PackSums *sums = &r->pack[set->pack[k]];
            if (sums->n > 0) sums->last[a->micro / sums->group] = i;
        }
    }
}

/* Counts a new group of the unit's gradients if this RUN is the first of one. */
static void begin_group(ReducePass *r, const Action *a, int k)
{
    UnitGroups *adding = &r->adding[a->unit][k];
    const int pack = r->in->packs[a->unit].adds.pack[k], group = r->pack[pack].group;
    if (r->pack[pack].n == 0 || a->micro / group < adding->begun) return;
    adding->begun = a->micro / group + 1;
    adding->waiting++;
    if (r->sums[a->unit] < adding->waiting) r->sums[a->unit] = adding->waiting;
}

/* Marks the oldest group of the units `from` to `to` that add to the pack as reduced. */
static void end_group(ReducePass *r, int pack, int from, int to)
{
    for (int u = from; u <= to; u++) {
        const PackSet *set = &r->in->packs[u].adds;
        for (int k = 0; k < set->n; k++)
            if (set->pack[k] == pack) r->adding[u][k].waiting--;
    }
}

static void push(Schedule *out, int stage, Action a) { out->list[stage][out->n[stage]++] = a; }

static int pack_stage(const Schedule *s, int pack)
{
    return schedule_stage_of(s, schedule_pack_unit(s, pack));
}

static bool is_late(const ReducePass *r, int pack) { return r->in->late && r->in->late[pack]; }

/* Writes the late REDUCEs in order of packs, so that all stages of a shared pack meet in one
 * order. */
static void write_late(ReducePass *r, int stage, Schedule *out)
{
    for (int p = 0; p < schedule_packs(r->s); p++)
        if (is_late(r, p) && r->pack[p].n > 0 && pack_stage(r->s, p) == stage)
            push(out, stage, action_of(A_REDUCE, p));
}

static void write_reduces(ReducePass *r, int stage, int at, Schedule *out)
{
    const Action *a = &r->s->list[stage][at];
    const PackSet *set = &r->in->packs[a->unit].adds;
    for (int k = 0; k < set->n; k++) begin_group(r, a, k);
    for (int k = 0; k < set->n; k++) {
        const int pack = set->pack[k];
        const PackSums *sums = &r->pack[pack];
        if (sums->n == 0 || sums->last[a->micro / sums->group] != at) continue;
        if (is_late(r, pack)) continue;
        Action reduce = action_of(A_REDUCE, pack);
        const int end = (a->micro / sums->group + 1) * sums->group;
        const bool apart = r->in->apart && r->in->apart[pack];
        if (sums->n > 1 || apart)
            reduce.micro = (int16_t)((end < r->s->micros ? end : r->s->micros) - 1);
        push(out, stage, reduce);
        if (sums->holders == 1)
            end_group(r, pack, a->unit, a->unit);
        else
            end_group(r, pack, 0, schedule_units(r->s) - 1);
    }
}

static Err reduce_stage(ReducePass *r, int stage, Arena *arena, Schedule *out)
{
    const Schedule *s = r->s;
    int room = s->n[stage];
    find_last(r, stage);
    for (int p = 0; p < schedule_packs(s); p++)
        if (pack_stage(s, p) == stage) room += r->pack[p].n;
    TRY(ARENA_NEW(arena, room + 1, &out->list[stage]));
    bool done = false;
    for (int i = 0; i < s->n[stage]; i++) {
        const bool ends = !done && s->list[stage][i].kind == A_NORM;
        if (ends) write_late(r, stage, out);
        done = done || ends;
        push(out, stage, s->list[stage][i]);
        if (adds(s, &s->list[stage][i])) write_reduces(r, stage, i, out);
    }
    if (!done) write_late(r, stage, out);
    return OK;
}

static Err reduce_all(ReducePass *r, Arena *arena, Arena *temp, Schedule *out)
{
    const int units = schedule_units(r->s);
    TRY(ARENA_NEW(temp, schedule_packs(r->s), &r->pack));
    TRY(ARENA_NEW(temp, units, &r->adding));
    TRY(open_packs(r, temp));
    for (int u = 0; u < units; u++) r->sums[u] = 1;
    for (int stage = 0; stage < r->s->stages; stage++)
        if (schedule_has_list(r->s, stage)) TRY(reduce_stage(r, stage, arena, out));
    return OK;
}

Err schedule_reduces(const Schedule *s, const ReduceInput *in, Arena *arena, Schedule *out,
                     int *sums)
{
    ReducePass r = {.s = s, .in = in, .sums = sums};
    Schedule made;
    Arena temp;
    TRY(packs_check(s, in->packs));
    TRY(schedule_init(s, NULL, arena, &made));
    TRY(arena_open(&temp, "reductions", ARENA_PLENTY));
    const Err err = reduce_all(&r, arena, &temp, &made);
    arena_close(&temp);
    if (err == OK) *out = made;
    return err;
}
