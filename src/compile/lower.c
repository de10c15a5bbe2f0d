/* lower.c -- from a graph to a program: every value gets a region and an offset, every node that
 * moves bytes becomes an instruction. Tensors are numbered as the values were.
 *
 * A value that lives in one phase is scratch of that phase, packed by its lifetime there. One that
 * lives on is part of the frame, as long as its last reader's phase; see ir/program.h. */
#include "compile/lower.h"

#include <string.h>
#include "base/packing.h"

typedef struct {
    const Graph *g;
    Arena *arena;
    Orders orders;
    Bytes *bytes;
    ProgTensor *tensor;
    Program *p;
} Lower;

static Err lower_orders(Lower *l)
{
    for (int p = 0; p < N_PHASES; p++) {
        TRY(order(l->g, (Phase)p, l->arena, &l->orders.list[p], &l->orders.n[p]));
        TRY(ARENA_NEW(l->arena, l->g->n_nodes + 1, &l->orders.at[p]));
        for (int i = 0; i < l->g->n_nodes; i++) l->orders.at[p][i] = -1;
        for (int i = 0; i < l->orders.n[p]; i++) l->orders.at[p][l->orders.list[p][i]] = i;
    }
    return OK;
}

/* When the bytes of a root are in use. */
typedef struct {
    bool used[N_PHASES];
    int first[N_PHASES], last[N_PHASES]; /* positions in the orders */
} Life;

static void live_at(Life *life, const Orders *o, int node)
{
    for (int p = 0; p < N_PHASES; p++) {
        const int at = o->at[p][node];
        if (at < 0) continue;
        if (!life->used[p] || at < life->first[p]) life->first[p] = at;
        if (!life->used[p] || at > life->last[p]) life->last[p] = at;
        life->used[p] = true;
    }
}

static Err lower_lives(const Lower *l, Life **out)
{
    Life *life;
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &life));
    for (int i = 0; i < l->g->n_nodes; i++) {
        const Node *n = &l->g->node[i];
        if (op_info(n->op)->class == CLASS_VIEW) continue; /* touches no byte */
        for (int j = 0; j < n->n_in; j++) {
            live_at(&life[l->bytes[n->in[j]].root], &l->orders, i);
            live_at(&life[l->bytes[n->in[j]].root], &l->orders, lower_end_of(l->g, i));
        }
        for (int j = 0; j < n->n_out; j++) {
            live_at(&life[l->bytes[n->out[j]].root], &l->orders, i);
            live_at(&life[l->bytes[n->out[j]].root], &l->orders, lower_end_of(l->g, i));
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
    case ROLE_ARG:
        return REGION_ARG;
    default:
        return REGION_SCRATCH;
    }
}

static Region local_region(const ValueInfo *v, const Life *life)
{
    if (v->space == SPACE_HOST) return REGION_HOST;
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
    case REGION_DPARAM:
    case REGION_INPUT:
    case REGION_LOSS:
        return SCOPE_STEP;
    case REGION_ARG:
        return SCOPE_SCRATCH;
    default:
        return SCOPE_FRAME;
    }
}

/* Behind views and waits: the value that a node made, or that was given. */
static Value shown_by(const Graph *g, Value v)
{
    for (;;) {
        const int maker = graph_maker(g, v);
        if (maker == NO_NODE) return v;
        const Node *n = &g->node[maker];
        const bool view = op_info(n->op)->class == CLASS_VIEW && n->op != OP_join;
        if (!view && n->op != OP_wait) return v;
        v = n->in[0];
    }
}

static void describe(Lower *l, Value v, const Life *life)
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
                      .shows = shown_by(l->g, v),
                      .ndim = info->dims.ndim,
                      .layout = info->layout};
    memcpy(t->dim, info->dims.dim, sizeof t->dim);
    memcpy(t->stride, l->bytes[v].stride, sizeof t->stride);
    const Region r =
        base->role == ROLE_LOCAL ? local_region(base, &life[root]) : role_region(base->role);
    const bool carried = r == REGION_CARRY;
    t->at[SPLIT].region = (uint8_t)r;
    t->at[MERGED].region = (uint8_t)(carried ? REGION_SCRATCH : r);
    t->scope = region_scope(r);
}

/* Roots of a region that lie side by side for the region's whole life. */
static void lay_side_by_side(Lower *l, Region r, const Life *life)
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
    l->p->bytes[r] = at;
}

static Err pack_scratch(Lower *l, Phase phase, const Life *life)
{
    const int mode = phase == PHASE_B ? MERGED : SPLIT;
    Piece *piece;
    Value *who;
    Packed packed;
    int n = 0;
    const size_t mark = arena_mark(l->arena);
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &piece));
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &who));
    for (Value v = 0; v < l->g->n_values; v++) {
        const ProgTensor *t = &l->tensor[v];
        if (t->view_of != v || t->at[mode].region != REGION_SCRATCH || !life[v].used[phase])
            continue;
        piece[n] = (Piece){life[v].first[phase], life[v].last[phase], tensor_bytes(t), 0};
        who[n++] = v;
    }
    TRY(pack(piece, n, l->arena, &packed));
    for (int i = 0; i < n; i++) l->tensor[who[i]].at[mode].offset = piece[i].offset;
    if (phase == PHASE_F) /* born and dead in F: the same place in both modes */
        for (int i = 0; i < n; i++) l->tensor[who[i]].at[MERGED].offset = piece[i].offset;
    l->p->scratch_bytes[phase] = packed.peak_bytes;
    l->p->scratch_live[phase] = packed.live_bytes;
    arena_rewind(l->arena, mark);
    return OK;
}

