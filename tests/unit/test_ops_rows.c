/* test_ops_rows.c -- the rows of ops.def are true: an op computed in two uneven parts, sharded
 * along a row's letter, is the op computed whole. Tensor parallelism rests on this.
 *
 *     "t"     operands that have t are sharded; outputs that have it are put together from parts
 *     "i+"    outputs that lack i are summed, and operands added to them come in two summands
 *     "v^"    the same with the maximum
 *     "h=g"   heads are sharded together with the key heads that they read; cuts within a group of
 *             heads that share a key head are in test_ops_heads.c
 *
 * f64, random operands; within 1e-12 of the largest entry. */
#include "kernel_test.h"

#include "ir/ops.h"
#include "support/expect.h"

enum { CUT = 2, ROW_CUT = 6, N_PARTS = 2 }; /* ROW_CUT: of the rows of experts */

/* All extents of an op differ. */
static int64_t extent(char letter)
{
    static const int64_t table[128] = {
        ['t'] = 7, ['i'] = 5,  ['o'] = 9, ['d'] = 10, ['h'] = 6, ['g'] = 3, ['c'] = 4,
        ['s'] = 8, ['v'] = 11, ['1'] = 1, ['2'] = 2,  ['4'] = 4, ['a'] = 4, ['b'] = 3,
        ['k'] = 3, ['e'] = 5,  ['m'] = 6, ['n'] = 7,  ['r'] = 21};
    if (!table[letter & 127]) fail_msg("the test has no extent for letter %c", letter);
    return table[letter & 127];
}

static bool is_named(const Operand *o, const char *name) { return strcmp(o->name, name) == 0; }

static bool is_integer(const Operand *o) { return o->integer; }

static Tensor new_tensor(Bench *b, const Operand *o)
{
    int64_t n[MAX_DIMS] = {5, 3};
    for (int i = 0; i < o->ndim; i++)
        n[i] = extent(o->letter[i]) * (o->second[i] ? extent(o->second[i]) : 1) *
               (o->third[i] ? extent(o->third[i]) : 1);
    return bench_new(b,
                     is_integer(o) ? I32
                     : o->fp8      ? E4M3
                                   : F64,
                     DENSE, n, o->ndim < 0 ? 2 : o->ndim);
}

/* Rows of [lo0,hi0) [lo1,hi1), which are apart. */
static void fill_ranges(Bench *b, const Tensor *t)
{
    for (int64_t i = 0; i < t->n[0]; i++) {
        int32_t *r = (int32_t *)t->data + 4 * i;
        r[0] = (int32_t)(fabs(bench_random(b)) * 2);
        r[1] = r[0] + 1 + (int32_t)(fabs(bench_random(b)) * 3);
        r[2] = r[1] + (int32_t)(fabs(bench_random(b)) * 2);
        r[3] = (int32_t)extent('s') - (int32_t)(fabs(bench_random(b)) * 2);
    }
}

/* Three different experts of each token. */
static void fill_experts(Bench *b, const Tensor *t)
{
    for (int64_t i = 0; i < t->n[0]; i++) {
        const int first = (int)(fabs(bench_random(b)) * 5), step = bench_random(b) > 0 ? 1 : 2;
        for (int k = 0; k < t->n[1]; k++)
            ((int32_t *)t->data)[i * t->n[1] + k] = (first + k * step) % 5;
    }
}

/* Rows of experts: tokens before the cut have the rows before it, so that both parts have their
 * own, as where each part has sorted its own. */
static void fill_rows(const Tensor *t)
{
    const int64_t k = t->n[1], before = CUT * k, after = t->n[0] * k - before;
    for (int64_t i = 0; i < t->n[0] * k; i++)
        ((int32_t *)t->data)[i] =
            (int32_t)(i < before ? i * 5 % before : before + (i - before) * 4 % after);
}

