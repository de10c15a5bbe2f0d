/* prepack.c -- weights stored as GEMM panels, made by the first RUN of a step that reads them. */
#include "run/rank_parts.h"

char *prepacked_at(const Rank *r, int unit, int which)
{
    const size_t at = r->settings.program->unit[unit].prepacked[which];
    return at == NO_BASE ? NULL : r->base[ARENA_STEP] + at;
}

Err prepack_weight(Rank *r, const LinkedAction *l, int which, Tensor w)
{
    const PrepackedWeight *a = &l->program->prepacked[which];
    Call c = {.in = {w}, .n_in = 1, .n_out = 1, .team = r->settings.team};
    c.attr.gemm.tb = a->tb;
    c.out[0].data = prepacked_at(r, l->action.unit, which);
    if (r->settings.poison) TRY(rank_fill(r, c.out[0].data, 0xFF, a->bytes));
    return r->settings.device->prepack->pack(&c);
}

/* Checks that linking reserved the bytes that this device packs and its GEMMs will read. */
static Err check_program(const Rank *r, const Program *p)
{
    const DevicePrepack *d = r->settings.device->prepack;
    for (int i = 0; i < p->n_prepacked; i++) {
        const PrepackedWeight *a = &p->prepacked[i];
        const ProgTensor *w = &p->tensor[a->tensor];
        const size_t bytes =
            d ? d->bytes(w->dtype, w->dim[a->tb].cap, w->dim[!a->tb].cap) : (size_t)0;
        if (bytes != a->bytes)
            return err_fail(ERR_CHECK,
                            "program %s: %s prepacked has %zu bytes, and %zu on device %s; compile "
                            "for the device that runs it",
                            p->kind, w->name, a->bytes, bytes, r->settings.device->name);
    }
    return OK;
}

Err prepack_check(const Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    for (int k = 0; k < lp->programs.n_classes; k++)
        TRY(check_program(r, &lp->programs.program[k]));
    return OK;
}
