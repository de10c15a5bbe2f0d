/* test_simulate.c -- the counts of classes equal those of every rank compiled on its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "plan/simulate.h"
#include "support/jobs.h"
#include "support/models.h"

typedef struct {
    Arena arena, temp;
} Fixture;

static int open_fixture(void **state)
{
    static Fixture fixture;
    *state = &fixture;
    if (arena_open(&fixture.arena, "result", ARENA_PLENTY) != OK) return 1;
    return arena_open(&fixture.temp, "compiler", ARENA_PLENTY);
}

static int close_fixture(void **state)
{
    Fixture *fixture = *state;
    arena_close(&fixture->temp);
    arena_close(&fixture->arena);
    return 0;
}

static void must(Err err)
{
    if (err != OK) fail_msg("%s", err_text());
}

static Err compile_rank(const JobSettings *set, int rank, Arena *arena, const LinkedProgram **out)
{
    JobSettings settings = *set;
    Job *job;
    settings.parallel.rank = rank;
    TRY(ARENA_NEW(arena, 1, &job));
    TRY(job_compile(&settings, arena, job));
    *out = &job->linked;
    return OK;
}

static Simulation simulated(Fixture *fixture, const JobSettings *set, Mesh *mesh)
{
    Simulation s;
    must(mesh_sized(&set->parallel.mesh, mesh));
    const SimulateInput in = {
        .job = set, .mesh = mesh, .save = SAVE_MEMORY_SNAPSHOT, .each_rank = true};
    must(simulate(&in, &fixture->arena, &fixture->temp, &s));
    return s;
}

/* True if two counts are equal. */
static bool counts_alike(const RankCount *a, const RankCount *b)
{
    if (memcmp(a->bytes, b->bytes, sizeof a->bytes) != 0) return false;
    if (a->save_bytes != b->save_bytes) return false;
    if (a->flops != b->flops || a->traffic.n != b->traffic.n) return false;
    for (int i = 0; i < a->traffic.n; i++)
        if (a->traffic.row[i].sent_bytes != b->traffic.row[i].sent_bytes ||
            a->traffic.row[i].transfers != b->traffic.row[i].transfers)
            return false;
    return true;
}

/* Compiles every rank: each equals a class, and each class has the right number of ranks. */
static void check_every_rank(Fixture *fixture, const JobSettings *set)
{
    Mesh mesh;
    const Simulation s = simulated(fixture, set, &mesh);
    int64_t *found;
    double flops = 0;
    size_t most = 0;
    Traffic traffic = {0};
    must(ARENA_NEW(&fixture->arena, s.n, &found));
    for (int rank = 0; rank < mesh.world; rank++) {
        const size_t mark = arena_mark(&fixture->temp);
        const LinkedProgram *lp = NULL;
        RankCount count;
        int64_t save;
        int at = -1;
        must(compile_rank(set, rank, &fixture->temp, &lp));
        must(count_rank(lp, &count));
        must(saver_bytes(lp, rank, SAVE_MEMORY_SNAPSHOT, &fixture->temp, &save));
        count.save_bytes = (size_t)save;
        count.total_bytes += count.save_bytes;
        for (int i = 0; i < s.n && at < 0; i++)
            if (counts_alike(&s.class[i].count, &count)) at = i; /* the first equal class */
        if (at < 0) fail_msg("rank %d of %d is like no class", rank, mesh.world);
        found[at]++;
        assert_true(counts_alike(&s.class[s.class_of[rank]].count, &count));
        flops += count.flops;
        if (most < count.total_bytes) most = count.total_bytes;
        for (int i = 0; i < count.traffic.n; i++)
            must(traffic_add(&traffic, &count.traffic.row[i], 1));
        arena_rewind(&fixture->temp, mark);
    }
    for (int i = 0; i < s.n; i++) {
        int64_t ranks = 0;
        bool first = true;
        for (int k = 0; k < s.n; k++)
            if (counts_alike(&s.class[i].count, &s.class[k].count)) {
                first = first && k >= i;
                ranks += s.class[k].ranks;
            }
        if (first) assert_int_equal(found[i], ranks);
    }
    assert_true(s.flops == flops);
    assert_int_equal(s.class[s.greatest].count.total_bytes, most);
    assert_int_equal(s.traffic.n, traffic.n);
    for (int i = 0; i < traffic.n; i++) {
        assert_int_equal(s.traffic.row[i].sent_bytes, traffic.row[i].sent_bytes);
        assert_int_equal(s.traffic.row[i].transfers, traffic.row[i].transfers);
    }
}