/* An expert without rows, and unequal numbers of the others. */
static void fill_offsets(const Tensor *t)
{
    static const int32_t offset[] = {0, 4, 4, 11, 20, 21};
    memcpy(t->data, offset, sizeof offset);
}

static void fill_operand(Bench *b, const Operand *o, const Tensor *t)
{
    if (is_named(o, "expert")) {
        fill_experts(b, t);
        return;
    }
    if (is_named(o, "at")) {
        fill_rows(t);
        return;
    }
    if (is_named(o, "offsets")) {
        fill_offsets(t);
        return;
    }
    if (is_named(o, "ranges")) {
        fill_ranges(b, t);
        return;
    }
    for (int64_t i = 0; i < tensor_count(t); i++) {
        const double x = bench_random(b);
        const int64_t limit = is_named(o, "pos")    ? 100
                              : is_named(o, "clip") ? extent('b')
                                                    : extent('v');
        if (is_integer(o))
            put(t, i, floor(fabs(x) * (double)limit));
        else
            put(t, i, is_named(o, "z") ? 0.5 + fabs(x) : x); /* z is an argument of log */
    }
}

static Attr attr_of(OpId op)
{
    switch (op) {
    case OP_linear:
    case OP_linear_fp8:
    case OP_linear_fp8_add:
    case OP_linear_fp8_dx:
    case OP_linear_fp8_dw:
    case OP_linear_part:
    case OP_linear_add:
    case OP_linear_gelu:
    case OP_linear_wide:
    case OP_grouped_linear:
    case OP_grouped_linear_swiglu:
        return (Attr){.gemm = {.tb = true}};
    case OP_route:
    case OP_route_dx:
        return (Attr){.route = {.renormalize = true, .scaling = 1.5, .aux = 0.3, .z = 0.2}};
    case OP_linear_dw:
    case OP_linear_part_dw:
        return (Attr){.gemm = {.ta = true}};
    case OP_quantize:
    case OP_quantize_turned:
    case OP_quantize_both:
    case OP_turn:
        return (Attr){.quantize = {.type = E4M3}};
    case OP_scale:
        return (Attr){.scale = {-1.75}};
    case OP_layernorm:
    case OP_rmsnorm:
    case OP_headnorm:
        return (Attr){.norm = {1e-3}};
    case OP_modulate:
        return (Attr){.norm = {1e-3}};
    case OP_sinusoid:
        return (Attr){.sinusoid = {.rate = 3, .base = 100}};
    case OP_rope:
        return (Attr){.rope = {.theta = 100}};
    case OP_attention:
    case OP_attention_dx:
    case OP_attention_part_dx:
    case OP_attention_part_dx_onto:
    case OP_attention_along:
    case OP_attention_along_dx:
    case OP_attention_along_part_dx:
        return (Attr){.attention = {.scale = 0.5, .span = extent('s')}};
    default:
        return (Attr){.gemm = {0}};
    }
}

/* Part `part` of a tensor: a view of the same bytes. An operand without the letter is whole. */
typedef struct {
    OpRow row;
    int any; /* of "*": the dim */
    int part;
} Slice;

static int cut_dim(const Operand *o, const Slice *s)
{
    if (s->row.letter == '*') return o->ndim == -1 ? s->any : -1;
    const int dim = operand_dim(o, s->row.letter);
    return dim < 0 && s->row.with ? operand_dim(o, s->row.with) : dim;
}

/* Shows dim `dim`, a product, as its factors: rows of a part along a later factor are no range. */
static Tensor unfolded(const Operand *o, Tensor t, int dim)
{
    const char factor[3] = {o->letter[dim], o->second[dim], o->third[dim]};
    const int more = factor[2] ? 2 : 1;
    for (int i = t.ndim - 1; i > dim; i--) t.n[i + more] = t.n[i], t.stride[i + more] = t.stride[i];
    for (int64_t i = more, step = t.stride[dim]; i >= 0; i--, step *= t.n[dim + i + 1])
        t.n[dim + i] = extent(factor[i]), t.stride[dim + i] = step;
    t.ndim += more;
    return t;
}

