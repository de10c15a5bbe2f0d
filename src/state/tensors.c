/* tensors.c -- lists the tensors of a job. */
#include "state/tensors.h"

#include <string.h>

bool state_is_marks(const StateTensor *t)
{
    static const char marks[] = "fp8.marks";
    const size_t n = strlen(t->name), k = sizeof marks - 1;
    return n >= k && strcmp(t->name + n - k, marks) == 0;
}

Err state_tensors(const LinkedProgram *lp, Arena *a, StateTensors *out)
{
    const Model *m = lp->model;
    StateTensors made = {0};
    TRY(ARENA_NEW(a, m->n_params * (1 + lp->n_moments), &made.tensor));
    for (int p = 0; p < m->n_params; p++) {
        const Param *param = &m->param[p];
        StateTensor t = {.name = param->name,
                         .dtype = dtype_wide(m->dtype),
                         .shape = {.ndim = param->info.ndim}};
        if (param->copy_of >= 0) continue;
        for (int d = 0; d < t.shape.ndim; d++) t.shape.n[d] = param->info.n[d];
        for (int role = 0; role <= lp->n_moments; role++) {
            t.role = (StateRole)role;
            made.tensor[made.n++] = t;
        }
    }
    *out = made;
    return OK;
}
