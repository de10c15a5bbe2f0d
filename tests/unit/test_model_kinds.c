/* test_model_kinds.c -- models whose layers are of several kinds: the units that a family's table
 * makes, many ranks against one within 1e-10, exact memory, and strategy rows of one kind. */
#include "support/expect.h"

#include <stdio.h>
#include <string.h>
#include "support/two_kinds.h"
#include "support/world.h"

static void tables_make_units(void **state)
{
    static const int kind[] = {0, 1, 2, 1, 2, 1, 3};
    static const char *const name[] = {"embed", "attend", "feed", "head"};
    const ModelConfig c = two_kinds_config(5);
    Arena a;
    Model m;
    (void)state;
    DO(arena_open(&a, "kinds", ARENA_PLENTY));
    DO(model_build(&c, F64, (BatchShape){1, TEST_T}, &a, &m));
    assert_int_equal(m.n_kinds, 4); /* no layer has the kind "unused" */
    assert_int_equal(m.n_units, 7);
    for (int k = 0; k < 4; k++) assert_string_equal(m.kind[k].kind, name[k]);
    for (int u = 0; u < 7; u++) assert_int_equal(m.unit[u].kind, kind[u]);
    assert_true(model_find_param(&m, "layers.2.q_proj.weight") >= 0);
    assert_true(model_find_param(&m, "layers.3.q_proj.weight") < 0);
    assert_true(model_find_param(&m, "layers.3.up_proj.weight") >= 0);
    arena_close(&a);
}

typedef struct {
    MeshSizes mesh;
    int zero;
    bool sequence;
    const char *schedule;
    Recompute recompute;
} KindsCase;

static const KindsCase cases[] = {
    {{.dp_shard = 2}, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.dp_shard = 3}, 3, false, "1f1b", RECOMPUTE_FULL},
    {{.tp = 2, .dp_shard = 2}, 2, true, "1f1b", RECOMPUTE_SELECTIVE},
    {{.cp = 2}, 1, false, "1f1b", RECOMPUTE_NONE},
    {{.pp = 3, .tp = 2}, 0, false, "1f1b", RECOMPUTE_NONE},
    {{.pp = 2, .dp_shard = 2}, 1, false, "zbv", RECOMPUTE_SELECTIVE},
};

/* Five layers: the stages of pp=3 begin with different kinds. */
static void many_ranks(void **state)
{
    const ModelConfig c = two_kinds_config(5);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        World one = world_of(test_job_settings("llama", JOB_STEP));
        WorldResult a, b;
        one.set.config = &c;
        one.set.micros = 4;
        one.steps = 2;
        one.validate = true;
        World many = one;
        many.set.parallel.mesh = cases[i].mesh;
        many.set.parallel.zero = cases[i].zero;
        many.set.parallel.sequence = cases[i].sequence;
        many.set.schedule = cases[i].schedule;
        many.set.compile.recompute = cases[i].recompute;
        one.set.micros = 4 * (cases[i].mesh.dp_shard ? cases[i].mesh.dp_shard : 1);
        DO(world_run_job(&one, &a));
        if (world_run_job(&many, &b) != OK) fail_msg("case %d: %s", (int)i, err_text());
        const double off = world_differ_all(&a, &b);
        if (!(off <= 1e-10)) fail_msg("case %d: off by %g", (int)i, off);
        world_result_close(&a);
        world_result_close(&b);
    }
}

static void memory_is_exact(void **state)
{
    const ModelConfig c = two_kinds_config(3);
    World w = world_of(test_job_settings("llama", JOB_STEP));
    (void)state;
    w.set.config = &c;
    world_peaks_are_exact("two kinds", w);
    w.set.parallel.mesh.dp_shard = 2;
    w.set.parallel.zero = 3;
    world_peaks_are_exact("two kinds, zero 3", w);
}

/* A row "feed/..." shards the weights of one kind. The other has a `norm.weight` too. */
static void rows_of_one_kind(void **state)
{
    static const StrategyRow row[] = {{"feed/norm.weight", "tp", 0, BY_ONE},
                                      {"attend/x", "tp", 0, BY_ONE}};
    const Strategy s = {.name = "by kind", .row = row, .n = 2};
    const ModelConfig c = two_kinds_config(2);
    Arena a;
    Model m;
    Mesh mesh;
    Layout *use, *pin;
    unsigned *pinned;
    (void)state;
    DO(arena_open(&a, "kinds", ARENA_PLENTY));
    DO(model_build(&c, F64, (BatchShape){1, TEST_T}, &a, &m));
    DO(mesh_sized(&(MeshSizes){.tp = 2}, &mesh));
    DO(strategy_use(&s, &m, &mesh, &a, &use));
    assert_int_equal(use[model_find_param(&m, "layers.0.norm.weight")].n_cuts, 0);
    assert_int_equal(use[model_find_param(&m, "layers.1.norm.weight")].n_cuts, 1);
    for (int k = 1; k <= 2; k++) {
        DO(strategy_pins(&s, &m.kind[k], &mesh, &a, &pin, &pinned));
        assert_int_equal(pin[graph_find(&m.kind[k], ROLE_X)].n_cuts, k == 1);
    }
    arena_close(&a);
}

/* Types and extents of inputs are those of their rows of inputs.def, in graphs and in memory. */
static void inputs_follow_their_table(void **state)
{
    static TestJob t;
    const JobSettings set = test_job_settings("gpt2", JOB_STEP);
    (void)state;
    DO(test_job_open(&t, &set, 1));
    const LinkedProgram *lp = &t.job.linked;
    for (int k = 0; k < t.job.model.n_kinds; k++) {
        const Graph *g = &t.job.model.kind[k];
        for (Value v = 0; v < g->n_values; v++) {
            const ValueInfo *info = &g->value[v];
            if (info->role != ROLE_INPUT) continue;
            const InputInfo *row = input_info((Input)info->index);
            const Tensor host = rank_input(&t.rank, 1, (Input)info->index);
            assert_string_equal(info->name, row->name);
            assert_int_equal(info->dtype, input_dtype((Input)info->index, F64));
            assert_int_equal(info->dtype, host.dtype);
            assert_int_equal(info->dims.ndim, row->extent > 1 ? 2 : 1);
            assert_int_equal(host.stride[0], row->extent);
        }
    }
    for (int i = 0; i + 1 < N_INPUTS; i++) {
        const InputShape shape = model_input(lp->model, (Input)i);
        const size_t bytes = lp->input[i + 1] - lp->input[i];
        const size_t least = (size_t)shape.extent * dtype_bytes(input_dtype((Input)i, F64));
        if (i <= INPUT_WEIGHTS)
            assert_true(bytes >= TEST_T * least);
        else
            assert_int_equal(bytes, 0); /* of sessions, and of models of other families */
    }
    test_job_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_make_units),         cmocka_unit_test(many_ranks),
        cmocka_unit_test(memory_is_exact),           cmocka_unit_test(rows_of_one_kind),
        cmocka_unit_test(inputs_follow_their_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
