/* Attention on the GPU over many tiles of rows and blocks of keys: more tiles than multiprocessors,
 * documents, two ranges far apart, rows and whole tiles that see nothing, keys that no row sees. */
#include "gpu_test.h"
#include "unit/attention_test.h"

#include <unistd.h>

typedef enum { TRIANGLE, DOCUMENTS, FAR_RANGES, COMB, EMPTY_TILES, BAND, N_KINDS } Kind;

static const Case sizes[] = {
    {.t = 1100, .s = 1100, .h = 2, .g = 1, .c = 64},
    {.t = 900, .s = 900, .h = 2, .g = 2, .c = 128},
    {.t = 200, .s = 200, .h = 75, .g = 25, .c = 64},
    {.t = 140, .s = 260, .h = 80, .g = 10, .c = 128},
    {.t = 333, .s = 1001, .h = 3, .g = 1, .c = 40},
    {.t = 333, .s = 1001, .h = 4, .g = 2, .c = 96},
    {.t = 260,
     .s = 100,
     .h = 3,
     .g = 2,
     .c = 128,
     .attr = {.attention = {.group = 2, .head_at = 1}}},
};
enum { N_TILE_SIZES = sizeof sizes / sizeof *sizes };

static int smaller(int a, int b) { return a < b ? a : b; }

/* The ranges of row t; the last row is at the position of the last key. */
static void kind_row(Kind kind, int t, const Case *c, int range[4])
{
    static const int start[] = {0, 33, 64, 300, 310, 505, 700, 701, 1000};
    const int keys = (int)c->s, end = t + 1 + keys - (int)c->t;
    int document = 0;
    for (int i = 0; i < 9; i++)
        if (start[i] < end) document = start[i];
    const int odd = t % 2; /* the two ranges of a row do not overlap */
    const int far[2][4] = {{keys - 70, keys - 9, end / 2 - 20, smaller(end / 2, keys - 70)},
                           {end - 70, end, 5, smaller(40, end - 70)}};
    const int rows[N_KINDS][4] = {
        [TRIANGLE] = {0, end, 0, 0},
        [DOCUMENTS] = {document, end, 0, 0},
        [FAR_RANGES] = {far[t / 90 % 2][0], far[t / 90 % 2][1], far[t / 90 % 2][2],
                        far[t / 90 % 2][3]},
        [COMB] = {odd ? keys - 5 : t / 64 * 64, odd ? keys : t / 64 * 64 + 10, 20,
                  t % 7 == 3 ? 22 : 20},
        [EMPTY_TILES] = {0, t >= 64 && t < 250 ? 0 : end, 9, 9},
        [BAND] = {larger(end - 200, 0), end, 0, 0},
    };
    memcpy(range, rows[kind], sizeof rows[kind]);
}

/* A key position of 0 is that of the first key; rows hold it plus key_at. */
static void open_kind(Case *c, Kind kind, int key_at)
{
    bool seen[2000] = {false};
    case_open(&gpu.b, c, FULL, 1);
    if (c->strides == DENSE && c->s != c->t) {
        c->k = RANDOM(&gpu.b, BF16, DENSE, c->s, c->g, c->c);
        c->v = RANDOM(&gpu.b, BF16, DENSE, c->s, c->g, c->c);
    }
    c->attr.attention.key_at = key_at;
    c->attr.attention.scale = 0.2;
    for (int t = 0; t < c->t; t++) {
        int range[4];
        kind_row(kind, t, c, range);
        for (int r = 0; r < 4; r++) put(&c->ranges, 4 * t + r, range[r] + key_at);
        for (int r = 0; r < 4; r += 2)
            for (int key = larger(range[r], 0); key < range[r + 1] && key < c->s; key++)
                seen[key] = true;
    }
    for (int64_t i = 0; i < c->s * c->g * c->c; i++)
        if (!seen[i / (c->g * c->c)]) {
            put(&c->k, i, (double)NAN);
            put(&c->v, i, (double)NAN);
        }
}

static Case tile_case(int size, int kind)
{
    Case c = sizes[size];
    c.type = BF16;
    c.strides = (size + kind) % 3 ? DENSE : PADDED;
    open_kind(&c, (Kind)kind, kind % 2 ? 0 : 37);
    return c;
}

static void forward(void **state)
{
    (void)state;
    for (int size = 0; size < N_TILE_SIZES; size++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            const Case c = tile_case(size, kind);
            Call call = attention_call(&c);
            call.out[0] = NEW(&gpu.b, BF16, DENSE, c.t, c.h, c.c);
            expect_like_ref(KERNEL_attention, &call, gpu_terms(4 * (double)(c.s + c.c)),
                            ldexp(1, -7));
        }
}

static void carried_on(void **state)
{
    (void)state;
    for (int size = 0; size < N_TILE_SIZES; size++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            const Case c = tile_case(size, kind);
            const Call call = attention_carry_call(&gpu.b, &c, kind % 2);
            expect_like_ref(KERNEL_attention, &call, gpu_terms(8 * (double)(c.s + c.c)),
                            2 * ldexp(1, -7));
        }
}

