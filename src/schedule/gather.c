/* gather.c -- finds the residencies of packs, then writes them as GATHERs and DROPs into the lists.
 *
 * A residency is the range of RUNs during which a pack is gathered. Packs that are kept are
 * resident from their first use to the end that their row names. The others share `live` places: a
 * window slides over the uses in order of RUNs and holds as many uses as possible without naming
 * packs of more than `live` units. A pack is resident at a RUN if it is in the window:
 *
 *     uses    0 1 2 3 3 2 1 ...        live 2
 *     F0.0    0 1
 *     F1.0      1 2
 *     F2.0        2 3 3 2              2 stays for its backward phase, since 3 is there by then
 *     F3.0          3 3 2
 *     B3.0            3 2
 *     B2.0              2 1 */
#include "schedule/gather.h"

#include <stdlib.h>
#include "base/math.h"

typedef struct {
    int run; /* number of the RUN in the stage's list */
    int end; /* for a pack kept to the backward phase: the RUN to which this use keeps it */
    int pack;
} Use;

typedef struct {
    int pack, first; /* gathered before this RUN */
    int use;         /* the RUN that first reads it */
    int last;        /* dropped after this RUN */
} Residency;

typedef struct {
    const Schedule *s;
    const GatherInput *in;
    Use *use; /* in order of RUNs */
    int n_uses;
    Residency *residency; /* in order of pack or of time: sorted later */
    int n_residencies;
    int *open;          /* [packs]: the pack's current residency, or -1 */
    int *inside;        /* [packs]: uses of the pack in the window */
    int *unit_inside;   /* [units]: uses of its packs in the window */
    int high, n_inside; /* the first use after the window; units in the window */
} GatherPass;

static bool is_counted(const PackSwitches *row) { return row->keep == KEEP_NO; }

/* Returns the RUN to which F keeps a pack: the last of its (unit, micro, slice) that reads it. */
static int end_of_use(const GatherPass *g, const int *run, const Action *a, int pack)
{
    const int *at = &run[schedule_cell(g->s, a->unit, a->micro, a->slice) * N_PHASES];
    int end = at[a->phase];
    for (int phase = 0; a->phase == PHASE_F && phase < N_PHASES; phase++)
        if (at[phase] > end && packs_has(&g->in->packs[a->unit].reads[phase], pack))
            end = at[phase];
    return end;
}

/* Numbers the stage's RUNs, by (unit, micro, slice) and phase. */
static Err number_runs(const Schedule *s, int stage, Arena *temp, int **out)
{
    int *run, n = 0;
    TRY(ARENA_NEW(temp, schedule_cells(s) * N_PHASES, &run));
    for (int64_t i = 0; i < schedule_cells(s) * N_PHASES; i++) run[i] = -1;
    for (int i = 0; i < s->n[stage]; i++) {
        const Action *a = &s->list[stage][i];
        if (a->kind == A_RUN)
            run[schedule_cell(s, a->unit, a->micro, a->slice) * N_PHASES + a->phase] = n++;
    }
    *out = run;
    return OK;
}

static Err check_room(const GatherPass *g, const Action *a, int counted)
{
    if (counted <= g->in->live) return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.live=%d: %s of unit %d reads the parameters of %d units at once; set "
                    "parallel.live=%d or more",
                    g->in->live, phase_name((Phase)a->phase), a->unit, counted, counted);
}

static int64_t count_reads(const GatherPass *g, int stage)
{
    int64_t n = 0;
    for (int i = 0; i < g->s->n[stage]; i++) {
        const Action *a = &g->s->list[stage][i];
        if (a->kind == A_RUN) n += g->in->packs[a->unit].reads[a->phase].n;
    }
    return n;
}

