/* quantize.c -- GEMMs that run in FP8: which, and the values of 8 bits that they read.
 *
 *   before:  y = linear x w                            d.x = linear_dx d.y w
 *   after:   m = amax x;  x.fp8, s = quantize x m      the same for w and d.y
 *            y = linear_fp8 x.fp8 w.fp8 s sw           d.x = linear_fp8_dx d.y.fp8 w.fp8.t sdy sw
 *                                                      d.w = linear_fp8_dw d.y.fp8.t x.fp8.t sdy s
 *
 * The table lists the GEMMs and their operands. Whatever it does not list stays in the storage
 * type: embeddings, attention, routers. The head is no layer, and has no patterns.
 *
 * With a scale for a whole tensor the pass runs before `place`, in global shapes: an amax of a
 * sharded value is a partial maximum, which `place` completes over tp and cp, and what is gathered
 * has 8 bits. With scales of blocks it runs after `place`, on the rank's part, since no block
 * crosses ranks.
 *
 * With delayed scales it runs after `fuse`, on the rank's part: scales follow from marks of earlier
 * steps, a parameter of the unit (base/fp8.h), so nothing waits for an amax, and GEMMs that were
 * fused stay so. Amaxes of this step become marks in W, which ranks sum as they sum gradients.
 *
 *     s = delayed_scales marks;  x.fp8, m = quantize_by x s.0;  d.marks += mark_amax marks m
 *
 * Weights keep a scale from their own amax: they are few.
 *
 * Weights that these GEMMs alone read are coded (ir/unit.h): the unit gets them in 8 bits, with
 * their scales, in place of `quantize w`; those of others are quantized where they are read.
 *
 *     y = linear_fp8 x.fp8 w s w.scale        w.t = turn w;  d.x = linear_fp8_dx d.y.fp8 w.t ...
 *
 * Grouped GEMMs of experts are replaced on the rank's part, after their rows have travelled
 * (route.c), whatever the scaling: each expert has a scale for its rows here, and one for its
 * matrix. Rows past the last are not looked at.
 *
 *     x.fp8, s = grouped_quantize x offsets;  y = grouped_linear_fp8 x.fp8 w s w.scale offsets
 *
 * With one scale, both operands of a GEMM have the dim of the sum last, as tensor cores read 8
 * bits: .t are transposed copies. F keeps x.fp8.t for the gradient of w, half the bytes of x. A
 * weight is quantized, or turned, again in the backward phases: its copy would be kept for every
 * micro-batch. */
#include <string.h>

#include "base/fp8.h"
#include "compile/compile.h"
#include "compile/names.h"
#include "ir/build.h"

typedef enum { ACTIVATION, GRADIENT, WEIGHT } OperandKind;

typedef struct {
    OpId op, fp8, blocks; /* of one scale; of scales of blocks */
    OperandKind operand[2];
    bool turned[2];  /* of one scale: the operand is the transposed copy */
    bool along_rows; /* sums run along rows: blocks do too */
    bool experts;    /* a grouped GEMM: of other scales, by a pass of its own */
} QuantizedGemm;

static const QuantizedGemm gemms[] = {
    {OP_linear,
     OP_linear_fp8,
     OP_linear_blocks,
     {ACTIVATION, WEIGHT},
     {false, false},
     false,
     false},
    {OP_linear_dx,
     OP_linear_fp8_dx,
     OP_linear_blocks_dx,
     {GRADIENT, WEIGHT},
     {false, true},
     false,
     false},
    {OP_linear_dw,
     OP_linear_fp8_dw,
     OP_linear_blocks_dw,
     {GRADIENT, ACTIVATION},
     {true, true},
     true,
     false},
    {OP_grouped_linear, OP_grouped_linear_fp8, N_OPS, {ACTIVATION, WEIGHT}, .experts = true},
    {OP_grouped_linear_dx, OP_grouped_linear_fp8_dx, N_OPS, {GRADIENT, WEIGHT}, .experts = true},
    {OP_grouped_linear_dw,
     OP_grouped_linear_fp8_dw,
     N_OPS,
     {GRADIENT, ACTIVATION},
     .experts = true},
};

