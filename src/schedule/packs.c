/* packs.c -- finds in the programs which parameters each phase reads. */
#include "schedule/packs.h"

bool packs_has(const PackSet *set, int pack)
{
    for (int i = 0; i < set->n; i++)
        if (set->pack[i] == pack) return true;
    return false;
}

Err packs_add(PackSet *set, int pack)
{
    if (packs_has(set, pack)) return OK;
    if (set->n == MAX_UNIT_PACKS)
        return err_fail(ERR_CONFIG,
                        "a unit has parameters in more than %d packs; put several of them into one",
                        MAX_UNIT_PACKS);
    int at = set->n++;
    for (; at > 0 && set->pack[at - 1] > pack; at--) set->pack[at] = set->pack[at - 1];
    set->pack[at] = (int16_t)pack;
    return OK;
}

/* Bit k: an instruction of the phase reads parameter k of the unit. */
static uint64_t params_read(const Program *p, Phase phase)
{
    uint64_t bits = 0;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++)
        for (int k = 0; k < p->instr[i].n_in; k++) {
            if (p->instr[i].in[k] < 0) continue; /* an omitted operand */
            const ProgTensor *t = &p->tensor[p->instr[i].in[k]];
            if (t->at[SPLIT].region != REGION_PARAM) continue;
            for (int at = t->index; at < t->index + t->span; at++) bits |= (uint64_t)1 << at;
        }
    return bits;
}

Err packs_of_model(const Model *m, const ProgramTable *programs, Arena *arena,
                   const UnitPacks **out)
{
    uint64_t(*reads)[N_PHASES];
    UnitPacks *packs;
    TRY(ARENA_NEW(arena, m->n_units, &packs));
    TRY(ARENA_NEW(arena, programs->n_classes, &reads));
    for (int c = 0; c < programs->n_classes; c++)
        for (int phase = 0; phase < N_PHASES; phase++)
            for (int v = 0; v < programs->n_variants; v++)
                reads[c][phase] |=
                    params_read(&programs->program[v * programs->n_classes + c], (Phase)phase);
    for (int u = 0; u < m->n_units; u++)
        for (int k = 0; k < m->unit[u].n_params; k++) {
            const int pack = m->param[m->unit[u].param[k]].pack;
            TRY(packs_add(&packs[u].adds, pack));
            for (int phase = 0; phase < N_PHASES; phase++)
                if (reads[programs->class_of[u]][phase] >> k & 1)
                    TRY(packs_add(&packs[u].reads[phase], pack));
        }
    *out = packs;
    return OK;
}

Err packs_check(const Schedule *s, const UnitPacks *packs)
{
    if (s->level != OVER_UNITS)
        return err_fail(ERR_CHECK,
                        "schedule: packs belong to units, and this one runs over chunks: "
                        "expand it first");
    for (int u = 0; u < schedule_units(s); u++)
        for (int i = 0; i < packs[u].adds.n; i++) {
            const int owner = schedule_pack_unit(s, packs[u].adds.pack[i]);
            const int stage = schedule_stage_of(s, u);
            if (schedule_stage_of(s, owner) != stage)
                return err_fail(ERR_CONFIG,
                                "unit %d, on stage %d, holds a parameter of unit %d, on "
                                "stage %d: not supported; put both on one stage, or untie them",
                                u, stage, owner, schedule_stage_of(s, owner));
        }
    return OK;
}