/* Lists the uses of sharded packs, in order. */
static Err find_uses(GatherPass *g, int stage, Arena *temp)
{
    const Schedule *s = g->s;
    int *run, n_runs = 0;
    TRY(number_runs(s, stage, temp, &run));
    TRY(ARENA_NEW(temp, count_reads(g, stage) + 1, &g->use));
    for (int i = 0; i < s->n[stage]; i++) {
        const Action *a = &s->list[stage][i];
        if (a->kind != A_RUN) continue;
        const PackSet *reads = &g->in->packs[a->unit].reads[a->phase];
        int counted = 0, last = -1; /* units of counted packs: they ascend with the packs */
        for (int k = 0; k < reads->n; k++) {
            const PackSwitches *row = &g->in->row[reads->pack[k]];
            const int owner = schedule_pack_unit(s, reads->pack[k]);
            if (!row->sharded) continue;
            counted += is_counted(row) && owner != last;
            if (is_counted(row)) last = owner;
            g->use[g->n_uses++] =
                (Use){n_runs, end_of_use(g, run, a, reads->pack[k]), reads->pack[k]};
        }
        TRY(check_room(g, a, counted));
        n_runs++;
    }
    return OK;
}

static void begin_residency(GatherPass *g, int pack, int first, int use)
{
    g->open[pack] = g->n_residencies;
    g->residency[g->n_residencies++] = (Residency){pack, first, use, use};
}

/* Adds the residencies of packs that are kept, gathered one RUN ahead. A pack that would be
 * gathered right after its drop is not dropped. */
static void place_kept(GatherPass *g)
{
    for (int i = 0; i < g->n_uses; i++) {
        const Use *u = &g->use[i];
        const PackSwitches *row = &g->in->row[u->pack];
        if (is_counted(row)) continue;
        const int open = g->open[u->pack];
        if (open < 0 || (row->keep != KEEP_STEP && u->run > g->residency[open].last + 2))
            begin_residency(g, u->pack, max_int(u->run - 1, 0), u->run);
        Residency *residency = &g->residency[g->open[u->pack]];
        residency->last = max_int(residency->last, row->keep == KEEP_STEP ? u->run : u->end);
    }
}

/* Extends the window for RUN `run` while it names packs of at most `live` units. */
static void widen(GatherPass *g, int run)
{
    for (; g->high < g->n_uses; g->high++) {
        const int pack = g->use[g->high].pack, unit = schedule_pack_unit(g->s, pack);
        if (!is_counted(&g->in->row[pack])) continue;
        if (g->unit_inside[unit] == 0 && g->n_inside == g->in->live) return;
        if (g->open[pack] < 0) begin_residency(g, pack, run, g->use[g->high].run);
        g->n_inside += g->unit_inside[unit]++ == 0;
        g->inside[pack]++;
    }
}

/* Moves the window to each RUN: earlier uses leave, later ones enter. The residency of a pack ends
 * when the window has no use of it. */
static void place_in_window(GatherPass *g)
{
    widen(g, 0);
    for (int low = 0, next; low < g->n_uses; low = next) {
        const int run = g->use[low].run;
        for (next = low; next < g->n_uses && g->use[next].run == run; next++) {
            const int pack = g->use[next].pack;
            if (!is_counted(&g->in->row[pack])) continue;
            g->residency[g->open[pack]].last = run;
            g->n_inside -= --g->unit_inside[schedule_pack_unit(g->s, pack)] == 0;
            g->inside[pack]--;
        }
        widen(g, run + 1);
        for (int i = low; i < next; i++)
            if (g->inside[g->use[i].pack] == 0 && is_counted(&g->in->row[g->use[i].pack]))
                g->open[g->use[i].pack] = -1;
    }
}

static int by_first(const void *x, const void *y)
{
    const Residency *a = x, *b = y;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    if (a->use != b->use) return a->use < b->use ? -1 : 1;
    return a->pack - b->pack;
}

static int by_last(const void *x, const void *y)
{
    const Residency *a = x, *b = y;
    if (a->last != b->last) return a->last < b->last ? -1 : 1;
    return a->pack - b->pack;
}

static void push(Schedule *out, int stage, Action a) { out->list[stage][out->n[stage]++] = a; }

