/* program_set.c -- the memory of several programs over one state. */
#include "run/program_set.h"

#include "base/math.h"

static Err check_params(const LinkedProgram *a, const LinkedProgram *b, int number)
{
    if (a->model->n_params != b->model->n_params)
        return err_fail(ERR_CHECK, "program %d has %d parameters, program 0 has %d", number,
                        b->model->n_params, a->model->n_params);
    for (int i = 0; i < a->model->n_params; i++)
        if (a->param_at[i] != b->param_at[i] || a->param_count[i] != b->param_count[i])
            return err_fail(ERR_CHECK,
                            "program %d has parameter %s at another place than program 0: "
                            "elements %lld to %lld, not %lld to %lld",
                            number, a->model->param[i].name, (long long)b->param_at[i],
                            (long long)(b->param_at[i] + b->param_count[i] - 1),
                            (long long)a->param_at[i],
                            (long long)(a->param_at[i] + a->param_count[i] - 1));
    return OK;
}

/* Weights and moments of a pack: the same part of it, at the same addresses. */
static Err check_packs(const LinkedProgram *a, const LinkedProgram *b, int number)
{
    for (int k = 0; k < a->model->n_packs; k++) {
        const PackMemory *x = &a->pack[k], *y = &b->pack[k];
        if (x->stage != y->stage || x->mine.shard.lo != y->mine.shard.lo ||
            x->mine.shard.hi != y->mine.shard.hi || x->weights != y->weights ||
            x->master != y->master || x->whole != y->whole || x->moments[0] != y->moments[0] ||
            x->moments[1] != y->moments[1])
            return err_fail(ERR_CHECK,
                            "program %d has pack %d at another place than program 0: their ZeRO "
                            "levels or optimizers differ",
                            number, k);
    }
    return OK;
}

Err program_set_check(const ProgramSet *s)
{
    const LinkedProgram *a = s->program[0];
    if (s->n < 1 || s->n > MAX_PROGRAMS)
        return err_fail(ERR_CHECK, "a set of %d programs: 1 to %d share a state", s->n,
                        MAX_PROGRAMS);
    for (int i = 1; i < s->n; i++) {
        const LinkedProgram *b = s->program[i];
        if (a->rank != b->rank || a->mesh->world != b->mesh->world)
            return err_fail(ERR_CHECK, "program %d is of rank %d of %d, program 0 of rank %d of %d",
                            i, b->rank, b->mesh->world, a->rank, a->mesh->world);
        TRY(check_params(a, b, i));
        for (int k = 0; k < N_ARENAS; k++)
            if ((k == ARENA_STATE || k == ARENA_SESSION) && a->bytes[k] != b->bytes[k])
                return err_fail(ERR_CHECK,
                                "program %d has %zu bytes of %s, program 0 has %zu: their ZeRO "
                                "levels or optimizers differ",
                                i, b->bytes[k], k == ARENA_STATE ? "state" : "session",
                                a->bytes[k]);
        TRY(check_packs(a, b, i));
    }
    return OK;
}

size_t program_set_own_bytes(const ProgramSet *s, int number, ArenaId a)
{
    size_t most = s->program[number]->bytes[a];
    if (a == ARENA_STEP) return most;
    for (int i = 0; i < s->n; i++) most = max_size(most, s->program[i]->bytes[a]);
    return number == 0 ? most : 0;
}

size_t program_set_bytes(const ProgramSet *s, ArenaId a)
{
    size_t bytes = 0;
    for (int i = 0; i < s->n; i++) bytes += program_set_own_bytes(s, i, a);
    return bytes;
}

size_t program_set_extra_bytes(const ProgramSet *s)
{
    size_t bytes = 0;
    for (int a = 0; a < N_ARENAS; a++)
        bytes += program_set_bytes(s, (ArenaId)a) - s->program[0]->bytes[a];
    return bytes;
}
