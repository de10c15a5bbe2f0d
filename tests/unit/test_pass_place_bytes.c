/* test_pass_place_bytes.c -- the traffic of all ranks, by formula and exactly: elements, summed
 * over the ranks of the group.
 *
 *   p ranks, T tokens, n = T x width, u = (p - 1) n
 *
 *                        F        backward
 *   layer, plain         4 u      4 u          two sums per direction
 *   layer, sequence      4 u      6 u          gathers and scatters; regathered
 *     gathered values kept  4 u   4 u
 *   recompute full adds  the first sum of F (2 u; sequence: 1 u), and the gathers that were kept;
 *                        the second makes y, which backward does not read
 *   embedding, plain     2 u      0
 *   embedding, sequence  u        u
 *   head                 2 u + 6 (p - 1) T     a sum, or a gather and a scatter; per token the
 *                                 maximum (2) and two sums (4), for any chunks */
#include "place_test.h"

typedef struct {
    const char *kind;
    bool sequence, kept;
    Recompute recompute;
    int forward, backward, per_token; /* times (p - 1) n, (p - 1) n and (p - 1) T */
} Formula;

static const Formula formulas[] = {
    {"layer", false, false, RECOMPUTE_NONE, 4, 4, 0},
    {"layer", false, true, RECOMPUTE_SELECTIVE, 4, 4, 0},
    {"layer", false, false, RECOMPUTE_FULL, 4, 6, 0},
    {"layer", true, false, RECOMPUTE_NONE, 4, 6, 0},
    {"layer", true, false, RECOMPUTE_SELECTIVE, 4, 6, 0},
    {"layer", true, true, RECOMPUTE_NONE, 4, 4, 0},
    {"layer", true, true, RECOMPUTE_SELECTIVE, 4, 4, 0},
    {"layer", true, false, RECOMPUTE_FULL, 4, 7, 0},
    {"layer", true, true, RECOMPUTE_FULL, 4, 7, 0},
    {"embed", false, false, RECOMPUTE_NONE, 2, 0, 0},
    {"embed", false, false, RECOMPUTE_FULL, 2, 0, 0},
    {"embed", true, false, RECOMPUTE_NONE, 1, 1, 0},
    {"embed", true, true, RECOMPUTE_FULL, 1, 1, 0},
    {"head", false, false, RECOMPUTE_NONE, 2, 0, 6},
    {"head", true, false, RECOMPUTE_NONE, 2, 0, 6},
    {"head", true, true, RECOMPUTE_FULL, 2, 0, 6},
};

static const Graph *kind_of(const ModelBed *m, const char *name)
{
    for (int k = 0; k < m->model.n_kinds; k++)
        if (strcmp(m->model.kind[k].kind, name) == 0) return &m->model.kind[k];
    fail_msg("no kind %s", name);
    return NULL;
}

static void expect_sent(const Formula *f, const char *phase, int64_t got, int64_t want)
{
    if (got != want)
        fail_msg("%s%s%s, recompute %d, %s: %lld elements leave, not %lld", f->kind,
                 f->sequence ? ", sequence" : "", f->kept ? ", kept" : "", f->recompute, phase,
                 (long long)got, (long long)want);
}

static void try_formula(const ModelBed *m, const Formula *f, int tp)
{
    const CompileOptions o = {.recompute = f->recompute,
                              .backward = true,
                              .strategy = f->sequence ? &m->sequence : &m->plain,
                              .keep_gathered = f->kept};
    const int64_t u = (tp - 1) * (int64_t)ROWS * m->config.width, t = (tp - 1) * (int64_t)ROWS;
    Ranks r;
    ranks_open(&r, kind_of(m, f->kind), &o, tp);
    const int64_t split = ranks_sent_all(&r, PHASE_I) + ranks_sent_all(&r, PHASE_W);
    expect_sent(f, "F", ranks_sent_all(&r, PHASE_F), f->forward * u + f->per_token * t);
    expect_sent(f, "B", ranks_sent_all(&r, PHASE_B), f->backward * u);
    expect_sent(f, "I and W", split, f->backward * u);
    ranks_close(&r);
}

static void test_formulas(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int tp;
    } row[] = {{"gpt2", 4}, {"llama", 3}, {"qwen3", 2}, {"qwen2", 5}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ModelBed m;
        model_bed_open(&m, test_model(row[i].model));
        for (size_t k = 0; k < sizeof formulas / sizeof *formulas; k++)
            try_formula(&m, &formulas[k], row[i].tp);
        model_bed_close(&m);
    }
}

/* By kind of transfer and phase. */
static void test_kinds(void **state)
{
    (void)state;
    ModelBed m;
    Ranks r;
    const int tp = 3;
    model_bed_open(&m, test_model("llama"));
    const int64_t u = (tp - 1) * (int64_t)ROWS * m.config.width;
    const CompileOptions o = {.backward = true, .strategy = &m.sequence};
    ranks_open(&r, kind_of(&m, "layer"), &o, tp);
    assert_int_equal(ranks_sent(&r, PHASE_F, OP_all_gather), 2 * u);
    assert_int_equal(ranks_sent(&r, PHASE_F, OP_reduce_scatter), 2 * u);
    assert_int_equal(ranks_sent(&r, PHASE_B, OP_all_gather), 4 * u);
    assert_int_equal(ranks_sent(&r, PHASE_B, OP_reduce_scatter), 2 * u);
    ranks_close(&r);
    model_bed_close(&m);
}

/* Rows per chunk by the budget of elements, by the widest part of the vocabulary (23 on 2: 12) or
 * the width (12); the bytes stay, and each chunk has a maximum and a sum. */
static void test_chunks(void **state)
{
    (void)state;
    static const struct {
        int64_t elements;
        int chunks;
    } row[] = {{0, 1}, {12 * ROWS, 1}, {12 * ROWS - 1, 2}, {12 * 5, 3}, {12 * 4, 4}, {12, ROWS}};
    ModelBed m;
    model_bed_open(&m, test_model("llama"));
    for (int sequence = 0; sequence < 2; sequence++)
        for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
            const CompileOptions o = {.backward = true,
                                      .strategy = sequence ? &m.sequence : &m.plain,
                                      .chunk_elements = row[i].elements};
            Ranks r;
            ranks_open(&r, kind_of(&m, "head"), &o, 2);
            assert_int_equal(ranks_agree(&r, "chunks"), 2 * row[i].chunks + 1 + sequence);
            assert_int_equal(ranks_sent_all(&r, PHASE_F), 2 * ROWS * m.config.width + 6 * ROWS);
            ranks_close(&r);
        }
    model_bed_close(&m);
}

/* Ranks whose parts of the vocabulary differ have the same chunks: 61 elements are 5 rows of 12 and
 * 5 of 11, but 66 are 5 of 12 and 6 of 11. */
static void test_chunks_are_equal(void **state)
{
    (void)state;
    ModelConfig c = *test_model("llama");
    c.width = 4;
    c.ff_width = 5;
    ModelBed m;
    model_bed_open(&m, &c);
    for (int64_t elements = 12; elements < 12 * ROWS; elements += 3) {
        const CompileOptions o = {
            .backward = true, .strategy = &m.plain, .chunk_elements = elements};
        Ranks r;
        ranks_open(&r, kind_of(&m, "head"), &o, 2);
        ranks_agree(&r, "uneven vocabulary");
        ranks_close(&r);
    }
    model_bed_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formulas),
                                       cmocka_unit_test(test_kinds), cmocka_unit_test(test_chunks),
                                       cmocka_unit_test(test_chunks_are_equal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
