/* test_pass_place_gemm.c -- every sharding of a model over tp, as data: all ranks compile, and
 * their transfers match.
 *
 * Models x tp up to 8 x (plain, sequence) x (regathered, kept), with the kinds of recomputation in
 * turn, so that each of them meets every other option. 14 rows, which few tp divide. */
#include "place_test.h"

enum { SEQUENCE = 1, KEPT = 2, N_VARIANTS = 4 };

static void try_unit(const Graph *unit, const CompileOptions *o, int tp, const char *name)
{
    Ranks r;
    char text[192];
    snprintf(text, sizeof text, "%s, %s", name, unit->kind);
    ranks_open(&r, unit, o, tp);
    const int n = ranks_agree(&r, text);
    if ((tp > 1) != (n > 0)) fail_msg("%s: %d transfers", text, n);
    ranks_close(&r);
}

static void try_variant(const ModelBed *m, int tp, int variant, Recompute recompute)
{
    static const char *const name[] = {"none", "selective", "full"};
    const CompileOptions o = {.recompute = recompute,
                              .chunk_elements = 16 * m->config.vocab / tp,
                              .backward = true,
                              .strategy = variant & SEQUENCE ? &m->sequence : &m->plain,
                              .keep_gathered = variant & KEPT};
    char text[128];
    snprintf(text, sizeof text, "%s, tp=%d%s%s, recompute %s", m->config.name, tp,
             variant & SEQUENCE ? ", sequence" : "", variant & KEPT ? ", kept" : "",
             name[recompute]);
    for (int kind = 0; kind < m->model.n_kinds; kind++)
        try_unit(&m->model.kind[kind], &o, tp, text);
}

static void try_model(const ModelConfig *config, int step)
{
    ModelBed m;
    model_bed_open(&m, config);
    for (int tp = 1; tp <= MAX_TP; tp += step)
        for (int variant = 0; variant < N_VARIANTS; variant++)
            try_variant(&m, tp, variant, (Recompute)((tp + variant) % 3));
    model_bed_close(&m);
}

/* Every tp for one model of each kind; some for its variants. */
static void test_gemm(void **state)
{
    (void)state;
    static const char *const every[] = {"gpt2", "llama", "qwen3"};
    static const char *const some[] = {"gpt2-untied", "llama-tied", "mistral", "qwen2"};
    const ModelConfig wide = wide_model();
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) try_model(test_model(every[i]), 1);
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) try_model(test_model(some[i]), 3);
    try_model(&wide, 1);
}

/* Without a backward part, as in validation. */
static void test_loss_alone(void **state)
{
    (void)state;
    ModelBed m;
    model_bed_open(&m, test_model("gpt2"));
    for (int variant = 0; variant < 2; variant++)
        for (int kind = 0; kind < m.model.n_kinds; kind++) {
            const CompileOptions o = {.strategy = variant ? &m.sequence : &m.plain,
                                      .chunk_elements = 40};
            try_unit(&m.model.kind[kind], &o, 3, variant ? "loss, sequence" : "loss");
        }
    model_bed_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gemm),
                                       cmocka_unit_test(test_loss_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