/* The max of a row rises by many powers of two from block to block, or falls. */
static void steep_rows(void **state)
{
    (void)state;
    for (int falls = 0; falls < 2; falls++) {
        Case c = {.type = BF16, .strides = DENSE, .t = 200, .s = 700, .h = 2, .g = 1, .c = 64};
        case_open(&gpu.b, &c, FULL, 1);
        c.k = RANDOM(&gpu.b, BF16, DENSE, c.s, c.g, c.c);
        c.v = RANDOM(&gpu.b, BF16, DENSE, c.s, c.g, c.c);
        for (int64_t i = 0; i < c.t * c.h * c.c; i++) put(&c.q, i, 1);
        for (int64_t i = 0; i < c.s * c.g * c.c; i++) {
            const double key = (double)(i / (c.g * c.c));
            put(&c.k, i, (falls ? 700 - key : key) / 350 + get(&c.k, i) / 8);
        }
        Call call = attention_call(&c);
        call.out[0] = NEW(&gpu.b, BF16, DENSE, c.t, c.h, c.c);
        expect_like_ref(KERNEL_attention, &call, 1e-4, ldexp(1, -7));
    }
}

#define CHOICES "attention_choices.txt"

/* Measures the call, then writes `by` as the choice of all attention shapes into the file of
 * choices and loads it; returns the number of shapes. */
static int force_kernels(const Call *call, int by)
{
    char text[1 << 14];
    int shapes = 0;
    gpu.m->autotune->measure(gpu.context, true);
    char *bytes = malloc(gpu.b.arena.used_bytes);
    assert_non_null(bytes);
    run_on_gpu(KERNEL_attention, call, gpu.b.arena.base, bytes);
    free(bytes);
    gpu.m->autotune->measure(gpu.context, false);
    gpu_ok(gpu.m->autotune->save(gpu.context, CHOICES));
    FILE *f = fopen(CHOICES, "r");
    assert_non_null(f);
    const size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    for (char *at = strstr(text, "\nattention "); at; at = strstr(at + 1, "\nattention ")) {
        char *choice = strstr(at, ": ");
        assert_true(choice && choice[2] >= '1' && choice[2] <= '3' && choice[3] == '\n');
        choice[2] = (char)('0' + by);
        shapes++;
    }
    f = fopen(CHOICES, "w");
    assert_true(f && fwrite(text, 1, n, f) == n);
    fclose(f);
    return shapes;
}

/* A causal batch that cuDNN could run, too. */
static Call causal_call(Case *c)
{
    *c = (Case){.type = BF16, .strides = DENSE, .t = 768, .s = 768, .h = 4, .g = 2, .c = 64};
    case_open(&gpu.b, c, FULL, 1);
    for (int t = 0; t < c->t; t++)
        for (int r = 0; r < 4; r++)
            put(&c->ranges, 4 * t + r, r == 0 ? t / 384 * 384 : r == 1 ? t + 1 : 0);
    c->attr.attention.scale = 0.125;
    c->attr.attention.causal = 384;
    Call call = attention_call(c);
    call.out[0] = NEW(&gpu.b, BF16, DENSE, c->t, c->h, c->c);
    call.out[1] = NEW(&gpu.b, F32, DENSE, c->t, c->h);
    return call;
}

/* Root of the summed squares of o - exact. */
static double error_of(const Call *call, const Values *exact)
{
    const size_t bytes = gpu.b.arena.used_bytes;
    char *after = malloc(bytes);
    double sum = 0;
    assert_non_null(after);
    run_on_gpu(KERNEL_attention, call, gpu.b.arena.base, after);
    Tensor o = call->out[0];
    o.data = after + ((char *)o.data - gpu.b.arena.base);
    for (int64_t i = 0; i < tensor_count(&o); i++) {
        const double off = get(&o, i) - exact->value[0][i];
        sum += off * off;
    }
    free(after);
    return sqrt(sum);
}

/* Each kernels that a file of choices may name compute the call; ours for sm_90 are at least as
 * accurate as the others. A choice that is none is refused. */
static void choices_are_kept(void **state)
{
    (void)state;
    Case c;
    const Call call = causal_call(&c);
    const Values exact = exact_values(KERNEL_attention, &call);
    double error[4] = {0};
    for (int by = 1; by <= 3; by++) {
        assert_true(force_kernels(&call, by) > 0);
        gpu_ok(gpu.m->autotune->load(gpu.context, CHOICES));
        error[by] = error_of(&call, &exact);
    }
    printf("errors of o: ours for sm_90 %.3g, cuDNN %.3g, ours generic %.3g\n", error[1], error[2],
           error[3]);
    assert_true(error[1] > 0 && error[1] <= 1.02 * error[2] && error[1] <= 1.02 * error[3]);
    force_kernels(&call, 9);
    assert_int_equal(gpu.m->autotune->load(gpu.context, CHOICES), ERR_CONFIG);
    assert_non_null(strstr(err_text(), "malformed"));
    assert_int_equal(unlink(CHOICES), 0);
    values_free(&call, exact);
    bench_clear(&gpu.b);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(forward), cmocka_unit_test(carried_on),
                                          cmocka_unit_test(steep_rows),
                                          cmocka_unit_test(choices_are_kept)};

GPU_MAIN(tests)
