/* autotune.c -- runs GEMMs and attention before the first step, so that the device can time its
 * algorithms.
 *
 *     attention   that is promised to be causal, since libraries have kernels for it
 *     alone       every GEMM of every program twice: overwriting its output, and accumulating
 *     in place    programs from end to end, MIN_PASSES times or more while there is time, at most
 *                 PASSES times: a GEMM with several candidates left alternates between them, next
 *                 to the ops that surround it in a step
 *
 * Operands are random, except weights that the rank has at home; the results are discarded. Ops
 * that read token or row indices are left out, because random bits are no legal indices; so are
 * transfers. */
#include "run/rank_parts.h"

#include "base/clock.h"

enum { MIN_PASSES = 8, PASSES = 48 };
#define PASSES_S 0.6 /* of 48 passes: bench/README.md compares steps with fewer */

/* True for the kernels between GEMMs that accept any finite input. */
static bool surrounds_gemms(KernelId k)
{
    switch (k) {
    case KERNEL_sum_rows:
    case KERNEL_add:
    case KERNEL_layernorm:
    case KERNEL_layernorm_dx:
    case KERNEL_layernorm_dw:
    case KERNEL_layernorm_back:
    case KERNEL_rmsnorm:
    case KERNEL_rmsnorm_dx:
    case KERNEL_rmsnorm_dw:
    case KERNEL_rmsnorm_back:
    case KERNEL_gelu:
    case KERNEL_gelu_dx:
    case KERNEL_swiglu:
    case KERNEL_swiglu_dx:
        return true;
    default:
        return false;
    }
}

/* True if the instruction is a GEMM or surrounds them, and reads no indices. */
static bool takes_random_input(const Program *p, const Instr *in)
{
    const KernelId k = op_info(in->op)->kernel;
    if (!kernel_is_gemm(k) && !surrounds_gemms(k)) return false;
    for (int i = 0; i < in->n_in; i++) {
        const DType type = p->tensor[in->in[i]].dtype;
        if (type == I32 || type == I64) return false;
    }
    return true;
}

bool autotune_first_of_kind(const LinkedProgram *lp, int i)
{
    const LinkedAction *l = &lp->list[i];
    bool seen = !l->program;
    for (int k = 0; k < i && !seen; k++)
        seen = lp->list[k].program == l->program && lp->list[k].action.phase == l->action.phase;
    return !seen;
}

static bool is_gemm(const Program *p, const Instr *in)
{
    (void)p;
    return kernel_is_gemm(op_info(in->op)->kernel);
}

/* True for attention whose mask is known without its input. */
static bool is_promised_attention(const Program *p, const Instr *in)
{
    const KernelId k = op_info(in->op)->kernel;
    (void)p;
    return (k == KERNEL_attention || k == KERNEL_attention_dx) &&
           in->attr.kernel.attention.causal > 0;
}

typedef bool (*Wanted)(const Program *p, const Instr *in);

static Err run_some(Rank *r, const LinkedAction *l, Wanted wanted, double keep)
{
    const Program *p = l->program;
    const Phase phase = (Phase)l->action.phase;
    execute_begin(r, l, keep);
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++)
        if (wanted(p, &p->instr[i])) TRY(execute_kernel(r, l, &p->instr[i]));
    return OK;
}

/* Its results are of a mask that is not there yet, so they are overwritten. */
static Err time_attention(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    for (int i = 0; i < lp->n; i++)
        if (autotune_first_of_kind(lp, i))
            TRY(run_some(r, &lp->list[i], is_promised_attention, 0.0));
    return random_fill_spread(r);
}

static Err run_in_place(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    const double start_s = now_s();
    for (int pass = 0; pass < PASSES; pass++) {
        TRY(random_fill_spread(r)); /* ops applied to their own results would overflow */
        for (int i = 0; i < lp->n; i++)
            if (autotune_first_of_kind(lp, i))
                TRY(run_some(r, &lp->list[i], takes_random_input, 0.0));
        TRY(r->runtime->sync(r->queue));
        if (pass + 1 >= MIN_PASSES && now_s() - start_s > PASSES_S) break;
    }
    return OK;
}

Err rank_autotune(Rank *r)
{
    const LinkedProgram *lp = r->settings.program;
    if (!rank_on_host(r) && !r->runtime->autotune) return OK; /* no algorithms to choose from */
    if (!rank_on_host(r)) {
        TRY(random_fill_make(r));
        TRY(time_attention(r));
    }
    for (int i = 0; i < lp->n; i++) {
        if (!autotune_first_of_kind(lp, i)) continue;
        TRY(run_some(r, &lp->list[i], is_gemm, 0.0));
        TRY(run_some(r, &lp->list[i], is_gemm, 1.0));
    }
    if (rank_on_host(r) || r->runtime->autotune->left(r->context) == 0) return OK;
    return run_in_place(r);
}