/* A quantized value. */
typedef struct {
    Value x, y, scale;
    bool turned, backward; /* turned: transposed, or with blocks along rows */
} Quantized;

typedef struct {
    Graph *g;
    const CompileOptions *o;
    Quantized *done;
    Value *largest; /* [values before]: the amax of each, or NO_VALUE */
    int n_done;
    /* Of delayed scaling: the site of each value before, or -1; scales and amaxes of the sites. */
    int *site, n_sites;
    Value marks, scales, scale[FP8_SITES], amax[FP8_SITES], of[FP8_SITES];
    uint32_t gradients;
} Quantizer;

static const QuantizedGemm *gemm_row(OpId op)
{
    for (size_t i = 0; i < sizeof gemms / sizeof *gemms; i++)
        if (gemms[i].op == op) return &gemms[i];
    return NULL;
}

static bool makes_dw(OpId op) { return op == OP_linear_dw || op == OP_grouped_linear_dw; }

/* The name of the weight of a GEMM, or "". */
static const char *weight_name(const Graph *g, const Node *n)
{
    const Value v = makes_dw(n->op) ? n->out[0] : n->in[1];
    const ValueInfo *info = &g->value[v];
    if (info->role != ROLE_PARAM && info->role != ROLE_DPARAM) return "";
    return g->param[info->index].name;
}

/* True if the table has a row for the node, and a pattern matches its weight. */
static bool chooses(const Graph *g, const Node *n, const Fp8Options *o)
{
    const char *patterns = o->names;
    const QuantizedGemm *row = gemm_row(n->op);
    if (!row || (row->experts && !o->experts)) return false;
    if (!names_listed(patterns, weight_name(g, n))) return false;
    const ValueInfo *w = &g->value[makes_dw(n->op) ? n->out[0] : n->in[1]];
    if (g->param[w->index].view == VIEW_WEIGHT) return false; /* parts of it travel, in bf16 */
    bool all = true; /* of weights back to back, which `fuse` made one */
    for (int p = w->index; p < w->index + w->span; p++)
        all = all && names_listed(patterns, g->param[p].name);
    return all;
}

/* True if some GEMM reads the parameter, and nothing else does. */
static bool only_gemms_read(const Graph *g, int param, const Fp8Options *o)
{
    bool any = false;
    for (int i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < g->node[i].n_in; k++) {
            const ValueInfo *v = &g->value[g->node[i].in[k]];
            if (v->role != ROLE_PARAM || v->index != param) continue;
            if (k != 1 || !chooses(g, &g->node[i], o)) return false;
            any = true;
        }
    return any;
}

uint64_t quantize_coded(const Graph *g, const Fp8Options *o)
{
    uint64_t coded = 0;
    MUST(g->n_params <= MAX_PORTS, "graph %s has %d parameters", g->kind, g->n_params);
    for (int p = 0; p < g->n_params && o->names; p++)
        if (only_gemms_read(g, p, o)) coded |= (uint64_t)1 << p;
    return coded;
}

/* The x of the only GEMM that reads the parameter, or NO_VALUE. */
static Value only_x(const Graph *g, int param)
{
    Value x = NO_VALUE;
    int n = 0;
    for (int i = 0; i < g->n_nodes; i++) {
        const Node *gemm = &g->node[i];
        if (gemm->op != OP_linear || g->value[gemm->in[1]].role != ROLE_PARAM) continue;
        if (g->value[gemm->in[1]].index != param) continue;
        x = gemm->in[0];
        n++;
    }
    return n == 1 ? x : NO_VALUE;
}

