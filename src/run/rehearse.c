/* rehearse.c -- runs every kernel of a list once, before the first transfer on a device.
 *
 *     rank 0   | kernels of F, B, update ... | agree | step 1: begin all-reduce ...
 *     rank 1   | kernels ............................ | agree | step 1 ...
 *
 * The first call of a kernel may load code, make a library's plan, and grow scratch memory. Each of
 * these may wait for all work of the GPU, that of other ranks of the process included. A kernel of
 * NCCL that waits for a rank which waits so would never end. After the rehearsal of all ranks no
 * call in a step loads or allocates.
 *
 * Operands are zeros, which are legal rows, indices and offsets. Results are discarded: programs
 * write work memory and gradients, which steps write before they read. The update is run with a
 * factor that changes nothing. */
#include <math.h>

#include "run/rank_parts.h"

/* Zeros in all memory that the programs of a step read and write, inputs included. */
static Err fill_zeros(const Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    const size_t inputs = lp->loss - r->mailbox.start;
    TRY(r->runtime->set(r->queue, r->base[ARENA_WORK], 0, memory_arena_bytes(r, ARENA_WORK)));
    return r->runtime->set(r->queue, r->base[ARENA_STEP] + r->mailbox.start, 0, inputs);
}

static Err rehearse_run(Rank *r, const LinkedAction *l)
{
    const Program *p = l->program;
    const Phase phase = (Phase)l->action.phase;
    TRY(fill_zeros(r));
    execute_begin(r, l, 0.0);
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++)
        TRY(execute_alone(r, l, &p->instr[i]));
    return OK;
}

/* The lists at the step's end: squares into cells, updates with the factor NaN. */
static Err rehearse_lists(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    if (!lists_available(r)) return OK;
    mailbox_scalars(r)->factor = (double)NAN;
    TRY(mailbox_send_factor(r));
    for (int i = 0; i < lp->n; i++) {
        const Action *a = &lp->list[i].action;
        if (a->kind == A_NORM) TRY(lists_squares(r));
        if (a->kind == A_UPDATE) TRY(lists_update(r, a->unit));
    }
    return OK;
}

Err rehearse(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    void *staging;
    if (lp->model->logit_rows > 0) return OK; /* calls of a session keep what they write */
    TRY(memory_staging(r, &staging));
    for (int i = 0; i < lp->n; i++)
        if (autotune_first_of_kind(lp, i)) TRY(rehearse_run(r, &lp->list[i]));
    TRY(steps_rehearse(r));
    if (lp->scale_cells > 0) TRY(codes_rehearse(r));
    TRY(rehearse_lists(r));
    return r->runtime->sync(r->queue);
}
