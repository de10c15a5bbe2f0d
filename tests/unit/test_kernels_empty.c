/* test_kernels_empty.c -- every kernel with extents of 0, since a rank's part of the rows,
 * columns, heads or vocabulary may be empty. Each letter of each op's signature is set to 0, on
 * ref and on all instruction sets of cpu, with accumulators kept and not kept:
 *
 *     a sum over nothing    0 if nothing is kept (the old content is NaN), else the old content
 *     a maximum             -inf
 *     a row of the embedding, of attention      0, and an lse of -inf
 *
 * Widths of norms are not tried: the mean of no columns is undefined, and they are never
 * sharded. */
#include "cpu_test.h"

#include "ir/ops.h"
#include "ir/pairs.h"

enum { BASE = 3 }; /* first id of a vocabulary shard that does not start at 0 */

static int64_t extent(char letter, char empty)
{
    static const int64_t table[128] = {
        ['t'] = 7, ['i'] = 5,  ['o'] = 9, ['d'] = 10, ['h'] = 6, ['g'] = 3, ['c'] = 4,
        ['s'] = 8, ['v'] = 11, ['1'] = 1, ['2'] = 2,  ['4'] = 4, ['e'] = 5, ['k'] = 2};
    return letter == empty ? 0 : table[letter & 127];
}

/* A tensor of any shape is [5, 3], and its letters are x and y. */
static Tensor new_tensor(Bench *b, const Operand *o, char empty, DType type)
{
    int64_t n[MAX_DIMS] = {empty == 'x' ? 0 : 5, empty == 'y' ? 0 : 3};
    for (int i = 0; i < o->ndim; i++) n[i] = extent(o->letter[i], empty);
    return bench_new(b,
                     o->integer ? I32
                     : o->wide  ? dtype_wide(type)
                     : o->fp8   ? E4M3
                                : type,
                     DENSE, n, o->ndim < 0 ? 2 : o->ndim);
}

static Attr attr_of(OpId op)
{
    if (op_quantizes(op) || op == OP_quantize_blocks || op == OP_stack_quantize ||
        op == OP_grouped_quantize || op == OP_rmsnorm_by || op == OP_swiglu_by ||
        op == OP_swiglu_dx_by)
        return (Attr){.quantize = {.type = E4M3, .block = {1, 128}}};
    if (op == OP_linear || op == OP_linear_fp8 || op == OP_linear_fp8_add ||
        op == OP_linear_fp8_dx || op == OP_linear_fp8_dw || op == OP_linear_add ||
        op == OP_linear_gelu || op == OP_linear_wide || op == OP_linear_part)
        return (Attr){.gemm = {.tb = true}};
    if (op == OP_linear_dw || op == OP_linear_part_dw) return (Attr){.gemm = {.ta = true}};
    if (op == OP_rope) return (Attr){.rope = {.theta = 100}};
    if (op_attends(op) || op_attends_along(op)) return (Attr){.attention = {.scale = 0.5}};
    if (strncmp(op_info(op)->name, "embedding", 9) == 0 ||
        strncmp(op_info(op)->name, "row_", 4) == 0 || op == OP_loss_dx)
        return (Attr){.vocab = {BASE}};
    return (Attr){.scale = {-1.5}}; /* and eps, which only norms read */
}

/* The expected result for no inputs; NaN: unknown, but it must be written. */
static double wanted(OpId op, int out, char empty)
{
    if (op == OP_row_max && empty == 'v') return -HUGE_VAL;
    if ((op == OP_attention || op == OP_attention_along) && out == 1 &&
        (empty == 's' || empty == 'g'))
        return -HUGE_VAL;
    if (op == OP_attention_scores && empty == 's') return -HUGE_VAL; /* lse: there are no scores */
    if ((op == OP_attention_scores || op == OP_attention_weigh_dx) && empty == 'c')
        return (double)NAN;
    const bool of_experts = op == OP_grouped_quantize || op == OP_stack_quantize;
    if ((op_quantizes(op) || op == OP_quantize_blocks || of_experts) && out % 2 == 1)
        return (double)NAN; /* a scale of nothing */
    if ((op == OP_linear_add || op == OP_linear_fp8_add) && empty == 'i')
        return (double)NAN; /* the addend */
    if (empty == 'c' &&
        (op == OP_attention || op == OP_attention_along || op == OP_attention_merge))
        return (double)NAN;
    return 0;
}