static const struct {
    MeshSizes mesh;
    int zero;
    bool each, sequence;
} plans[] = {
    {{1, 1, 1, 1, 0, 0, 0, 0, false}, 0, false, false},
    {{1, 5, 1, 1, 0, 0, 0, 0, false}, 0, false, false},
    {{1, 5, 1, 1, 0, 0, 0, 0, false}, 1, false, false},
    {{1, 5, 1, 1, 0, 0, 0, 0, false}, 2, true, false},
    {{1, 7, 1, 1, 0, 0, 0, 0, false}, 3, true, false},
    {{3, 2, 1, 1, 0, 0, 0, 0, false}, 0, true, false},
    {{3, 2, 1, 1, 0, 0, 0, 0, false}, 1, false, false},
    {{2, 3, 1, 1, 0, 0, 0, 0, false}, 3, true, false},
    {{1, 1, 3, 1, 0, 0, 0, 0, false}, 0, false, false},
    {{1, 3, 2, 1, 0, 0, 0, 0, false}, 1, false, false},
    {{2, 3, 2, 1, 0, 0, 0, 0, false}, 3, true, true},
    {{1, 2, 3, 1, 0, 0, 0, 0, false}, 2, true, true},
    {{2, 2, 4, 1, 0, 0, 0, 0, false}, 1, false, true},
    {{1, 1, 1, 2, 0, 0, 0, 0, false}, 0, false, false},
    {{1, 3, 1, 3, 0, 0, 0, 0, false}, 1, false, false},
    {{1, 2, 2, 2, 0, 0, 0, 0, false}, 3, true, true},
    {{2, 1, 3, 4, 0, 0, 0, 0, false}, 0, true, false},
    {{1, 1, 1, 1, 3, 0, 0, 0, false}, 0, false, false},
    {{1, 2, 1, 1, 2, 0, 0, 0, false}, 1, false, false},
    {{1, 1, 1, 1, 5, 0, 0, 0, false}, 3, true, false},
    {{1, 1, 2, 2, 3, 0, 0, 0, false}, 0, false, true},
    {{2, 2, 1, 1, 2, 0, 0, 0, false}, 3, true, false},
    {{1, 2, 2, 2, 2, 0, 0, 0, false}, 2, true, true},
};
enum { N_PLANS = sizeof plans / sizeof *plans };

static void classes_count_every_rank(void **state)
{
    Fixture *fixture = *state;
    const char *const model[] = {"gpt2", "llama"};
    for (int m = 0; m < 2; m++)
        for (int i = 0; i < N_PLANS; i++) {
            const size_t marks[] = {arena_mark(&fixture->arena), arena_mark(&fixture->temp)};
            JobSettings set = test_job_settings(model[m], JOB_STEP);
            set.parallel = (ParallelSettings){.mesh = plans[i].mesh,
                                              .zero = plans[i].zero,
                                              .reduce_each = plans[i].each,
                                              .sequence = plans[i].sequence,
                                              .live = 3};
            check_every_rank(fixture, &set);
            set.kind = JOB_LOSS; /* gathers only */
            if (plans[i].zero > 0) check_every_rank(fixture, &set);
            arena_rewind(&fixture->arena, marks[0]);
            arena_rewind(&fixture->temp, marks[1]);
        }
}

/* A mixture of experts on axes of its own: E and F divide, tokens and blocks of state do not. */
static void classes_count_ranks_with_experts(void **state)
{
    static const struct {
        MeshSizes mesh;
        int zero;
    } expert[] = {{{.dp_shard = 4, .ep = 2}, 1},
                  {{.dp_shard = 6, .ep = 3}, 3},
                  {{.dp_shard = 2, .tp = 3, .ep = 6}, 0},
                  {{.dp_shard = 3, .tp = 2, .ep = 3, .etp = 2}, 2},
                  {{.dp_shard = 3, .cp = 2, .tp = 2, .ep = 4}, 1},
                  {{.pp = 2, .dp_shard = 2, .tp = 2, .ep = 2}, 3},
                  {{.dp_replicate = 2, .dp_shard = 3, .tp = 2, .ep = 12}, 1}};
    Fixture *fixture = *state;
    for (size_t i = 0; i < sizeof expert / sizeof *expert; i++) {
        const size_t marks[] = {arena_mark(&fixture->arena), arena_mark(&fixture->temp)};
        ModelConfig config = *test_model("qwen2_moe");
        JobSettings set = test_job_settings("qwen2_moe", JOB_STEP);
        config.experts.n = 12;
        config.experts.width = 10;
        config.experts.aux_loss = 0.1;
        set.config = &config;
        set.parallel = (ParallelSettings){.mesh = expert[i].mesh,
                                          .zero = expert[i].zero,
                                          .sequence = expert[i].mesh.tp > 1,
                                          .expert_rows = 1.5,
                                          .live = 3};
        check_every_rank(fixture, &set);
        arena_rewind(&fixture->arena, marks[0]);
        arena_rewind(&fixture->temp, marks[1]);
    }
}

