/* steps.c -- the steps of GATHER, REDUCE and move actions, for one unit of each kind.
 *
 *     gather.2    all-gather      dp {1 3}  state+512 -> work+2048  begun here, wait before F2.0
 *     reduce.2.0  all-reduce      tp {2 3}  work+512 -> work+512    done here
 *                 reduce-scatter  dp {1 3}  work+128 -> work+128    begun here, wait before norm
 *
 * The first two of each kind are printed; those of other micro-batches and units are similar. */
#include <stdio.h>
#include "cli/explain/explain.h"
#include "cli/table.h"
#include "schedule/text_form.h"

enum { SHOWN = 2, COLUMNS = 8 };

static const char *const arena_name[N_ARENAS] = {"state", "step",    "work",
                                                 "host",  "session", "kernels"};

/* Steps before `begun` are synchronous. Step `begun` overlaps until position `end`; later steps run
 * after its wait. */
static void when_cell(const Facts *f, int at, int step, TextTable *t)
{
    const LinkedProgram *lp = &f->job->linked;
    const LinkedAction *l = &lp->list[at];
    char action[ACTION_TEXT_BYTES] = "the end";
    if (l->end < lp->n) action_text(&lp->list[l->end].action, f->job->units.slices, action);
    if (step < l->begun || l->end == at)
        table_cell(t, "done here");
    else if (step > l->begun)
        table_cell(t, "after that");
    else if (l->end < lp->n)
        table_cell(t, "begun here, waited for before %s (action %d)", action, l->end + 1);
    else
        table_cell(t, "begun here, waited for at the end");
}

static void step_row(const Facts *f, int at, int index, TextTable *t)
{
    const LinkedProgram *lp = &f->job->linked;
    const LinkedStep *s = &lp->list[at].step[index];
    const bool moves = s->kind == STEP_TRANSFER;
    char group[GROUP_TEXT_BYTES], human[24];
    table_cell(t, "%s", moves ? comm_kind_name(s->t.kind) : s->kind == STEP_ADD ? "add" : "copy");
    table_cell(t, "%s", s->what);
    table_cell(t, "%s", moves ? group_text(lp->mesh, s->t.group, group) : "");
    table_cell(t, "%s+%zu -> %s+%zu", arena_name[s->t.from.arena], s->t.from.offset,
               arena_name[s->t.to.arena], s->t.to.offset);
    table_cell(t, "%s", text_bytes(s->t.from.count * (int64_t)dtype_bytes(s->t.from.dtype), human));
    table_cell(t, "%s", moves ? text_bytes((int64_t)transfer_sent(&s->t, lp->rank), human) : "");
    when_cell(f, at, index, t);
}

static void action_rows(const Facts *f, int at, TextTable *t)
{
    const LinkedAction *l = &f->job->linked.list[at];
    char action[ACTION_TEXT_BYTES];
    action_text(&l->action, f->job->units.slices, action);
    for (int s = 0; s < l->n_steps; s++) {
        if (s)
            table_cell(t, "%s", "");
        else
            table_cell(t, "%s (action %d)", action, at + 1);
        step_row(f, at, s, t);
    }
}

/* The actions of a unit that have steps: positions of the printed ones, the number of all, and
 * table rows. */
typedef struct {
    int at[N_ACTION_KINDS * SHOWN], n, all, rows;
} PickedActions;

static PickedActions pick(const LinkedProgram *lp, int unit)
{
    PickedActions p = {.n = 0};
    int n[N_ACTION_KINDS] = {0};
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        if (l->n_steps == 0 || linked_unit(lp, &l->action) != unit) continue;
        p.all++;
        if (n[l->action.kind]++ >= SHOWN) continue;
        p.at[p.n++] = i;
        p.rows += l->n_steps;
    }
    return p;
}

static Err unit_steps(const Facts *f, int unit, Arena *temp, Text *out)
{
    static const char *const head[COLUMNS] = {"",         "does",  "what", "over",
                                              "from, to", "bytes", "sent", "when"};
    const PickedActions p = pick(&f->job->linked, unit);
    TextTable t;
    if (p.n == 0) return OK;
    TRY(table_open(&t, COLUMNS, p.rows + 1, temp));
    table_right(&t, 5);
    table_right(&t, 6);
    for (int i = 0; i < COLUMNS; i++) table_cell(&t, "%s", head[i]);
    for (int i = 0; i < p.n; i++) action_rows(f, p.at[i], &t);
    text_add(out, "\n  transfers of %s, unit %d", f->job->model.unit[unit].name, unit);
    text_add(out, p.all > p.n ? ": the first %d of %d\n" : "\n", p.n, p.all);
    table_text(&t, "    ", out);
    return OK;
}

/* Returns the middle unit of the class on this stage, which has neighbors on both sides; -1:
 * none. */
static int middle_unit(const Facts *f, int class)
{
    const LinkedProgram *lp = &f->job->linked;
    int before = f->class[class].here / 2;
    for (int u = f->class[class].first; u < lp->model->n_units; u++)
        if (lp->programs.class_of[u] == class && unit_is_here(lp, u) && before-- == 0) return u;
    return -1;
}

Err explain_steps_text(const Facts *f, Arena *temp, Text *out)
{
    for (int c = 0; c < f->job->programs.n_classes; c++) {
        const int unit = middle_unit(f, c);
        if (unit >= 0 && facts_show(f, c)) TRY(unit_steps(f, unit, temp, out));
    }
    return OK;
}