static bool adds(KernelId kernel, int out)
{
    if (kernel == KERNEL_layernorm_back || kernel == KERNEL_rmsnorm_back ||
        kernel == KERNEL_token_loss_dx || kernel == KERNEL_gemm_dgelu ||
        kernel == KERNEL_attention_weigh_dx)
        return out > 0;
    if (kernel == KERNEL_attention_weigh || kernel == KERNEL_attention_scores_dx) return true;
    if (kernel == KERNEL_token_loss) return true;
    return kernel == KERNEL_gemm || kernel == KERNEL_scaled_gemm ||
           kernel == KERNEL_grouped_scaled_gemm || kernel == KERNEL_grouped_scaled_gemm_dw ||
           kernel == KERNEL_sum_rows || kernel == KERNEL_add_to || kernel == KERNEL_layernorm_dw ||
           kernel == KERNEL_rmsnorm_dw || kernel == KERNEL_embedding_dw ||
           kernel == KERNEL_attention_dx || kernel == KERNEL_loss ||
           kernel == KERNEL_attention_along_dx || kernel == KERNEL_square_loss ||
           kernel == KERNEL_modulate_dw || kernel == KERNEL_gate_add_dw;
}

static void fill_input(Bench *b, const Operand *o, const Tensor *t)
{
    for (int64_t i = 0; i < tensor_count(t); i++)
        put(t, i, o->integer ? (double)(i % 9) : bench_random(b));
}

/* One device, one type: all the op's outputs, against `wanted` and the kept content. */
static void try_empty(Bench *b, const Device *d, OpId op, char empty, DType type, double keep)
{
    const Signature sig = op_signature(op);
    const KernelId kernel = op_info(op)->kernel;
    Call c = {.attr = attr_of(op), .n_out = sig.n_out, .number = {keep, keep, keep, keep}};
    if (kernel == KERNEL_attention || kernel == KERNEL_attention_along ||
        kernel == KERNEL_attention_scores)
        c.number[0] = c.number[1] = 0; /* test_kernels_attention carries on */
    double *old[MAX_OUT];
    bench_clear(b);
    for (int i = 0; i < sig.n_in && !sig.in[i].optional; i++) {
        if (op_is_sum(op, i)) continue;
        c.in[c.n_in] = new_tensor(b, &sig.in[i], empty, type);
        fill_input(b, &sig.in[i], &c.in[c.n_in++]);
    }
    for (int o = 0; o < sig.n_out; o++) {
        c.out[o] = accumulator(b, new_tensor(b, &sig.out[o], empty, type), adds(kernel, o) * keep);
        const int64_t n = tensor_count(&c.out[o]);
        old[o] = calloc((size_t)n + 1, sizeof(double));
        assert_non_null(old[o]);
        for (int64_t i = 0; i < n && adds(kernel, o) && keep != 0; i++)
            old[o][i] = get(&c.out[o], i);
    }
    assert_int_equal(d->kernel[kernel](&c), OK);
    for (int o = 0; o < sig.n_out; o++) {
        const double want = wanted(op, o, empty);
        for (int64_t i = 0; i < tensor_count(&c.out[o]); i++)
            if (!isnan(want) && get(&c.out[o], i) != want + old[o][i])
                fail_msg("%s on %s, %c = 0, keep %g, output %d [%d]: %g, not %g", op_info(op)->name,
                         d->name, empty, keep, o, (int)i, get(&c.out[o], i), want + old[o][i]);
        free(old[o]);
    }
    expect_gaps(b);
}

/* Letters of an op that may be 0. */
static void letters_of(OpId op, char letters[16])
{
    const Signature sig = op_signature(op);
    int n = 0;
    memset(letters, 0, 16);
    for (int i = 0; i < sig.n_in + sig.n_out; i++) {
        const Operand *o = i < sig.n_in ? &sig.in[i] : &sig.out[i - sig.n_in];
        if (o->ndim == -1 && n == 0) memcpy(letters, "xy", (size_t)(n = 2));
        for (int k = 0; k < o->ndim; k++)
            if (o->letter[k] > '9' && !strchr(letters, o->letter[k])) letters[n++] = o->letter[k];
    }
}

/* True if the op is undefined for this empty letter: an average, a choice among nothing, or a
 * row of nothing. */