static Tensor slice(const Operand *o, Tensor t, const Slice *s)
{
    int dim = cut_dim(o, s);
    if (dim < 0) return t;
    if (o->ndim > 0 && s->row.letter != o->letter[dim] && s->row.with != o->letter[dim]) {
        t = unfolded(o, t, dim);
        dim += s->row.letter == o->second[dim] ? 1 : 2;
        t.data =
            (char *)t.data + (size_t)(s->part ? CUT * t.stride[dim] : 0) * dtype_bytes(t.dtype);
        t.n[dim] = s->part ? t.n[dim] - CUT : CUT;
        return t;
    }
    int64_t cut = o->letter[dim] == 'r' ? ROW_CUT : CUT;
    if (s->row.with) /* one key head, and the heads that read it */
        cut = o->letter[dim] == s->row.with ? 1 : extent(s->row.letter) / extent(s->row.with);
    if (o->ndim > 0 && o->second[dim]) cut *= extent(o->second[dim]);
    if (o->ndim > 0 && o->third[dim]) cut *= extent(o->third[dim]);
    const int64_t from = s->part ? cut : 0, to = s->part ? t.n[dim] : cut;
    t.data = (char *)t.data + (size_t)(from * t.stride[dim]) * dtype_bytes(t.dtype);
    t.n[dim] = to - from;
    return t;
}

/* Runs the kernel; a view shows the same elements in the same order. */
static void compute(OpId op, Call *c)
{
    const KernelId kernel = op_info(op)->kernel;
    if (op == OP_transpose) { /* as run/execute.c calls it */
        Tensor *x = &c->in[0];
        const int64_t n = x->n[0], stride = x->stride[0];
        x->n[0] = x->n[1], x->stride[0] = x->stride[1];
        x->n[1] = n, x->stride[1] = stride;
    }
    if (kernel != KERNEL_NONE) {
        run(kernel, c);
        return;
    }
    for (int64_t i = 0; i < tensor_count(&c->out[0]); i++) put(&c->out[0], i, get(&c->in[0], i));
}

typedef struct {
    OpId op;
    int n_in; /* with this many of the optional ones */
    Signature sig;
    Tensor in[MAX_IN], want[MAX_OUT], got[MAX_OUT];
    Tensor added[MAX_IN][N_PARTS]; /* two summands of an operand that is added */
} Proof;

/* The old content of the output is no operand of the kernel: the output starts from it. */
static void copy_into(const Tensor *to, const Tensor *from)
{
    for (int64_t i = 0; i < tensor_count(to); i++) put(to, i, get(from, i));
}

static Call make_call(const Proof *p, const Tensor *in, const Tensor *out, int64_t base)
{
    Call c = {.attr = attr_of(p->op), .n_out = p->sig.n_out};
    if (base) c.attr.vocab.base = base;
    for (int i = 0; i < p->sig.n_out; i++) c.out[i] = out[i];
    for (int i = 0; i < p->n_in; i++)
        if (!op_is_sum(p->op, i)) c.in[c.n_in++] = in[i];
    for (int i = 0; i < p->sig.n_out; i++) {
        const int sum = op_sum_operand(p->op, i);
        if (sum < 0 || sum >= p->n_in) continue;
        copy_into(&out[i], &in[sum]);
        c.number[i] = 1;
    }
    return c;
}

