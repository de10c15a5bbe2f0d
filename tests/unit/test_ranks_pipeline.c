/* Pipelines at run time, beside one rank: five steps of AdamW, thread-ranks, hostile transfers, what was not written is
 * NaN. Schedules that keep the order of micro-batches give the bits of one rank; all are within 1e-10 in f64. */
#include "support/expect.h"

#include "device/cpu/cpu.h"
#include "schedule/check.h"
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

/* f32 on device/cpu: as one rank, bit for bit, where the checker says that sums are in order. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