uint64_t quantize_joined(const Graph *g, const Fp8Options *o, uint64_t coded)
{
    uint64_t joined = 0;
    for (int p = 1; p < g->n_params && o->scaling == SCALING_DELAYED; p++)
        if ((coded >> (p - 1) & 3) == 3 && only_x(g, p) != NO_VALUE &&
            only_x(g, p) == only_x(g, p - 1))
            joined |= (uint64_t)1 << p;
    return joined;
}

static Dim blocks_along(Dim d, int32_t size) { return dim_of((d.cap + size - 1) / size); }

/* The elements that share a scale: 1 x 128 along the sum, 128 x 128 of a weight. */
static void set_block(OperandKind kind, bool along_rows, int32_t block[2])
{
    block[0] = kind == WEIGHT || along_rows ? FP8_BLOCK : 1;
    block[1] = kind == WEIGHT || !along_rows ? FP8_BLOCK : 1;
}

static Value largest_of(Quantizer *q, Value x)
{
    if (q->largest[x] != NO_VALUE) return q->largest[x];
    const Node *n = graph_node(q->g, OP_amax, NULL, 1, &x, NULL, 1);
    return n ? q->largest[x] = n->out[0] : NO_VALUE;
}

/* The site of x, a new one if it has none. */
static Err site_of(Quantizer *q, Value x, OperandKind kind, int *out)
{
    Graph *g = q->g;
    *out = q->site[x];
    if (*out >= 0) return OK;
    if (q->n_sites == FP8_SITES)
        return err_fail(ERR_CONFIG,
                        "graph %s: more than %d values are quantized with delayed scaling; set "
                        "precision.scaling=tensor, or fewer weights in precision.fp8",
                        g->kind, FP8_SITES);
    if (q->marks == NO_VALUE)
        return err_fail(ERR_CHECK, "graph %s: delayed scaling needs marks, a parameter", g->kind);
    if (q->scales == NO_VALUE) {
        const Dims dims = {.ndim = 1, .dim = {dim_of(FP8_SITES)}};
        const Node *n = graph_node(g, OP_delayed_scales, NULL, 1, &q->marks, &dims, 1);
        if (!n) return graph_err(g);
        q->scales = n->out[0];
    }
    const int site = q->site[x] = *out = q->n_sites++;
    if (kind == GRADIENT) q->gradients |= 1u << site;
    q->of[site] = x;
    q->amax[site] = NO_VALUE;
    q->scale[site] = part(g, q->scales, 0, site, dim_of(1));
    return graph_err(g);
}

/* Quantizes a value by the scale of its site. */
static Err quantized_by(Quantizer *q, Value x, OperandKind kind, bool turned, Quantized *out)
{
    Graph *g = q->g;
    const OpAttr attr = {
        .kernel.by = {.type = kind == GRADIENT ? q->o->fp8.gradient : q->o->fp8.compute}};
    int site;
    TRY(site_of(q, x, kind, &site));
    const Value in[] = {x, q->scale[site]};
    const Node *n = graph_node(g, turned ? OP_quantize_by_turned : OP_quantize_by, &attr, 2, in,
                               NULL, turned ? 1 : 2);
    if (!n) return graph_err(g);
    if (!turned) q->amax[site] = n->out[1];
    *out = (Quantized){x, n->out[0], q->scale[site], turned, false};
    return OK;
}

/* Gives the marks their amaxes: the first node is that of `differentiate`, others add to its
 * sums. */
