/* test_ranks_tp_weights.c -- weights with layouts of their own along tp: whatever mixture of whole,
 * outputs and inputs a layer has, ranks compute what one rank computes, and send the bytes that the
 * programs predict. */
#include "support/expect.h"

#include <stdio.h>
#include "compile/tp_weights.h"
#include "support/world.h"

enum { MAX_WEIGHTS = 8, RULES_BYTES = 512 };

typedef struct {
    const char *model;
    const char *weight[MAX_WEIGHTS]; /* patterns; NULL: no more */
} OpenModel;

static const OpenModel models[] = {
    {"llama",
     {"*q_proj.*", "*k_proj.*", "*v_proj.*", "*o_proj.*", "*gate_proj.*", "*down_proj.*",
      "*embed_tokens.*", "lm_head.*"}},
    {"llama-tied",
     {"*q_proj.*", "*k_proj.*", "*v_proj.*", "*o_proj.*", "*up_proj.*", "*down_proj.*",
      "*embed_tokens.*"}},
    {"gpt2",
     {"*q_proj.*", "*k_proj.*", "*v_proj.*", "attn.c_proj.*", "mlp.c_fc.*", "mlp.c_proj.*", "wte.*",
      "wpe.*"}},
    {"mixtral", {"*q_proj.*", "*k_proj.*", "*v_proj.*", "*o_proj.*", "*gate.weight", "lm_head.*"}},
};
enum { N_MODELS = sizeof models / sizeof *models };

/* xorshift: the same layouts everywhere. */
static unsigned next(unsigned *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 17;
    return *seed ^= *seed << 5;
}

static void random_rules(const OpenModel *m, unsigned *seed, char *out)
{
    int n = 0;
    for (int i = 0; i < MAX_WEIGHTS && m->weight[i]; i++)
        n += snprintf(out + n, (size_t)(RULES_BYTES - n), "%s%s=%s", n ? "," : "", m->weight[i],
                      tp_layout_name((TpLayout)(next(seed) >> 8) % N_TP_LAYOUTS));
}

/* A mesh and options that change from one trial to the next. */
static void set_layout(int trial, ParallelSettings *p)
{
    p->mesh.tp = 2 + trial % 3;
    p->sequence = trial / 3 % 2;
    p->zero = trial % 4;
    p->mesh.dp_shard = 1 + (trial % 5 == 0 && p->mesh.tp < 4);
    p->mesh.pp = 1 + (trial % 7 == 0);
    p->keep_gathered = trial % 11 == 0;
}

/* Runs a trial; false: the rules are refused. */
static bool runs(World w, const WorldResult *one, int trial, const char *rules)
{
    WorldResult many;
    set_layout(trial, &w.set.parallel);
    if (w.set.parallel.mesh.dp_shard == 2) w.set.micros /= 2;
    w.set.parallel.tp_weights = rules;
    const Err err = world_run_job(&w, &many);
    if (err == ERR_CONFIG) return false;
    if (err != OK) fail_msg("%s: %s", rules, err_text());
    int64_t sent = 0;
    for (int i = 0; i < N_COMM_KINDS; i++) sent += many.sent[i];
    if (world_differ_all(one, &many) > 1e-10)
        fail_msg("%s, trial %d: %s: differs by %g", w.set.config->name, trial, rules,
                 world_differ_all(one, &many));
    assert_true(sent == many.predicted);
    world_result_close(&many);
    return true;
}

static void layouts_compute_the_same(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        World w = world_of(test_job_settings(models[m].model, JOB_STEP));
        unsigned seed = 1 + (unsigned)m;
        WorldResult one;
        int n = 0;
        w.steps = 2;
        DO(world_run_job(&w, &one));
        for (int trial = 0; trial < 48; trial++) {
            char rules[RULES_BYTES];
            random_rules(&models[m], &seed, rules);
            n += runs(w, &one, trial, rules);
        }
        if (n < 16) fail_msg("%s: %d of 48 layouts are not refused", models[m].model, n);
        world_result_close(&one);
    }
}

