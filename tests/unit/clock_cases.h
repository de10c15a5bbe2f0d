/* clock_cases.h -- meshes, schedules and a slow cluster for the tests of the clocks. */
#ifndef UNIT_CLOCK_CASES_H
#define UNIT_CLOCK_CASES_H

#include "support/expect.h"
#include "support/jobs.h"
#include "plan/clock/clock.h"

/* Rates at which every kind of time of a small model is of one order. Two ranks are a node. */
static inline Cluster slow_cluster(bool overlaps)
{
    Cluster c = {.name = "slow", .rates = *cost_default_rates(), .overlaps = overlaps};
    c.memory_bytes = 1e9;
    for (int k = 0; k < N_WORK_CLASSES; k++)
        for (int t = 0; t < N_DTYPES; t++) c.rates.flops_per_s[k][t] = 1e9 / (k + 1);
    c.rates.memory_Bps = 3e9;
    c.rates.host_Bps = 1e8;
    c.rates.launch_s = 1e-6;
    c.rates.level[0] = (CostLink){.ranks = 2, .latency_s = 2e-6, .Bps = 4e8};
    c.rates.level[1] = (CostLink){.ranks = 0, .latency_s = 5e-6, .Bps = 1e8};
    return c;
}

typedef struct {
    MeshSizes mesh;
    int zero, micros;
    const char *schedule;
    bool sequence, reduce_each;
    Recompute recompute;
} ClockCase;

static const ClockCase cases[] = {
    {{.tp = 1}, 0, 2, "1f1b", 0, 0, RECOMPUTE_NONE},
    {{.tp = 2}, 0, 2, "1f1b", 0, 0, RECOMPUTE_NONE},
    {{.tp = 3}, 0, 1, "1f1b", 1, 0, RECOMPUTE_SELECTIVE},
    {{.tp = 4}, 0, 2, "gpipe", 1, 0, RECOMPUTE_FULL},
    {{.dp_shard = 2}, 0, 2, "1f1b", 0, 0, RECOMPUTE_NONE},
    {{.dp_shard = 5}, 1, 2, "1f1b", 0, 0, RECOMPUTE_NONE},
    {{.dp_shard = 3}, 2, 2, "1f1b", 0, 1, RECOMPUTE_NONE},
    {{.dp_shard = 4}, 3, 2, "1f1b", 0, 0, RECOMPUTE_SELECTIVE},
    {{.dp_replicate = 2, .dp_shard = 2}, 3, 2, "1f1b", 0, 0, RECOMPUTE_NONE},
    {{.pp = 2}, 0, 4, "1f1b", 0, 0, RECOMPUTE_NONE},
    {{.pp = 4}, 0, 6, "1f1b", 0, 0, RECOMPUTE_NONE},
    {{.pp = 3}, 0, 5, "gpipe", 0, 0, RECOMPUTE_FULL},
    {{.pp = 2}, 0, 4, "zbh1", 0, 0, RECOMPUTE_NONE},
    {{.pp = 2, .tp = 2}, 0, 4, "1f1b", 1, 0, RECOMPUTE_NONE},
    {{.pp = 2, .dp_shard = 3}, 1, 3, "1f1b", 0, 0, RECOMPUTE_NONE},
    {{.pp = 2, .dp_shard = 2, .tp = 3}, 3, 2, "1f1b", 1, 0, RECOMPUTE_NONE},
    {{.cp = 2}, 0, 2, "1f1b", 0, 0, RECOMPUTE_NONE},
    {{.cp = 3, .dp_shard = 2}, 1, 2, "1f1b", 0, 0, RECOMPUTE_NONE},
    {{.cp = 2, .tp = 2, .pp = 2}, 0, 3, "1f1b", 1, 0, RECOMPUTE_NONE},
    {{.dp_replicate = 2, .dp_shard = 2, .cp = 2, .tp = 2, .pp = 2},
     3,
     2,
     "1f1b",
     0,
     0,
     RECOMPUTE_NONE},
    {{.pp = 4, .dp_shard = 4, .tp = 4}, 2, 4, "1f1b", 1, 1, RECOMPUTE_NONE},
};
enum { N_CASES = sizeof cases / sizeof *cases };

typedef struct {
    Arena arena, temp;
    JobSettings set;
    ModelConfig config;
    Mesh mesh;
} Fixture;

static inline void open_case(Fixture *f, const ClockCase *c)
{
    f->set = test_job_settings("llama", JOB_STEP);
    f->config = *f->set.config;
    f->config.n_layers = 4;
    f->set.config = &f->config;
    f->set.parallel.mesh = c->mesh;
    f->set.parallel.zero = c->zero;
    f->set.parallel.sequence = c->sequence;
    f->set.parallel.reduce_each = c->reduce_each;
    f->set.micros = c->micros;
    f->set.schedule = c->schedule;
    f->set.compile.recompute = c->recompute;
    DO(arena_open(&f->arena, "clock", ARENA_PLENTY));
    DO(arena_open(&f->temp, "compiler", ARENA_PLENTY));
    DO(mesh_sized(&c->mesh, &f->mesh));
}

static inline void close_case(Fixture *f)
{
    arena_close(&f->temp);
    arena_close(&f->arena);
}

/* Gives tp=2 and tp=4 equal shapes on all ranks. */
static inline void make_even(Fixture *f)
{
    f->config.n_heads = f->config.n_kv_heads = 4;
    f->config.head_size = 4;
    f->config.ff_width = f->config.vocab = 24;
    f->set.batch.seq_len = 8;
}

#endif