static Err lower_memory(Lower *l)
{
    Life *life;
    TRY(lower_lives(l, &life));
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &l->tensor));
    for (Value v = 0; v < l->g->n_values; v++) describe(l, v, life);
    for (int r = REGION_SCRATCH + 1; r < N_OWN_REGIONS; r++) lay_side_by_side(l, (Region)r, life);
    for (int p = 0; p < N_PHASES; p++) TRY(pack_scratch(l, (Phase)p, life));
    for (Value v = 0; v < l->g->n_values; v++) { /* views follow their roots */
        ProgTensor *t = &l->tensor[v];
        const size_t shift = (size_t)l->bytes[v].offset * dtype_bytes(t->dtype);
        for (int m = 0; m < N_MODES && t->view_of != v; m++)
            t->at[m].offset = l->tensor[t->view_of].at[m].offset + shift;
    }
    return OK;
}

static Instr make_instr(const Lower *l, const Node *n, Phase phase)
{
    Instr in = {.op = n->op, .queue = n->queue, .phase = phase, .again = n->again, .attr = n->attr};
    const Signature sig = op_signature(n->op);
    Dims dims[MAX_IN], out[MAX_OUT];
    for (int i = 0; i < n->n_in; i++) {
        dims[i] = l->g->value[n->in[i]].dims;
        if (strcmp(sig.in[i].name, "sum") == 0) continue; /* the output's own bytes */
        in.in[in.n_in++] = n->in[i];
        in.bytes += tensor_bytes(&l->tensor[n->in[i]]);
    }
    for (int i = 0; i < n->n_out; i++) {
        out[i] = l->g->value[n->out[i]].dims;
        in.out[in.n_out++] = n->out[i];
        in.keep[i] = n->keep[i];
        in.bytes += tensor_bytes(&l->tensor[n->out[i]]);
    }
    in.flops = op_flops(n->op, &n->attr, n->n_in, dims, n->n_out, out);
    return in;
}

static Err lower_instructions(Lower *l)
{
    Instr *instr;
    int n = 0, room = 0;
    for (int p = 0; p < N_PHASES; p++) room += l->orders.n[p];
    TRY(ARENA_NEW(l->arena, room + 1, &instr));
    for (int p = 0; p < N_PHASES; p++) {
        l->p->first[p] = n;
        for (int i = 0; i < l->orders.n[p]; i++) {
            const Node *node = &l->g->node[l->orders.list[p][i]];
            if (op_info(node->op)->class == CLASS_VIEW) continue;
            instr[n++] = make_instr(l, node, (Phase)p);
        }
    }
    l->p->first[N_PHASES] = n;
    l->p->instr = instr;
    l->p->n_instr = n;
    return OK;
}

static Err lower_ports(Lower *l)
{
    PortIn *in;
    PortOut *out;
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &in));
    TRY(ARENA_NEW(l->arena, l->g->n_values + 1, &out));
    for (Value v = 0; v < l->g->n_values; v++) {
        const ValueInfo *info = &l->g->value[v];
        const int maker = graph_maker(l->g, v);
        if (info->role == ROLE_PARAM && graph_readers(l->g, v))
            in[l->p->n_in++] = (PortIn){info->index, info->span, v};
        if (info->role == ROLE_DPARAM && maker != NO_NODE)
            out[l->p->n_out++] = (PortOut){info->index, info->span, v,
                                           (uint8_t)l->g->node[maker].phase, info->layout.partial};
    }
    l->p->in = in;
    l->p->out = out;
    return OK;
}

/* Which phases read the stream and its gradient: the neighbours keep them as long. */
static void lower_streams(Lower *l)
{
    l->p->dx_made = N_PHASES;
    for (int i = 0; i < l->g->n_nodes; i++) {
        const Node *n = &l->g->node[i];
        for (int j = 0; j < n->n_in; j++) {
            const Role role = l->g->value[l->bytes[n->in[j]].root].role;
            const uint8_t bit = (uint8_t)(1u << n->phase);
            if (role == ROLE_X) l->p->x_read |= bit;
            if (role == ROLE_Y) l->p->y_read |= bit;
            if (role == ROLE_DX) l->p->dx_read |= bit;
            if (role == ROLE_DY) l->p->dy_read |= bit;
        }
        for (int j = 0; j < n->n_out; j++)
            if (l->g->value[l->bytes[n->out[j]].root].role == ROLE_DX)
                l->p->dx_made = (uint8_t)n->phase;
    }
}

Err lower(const Graph *g, Arena *arena, Program *out)
{
    Program p = {.kind = g->kind, .dtype = g->dtype, .n_tensors = g->n_values};
    Lower l = {.g = g, .arena = arena, .p = &p};
    if (g->n_params > MAX_PORTS)
        return err_fail(ERR_CONFIG, "unit %s has %d parameters, at most %d are possible", g->kind,
                        g->n_params, MAX_PORTS);
    TRY(lower_orders(&l));
    TRY(lower_bytes(g, &l.orders, arena, &l.bytes));
    TRY(lower_memory(&l));
    TRY(lower_instructions(&l));
    TRY(lower_ports(&l));
    lower_streams(&l);
    p.tensor = l.tensor;
    TRY(program_check(&p));
    *out = p;
    return OK;
}
