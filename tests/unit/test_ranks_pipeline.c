/* test_ranks_pipeline.c -- pipelines at run time, compared with one rank: five steps of AdamW on
 * thread-ranks, hostile transfers, unwritten memory NaN. Schedules that keep the order of
 * micro-batches give the bits of one rank; all are within 1e-10 in f64. */
#define _POSIX_C_SOURCE 200809L /* mkstemp */
#include "support/expect.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "device/cpu/cpu.h"
#include "support/world.h"

typedef struct {
    const char *model, *schedule;
    int layers, pp, chunks, micros;
    const char *split; /* NULL: even */
} Row;

static World world(const Row *row, ModelConfig *config)
{
    World w = world_of(test_job_settings(row->model, JOB_STEP));
    *config = *w.set.config;
    config->n_layers = row->layers;
    w.set.config = config;
    w.set.micros = row->micros;
    w.set.optim.clip = 0.4;
    w.hostile = true;
    w.seed = (uint64_t)(row->pp * 100 + row->micros);
    return w;
}

static void on_stages(World *w, const Row *row)
{
    w->set.schedule = row->schedule;
    w->set.parallel.mesh.pp = row->pp;
    w->set.parallel.chunks = row->chunks;
    w->set.parallel.split = row->split;
}

static const Row rows[] = {
    {"llama", "1f1b", 2, 2, 0, 3, NULL},
    {"llama", "gpipe", 2, 2, 0, 3, NULL},
    {"llama", "1f1b", 7, 3, 0, 2, NULL},
    {"qwen3", "1f1b", 2, 4, 0, 5, "1,1,1,1"},
    {"gpt2-untied", "interleaved", 4, 2, 2, 5, NULL},
    {"llama", "bfs", 5, 2, 3, 2, NULL},
    {"llama", "zbh1", 3, 3, 0, 4, NULL},
    {"llama", "zbh2", 3, 3, 0, 4, NULL},
    {"llama", "izb", 4, 2, 0, 3, NULL},
    {"llama", "zbv", 6, 3, 0, 4, NULL},
    {"llama", "dualpipev", 4, 2, 0, 5, NULL},
    {"mistral", "1f1b", 4, 6, 0, 7, NULL},
    {"llama", "zbh1", 2, 1, 0, 2, NULL},
    {"llama", "1f1b", 3, 2, 0, 2, "cost"},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

/* f32 on device/cpu: the bits of one rank, if the checker finds the sums in order. */
static void exact(void **state)
{
    (void)state;
    for (int i = 0; i < N_ROWS; i++) {
        ModelConfig config;
        World w = world(&rows[i], &config);
        WorldResult one, many;
        char what[128];
        w.set.dtype = F32;
        DO(device_cpu_open(NULL, &w.device));
        DO(world_run_job(&w, &one));
        on_stages(&w, &rows[i]);
        if (world_run_job(&w, &many) != OK) fail_msg("row %d: %s", i, err_text());
        if (!world_equal(&one, &many, what)) fail_msg("row %d, %s: %s", i, rows[i].schedule, what);
        world_result_close(&one);
        world_result_close(&many);
    }
}

/* dp, ZeRO, tp and sequence parallelism on each stage: the bits of the same layout without
 * stages. */
static void exact_with_other_axes(void **state)
{
    (void)state;
    const Row row = {"llama", "zbh1", 4, 3, 0, 4, NULL};
    for (int variant = 0; variant < 12; variant++) {
        ModelConfig config;
        World w = world(&row, &config);
        WorldResult one, many;
        char what[128];
        w.set.dtype = variant % 3 ? F32 : BF16;
        w.init = w.set.dtype == BF16;
        w.validate = variant % 2;
        w.numbers = variant == 5 ? 3 : 0; /* the last micro-batches have no rows */
        w.set.compile.recompute = variant % 5 ? RECOMPUTE_NONE : RECOMPUTE_SELECTIVE;
        w.set.parallel.mesh =
            (MeshSizes){1, variant < 8 ? 2 : 1, variant < 8 ? 1 : 2, 1, 0, 0, 0, 0, false};
        w.set.parallel.zero = variant < 8 ? variant % 4 : 0;
        w.set.parallel.sequence = variant % 2 && variant >= 8;
        w.set.parallel.in_order = variant == 6;
        DO(device_cpu_open(NULL, &w.device));
        DO(world_run_job(&w, &one));
        on_stages(&w, &row);
        if (world_run_job(&w, &many) != OK) fail_msg("variant %d: %s", variant, err_text());
        if (!world_equal(&one, &many, what)) fail_msg("variant %d: %s", variant, what);
        world_result_close(&one);
        world_result_close(&many);
    }
}

/* Frames evicted to other stages or to the host: no bit changes, and the bytes are as predicted. */
static void evicted(void **state)
{
    (void)state;
    static const Row row[] = {
        {"llama", "1f1b", 4, 4, 0, 7, NULL},        {"llama", "1f1b", 6, 6, 0, 9, NULL},
        {"qwen3", "interleaved", 7, 4, 2, 7, NULL}, {"llama", "zbv", 6, 4, 0, 4, NULL},
        {"llama", "interleaved", 6, 3, 2, 6, NULL}, {"llama", "dualpipev", 7, 4, 0, 5, NULL},
        {"mistral", "1f1b", 4, 5, 0, 6, NULL},      {"llama", "seq1f1b", 3, 4, 0, 5, NULL},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ModelConfig config;
        World w = world(&row[i], &config);
        WorldResult one, many;
        char what[128];
        int64_t sent = 0;
        w.validate = i == 1;
        on_stages(&w, &row[i]);
        DO(world_run_job(&w, &one));
        w.set.parallel.evict = true;
        w.set.parallel.in_order = i == 3;
        if (world_run_job(&w, &many) != OK) fail_msg("row %zu: %s", i, err_text());
        if (!world_equal(&one, &many, what)) fail_msg("row %zu: %s", i, what);
        for (int k = 0; k < N_COMM_KINDS; k++) sent += many.sent[k];
        if (!w.validate) assert_int_equal(sent, many.predicted);
        world_result_close(&one);
        world_result_close(&many);
    }
}

/* Weights held by two stages are equal on both (checked by world_run_job), start equal for any
 * number of stages, and count once in the norm. */
static void tied(void **state)
{
    (void)state;
    static const char *const model[] = {"gpt2", "llama-tied", "qwen2"};
    static const char *const schedule[] = {"1f1b", "zbv", "izb"};
    for (int variant = 0; variant < 9; variant++) {
        const Row row = {model[variant % 3], schedule[variant / 3], 4, 2 + variant % 2, 0, 3, NULL};
        ModelConfig config;
        World w = world(&row, &config);
        WorldResult one, many;
        w.init = variant % 2;
        w.validate = true;
        DO(world_run_job(&w, &one));
        on_stages(&w, &row);
        if (world_run_job(&w, &many) != OK) fail_msg("variant %d: %s", variant, err_text());
        const double off = world_differ_all(&one, &many);
        if (!(off <= 1e-10)) fail_msg("variant %d: %g from one rank", variant, off);
        world_result_close(&one);
        world_result_close(&many);
    }
}

/* Any timing gives the same bits. */
static void delays(void **state)
{
    (void)state;
    const Row row = {"gpt2", "dualpipev", 6, 4, 0, 8, NULL};
    ModelConfig config;
    World w = world(&row, &config);
    WorldResult first, next;
    char what[128];
    on_stages(&w, &row);
    w.hostile = false;
    DO(world_run_job(&w, &first));
    w.hostile = true;
    for (w.seed = 1; w.seed < 6; w.seed++) {
        DO(world_run_job(&w, &next));
        if (!world_equal(&first, &next, what)) fail_msg("seed %d: %s", (int)w.seed, what);
        world_result_close(&next);
    }
    world_result_close(&first);
}

static void refused_with(const char *words, JobSettings set)
{
    Arena arena;
    Job job;
    DO(arena_open(&arena, "refused", ARENA_PLENTY));
    assert_int_equal(job_compile(&set, &arena, &job), ERR_CONFIG);
    if (!strstr(err_text(), words)) fail_msg("%s: not %s", err_text(), words);
    arena_close(&arena);
}

static void refused(void **state)
{
    (void)state;
    JobSettings set = test_job_settings("llama", JOB_STEP);
    set.parallel.mesh.pp = 5;
    refused_with("5 chunks (mesh.pp times parallel.chunks) for 4 units", set);
    set.parallel.mesh.pp = 2;
    set.parallel.schedule = "zbv";
    set.parallel.chunks = 3;
    refused_with("set parallel.chunks=2", set);
    set.parallel.chunks = 0;
    set.parallel.split = "1,1";
    refused_with("parallel.split is '1,1': 2 chunks; there are 4", set);
    set.parallel.split = NULL;
    set.parallel.fold = 2;
    refused_with("numerics.fold=2 with mesh.pp=2", set);
    set.parallel.fold = 0;
    set.parallel.schedule = "1f1b";
    set.parallel.evict = true;
    set.micros = 3;
    refused_with("parallel.evict=true evicts nothing: with parallel.schedule=1f1b, "
                 "mesh.pp=2 and 3 micro-batches",
                 set);
}

/* Backward phases in the reverse order of micro-batches: accepted if sums are reduced once per
 * step. */
static void from_a_file_in_another_order(void **state)
{
    (void)state;
    static const char text[] = "sheaf schedule 2\nchunks 2 micros 3 slices 1\nstages 0 1\n"
                               "over chunks\n"
                               "stage 0: F0.0 F0.1 F0.2 B0.2 B0.1 B0.0\n"
                               "stage 1: F1.0 F1.1 F1.2 B1.2 B1.1 B1.0\n";
    char path[] = "/tmp/sheaf_list_XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == sizeof text - 1);
    const Row row = {"llama", path, 2, 2, 0, 3, NULL};
    ModelConfig config;
    World w = world(&row, &config);
    WorldResult one, many;
    w.set.parallel.mesh.dp_shard = 2;
    DO(world_run_job(&w, &one));
    on_stages(&w, &row);
    w.set.parallel.zero = 1;
    DO(world_run_job(&w, &many));
    assert_true(world_differ_all(&one, &many) <= 1e-10);
    world_result_close(&one);
    world_result_close(&many);
    w.set.parallel.zero = 3;
    refused_with("with parallel.zero=3: gradients are reduced several times a step", w.set);
    refused_with("or set parallel.zero=0 or 1", w.set);
    w.set.parallel.zero = 0;
    w.set.parallel.reduce_each = true;
    refused_with("or set parallel.reduce=last", w.set);
    close(fd);
    unlink(path);
}

/* A hand-written list runs as generated ones do. */
static void from_a_file(void **state)
{
    (void)state;
    static const char text[] = "sheaf schedule 2\nchunks 3 micros 2 slices 1\nstages 1 0 1\n"
                               "units 1 2 1\nover chunks\n"
                               "stage 1: F0.0 F0.1 F2.0 B2.0 F2.1 B2.1 B0.0 B0.1\n"
                               "stage 0: F1.0 F1.1 B1.0 I1.1 W1.1\n";
    char path[] = "/tmp/sheaf_list_XXXXXX", what[128];
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == sizeof text - 1);
    const Row row = {"llama", path, 2, 2, 0, 2, NULL};
    ModelConfig config;
    World w = world(&row, &config);
    WorldResult one, many;
    DO(world_run_job(&w, &one));
    on_stages(&w, &row);
    DO(world_run_job(&w, &many));
    if (!world_equal(&one, &many, what)) fail_msg("%s", what);
    world_result_close(&one);
    world_result_close(&many);
    JobSettings set = w.set;
    set.parallel.split = "cost";
    refused_with("remove one of the two", set);
    set.parallel.split = NULL;
    set.micros = 3;
    refused_with("written for 2 micro-batches; the run has 3", set);
    set.micros = 2;
    config.n_layers = 3;
    refused_with("has 4 units in its chunks; the model has 5", set);
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact),       cmocka_unit_test(exact_with_other_axes),
        cmocka_unit_test(evicted),     cmocka_unit_test(tied),
        cmocka_unit_test(delays),      cmocka_unit_test(refused),
        cmocka_unit_test(from_a_file), cmocka_unit_test(from_a_file_in_another_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
