/* lower_memory.c -- the addresses of a unit's values.
 *
 *     F    I    W
 *     |--------|       frame-w: kept from F for W
 *     |---|            frame-i: kept from F for I
 *          |---|       carry: from I to W; scratch where both run as B
 *     |                scratch: in one phase, packed by lifetimes there
 *
 * Roots get a region and an offset; values that share their bytes follow. See ir/program.h. */
#include "compile/lower.h"

#include <string.h>
#include "base/packing.h"

/* The lifetime of the bytes of a root. */
typedef struct {
    bool used[N_PHASES];
    int first[N_PHASES], last[N_PHASES]; /* positions in the orders */
} Lifetime;

/* The value lives at the node, except in phases in which it is spare: there the node has joined
 * another. */
static void live_at(Lifetime *life, const Orders *o, int node, bool spare)
{
    for (int p = 0; p < N_PHASES; p++) {
        const int at = o->at[p][node];
        if (at < 0 || (spare && o->list[p][at] != node)) continue;
        if (!life->used[p] || at < life->first[p]) life->first[p] = at;
        if (!life->used[p] || at > life->last[p]) life->last[p] = at;
        life->used[p] = true;
    }
}

static Err lower_lives(const LowerContext *l, Lifetime **out)
{
    Lifetime *life;
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &life));
    for (int i = 0; i < l->g->n_nodes; i++) {
        const Node *n = &l->g->node[i];
        if (op_info(n->op)->class == CLASS_VIEW) continue; /* touches no byte */
        for (int j = 0; j < n->n_in; j++) {
            if (op_only_orders(n->op, j)) continue;
            live_at(&life[l->bytes[n->in[j]].root], &l->orders, i, false);
            live_at(&life[l->bytes[n->in[j]].root], &l->orders, lower_end_of(l->g, i), false);
        }
        for (int j = 0; j < n->n_out; j++) {
            const bool spare = lower_is_spare(n, j);
            live_at(&life[l->bytes[n->out[j]].root], &l->orders, i, spare);
            live_at(&life[l->bytes[n->out[j]].root], &l->orders, lower_end_of(l->g, i), spare);
        }
    }
    *out = life;
    return OK;
}

static Region role_region(Role r)
{
    switch (r) {
    case ROLE_INPUT:
        return REGION_INPUT;
    case ROLE_PARAM:
        return REGION_PARAM;
    case ROLE_SCALE:
        return REGION_SCALE;
    case ROLE_DPARAM:
        return REGION_DPARAM;
    case ROLE_X:
        return REGION_X;
    case ROLE_Y:
        return REGION_Y;
    case ROLE_DX:
        return REGION_DX;
    case ROLE_DY:
        return REGION_DY;
    case ROLE_LOSS:
        return REGION_LOSS;
    case ROLE_STAT:
        return REGION_STAT;
    case ROLE_SESSION:
        return REGION_SESSION;
    case ROLE_ARG:
        return REGION_ARG;
    default:
        return REGION_SCRATCH;
    }
}

static Region local_region(const ValueInfo *v, const Lifetime *life)
{
    if (v->space == SPACE_HOST) return REGION_HOST;
    if (v->role == ROLE_MICRO) return life->used[PHASE_F] ? REGION_MICRO : REGION_DMICRO;
    if (life->used[PHASE_F] && life->used[PHASE_W]) return REGION_FRAME_W;
    if (life->used[PHASE_F] && life->used[PHASE_I]) return REGION_FRAME_I;
    if (life->used[PHASE_I] && life->used[PHASE_W]) return REGION_CARRY;
    return REGION_SCRATCH;
}

static Scope region_scope(Region r)
{
    switch (r) {
    case REGION_SCRATCH:
        return SCOPE_SCRATCH;
    case REGION_PARAM:
        return SCOPE_STATE;
    case REGION_SCALE:
    case REGION_DPARAM:
    case REGION_INPUT:
    case REGION_LOSS:
    case REGION_STAT:
        return SCOPE_STEP;
    case REGION_MICRO:
    case REGION_DMICRO:
        return SCOPE_MICRO;
    case REGION_SESSION:
        return SCOPE_SESSION;
    case REGION_ARG:
        return SCOPE_SCRATCH;
    default:
        return SCOPE_FRAME;
    }
}

