/* units.c -- units and their parameters: in total, and the shards of one rank.
 *
 *     parameter      shape    here     in use          of the pack  at home   gradient
 *     q_proj.weight  [64,64]  [32,64]  shard(0) on tp  64..2111     64..2111  scatter over dp {1 3}
 *
 * `here` is the shard in the use layout. The shards of a unit are stored back to back in the rank's
 * pack. ZeRO leaves the rank one contiguous part of the pack, its home. */
#include <stdio.h>
#include "cli/explain/explain.h"
#include "cli/table.h"

/* Elements, and their bytes as programs read them. */
typedef struct {
    int64_t count, bytes;
} WeightCount;

static void add_count(WeightCount *sum, int64_t count, DType type)
{
    sum->count += count;
    sum->bytes += count * (int64_t)dtype_bytes(type);
}

/* The packs [first, end): in total, perhaps without copies, and on the rank in use, and at home. */
static void count_packs(const Facts *f, int first, int end, bool copies, WeightCount out[3])
{
    const Model *m = &f->job->model;
    for (int i = 0; i < 3; i++) out[i] = (WeightCount){0};
    for (int p = first; p < end; p++) {
        const HomeRank *mine = &f->job->linked.pack[p].mine;
        const Pack *pack = &m->pack[p];
        for (int i = 0; i < pack->n_params; i++)
            if (copies || m->param[pack->param[i]].copy_of < 0)
                add_count(&out[0], m->param[pack->param[i]].count, pack->type.use);
        add_count(&out[1], mine->pack_count, pack->type.use);
        add_count(&out[2], mine->shard.hi - mine->shard.lo, pack->type.use);
    }
}

static void count_cells(TextTable *t, const WeightCount count[3])
{
    char a[24], b[24];
    for (int i = 0; i < 3; i++) {
        table_cell(t, "%s", text_count((double)count[i].count, a));
        table_cell(t, "%s", text_bytes(count[i].bytes, b));
    }
}

static void unit_row(const Facts *f, int class, TextTable *t)
{
    const Model *m = &f->job->model;
    const ClassFacts *c = &f->class[class];
    const int unit = c->first, n = c->units, first = m->unit[unit].first_pack;
    WeightCount count[3];
    count_packs(f, first, first + m->unit[unit].n_packs, true, count);
    if (n > 1)
        table_cell(t, "%s x %d", c->label, n);
    else
        table_cell(t, "%s", c->label);
    table_cell(t, "%d", m->unit[unit].n_params);
    count_cells(t, count);
    if (c->here < n)
        table_cell(t, "%d on this stage", c->here);
    else
        table_cell(t, "%s", n > 1 ? "each" : "");
}

/* One row per class. Columns "in use" and "at home" are of its first unit; the last row
 * has the sums over all units of the rank. */
static Err units_table(const Facts *f, Arena *temp, Text *out)
{
    static const char *const head[] = {"unit",    "parameters", "elements", "weights", "in use",
                                       "weights", "at home",    "weights",  ""};
    const Model *m = &f->job->model;
    WeightCount count[3];
    TextTable t;
    TRY(table_open(&t, 9, f->job->programs.n_classes + 2, temp));
    for (int i = 1; i <= 7; i++) table_right(&t, i);
    for (int i = 0; i < 9; i++) table_cell(&t, "%s", head[i]);
    for (int c = 0; c < f->job->programs.n_classes; c++) unit_row(f, c, &t);
    count_packs(f, 0, m->n_packs, false, count);
    table_cell(&t, "all");
    table_cell(&t, "%d", m->n_params);
    count_cells(&t, count);
    table_end_row(&t);
    text_add(out, "\nUNITS: in total, and on rank %d: in use (gathered), and at home (sharded)\n",
             f->job->linked.rank);
    table_text(&t, "  ", out);
    return OK;
}

static const char *shape_text(const Shape *s, char buffer[CELL_BYTES])
{
    int at = snprintf(buffer, CELL_BYTES, "[");
    for (int i = 0; i < s->ndim; i++)
        at += snprintf(buffer + at, (size_t)(CELL_BYTES - at), "%s%lld", i ? "," : "",
                       (long long)s->n[i]);
    snprintf(buffer + at, (size_t)(CELL_BYTES - at), "]");
    return buffer;
}

static void span_cell(TextTable *t, Span s)
{
    if (s.lo < s.hi)
        table_cell(t, "%lld..%lld", (long long)s.lo, (long long)s.hi - 1);
    else
        table_cell(t, "none");
}

/* Prints "model over tp {2 3}, scatter over dp {1 3}". */
static void routes_cell(const Facts *f, const ParamFacts *p, TextTable *t)
{
    char routes[CELL_BYTES] = "stays here", group[GROUP_TEXT_BYTES];
    int at = 0;
    for (int i = 0; i < p->n_reductions && at < CELL_BYTES; i++)
        at +=
            snprintf(routes + at, (size_t)(CELL_BYTES - at), "%s%s over %s", i ? ", " : "",
                     p->reduction[i].what, group_text(&f->job->mesh, p->reduction[i].group, group));
    table_cell(t, "%s", routes);
}

/* `tied`: the parameter is stored in the pack of another unit. */
static void param_row(const Facts *f, const ParamFacts *p, bool tied, TextTable *t)
{
    char shape[CELL_BYTES];
    table_cell(t, "%s%s", p->name, p->decay ? "" : " *");
    table_cell(t, "%s", shape_text(&p->whole, shape));
    table_cell(t, "%s", shape_text(&p->here, shape));
    table_cell(t, "%s%s", p->use, p->coded ? ", 8 bits" : "");
    if (tied) {
        table_cell(t, "the same as in %s", f->job->model.unit[p->owner].name);
        table_end_row(t);
        return;
    }
    span_cell(t, p->pack);
    span_cell(t, p->home);
    routes_cell(f, p, t);
}

static Err params_table(const Facts *f, int class, Arena *temp, Text *out)
{
    static const char *const head[] = {"",        "shape",   "here", "in use", "of the pack",
                                       "at home", "gradient"};
    const Model *m = &f->job->model;
    const ClassFacts *c = &f->class[class];
    const int unit = c->first;
    TextTable t;
    TRY(table_open(&t, 7, m->unit[unit].n_params + 1, temp));
    for (int i = 0; i < 7; i++) table_cell(&t, "%s", head[i]);
    for (int i = 0; i < m->unit[unit].n_params; i++)
        param_row(f, &c->param[i], c->param[i].owner != unit, &t);
    text_add(out, "\n  parameters of %s%s\n", c->label, c->units > 1 ? " (each)" : "");
    table_text(&t, "    ", out);
    return OK;
}

Err explain_units_text(const Facts *f, Arena *temp, Text *out)
{
    TRY(units_table(f, temp, out));
    text_add(
        out,
        "\n  * no weight decay. of the pack, at home: elements of the unit's flat parameter on "
        "this rank (pack).\n  gradient: its reductions over ranks: copies, of replicated "
        "elements; model, over axes that shard it or\n  its tokens; scatter, to homes; data, "
        "over the other data axes\n");
    for (int c = 0; c < f->job->programs.n_classes; c++)
        if (facts_show(f, c) && f->class[c].here > 0) TRY(params_table(f, c, temp, out));
    return OK;
}
