/* test_job_slices.c -- cuts of sequences and the cost of slices: flops counted in graphs equal
 * those of programs; slices of equal flops are as equal as whole tokens allow; errors name a
 * possible value. */
#include <math.h>

#include "support/expect.h"
#include "support/jobs.h"
#include "train/loop.h"
#include "ir/pairs.h"
#include "job/slices.h"

enum { LONG = 64 };

static void compile(const JobSettings *set, Arena *arena, Job *job)
{
    DO(arena_open(arena, "job", ARENA_PLENTY));
    DO(job_compile(set, arena, job));
}

static JobSettings sliced(const char *model, int slices)
{
    JobSettings set = test_job_settings(model, JOB_GRADIENTS);
    set.batch = (BatchShape){1, LONG};
    set.schedule = "seq1f1b";
    set.parallel.slices = slices;
    return set;
}

static double all_flops(const LinkedProgram *lp)
{
    double flops = 0;
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        for (int k = l->program ? l->program->first[l->action.phase] : 0;
             l->program && k < l->program->first[l->action.phase + 1]; k++)
            flops += linked_flops(lp, l, l->program, &l->program->instr[k]);
    }
    return flops;
}

static ModelConfig long_enough(const char *model)
{
    ModelConfig c = *test_model(model);
    c.max_positions = LONG;
    return c;
}

/* Tokens cost the same in any slice, and all slices together have the pairs of the sequence.
 * Graphs have a few additions more, which programs fuse into GEMMs. */
static void flops_of_slices(void **state)
{
    const ModelConfig config = long_enough("llama");
    const double pair = 14.0 * (double)(config.n_layers * config.n_heads * config.head_size);
    double tokens = 0;
    (void)state;
    for (int slices = 1; slices < 6; slices++) {
        JobSettings set = sliced("llama", slices);
        SliceCost cost;
        Arena arena;
        static Job job;
        const double pairs = LONG * (LONG + 1) / 2;
        set.config = &config;
        compile(&set, &arena, &job);
        DO(model_slice_cost(&job.model, &config, &arena, &cost));
        const double got = all_flops(&job.linked) / set.micros - pair * pairs;
        if (slices == 1) tokens = got;
        assert_true(cost.pair == pair); /* 4 forward, 10 backward */
        assert_true(fabs(cost.token * LONG - tokens) <= 0.01 * tokens);
        if (fabs(got - tokens) > 1e-9 * tokens)
            fail_msg("%d slices: %g, not %g", slices, got, tokens);
        arena_close(&arena);
    }
}

/* Model flops depend neither on slices nor on the pointwise ops fused into GEMMs, which
 * recomputation changes. */
static void flops_of_the_model(void **state)
{
    static const Recompute how[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    (void)state;
    double whole = 0;
    for (int i = 0; i < 12; i++) {
        const int slices = i / 3 + 1;
        const ModelConfig config = long_enough("gpt2");
        JobSettings set = sliced("gpt2", slices);
        set.compile.recompute = how[i % 3];
        Arena arena;
        static Job job;
        set.config = &config;
        compile(&set, &arena, &job);
        if (i == 0) whole = job_model_flops(&job);
        assert_true(fabs(job_model_flops(&job) - whole) <= 1e-12 * whole);
        arena_close(&arena);
    }
}

/* Moving a cut by one token makes the adjacent slices no more equal. With a window all tokens cost
 * the same. */
static void equal_flops(void **state)
{
    static const char *const model[] = {"llama", "gpt2", "mistral"};
    (void)state;
    for (int m = 0; m < 3; m++)
        for (int slices = 2; slices < 9; slices++) {
            const ModelConfig config = long_enough(model[m]);
            JobSettings set = sliced(model[m], slices);
            SliceCost cost;
            Arena arena;
            static Job job;
            set.config = &config;
            compile(&set, &arena, &job);
            DO(model_slice_cost(&job.model, &config, &arena, &cost));
            assert_true((cost.pair == 0) == (config.window > 0));
            const int64_t *cut = job.slices.cut;
            const double most = slice_time(&cost, LONG - 1, 1), share = slice_time(&cost, 0, LONG);
            for (int q = 0; q < slices; q++) {
                const double time = slice_time(&cost, cut[q], cut[q + 1] - cut[q]);
                assert_true(fabs(time - share / slices) <= most);
            }
            assert_true(cut[1] >= LONG / slices);
            arena_close(&arena);
        }
}

static const ProgTensor *tensor_named(const Program *p, const char *name)
{
    for (int i = 0; i < p->n_tensors; i++)
        if (strcmp(p->tensor[i].name, name) == 0) return &p->tensor[i];
    fail_msg("program %s has no tensor %s", p->kind, name);
    return NULL;
}

/* A slice saves its queries for backward but not its keys and values: those are stored once for all
 * slices. */
static void keys_are_stored_once(void **state)
{
    const ModelConfig config = long_enough("llama");
    JobSettings set = sliced("llama", 3);
    Arena arena;
    static Job job;
    (void)state;
    set.config = &config;
    compile(&set, &arena, &job);
    for (int q = 0; q < 3; q++) {
        const Program *p = linked_program(&job.linked, 1, 0, q);
        const ProgTensor *query = tensor_named(p, "attn.q.rope");
        assert_int_equal(query->at[SPLIT].region, REGION_FRAME_I);
        assert_ptr_equal(&p->tensor[query->view_of], query);
        assert_int_equal(query->dim[0].cap, job.slices.cut[q + 1] - job.slices.cut[q]);
        assert_int_equal(tensor_named(p, "attn.k.rope")->at[SPLIT].region, REGION_SCRATCH);
        assert_int_equal(tensor_named(p, "attn.v")->at[SPLIT].region, REGION_SCRATCH);
        assert_int_equal(tensor_named(p, "attn.v.all")->at[MERGED].region, REGION_MICRO);
    }
    arena_close(&arena);
}

static double attention_flops(const LinkedProgram *lp)
{
    double flops = 0;
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        for (int k = l->program ? l->program->first[l->action.phase] : 0;
             l->program && k < l->program->first[l->action.phase + 1]; k++)
            if (op_attends(l->program->instr[k].op))
                flops += linked_flops(lp, l, l->program, &l->program->instr[k]);
    }
    return flops;
}