/* Ranks with other experts have programs of equal sizes. */
static void many_ranks_with_experts(void **state)
{
    Fixture *fixture = *state;
    ModelConfig config;
    Mesh mesh;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    must(model_config_load("mixtral-8x7b", NULL, 0, &fixture->arena, &config));
    config.n_layers = 4;
    set.config = &config;
    set.dtype = BF16;
    set.batch = (BatchShape){1, 4096};
    set.micros = 2;
    set.compile = (CompileOptions){.recompute = RECOMPUTE_NONE};
    set.optim.block = 65536;
    set.parallel = (ParallelSettings){.mesh = {.dp_shard = 64, .tp = 2, .pp = 2, .ep = 8},
                                      .zero = 1,
                                      .sequence = true,
                                      .expert_rows = 2,
                                      .live = 2};
    const Simulation s = simulated(fixture, &set, &mesh);
    int64_t ranks = 0;
    for (int i = 0; i < s.n; i++) ranks += s.class[i].ranks;
    assert_int_equal(ranks, 256);
    if (s.n >= 32 || s.compiled >= 100)
        fail_msg("%d classes, %lld programs", s.n, (long long)s.compiled);
}

/* Elements sent along dp equal the formulas of data parallelism and ZeRO. */
static void bytes_equal_the_formulas(void **state)
{
    Fixture *fixture = *state;
    for (int p = 2; p <= 5; p++)
        for (int zero = 0; zero <= 3; zero++) {
            Mesh mesh;
            Job job;
            JobSettings set = test_job_settings("llama", JOB_STEP);
            set.micros = 3;
            set.parallel = (ParallelSettings){.mesh = {.dp_shard = p}, .zero = zero, .live = 2};
            must(job_compile(&set, &fixture->temp, &job));
            const Simulation s = simulated(fixture, &set, &mesh);
            const int64_t psi = model_param_count(&job.model), times = zero >= 2 ? set.micros : 1;
            size_t sent[N_COMM_KINDS] = {0};
            int64_t gathered = 0;
            for (int i = 0; i < s.traffic.n; i++)
                if (!s.traffic.row[i].scalar)
                    sent[s.traffic.row[i].kind] += s.traffic.row[i].sent_bytes / 8;
            for (int u = 0; u < job.model.n_packs; u++)
                gathered += job.gathers[u].gathers * job.model.pack[u].count;
            assert_int_equal(sent[COMM_ALL_REDUCE], zero == 0 ? 2 * (p - 1) * psi : 0);
            assert_int_equal(sent[COMM_REDUCE_SCATTER], zero ? (p - 1) * psi * times : 0);
            assert_int_equal(sent[COMM_ALL_GATHER], zero ? (p - 1) * gathered : 0);
            if (zero == 1 || zero == 2) assert_int_equal(gathered, psi);
            if (zero == 3) assert_true(gathered > psi && gathered < 2 * psi * set.micros);
        }
}

/* dp=2048 x tp=8 of a large model: few programs are compiled. */
static void sixteen_thousand_ranks(void **state)
{
    Fixture *fixture = *state;
    ModelConfig config;
    Mesh mesh;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    must(model_config_load("llama3.1-405b", NULL, 0, &fixture->arena, &config));
    set.config = &config;
    set.dtype = BF16;
    set.batch = (BatchShape){1, 8192};
    set.micros = 2;
    set.compile = (CompileOptions){.recompute = RECOMPUTE_FULL};
    set.optim.block = 65536;
    set.parallel = (ParallelSettings){.mesh = {.dp_shard = 2048, .tp = 8}, .zero = 3, .live = 2};
    const Simulation s = simulated(fixture, &set, &mesh);
    assert_true(s.compiled < 40);
    assert_true(s.n > 1 && s.n < 20); /* homes differ because blocks do not divide evenly */
    int64_t ranks = 0;
    for (int i = 0; i < s.n; i++) ranks += s.class[i].ranks;
    assert_int_equal(ranks, 16384);
}

