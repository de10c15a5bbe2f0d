/* test_context.c -- the rules of mesh.cp_heads and parallel.context when a job is compiled. */
#include "support/graph_test.h"

#include "support/jobs.h"
#include "support/models.h"

static void compiles(const MeshSizes *mesh, ContextKind kind, const char *message)
{
    Arena arena;
    Job job;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    ModelConfig config = *set.config;
    config.n_heads = 8;
    config.n_kv_heads = 2;
    config.head_size = 4;
    set.config = &config;
    set.parallel.mesh = *mesh;
    set.parallel.context = kind;
    DO(arena_open(&arena, "job", (size_t)1 << 30));
    if (message)
        expect_error("context", job_compile(&set, &arena, &job), ERR_CONFIG, message);
    else
        DO(job_compile(&set, &arena, &job));
    arena_close(&arena);
}

static void heads_limit_the_mesh(void **state)
{
    (void)state;
    compiles(&(MeshSizes){.cp = 8}, CONTEXT_ULYSSES, NULL);
    compiles(&(MeshSizes){.cp = 16}, CONTEXT_ULYSSES,
             "parallel.context=ulysses with mesh.cp=16: the model has 8 heads, of which mesh.tp=1 "
             "leaves 8 to a rank; set mesh.cp_heads=8, the largest part of mesh.cp=16 that works");
    compiles(&(MeshSizes){.cp = 12, .cp_heads = 6, .tp = 2}, CONTEXT_GATHER,
             "mesh.cp_heads=6: the model has 8 heads, of which mesh.tp=2 leaves 4 to a rank; set "
             "mesh.cp_heads=4, the largest part of mesh.cp=12 that works");
    compiles(&(MeshSizes){.cp = 12, .cp_heads = 4, .tp = 2}, CONTEXT_GATHER, NULL);
    compiles(&(MeshSizes){.cp = 4, .cp_heads = 3}, CONTEXT_GATHER,
             "mesh.cp_heads=3: does not divide mesh.cp=4; set mesh.cp_heads=2 or 4");
    compiles(&(MeshSizes){.cp = 4, .cp_heads = 2}, CONTEXT_ULYSSES,
             "mesh.cp_heads=2 with parallel.context=ulysses, which shards heads over all of "
             "mesh.cp=4");
    compiles(&(MeshSizes){.cp = 4, .cp_heads = 1}, CONTEXT_ULYSSES,
             "mesh.cp_heads=1 with parallel.context=ulysses, which shards heads over all of "
             "mesh.cp=4");
    compiles(&(MeshSizes){.cp = 4, .cp_heads = 4}, CONTEXT_ULYSSES, NULL);
    compiles(&(MeshSizes){.cp = 4, .cp_heads = 4}, CONTEXT_GATHER,
             "mesh.cp_heads=4 is all of mesh.cp, which leaves one rank to parallel.context=gather; "
             "set parallel.context=ulysses, or mesh.cp_heads=2 or less");
    compiles(&(MeshSizes){.cp = 3, .cp_heads = 3}, CONTEXT_RING,
             "mesh.cp_heads=3 is all of mesh.cp, which leaves one rank to parallel.context=ring; "
             "set parallel.context=ulysses, or mesh.cp_heads=1");
    compiles(&(MeshSizes){.cp = 2, .tp = 4}, CONTEXT_ULYSSES,
             "mesh.tp=4 does not divide the 2 key heads");
    compiles(&(MeshSizes){.cp = 2, .tp = 4}, CONTEXT_GATHER, NULL);
}

/* AUTO takes the way with the fewest seconds; a given way is not compared, and a given
 * mesh.cp_heads limits it. */
static void the_fastest_way_is_chosen(void **state)
{
    static const struct {
        int64_t seq_len;
        int cp, cp_heads;
        ContextKind wanted, got;
    } row[] = {{8, 2, 0, CONTEXT_AUTO, CONTEXT_GATHER},  /* fewer transfers */
               {4096, 8, 0, CONTEXT_AUTO, CONTEXT_RING}, /* hidden transfers */
               {8, 2, 2, CONTEXT_AUTO, CONTEXT_ULYSSES}, /* all of cp */
               {4096, 8, 0, CONTEXT_GATHER, CONTEXT_GATHER},
               {8, 2, 0, CONTEXT_ULYSSES, CONTEXT_ULYSSES}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        Arena arena;
        Job job;
        JobSettings set = test_job_settings("llama", JOB_STEP);
        ModelConfig config = *set.config;
        config.n_heads = config.n_kv_heads = 8;
        config.head_size = 64;
        config.max_positions = 4096;
        set.config = &config;
        set.batch = (BatchShape){1, row[i].seq_len};
        set.parallel.mesh = (MeshSizes){.cp = row[i].cp, .cp_heads = row[i].cp_heads};
        set.parallel.context = row[i].wanted;
        DO(arena_open(&arena, "job", (size_t)1 << 32));
        DO(job_share(&set, &arena, &job));
        if (job.context != row[i].got)
            fail_msg("%lld tokens, cp=%d: %s", (long long)row[i].seq_len, row[i].cp,
                     context_name(job.context));
        const bool asked = row[i].wanted == CONTEXT_AUTO && row[i].cp_heads == 0;
        assert_true((job.search.n > 0) == asked);
        arena_close(&arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_limit_the_mesh),
        cmocka_unit_test(the_fastest_way_is_chosen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