static bool is_never_empty(OpId op, char letter)
{
    if (op == OP_route) return letter == 'e' || letter == 'k';
    if (op == OP_quantize_blocks || op == OP_swiglu_dx_by || op == OP_delayed_scales ||
        op == OP_grouped_quantize)
        return true; /* blocks, halves and sites follow from the other extents */
    if (op == OP_rmsnorm_by) return letter == 'd';
    if (op == OP_square_loss || op == OP_square_loss_dx) return letter == 'c';
    if (letter == 'b' && (op == OP_modulate || op == OP_modulate_dx || op == OP_gate_add))
        return true;
    const bool forward =
        op == OP_layernorm || op == OP_rmsnorm || op == OP_headnorm || op == OP_modulate;
    if (op == OP_token_loss || op == OP_token_loss_dx) return letter == 'v';
    return forward && letter == (op == OP_headnorm ? 'c' : 'd');
}

/* True if integers of the op are rows or offsets, which must fit each other: test_kernels_experts
 * has experts without rows, and no tokens. */
static bool has_expert_rows(OpId op)
{
    const Signature sig = op_signature(op);
    for (int i = 0; i < sig.n_in; i++)
        if (strcmp(sig.in[i].name, "offsets") == 0 || strcmp(sig.in[i].name, "expert") == 0 ||
            strcmp(sig.in[i].name, "all") == 0 || /* offsets of all ranks */
            (strcmp(sig.in[i].name, "at") == 0 && op != OP_put_rows_at))
            return true;
    return false;
}

static void all_ops(void **state)
{
    CpuBench *c = *state;
    int n_tried = 0;
    for (int op = 0; op < N_OPS; op++) {
        char letters[16];
        letters_of((OpId)op, letters);
        if (op_info((OpId)op)->kernel == KERNEL_NONE) continue;
        if (op == OP_put_rows || op == OP_get_rows || op == OP_add_rows)
            continue;                       /* run/ selects the rows: as many of x as of y */
        if (op == OP_put_rows_at) continue; /* writes only the rows of its index */
        if (op == OP_transpose) continue;   /* run/ exchanges the dims of x */
        if (has_expert_rows((OpId)op)) continue;
        if (op >= OP_linear_blocks && op <= OP_linear_blocks_dw)
            continue; /* extents of values and scales go together: test_kernels_fp8 */
        for (const char *l = letters; *l; l++)
            for (int keep = 0; keep < 2 && !is_never_empty((OpId)op, *l); keep++, n_tried++) {
                try_empty(&c->b, &device_ref, (OpId)op, *l, F64, keep);
                for (CpuSimd s = CPU_BASE; s < N_CPU_SIMD; s++)
                    for (int t = 0; t < N_CPU_TYPES && cpu_has(s); t++)
                        try_empty(&c->b, device_cpu_simd(s), (OpId)op, *l, cpu_types[t], keep);
            }
    }
    assert_in_range(n_tried, 150, 450);
}

/* Kernels that no op calls: a rank's part of a pack may be empty. */
static void empty_packs(void **state)
{
    CpuBench *c = *state;
    for (int s = -1; s < N_CPU_SIMD; s++) {
        if (s >= 0 && !cpu_has((CpuSimd)s)) continue;
        const Device *d = s < 0 ? &device_ref : device_cpu_simd((CpuSimd)s);
        for (int keep = 0; keep < 2; keep++) {
            bench_clear(&c->b);
            const Tensor none = NEW(&c->b, F32, DENSE, 0);
            const Tensor sum = accumulator(&c->b, NEW(&c->b, F64, DENSE, 1), keep);
            const double want = keep ? get(&sum, 0) : 0;
            const Call squares = {
                .in = {none}, .n_in = 1, .out = {sum}, .n_out = 1, .number = {keep}};
            assert_int_equal(d->kernel[KERNEL_sum_squares](&squares), OK);
            assert_true(get(&sum, 0) == want);
            const Call update = {.in = {none},
                                 .n_in = 1,
                                 .out = {none, none, none},
                                 .n_out = 3,
                                 .number = {0.1, 1, 0.1, 0.1}};
            assert_int_equal(d->kernel[KERNEL_adamw](&update), OK);
            Call plain = update;
            plain.n_out = 1;
            assert_int_equal(d->kernel[KERNEL_sgd](&plain), OK);
            expect_gaps(&c->b);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ops),
        cmocka_unit_test(empty_packs),
    };
    return cmocka_run_group_tests(tests, cpu_setup, cpu_teardown);
}