static Err add_amaxes(Quantizer *q)
{
    enum { EACH = 8 }; /* operands of the op */
    Graph *g = q->g;
    int first = NO_NODE;
    for (int i = 0; i < g->n_nodes; i++)
        if (g->node[i].op == OP_mark_amax) first = i;
    if (q->scales != NO_VALUE)
        g->node[graph_maker(g, q->scales)].attr.kernel.sites.gradients = q->gradients;
    for (int from = 0; from < q->n_sites && first != NO_NODE; from += EACH) {
        Node n = g->node[first], *made;
        TRY(ARENA_NEW(g->arena, EACH, &n.in));
        n.n_in = 0;
        for (int i = from; i < q->n_sites && i < from + EACH; i++) {
            if (q->amax[i] == NO_VALUE) { /* it is quantized for d.w alone */
                const Node *amax = graph_node(g, OP_amax, NULL, 1, &q->of[i], NULL, 1);
                if (!amax) return graph_err(g);
                q->amax[i] = amax->out[0];
            }
            n.in[n.n_in++] = q->amax[i];
        }
        n.attr.kernel.sites.first = from;
        if (from > 0) n.keep[0] = SLOT_ONE;
        if (from == 0)
            g->node[first] = n;
        else
            TRY(graph_append(g, &n, &made));
    }
    return OK;
}

static const Node *quantize_node(Quantizer *q, Value x, OperandKind kind, bool turned)
{
    Graph *g = q->g;
    OpAttr attr = {
        .kernel.quantize = {.type = kind == GRADIENT ? q->o->fp8.gradient : q->o->fp8.compute}};
    if (q->o->fp8.scaling != SCALING_BLOCK) {
        const Value in[] = {x, largest_of(q, x)};
        const OpId op = turned ? OP_quantize_turned : OP_quantize;
        return g->err == OK ? graph_node(g, op, &attr, 2, in, NULL, 2) : NULL;
    }
    int32_t *block = attr.kernel.quantize.block;
    const Dims *d = &g->value[x].dims;
    set_block(kind, turned, block);
    const Dims given[] = {*d, dims2(block[0] > 1 ? blocks_along(d->dim[0], block[0]) : d->dim[0],
                                    block[1] > 1 ? blocks_along(d->dim[1], block[1]) : d->dim[1])};
    return graph_node(g, OP_quantize_blocks, &attr, 1, &x, given, 2);
}

static bool is_coded(const Quantizer *q, Value x)
{
    const ValueInfo *info = &q->g->value[x];
    return info->role == ROLE_PARAM && q->o->fp8.coded >> info->index & 1;
}

/* The scales of a coded weight: one, or one for each block. */
static Value scale_of_coded(Quantizer *q, Value w)
{
    for (int i = 0; i < q->n_done; i++)
        if (q->done[i].x == w) return q->done[i].scale;
    const Dims *d = &q->g->value[w].dims, one = {.ndim = 1, .dim = {dim_of(1)}};
    const bool blocks = q->o->fp8.scaling == SCALING_BLOCK;
    if (d->ndim == 3) return graph_scale(q->g, w, dims1(d->dim[0])); /* of each expert */
    return graph_scale(
        q->g, w,
        blocks ? dims2(blocks_along(d->dim[0], FP8_BLOCK), blocks_along(d->dim[1], FP8_BLOCK))
               : one);
}

/* The codes of a weight: the parameter itself, or its transposed copy. */
static Err coded(Quantizer *q, Value w, bool turned, Quantized *out)
{
    Graph *g = q->g;
    const OpAttr attr = {.kernel.quantize = {.type = q->o->fp8.compute}};
    *out = (Quantized){w, w, scale_of_coded(q, w), turned, turned};
    TRY(graph_err(g));
    g->value[w].dtype = q->o->fp8.compute;
    if (turned) {
        Node *n = graph_node(g, OP_turn, &attr, 1, &w, NULL, 1);
        if (!n) return graph_err(g);
        n->recomputed = true;
        out->y = n->out[0];
    }
    q->done[q->n_done++] = *out;
    return OK;
}

static void name_quantized(Graph *g, const Quantized *q)
{
    const char *name = g->value[q->x].name;
    if (*name && !q->backward) graph_name(g, q->y, "%s.fp8%s", name, q->turned ? ".t" : "");
}