/* Looks through views and waits: the value that a node made, or that was given. */
static Value shown_by(const LowerContext *l, Value v)
{
    while (l->maker[v] != NO_NODE) {
        const Node *n = &l->g->node[l->maker[v]];
        const bool view = op_info(n->op)->class == CLASS_VIEW && n->op != OP_join;
        if (!view && n->op != OP_wait) return v;
        v = n->in[0];
    }
    return v;
}

static void describe(LowerContext *l, Value v, const Lifetime *life)
{
    const ValueInfo *info = &l->g->value[v];
    const Value root = l->bytes[v].root;
    const ValueInfo *base = &l->g->value[root];
    ProgTensor *t = &l->tensor[v];
    *t = (ProgTensor){.name = info->name,
                      .dtype = info->dtype,
                      .space = info->space,
                      .index = base->index,
                      .span = base->span,
                      .view_of = root,
                      .shows = shown_by(l, v),
                      .ndim = info->dims.ndim,
                      .layout = info->layout};
    memcpy(t->dim, info->dims.dim, sizeof t->dim);
    memcpy(t->stride, l->bytes[v].stride, sizeof t->stride);
    const Region r = base->role == ROLE_LOCAL || base->role == ROLE_MICRO
                         ? local_region(base, &life[root])
                         : role_region(base->role);
    const bool carried = r == REGION_CARRY;
    t->at[SPLIT].region = (uint8_t)r;
    t->at[MERGED].region = (uint8_t)(carried ? REGION_SCRATCH : r);
    t->scope = region_scope(r);
}

/* Gives the roots of a region disjoint offsets, for the region's whole life. Returns the bytes. */
static size_t assign_region_offsets(LowerContext *l, Region r, const Lifetime *life)
{
    size_t at = 0;
    for (Value v = 0; v < l->g->n_values; v++) {
        ProgTensor *t = &l->tensor[v];
        bool used = false;
        for (int p = 0; p < N_PHASES; p++) used = used || life[v].used[p];
        if (t->view_of != v || t->at[SPLIT].region != r || !used) continue;
        t->at[SPLIT].offset = at;
        if (t->at[MERGED].region == r) t->at[MERGED].offset = at;
        at = align_up(at + tensor_bytes(t));
    }
    return at;
}

static Err pack_scratch(LowerContext *l, Phase phase, const Lifetime *life)
{
    const int mode = phase == PHASE_B ? MERGED : SPLIT;
    Piece *piece;
    Value *owner;
    PackResult packed;
    int n = 0;
    const size_t mark = arena_mark(l->arena);
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &piece));
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &owner));
    for (Value v = 0; v < l->g->n_values; v++) {
        const ProgTensor *t = &l->tensor[v];
        if (t->view_of != v || t->at[mode].region != REGION_SCRATCH || !life[v].used[phase])
            continue;
        piece[n] = (Piece){life[v].first[phase], life[v].last[phase], tensor_bytes(t), 0};
        owner[n++] = v;
    }
    TRY(pack(piece, n, l->arena, &packed));
    for (int i = 0; i < n; i++) l->tensor[owner[i]].at[mode].offset = piece[i].offset;
    if (phase == PHASE_F) /* born and dead in F: the same place in both modes */
        for (int i = 0; i < n; i++) l->tensor[owner[i]].at[MERGED].offset = piece[i].offset;
    l->p->scratch_bytes[phase] = packed.peak_bytes;
    l->p->scratch_live[phase] = packed.live_bytes;
    arena_rewind(l->arena, mark);
    return OK;
}

Err lower_memory(LowerContext *l)
{
    Lifetime *life;
    TRY(lower_lives(l, &life));
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &l->tensor));
    for (Value v = 0; v < l->g->n_values; v++) describe(l, v, life);
    for (int r = REGION_SCRATCH + 1; r < N_OWN_REGIONS; r++)
        l->p->bytes[r] = assign_region_offsets(l, (Region)r, life);
    l->p->session_bytes = assign_region_offsets(l, REGION_SESSION, life);
    for (int p = 0; p < N_PHASES; p++) TRY(pack_scratch(l, (Phase)p, life));
    for (Value v = 0; v < l->g->n_values; v++) { /* views follow their roots */
        ProgTensor *t = &l->tensor[v];
        const size_t shift = (size_t)l->bytes[v].offset * dtype_bytes(t->dtype);
        for (int m = 0; m < N_MODES && t->view_of != v; m++)
            t->at[m].offset = l->tensor[t->view_of].at[m].offset + shift;
    }
    return OK;
}