static void open_proof(Bench *b, Proof *p, OpId op, int n_in)
{
    *p = (Proof){.op = op, .n_in = n_in, .sig = op_signature(op)};
    for (int i = 0; i < n_in; i++) {
        const Operand *o = &p->sig.in[i];
        p->in[i] = new_tensor(b, o);
        fill_operand(b, o, &p->in[i]);
        for (int k = 0; k < N_PARTS && !is_integer(o); k++) p->added[i][k] = new_tensor(b, o);
        for (int64_t e = 0; e < tensor_count(&p->in[i]) && !is_integer(o); e++) {
            put(&p->added[i][0], e, bench_random(b));
            put(&p->added[i][1], e, get(&p->in[i], e) - get(&p->added[i][0], e));
        }
    }
    for (int i = 0; i < p->sig.n_out; i++) {
        p->want[i] = new_tensor(b, &p->sig.out[i]);
        p->got[i] = new_tensor(b, &p->sig.out[i]);
    }
    Call whole = make_call(p, p->in, p->want, 0);
    compute(op, &whole);
}

/* Row numbers and offsets count from the first row of the part. */
static Tensor local_rows(Bench *b, const Operand *o, Tensor t, const Slice *s)
{
    const bool at = is_named(o, "at") && s->row.letter == 't';
    const bool offsets = is_named(o, "offsets") && s->row.letter == 'r';
    if (!at && !offsets) return t;
    const Tensor own = bench_new(b, I32, DENSE, t.n, t.ndim);
    const int32_t first = s->part ? ROW_CUT : 0, last = s->part ? (int32_t)extent('r') : ROW_CUT;
    for (int64_t i = 0; i < tensor_count(&t); i++) {
        int32_t row = ((const int32_t *)t.data)[i];
        if (offsets) row = row < first ? first : row > last ? last : row;
        ((int32_t *)own.data)[i] = row - first;
    }
    return own;
}

/* One part; its outputs that are not sharded go to `apart`. */
static void compute_part(Bench *b, Proof *p, Slice s, Tensor *apart)
{
    Tensor in[MAX_IN], out[MAX_OUT];
    for (int i = 0; i < p->n_in; i++) {
        const Operand *o = &p->sig.in[i];
        const bool summand = o->added && s.row.partial == '+' && cut_dim(o, &s) < 0;
        in[i] = summand ? p->added[i][s.part] : slice(o, p->in[i], &s);
        in[i] = local_rows(b, o, in[i], &s);
    }
    for (int i = 0; i < p->sig.n_out; i++)
        out[i] = cut_dim(&p->sig.out[i], &s) < 0 ? apart[i] : slice(&p->sig.out[i], p->got[i], &s);
    Call c = make_call(p, in, out, s.row.letter == 'v' && s.part ? CUT : 0);
    compute(p->op, &c);
}

/* The distance of the op in parts from the op as a whole, relative to the largest entry. */
static double prove(Bench *b, OpId op, int n_in, OpRow row, int any)
{
    Proof p;
    Tensor apart[N_PARTS][MAX_OUT];
    double off = 0;
    open_proof(b, &p, op, n_in);
    for (int k = 0; k < N_PARTS; k++) {
        for (int i = 0; i < p.sig.n_out; i++) apart[k][i] = new_tensor(b, &p.sig.out[i]);
        compute_part(b, &p, (Slice){row, any, k}, apart[k]);
    }
    for (int i = 0; i < p.sig.n_out; i++) {
        double largest = 0;
        for (int64_t e = 0; e < tensor_count(&p.want[i]); e++)
            largest = fmax(largest, fabs(get(&p.want[i], e)));
        for (int64_t e = 0; e < tensor_count(&p.want[i]); e++) {
            const double x = get(&apart[0][i], e), y = get(&apart[1][i], e);
            double got = get(&p.got[i], e);
            if (cut_dim(&p.sig.out[i], &(Slice){row, any, 0}) < 0)
                got = row.partial == '+'   ? x + y
                      : row.partial == '^' ? fmax(x, y)
                      : x == y             ? x
                                           : (double)NAN;
            const double d = fabs(got - get(&p.want[i], e)) / largest;
            off = isnan(d) ? (double)INFINITY : fmax(off, d);
        }
    }
    bench_clear(b);
    return off;
}