/* With all weights as Megatron has them, spelled out, the state is sharded as without rules. */
static void megatron_may_be_written(void **state)
{
    (void)state;
    static const char rules[] = "*q_proj.*=outputs,*k_proj.*=outputs,*v_proj.*=outputs,"
                                "*o_proj.*=inputs,*gate_proj.*=outputs,layer/*up_proj.*=outputs,"
                                "*down_proj.*=inputs,*embed_tokens.*=outputs,lm_head.*=outputs";
    World w = world_of(test_job_settings("llama", JOB_STEP));
    WorldResult plain, written;
    w.steps = 2;
    w.set.parallel.mesh.tp = 4;
    DO(world_run_job(&w, &plain));
    w.set.parallel.tp_weights = rules;
    DO(world_run_job(&w, &written));
    assert_true(world_differ_all(&plain, &written) <= 1e-12); /* sums may be in another order */
    for (int r = 0; r < 4; r++)
        assert_int_equal(plain.bytes[r][ARENA_STATE], written.bytes[r][ARENA_STATE]);
    world_result_close(&plain);
    world_result_close(&written);
}

/* The top byte of each arena, where weights are whole and cut along both dims. */
static void memory_is_exact(void **state)
{
    (void)state;
    World w = world_of(test_job_settings("llama", JOB_STEP));
    w.set.parallel.mesh.tp = 2;
    w.set.parallel.sequence = true;
    w.set.parallel.tp_weights = "*k_proj.*=whole,*v_proj.*=whole,*gate_proj.*=inputs,"
                                "*down_proj.*=outputs,lm_head.*=inputs";
    world_peaks_are_exact("tp_weights", w);
}

static void bad_rules_are_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"mpl.*=whole", "matches no weight whose layout along tp can be chosen"},
        {"mlp.*", "outputs, inputs or whole"},
        {"*q_proj.*=outputs,mlp.*=rows,*=whole", "=mlp.*=rows: write a pattern"},
        {"input_layernorm.*=outputs", "matches no weight whose layout along tp can be chosen"},
        {"mlp.*=whole,mlp.up_proj.*=inputs", "patterns before it match all its weights"},
        {"head/*q_proj.*=whole", "matches no weight"},
        {"*q_proj.*=whole", "self_attn.q_proj.weight of layer is not along outputs"},
        {"*gate_proj.*=outputs", "has 18 outputs, too few for the 19 ranks"},
    };
    Arena arena;
    DO(arena_open(&arena, "test", ARENA_PLENTY));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        JobSettings set = test_job_settings("llama", JOB_STEP);
        Job *job;
        set.parallel.mesh.tp = strstr(bad[i][1], "19") ? 19 : 4;
        set.parallel.tp_weights = bad[i][0];
        DO(ARENA_NEW(&arena, 1, &job));
        expect_error(bad[i][0], job_share(&set, &arena, job), ERR_CONFIG, bad[i][1]);
    }
    arena_close(&arena);
}

/* Tied words have one layout, on one stage and on two. */
static void tied_words_are_alike(void **state)
{
    (void)state;
    static const char *const bad[] = {"embed/wte.*=whole", "head/wte.*=inputs",
                                      "embed/wte.*=inputs,head/wte.*=outputs"};
    Arena arena;
    DO(arena_open(&arena, "test", ARENA_PLENTY));
    for (int i = 0; i < 3 * 2; i++) {
        JobSettings set = test_job_settings("gpt2", JOB_STEP);
        Job *job;
        set.parallel.mesh.tp = 2;
        set.parallel.mesh.pp = 1 + i % 2;
        set.parallel.tp_weights = bad[i / 2];
        DO(ARENA_NEW(&arena, 1, &job));
        expect_error(bad[i / 2], job_compile(&set, &arena, job), ERR_CONFIG, "hold one weight");
    }
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_compute_the_same), cmocka_unit_test(megatron_may_be_written),
        cmocka_unit_test(memory_is_exact), cmocka_unit_test(bad_rules_are_refused),
        cmocka_unit_test(tied_words_are_alike)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
