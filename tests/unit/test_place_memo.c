/* test_place_memo.c -- programs whose placements come from a memo are those that a search makes: of
 * all ranks, under recomputation, on meshes that share the memo. */
#include "support/expect.h"
#include "support/jobs.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>

typedef struct {
    Arena *arena;
    const char *text; /* of the graph that is lowered */
} LastGraph;

static Err keep_text(void *context, const char *pass, const Graph *g)
{
    LastGraph *last = context;
    (void)pass;
    return graph_print(g, last->arena, &last->text);
}

static const char *text_of(const Job *job, int class, PlaceMemo *places, Arena *a)
{
    CompileOptions o = job_options(job, class, 0);
    LastGraph last = {.arena = a};
    Program p;
    o.places = places;
    DO(compile_unit(&job->model.kind[job->programs.kind_of[class]], &o, keep_text, &last, a, &p));
    return last.text;
}

typedef struct {
    const char *model;
    MeshSizes mesh;
    bool sequence;
    ContextKind context;
    int64_t sequences;
} Layouts;

static const Layouts layouts[] = {
    {"llama", {.dp_shard = 1, .tp = 2}, false, CONTEXT_AUTO, 2},
    {"llama", {.dp_shard = 2, .tp = 2}, true, CONTEXT_AUTO, 2},
    {"llama", {.dp_shard = 1, .tp = 2}, true, CONTEXT_AUTO, 1},
    {"llama", {.dp_shard = 1, .cp = 2}, false, CONTEXT_GATHER, 2},
    {"llama", {.dp_shard = 1, .cp = 2}, false, CONTEXT_ULYSSES, 2},
    {"llama", {.dp_shard = 1, .cp = 2, .tp = 2}, true, CONTEXT_RING, 2},
    {"llama", {.dp_shard = 1, .cp = 3}, false, CONTEXT_GATHER, 2},
    {"gpt2", {.dp_shard = 1, .tp = 2}, false, CONTEXT_AUTO, 2},
    {"mixtral", {.dp_shard = 5, .tp = 2, .ep = 5, .etp = 2}, false, CONTEXT_AUTO, 2},
    {"mixtral", {.dp_shard = 5, .ep = 5}, false, CONTEXT_AUTO, 2},
};

static int world_of(const MeshSizes *m)
{
    Mesh mesh;
    DO(mesh_sized(m, &mesh));
    return mesh.world;
}

static int compare(const Layouts *l, Recompute recompute, PlaceMemo *places, Arena *temp)
{
    int n = 0;
    JobSettings set = test_job_settings(l->model, JOB_STEP);
    set.compile.recompute = recompute;
    set.batch.sequences = l->sequences;
    set.parallel.mesh = l->mesh;
    set.parallel.sequence = l->sequence;
    set.parallel.context = l->context;
    for (int rank = 0; rank < world_of(&l->mesh); rank++) {
        const size_t mark = arena_mark(temp);
        Job *job;
        set.parallel.rank = rank;
        DO(ARENA_NEW(temp, 1, &job));
        DO(job_compile(&set, temp, job));
        for (int c = 0; c < job->programs.n_classes; c++, n++) {
            const char *searched = text_of(job, c, NULL, temp);
            assert_string_equal(text_of(job, c, places, temp), searched);
            assert_string_equal(text_of(job, c, places, temp), searched);
        }
        arena_rewind(temp, mark);
    }
    return n;
}

static void check(size_t bytes)
{
    Arena a, temp;
    PlaceMemo *places;
    int n = 0;
    DO(arena_open(&a, "memo", ARENA_PLENTY));
    DO(arena_open(&temp, "jobs", ARENA_PLENTY));
    DO(place_memo_open(&a, bytes, &places));
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (int r = RECOMPUTE_NONE; r <= RECOMPUTE_FULL; r++)
            n += compare(&layouts[i], (Recompute)r, places, &temp);
    assert_true(n > 200);
    arena_close(&temp);
    arena_close(&a);
}

static void programs_are_those_of_a_search(void **state)
{
    (void)state;
    check((size_t)1 << 24);
}

static void a_full_memo_keeps_what_it_has(void **state)
{
    (void)state;
    check((size_t)1 << 14);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(programs_are_those_of_a_search),
        cmocka_unit_test(a_full_memo_keeps_what_it_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