/* The quantized value of x, made once. */
static Err quantized(Quantizer *q, Value x, OperandKind kind, const Node *reader, bool turned,
                     Quantized *out)
{
    Graph *g = q->g;
    const bool made = kind == WEIGHT && is_coded(q, x);
    const bool backward = kind == WEIGHT && (made ? turned : reader->op != OP_linear);
    for (int i = 0; i < q->n_done; i++)
        if (q->done[i].x == x && q->done[i].turned == turned && q->done[i].backward == backward) {
            *out = q->done[i];
            return OK;
        }
    if (made) return coded(q, x, turned, out);
    if (q->o->fp8.scaling == SCALING_DELAYED && kind != WEIGHT) {
        TRY(quantized_by(q, x, kind, turned, out));
    } else {
        const Node *n = quantize_node(q, x, kind, turned);
        if (!n) return graph_err(g);
        *out = (Quantized){x, n->out[0], n->out[1], turned, backward};
    }
    g->node[g->n_nodes - 1].recomputed = backward;
    name_quantized(g, out);
    q->done[q->n_done++] = *out;
    return graph_err(g);
}

/* Replaces a GEMM. Its extra operand, a bias or a sum, comes after the scales. */
static Err replace(Quantizer *q, int index)
{
    Graph *g = q->g;
    Node old = g->node[index];
    const QuantizedGemm *row = gemm_row(old.op);
    const bool blocks = q->o->fp8.scaling == SCALING_BLOCK;
    Quantized part[2];
    Value *in;
    for (int i = 0; i < 2; i++)
        TRY(quantized(q, old.in[i], row->operand[i], &old,
                      blocks ? row->along_rows : row->turned[i], &part[i]));
    TRY(ARENA_NEW(g->arena, old.n_in + 2, &in));
    for (int i = 0; i < 2; i++) {
        in[i] = part[i].y;
        in[2 + i] = part[i].scale;
    }
    for (int i = 2; i < old.n_in; i++) in[2 + i] = old.in[i];
    if (blocks) set_block(row->operand[0], row->along_rows, old.attr.kernel.gemm.a_block);
    if (blocks) set_block(row->operand[1], row->along_rows, old.attr.kernel.gemm.b_block);
    if (!blocks) old.attr.kernel.gemm.ta = false, old.attr.kernel.gemm.tb = true;
    old.op = blocks ? row->blocks : row->fp8;
    old.in = in;
    old.n_in += 2;
    g->node[index] = old; /* after: new nodes may have moved the table */
    return OK;
}

/* Collects the weights of GEMMs that may run in FP8, unless `name` is NULL; returns how many. */
static int collect(const Fp8Options *o, const Graph *kind, int n_kinds, const char **name)
{
    int n = 0;
    for (int k = 0; k < n_kinds; k++) {
        const bool layer =
            graph_find(&kind[k], ROLE_X) != NO_VALUE && graph_find(&kind[k], ROLE_Y) != NO_VALUE;
        for (int i = 0; i < kind[k].n_nodes && layer; i++) {
            const QuantizedGemm *row = gemm_row(kind[k].node[i].op);
            const bool may = row && (o->experts || !row->experts);
            const char *weight = may ? weight_name(&kind[k], &kind[k].node[i]) : "";
            if (*weight && name) name[n] = weight;
            n += *weight != 0;
        }
    }
    return n;
}

Err quantize_check(const char *key, const Fp8Options *o, const Graph *kind, int n_kinds,
                   Arena *temp)
{
    const char **name;
    const int n = collect(o, kind, n_kinds, NULL);
    TRY(ARENA_NEW(temp, n + 1, &name));
    collect(o, kind, n_kinds, name);
    return names_check_in(key, o->names, name, n, temp);
}

/* The value of the marks of delayed scaling, or NO_VALUE. */
static Value marks_of(const Graph *g)
{
    for (Value v = 0; v < g->n_values; v++)
        if (g->value[v].role == ROLE_PARAM && g->param[g->value[v].index].rule == PARAM_BY_MARKS)
            return v;
    return NO_VALUE;
}