static int least_inputs(const Signature *sig)
{
    int least = 0;
    for (int i = 0; i < sig->n_in; i++) least += !sig->in[i].optional;
    return least;
}

static void rows_hold(void **state)
{
    Bench b;
    int n_proofs = 0;
    (void)state;
    bench_open(&b);
    for (int op = 0; op < N_OPS; op++) {
        OpRow row[MAX_ROWS];
        const int n_rows = op_rows((OpId)op, row);
        const Signature sig = op_signature((OpId)op);
        for (int r = 0; r < n_rows && op != OP_assign_rows; r++) /* parts sort their own rows */
            for (int n_in = least_inputs(&sig); n_in <= sig.n_in; n_in++) {
                const bool carries = op == OP_attention || op == OP_attention_along;
                if (carries && n_in == least_inputs(&sig) + 1) continue; /* o and lse go together */
                for (int any = 0; any < (row[r].letter == '*' ? 2 : 1); any++, n_proofs++) {
                    const double off = prove(&b, (OpId)op, n_in, row[r], any);
                    if (!(off <= 1e-12))
                        fail_msg("%s of %d inputs, row \"%c\": the parts are off by %g",
                                 op_info((OpId)op)->name, n_in, row[r].letter, off);
                }
            }
    }
    assert_in_range(n_proofs, 100, 300);
    bench_close(&b);
}

/* The proof can fail: rows that are not in the table because they do not hold. */
static void false_rows_are_found(void **state)
{
    static const struct {
        OpId op;
        OpRow row;
    } wrong[] = {
        {OP_linear, {'i', 0, 0}},
        {OP_rmsnorm, {'d', 0, 0}},
        {OP_rmsnorm, {'d', 0, '+'}},
        {OP_layernorm_dx, {'d', 0, 0}},
        {OP_rope, {'c', 0, 0}},
        {OP_attention, {'s', 0, 0}},
        {OP_attention, {'s', 0, '+'}},
        {OP_attention, {'c', 0, 0}},
        {OP_row_sums, {'v', 0, '^'}},
        {OP_row_max, {'v', 0, '+'}},
        {OP_loss, {'t', 0, 0}},
        {OP_attention_dx, {'t', 0, 0}},
        {OP_embedding, {'v', 0, 0}},
        {OP_headnorm_dw, {'h', 0, 0}},
        {OP_linear_add, {'i', 0, 0}},
        {OP_linear_gelu, {'i', 0, '+'}},
        {OP_linear_dgelu, {'o', 0, 0}},
        {OP_linear_dswiglu, {'o', 0, 0}},
        {OP_route_dx, {'t', 0, 0}},
        {OP_grouped_linear_dw, {'r', 0, 0}},
        {OP_grouped_linear, {'i', 0, 0}},
        {OP_grouped_linear_swiglu, {'i', 0, '+'}},
        {OP_grouped_linear_dswiglu, {'o', 0, 0}},
        {OP_grouped_linear_dx2, {'o', 0, 0}},
        {OP_permute_dgate, {'d', 0, 0}},
        {OP_modulate, {'d', 0, 0}},
        {OP_modulate_dw, {'t', 0, 0}},
        {OP_gate_add_dw, {'t', 0, 0}},
        {OP_square_loss, {'c', 0, '+'}},
        {OP_square_loss, {'t', 0, 0}},
        {OP_attention_along, {'s', 0, 0}},
        {OP_attention_along_dx, {'b', 0, 0}},
    };
    Bench b;
    (void)state;
    bench_open(&b);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const Signature sig = op_signature(wrong[i].op);
        const double off = prove(&b, wrong[i].op, least_inputs(&sig), wrong[i].row, 0);
        if (off < 1e-3) fail_msg("false row %d: off by %g alone", (int)i, off);
    }
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_hold),
        cmocka_unit_test(false_rows_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