typedef struct {
    double flops, most; /* of attention: of all ranks, of the busiest */
    size_t keys;        /* bytes of keys and values of all slices, of all ranks */
} SharedSlices;

static SharedSlices share_slices(int cp, ContextKind kind, TokenMap tokens)
{
    const ModelConfig config = long_enough("llama");
    SharedSlices all = {0};
    for (int rank = 0; rank < cp; rank++) {
        JobSettings set = sliced("llama", 3);
        Arena arena;
        static Job job;
        set.config = &config;
        set.parallel.mesh.cp = cp;
        set.parallel.context = kind;
        set.parallel.tokens = tokens;
        set.parallel.rank = rank;
        compile(&set, &arena, &job);
        const double flops = attention_flops(&job.linked);
        all.flops += flops;
        all.most = flops > all.most ? flops : all.most;
        for (int q = 0; q < 3; q++)
            assert_int_equal(linked_program(&job.linked, 1, 0, q)->bytes[REGION_MICRO],
                             linked_program(&job.linked, 1, 0, 0)->bytes[REGION_MICRO]);
        all.keys += linked_program(&job.linked, 1, 0, 0)->bytes[REGION_MICRO];
        arena_close(&arena);
    }
    return all;
}

/* Over cp all ranks together have the keys of one rank, and its pairs; with zigzag tokens, evenly.
 */
static void keys_stay_sharded(void **state)
{
    static const ContextKind kinds[] = {CONTEXT_GATHER, CONTEXT_ULYSSES, CONTEXT_RING,
                                        CONTEXT_DOUBLE_RING};
    const SharedSlices one = share_slices(1, CONTEXT_AUTO, TOKENS_AUTO);
    (void)state;
    for (int i = 0; i < 4; i++)
        for (TokenMap tokens = TOKENS_CONTIGUOUS; tokens < N_TOKEN_MAPS; tokens++) {
            const SharedSlices two = share_slices(2, kinds[i], tokens);
            if (two.keys != one.keys || two.flops != one.flops)
                fail_msg("%s, %s: %zu bytes of keys, not %zu; %g flops, not %g",
                         context_name(kinds[i]), token_map_name(tokens), two.keys, one.keys,
                         two.flops, one.flops);
            if (tokens == TOKENS_ZIGZAG) assert_true(two.most < 1.05 * two.flops / 2);
        }
}

static void refused(void **state)
{
    Arena arena;
    Job job;
    (void)state;
    DO(arena_open(&arena, "job", ARENA_PLENTY));
    JobSettings set = test_job_settings("llama", JOB_STEP);
    set.schedule = "seq1f1b";
    set.batch = (BatchShape){2, TEST_T};
    expect_error("two sequences", job_compile(&set, &arena, &job), ERR_CONFIG, "set batch.micro=1");
    set.batch = (BatchShape){1, TEST_T};
    set.parallel.slices = TEST_T + 1;
    expect_error("too many", job_compile(&set, &arena, &job), ERR_CONFIG, "at most 9");
    set.parallel.slices = 2;
    set.schedule = "1f1b";
    expect_error("whole", job_compile(&set, &arena, &job), ERR_CONFIG,
                 "choose gpipe, seq1f1b or terapipe");
    set.schedule = "seq1f1b";
    static const int64_t short_cut[] = {0, 4, 8}, empty[] = {0, 9, 9};
    set.parallel.cuts = short_cut;
    expect_error("rows left", job_compile(&set, &arena, &job), ERR_CHECK, "0 to 8");
    set.parallel.cuts = empty;
    expect_error("an empty slice", job_compile(&set, &arena, &job), ERR_CHECK, "empty");
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flops_of_slices),   cmocka_unit_test(flops_of_the_model),
        cmocka_unit_test(equal_flops),       cmocka_unit_test(keys_are_stored_once),
        cmocka_unit_test(keys_stay_sharded), cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
