/* memory_micro.c -- pieces that live across the slices of a micro-batch.
 *
 * Keys and values live from the first slice that writes them to the last backward phase; their
 * gradients live over the backward phases.
 *
 *     list          F1.0.0 F1.0.1 F1.0.2 B1.0.2 B1.0.1 B1.0.0
 *     micro of 1.0   |------------------------------------>|
 *     dmicro of 1.0                        |-------------->|       begins with the last slice */
#include "schedule/link/link_parts.h"

int64_t max_micro_pieces(const MemoryPlanner *m) { return 2 * schedule_rows(m->s) * m->lp->micros; }

/* First and last position of these phases of any slice; -1 if none runs. */
static Piece life_of(const MemoryPlanner *m, int unit, int micro, unsigned phases)
{
    Piece life = {-1, -1, 0, 0};
    for (int q = 0; q < m->s->slices; q++) {
        const int *pos = pos_of(m, unit, micro, q);
        for (int p = PHASE_F; p <= PHASE_W; p++) {
            if (!(phases >> p & 1) || pos[p] < 0) continue;
            if (life.first < 0 || pos[p] < life.first) life.first = pos[p];
            if (pos[p] > life.last) life.last = pos[p];
        }
    }
    return life;
}

/* The phases in which a program reads or writes a region. */
static unsigned touched_in(const Program *p, Region region)
{
    unsigned phases = 0;
    for (int i = 0; i < p->n_instr; i++) {
        const Instr *in = &p->instr[i];
        for (int k = 0; k < in->n_in + in->n_out; k++) {
            const int32_t t = k < in->n_in ? in->in[k] : in->out[k - in->n_in];
            if (p->tensor[t].at[SPLIT].region == region) phases |= 1u << in->phase;
        }
    }
    return phases;
}

void add_micro_pieces(MemoryPlanner *m)
{
    for (int u = 0; u < m->lp->model->n_units; u++)
        for (int r = REGION_MICRO; r <= REGION_DMICRO; r++) {
            const Program *p = NULL;
            unsigned phases = 0;
            for (int micro = 0; micro < m->lp->micros; micro++) {
                /* The region has the rows of all slices in the program of each of them. */
                const Program *of = linked_program(m->lp, u, micro, 0);
                if (of != p) phases = of->bytes[r] ? touched_in(of, (Region)r) : 0;
                p = of;
                if (!phases) continue;
                add_piece(m, (MemoryPiece){life_of(m, u, micro, phases), u, micro, 0, r, -1, -1},
                          p->bytes[r]);
            }
        }
}

void bind_micro(MemoryPlanner *m, const MemoryPiece *o)
{
    LinkedProgram *lp = m->lp;
    for (int q = 0; q < m->s->slices; q++) {
        const int *pos = pos_of(m, o->unit, o->micro, q);
        for (int p = 0; p < N_PHASES; p++)
            if (pos[p] >= o->piece.first && pos[p] <= o->piece.last)
                lp->list[pos[p]].base[o->kind] = o->piece.offset;
    }
    lp->list[o->piece.first].begins |= 1u << o->kind;
}