Err quantize(Graph *g, const CompileOptions *options)
{
    const int n_nodes = g->n_nodes;
    Quantizer q = {.g = g, .o = options, .marks = marks_of(g), .scales = NO_VALUE};
    TRY(ARENA_NEW(g->arena, 2 * n_nodes + 1, &q.done));
    TRY(ARENA_NEW(g->arena, g->n_values + 1, &q.largest));
    TRY(ARENA_NEW(g->arena, g->n_values + 1, &q.site));
    for (Value v = 0; v < g->n_values; v++) q.largest[v] = NO_VALUE, q.site[v] = -1;
    for (int i = 0; i < n_nodes; i++)
        if (chooses(g, &g->node[i], &options->fp8) && !gemm_row(g->node[i].op)->experts)
            TRY(replace(&q, i));
    if (options->fp8.scaling == SCALING_DELAYED) TRY(add_amaxes(&q));
    TRY(graph_tidy(g));
    return graph_check(g);
}

/* ---- experts ---- */

/* The quantized value of rows, or of the matrices of experts that are not coded; made once. */
static Err quantized_experts(Quantizer *q, const Node *reader, int operand, Quantized *out)
{
    Graph *g = q->g;
    const QuantizedGemm *row = gemm_row(reader->op);
    const OperandKind kind = row->operand[operand];
    const Value x = reader->in[operand], in[] = {x, reader->in[2]};
    const bool backward = kind == WEIGHT && reader->op != OP_grouped_linear;
    const Fp8Options *o = &q->o->fp8;
    const OpAttr attr = {.kernel.quantize = {.type = kind == GRADIENT ? o->gradient : o->compute}};
    const Dims experts = dims1(dim_of(g->value[in[1]].dims.dim[0].cap - 1));
    const Dims given[] = {g->value[x].dims, experts};
    for (int i = 0; i < q->n_done; i++)
        if (q->done[i].x == x && (q->done[i].backward == backward || q->done[i].y == x)) {
            *out = q->done[i];
            return OK;
        }
    if (kind == WEIGHT && is_coded(q, x)) return coded(q, x, false, out);
    Node *n = kind == WEIGHT ? graph_node(g, OP_stack_quantize, &attr, 1, &x, NULL, 2)
                             : graph_node(g, OP_grouped_quantize, &attr, 2, in, given, 2);
    if (!n) return graph_err(g);
    n->recomputed = backward;
    *out = (Quantized){x, n->out[0], n->out[1], false, backward};
    name_quantized(g, out);
    q->done[q->n_done++] = *out;
    return graph_err(g);
}

/* Replaces a grouped GEMM. The offsets come after the scales, then the operand that is added to. */
static Err replace_grouped(Quantizer *q, int index)
{
    Graph *g = q->g;
    Node old = g->node[index];
    const QuantizedGemm *row = gemm_row(old.op);
    Quantized part[2];
    Value *in;
    for (int i = 0; i < 2; i++) TRY(quantized_experts(q, &old, i, &part[i]));
    TRY(ARENA_NEW(g->arena, old.n_in + 2, &in));
    for (int i = 0; i < 2; i++) {
        in[i] = part[i].y;
        in[2 + i] = part[i].scale;
    }
    for (int i = 2; i < old.n_in; i++) in[2 + i] = old.in[i];
    old.op = row->fp8;
    old.in = in;
    old.n_in += 2;
    g->node[index] = old;
    return OK;
}

Err quantize_experts(Graph *g, const CompileOptions *options)
{
    const int n_nodes = g->n_nodes;
    Quantizer q = {.g = g, .o = options, .scales = NO_VALUE};
    TRY(ARENA_NEW(g->arena, 2 * n_nodes + 1, &q.done));
    for (int i = 0; i < n_nodes; i++)
        if (chooses(g, &g->node[i], &options->fp8) && gemm_row(g->node[i].op)->experts)
            TRY(replace_grouped(&q, i));
    TRY(graph_tidy(g));
    return graph_check(g);
}
