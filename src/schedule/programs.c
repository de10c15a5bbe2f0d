/* programs.c -- checks that the programs of a table fit together. */
#include "schedule/programs.h"

Err programs_by_kind(const Model *m, const Program *program, int micros, Arena *arena,
                     ProgramTable *out)
{
    int16_t *class_of, *kind_of, *variant_of;
    TRY(ARENA_NEW(arena, m->n_units, &class_of));
    TRY(ARENA_NEW(arena, m->n_kinds, &kind_of));
    TRY(ARENA_NEW(arena, micros, &variant_of));
    for (int u = 0; u < m->n_units; u++) class_of[u] = (int16_t)m->unit[u].kind;
    for (int k = 0; k < m->n_kinds; k++) kind_of[k] = (int16_t)k;
    *out = (ProgramTable){.n_classes = m->n_kinds,
                          .n_variants = 1,
                          .class_of = class_of,
                          .kind_of = kind_of,
                          .micros = micros,
                          .slices = 1,
                          .variant_of = variant_of,
                          .program = program};
    return OK;
}

/* True if the gradient sums of both are of the same parameters, over the same axes. */
static bool same_ports(const Program *a, const Program *b)
{
    bool same = a->n_in == b->n_in && a->n_out == b->n_out && a->loss_partial == b->loss_partial &&
                a->stat_partial == b->stat_partial && a->stats == b->stats;
    for (int i = 0; same && i < a->n_out; i++)
        same = a->out[i].param == b->out[i].param && a->out[i].span == b->out[i].span &&
               a->out[i].phase == b->out[i].phase && a->out[i].partial == b->out[i].partial;
    return same;
}

/* The tensor that is the stream x or y of a unit, or NULL. */
static const ProgTensor *stream_of(const Program *p, Region region)
{
    for (int i = 0; i < p->n_tensors; i++)
        if (p->tensor[i].at[SPLIT].region == region && p->tensor[i].view_of == i)
            return &p->tensor[i];
    return NULL;
}

/* True if the rows that one unit writes are those that the next one reads. */
static bool same_stream(const ProgTensor *y, const ProgTensor *x)
{
    bool same = y->ndim == x->ndim && y->dtype == x->dtype && layout_equal(&y->layout, &x->layout);
    for (int i = 0; same && i < y->ndim; i++) same = dim_same(y->dim[i], x->dim[i]);
    return same;
}

static Err check_streams(const ProgramTable *t, const Model *m, int variant)
{
    const Program *program = &t->program[variant * t->n_classes];
    int before = -1; /* most neighbors are of the classes of the neighbors before them */
    for (int u = 1; u < m->n_units; u++) {
        const int pair = t->class_of[u - 1] * t->n_classes + t->class_of[u];
        if (pair == before) continue;
        before = pair;
        const ProgTensor *y = stream_of(&program[t->class_of[u - 1]], REGION_Y);
        const ProgTensor *x = stream_of(&program[t->class_of[u]], REGION_X);
        if (!y || !x || same_stream(y, x)) continue;
        return err_fail(ERR_CHECK,
                        "unit %s reads the stream in another layout than unit %s writes it; give "
                        "both the same pins of x and y",
                        m->unit[u].name, m->unit[u - 1].name);
    }
    return OK;
}

Err programs_check(const ProgramTable *t, const Model *m)
{
    for (int u = 0; u < m->n_units; u++)
        if (t->class_of[u] < 0 || t->class_of[u] >= t->n_classes ||
            t->kind_of[t->class_of[u]] != m->unit[u].kind)
            return err_fail(ERR_CHECK, "unit %s, of kind %s, is in class %d of other units",
                            m->unit[u].name, m->kind[m->unit[u].kind].kind, t->class_of[u]);
    for (int i = 0; i < t->micros * t->slices; i++)
        if (t->variant_of[i] < 0 || t->variant_of[i] >= t->n_variants)
            return err_fail(ERR_CHECK, "micro-batch %d, slice %d has variant %d of %d",
                            i / t->slices, i % t->slices, t->variant_of[i], t->n_variants);
    for (int v = 0; v < t->n_variants; v++) {
        for (int c = 0; c < t->n_classes; c++)
            if (!same_ports(&t->program[c], &t->program[v * t->n_classes + c]))
                return err_fail(ERR_CHECK,
                                "program %s: variant %d leaves other sums of gradients to be "
                                "reduced than variant 0; set another parallel.slices",
                                t->program[c].kind, v);
        TRY(check_streams(t, m, v));
    }
    return OK;
}