/* Writes the stage's list. GATHERs stand before the receives of the RUN that reads the pack, so
 * that they start before the stage waits. */
static void write_list(const GatherPass *g, int stage, const Residency *drops, Schedule *out)
{
    int run = 0, gathered = 0, dropped = 0;
    for (int i = 0; i < g->s->n[stage]; i++) {
        const Action *a = &g->s->list[stage][i];
        const bool before = a->kind == A_RUN || a->kind == A_RECV;
        for (; before && gathered < g->n_residencies && g->residency[gathered].first == run;
             gathered++)
            push(out, stage, action_of(A_GATHER, g->residency[gathered].pack));
        push(out, stage, *a);
        if (a->kind != A_RUN) continue;
        for (; dropped < g->n_residencies && drops[dropped].last == run; dropped++)
            push(out, stage, action_of(A_DROP, drops[dropped].pack));
        run++;
    }
}

static Err gather_stage(GatherPass *g, int stage, Arena *arena, Schedule *out)
{
    Residency *drops;
    TRY(ARENA_NEW(arena, g->s->n[stage] + 2 * g->n_residencies + 1, &out->list[stage]));
    const size_t mark = arena_mark(arena);
    TRY(ARENA_NEW(arena, g->n_residencies + 1, &drops));
    for (int i = 0; i < g->n_residencies; i++) drops[i] = g->residency[i];
    qsort(g->residency, (size_t)g->n_residencies, sizeof *g->residency, by_first);
    qsort(drops, (size_t)g->n_residencies, sizeof *drops, by_last);
    write_list(g, stage, drops, out);
    arena_rewind(arena, mark);
    return OK;
}

static Err find_residencies(GatherPass *g, int stage, Arena *temp)
{
    const int packs = schedule_packs(g->s);
    TRY(find_uses(g, stage, temp));
    TRY(ARENA_NEW(temp, g->n_uses + 1, &g->residency));
    TRY(ARENA_NEW(temp, packs, &g->open));
    TRY(ARENA_NEW(temp, packs, &g->inside));
    TRY(ARENA_NEW(temp, schedule_units(g->s), &g->unit_inside));
    for (int p = 0; p < packs; p++) g->open[p] = -1;
    place_kept(g);
    place_in_window(g);
    return OK;
}

static Err check_rows(const Schedule *s, const GatherInput *in)
{
    TRY(packs_check(s, in->packs));
    for (int p = 0; p < schedule_packs(s); p++)
        if (in->row[p].gather == GATHER_STEP && in->row[p].keep != KEEP_STEP)
            return err_fail(ERR_CONFIG,
                            "pack %d: its parameters are gathered once a step and not kept for the "
                            "step; keep them, or gather them for each use",
                            p);
    return OK;
}

Err schedule_gathers(const Schedule *s, const GatherInput *in, Arena *arena, Schedule *out,
                     GatherCount *counts)
{
    Schedule made;
    Arena temp;
    TRY(check_rows(s, in));
    TRY(schedule_init(s, NULL, arena, &made));
    for (int p = 0; p < schedule_packs(s); p++) counts[p] = (GatherCount){0};
    TRY(arena_open(&temp, "gathers", ARENA_PLENTY));
    Err err = OK;
    for (int stage = 0; stage < s->stages && err == OK; stage++) {
        GatherPass g = {.s = s, .in = in};
        if (!schedule_has_list(s, stage)) continue;
        err = find_residencies(&g, stage, &temp);
        if (err == OK) err = gather_stage(&g, stage, arena, &made);
        for (int i = 0; i < g.n_uses; i++) counts[g.use[i].pack].uses++;
        for (int i = 0; i < g.n_residencies; i++) counts[g.residency[i].pack].gathers++;
        arena_rewind(&temp, 0);
    }
    arena_close(&temp);
    for (int p = 0; p < schedule_packs(s); p++)
        counts[p].saved = counts[p].uses - counts[p].gathers;
    if (err == OK) *out = made;
    return err;
}