/* The same number of ranks with cp: its coordinates are compiled once for stages that are alike. */
static void sixteen_thousand_ranks_with_cp(void **state)
{
    Fixture *fixture = *state;
    ModelConfig config;
    Mesh mesh;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    must(model_config_load("llama3.1-405b", NULL, 0, &fixture->arena, &config));
    set.config = &config;
    set.dtype = BF16;
    set.batch = (BatchShape){1, 131072};
    set.micros = 32;
    set.compile = (CompileOptions){.recompute = RECOMPUTE_FULL};
    set.optim.block = 65536;
    set.parallel = (ParallelSettings){.mesh = {.dp_shard = 32, .tp = 8, .pp = 16, .cp = 4},
                                      .sequence = true,
                                      .context = CONTEXT_GATHER,
                                      .tokens = TOKENS_ZIGZAG};
    const Simulation s = simulated(fixture, &set, &mesh);
    int64_t ranks = 0;
    for (int i = 0; i < s.n; i++) ranks += s.class[i].ranks;
    assert_int_equal(ranks, 16384);
    assert_true(s.compiled < 400); /* not 16384 */
    assert_true(s.n >= 16 && s.n < 128);
}

static void count_calls(void *context, int done, int stages)
{
    int *calls = context;
    assert_int_equal(done, ++*calls);
    assert_int_equal(stages, 9);
}

/* pp=9 x tp=4: coordinates of tp are compiled for the first, the middle and the last stage only; a
 * stage costs one program, a class one or two. */
static void stages_that_are_alike(void **state)
{
    Fixture *fixture = *state;
    Mesh mesh;
    ModelConfig config;
    Simulation s;
    int calls = 0;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    must(model_config_load("llama-tiny", NULL, 0, &fixture->arena, &config));
    config.n_layers = 18;
    set.config = &config;
    set.micros = 11;
    set.parallel =
        (ParallelSettings){.mesh = {.dp_shard = 1, .tp = 4, .pp = 9}, .schedule = "zbh2"};
    must(mesh_sized(&set.parallel.mesh, &mesh));
    const SimulateInput in = {
        .job = &set, .mesh = &mesh, .progress = count_calls, .context = &calls};
    must(simulate(&in, &fixture->arena, &fixture->temp, &s));
    int64_t counted = 0;
    for (int i = 0; i < s.n; i++) counted += 1 + (s.class[i].last != s.class[i].first);
    assert_true(s.n >= 9 && s.n < 9 * 4);
    assert_int_equal(s.compiled, 9 + 3 * 4 + counted);
    assert_int_equal(calls, 9);
    check_every_rank(fixture, &set);
}

static void groups_have_axes(void **state)
{
    (void)state;
    Mesh mesh;
    must(mesh_sized(&(MeshSizes){1, 2, 3, 1, 0, 0, 0, 0, false}, &mesh));
    const unsigned dp = mesh_axes(&mesh, VIEW_DENSE, "dp"), tp = mesh_axes(&mesh, VIEW_DENSE, "tp");
    const struct {
        RankList group;
        unsigned axes;
    } row[] = {
        {{1, (const int32_t[]){4}}, 0},
        {{3, (const int32_t[]){3, 4, 5}}, tp},
        {{2, (const int32_t[]){1, 4}}, dp},
        {{6, (const int32_t[]){0, 1, 2, 3, 4, 5}}, dp | tp},
        {{2, (const int32_t[]){0, 1}}, tp}, /* a part of the axis */
        {{3, (const int32_t[]){0, 4, 3}},
         dp | tp}, /* not a box: first and last rank are not enough */
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        assert_int_equal(group_axes(&mesh, row[i].group), row[i].axes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_have_axes),
        cmocka_unit_test(classes_count_every_rank),
        cmocka_unit_test(classes_count_ranks_with_experts),
        cmocka_unit_test(many_ranks_with_experts),
        cmocka_unit_test(bytes_equal_the_formulas),
        cmocka_unit_test(sixteen_thousand_ranks),
        cmocka_unit_test(sixteen_thousand_ranks_with_cp),
        cmocka_unit_test(stages_that_are_alike),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
