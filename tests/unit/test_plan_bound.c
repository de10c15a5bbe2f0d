/* test_plan_bound.c -- bounds of random plans: none is above the coarse clock's time, nor above the
 * bytes of linked programs. */
#include <stdio.h>

#include "plan_spaces.h"

#include "model/config.h"
#include "plan/cluster/cluster.h"
#include "plan/search/parts.h"
#include "plan/simulate.h"

static void is_at_most(const char *what, const PlanPoint *p, double bound, double value, Arena *a)
{
    const char *words;
    Text t = text_in(a);
    if (bound <= value * (1 + 1e-12)) return;
    plan_point_text(p, &t);
    DO(text_done(&t, &words));
    fail_msg("%s of %s: the bound %.12g is above %.12g", what, words, bound, value);
}

/* Seconds of the RUNs of a class that a step has: F, and B or both of its halves. */
static double run_seconds(const UnitBound *u, Phase phase)
{
    return u->run_s[phase] + (phase == PHASE_I ? u->run_s[PHASE_W] : 0);
}

/* The RUNs of a bound are no longer than those of the compiled units. */
static void check_runs(SmallSpace *t, const PlanPoint *p, const LayoutBound *bound)
{
    static const Phase phases[] = {PHASE_F, PHASE_I, PHASE_B};
    const LayoutUnits *units;
    DO(cache_units(&t->s, p, &units));
    for (int k = 0; k < bound->n; k++)
        for (int i = 0; i < 3; i++)
            is_at_most("a RUN", p, run_seconds(&bound->class[k], phases[i]),
                       run_seconds(&units->bound.class[k], phases[i]), &t->temp);
}

/* Each level of a node is a bound of the next. Returns false for a plan that is refused. */
static bool check_point(SmallSpace *t, const PlanPoint *p)
{
    LayoutBound ideal, scaled;
    PlanBound from_flops, from_one, from_units;
    CoarseTime played, timed;
    double bytes;
    Err err = plan_time(&t->s, p, &timed);
    if (err == OK) err = plan_link(&t->s, p, &bytes);
    if (err != OK) {
        if (err != ERR_CONFIG) fail_msg("%s", err_text()); /* refused is fine, a fault is not */
        return false;
    }
    DO(cache_ideal(&t->s, p, &ideal));
    DO(search_bound(&t->s, p, &ideal, &from_flops));
    DO(cache_scaled(&t->s, p, &scaled));
    DO(search_bound(&t->s, p, &scaled, &from_one));
    DO(plan_point_bound(&t->s, p, &from_units));
    DO(plan_play(&t->s, p, &played));
    check_runs(t, p, &ideal);
    check_runs(t, p, &scaled);
    is_at_most("ideal", p, from_flops.step_s, from_units.step_s, &t->temp);
    is_at_most("scaled", p, from_one.step_s, from_units.step_s, &t->temp);
    is_at_most("bound", p, from_units.step_s, played.step_s, &t->temp);
    is_at_most("played", p, played.step_s, timed.step_s, &t->temp);
    if (t->s.space.ranks <= 8)
        assert_true(from_units.step_s > 0.2 * timed.step_s); /* it is a bound of some use */
    is_at_most("memory before a compilation", p, from_flops.memory_bytes, bytes, &t->temp);
    is_at_most("memory", p, from_units.memory_bytes, bytes, &t->temp);
    is_at_most("memory of the coarse clock", p, (double)timed.least_bytes, bytes, &t->temp);
    is_at_most("memory of the play", p, (double)played.least_bytes, bytes, &t->temp);
    return true;
}

/* Memory of the cluster that the rank that needs most takes, of all ranks of the mesh. */
static double simulated_bytes(SmallSpace *t, const PlanPoint *p)
{
    const JobSettings job = plan_job(&t->s.space, p);
    const size_t mark = arena_mark(&t->arena);
    Simulation all;
    Mesh mesh;
    double most = 0;
    DO(mesh_sized(&job.parallel.mesh, &mesh));
    const SimulateInput in = {.job = &job, .mesh = &mesh, .save = t->s.save};
    DO(simulate(&in, &t->arena, &t->temp, &all));
    for (int i = 0; i < all.n; i++) {
        const double bytes = (double)rank_count_bytes(&all.class[i].count, t->cluster.host_memory);
        if (bytes > most) most = bytes;
    }
    arena_rewind(&t->arena, mark);
    return most;
}

/* A point of the space; every third has weights with a ZeRO level of their own. Of those with tp
 * many have layouts of weights along it that a search found, or other ones. */
static PlanPoint random_point(SmallSpace *t, uint64_t *seed)
{
    static const char *const rules[] = {"self_attn.*=3", "mlp.*=1", "mlp.down_proj.*=2"};
    static const char *const layouts[] = {"*down_proj.*=outputs", "*_proj.*=inputs",
                                          "*embed_tokens.*=inputs,*_proj.*=whole"};
    PlanPoint p = t->s.node[next_random(seed) % (uint64_t)t->s.n].point;
    const uint64_t rule = next_random(seed) % 9;
    bool differs;
    if (rule < 3 && plan_dp(&p) > 1) p.zero_weights = rules[rule];
    if (p.mesh.tp > 1 && !p.tp_search && rule % 2) p.tp_weights = layouts[rule % 3];
    DO(plan_settle(&t->s, &p, &differs));
    return p;
}

/* The memory of a plan is that of all its ranks, to the byte. */
static void memory_is_exact(void **state)
{
    uint64_t seed = 11;
    int checked = 0, laid_out = 0;
    (void)state;
    for (int n = 0; n < 20; n++) {
        PlanFixed fixed = plan_fixed_none();
        SmallSpace t;
        fixed.recompute = n % 3;
        fixed.micro = 1 + n % 2;
        open_small(&t, n, &fixed);
        for (int i = 0; i < 12; i++) {
            const PlanPoint p = random_point(&t, &seed);
            double bytes;
            if (plan_link(&t.s, &p, &bytes) != OK) continue;
            const double all = simulated_bytes(&t, &p);
            checked++;
            laid_out += p.tp_weights != NULL;
            if (all != bytes)
                fail_msg("space %d: linked %.0f bytes, all ranks %.0f", n, bytes, all);
        }
        close_small(&t);
    }
    assert_true(checked >= 200 && laid_out >= 20);
}

static void random_plans(void **state)
{
    const PlanFixed none = plan_fixed_none();
    uint64_t seed = 7;
    int checked = 0, laid_out = 0;
    (void)state;
    for (int n = 0; n < 12; n++) {
        SmallSpace t;
        open_small(&t, n, &none);
        for (int i = 0; i < 25; i++) {
            const PlanPoint p = random_point(&t, &seed);
            const bool known = check_point(&t, &p);
            checked += known;
            laid_out += known && p.tp_weights;
        }
        close_small(&t);
    }
    assert_true(checked >= 200 && laid_out >= 20);
}

/* What a profile, or a line of a file, adds to a shipped cluster. */
typedef enum { AS_SHIPPED, SLOW_PAIRS, FAST_PAIRS, GRID } Addition;

typedef struct {
    const char *cluster, *model, *layers;
    int seq_len, ranks, global;
    bool fp8;
    Addition addition;
    void (*fix)(PlanFixed *f); /* NULL: all is free, and layouts along tp are drawn too */
} Shipped;

enum { PAIR_RANKS = 32, N_PAIRS = PAIR_RANKS * (PAIR_RANKS - 1) / 2 };

typedef struct {
    float latency_s[N_PAIRS], Bps[N_PAIRS];
    CostPairs pairs;
    CostGrid grid;
} Measured;

static void add_to(Addition a, Cluster *c, Measured *m)
{
    /* Rates of two sizes, the first of which fills its tiles badly: between them they are high. */
    static const double rate[] = {500e12, 600e12};
    CostRates *r = &c->rates;
    for (int i = 0; i < r->n_levels && a == SLOW_PAIRS; i++) r->level[i].pair_latency_s = 1e-3;
    for (int i = 0; i < N_PAIRS; i++) m->latency_s[i] = 1e-6f, m->Bps[i] = 400e9f;
    m->pairs = (CostPairs){PAIR_RANKS, m->latency_s, m->Bps};
    if (a == FAST_PAIRS) r->pairs = &m->pairs;
    if (a != GRID) return;
    r->tiles = (CostTiles){.units = 132, .m = 256, .n = 128, .fill_k = 64};
    m->grid = (CostGrid){.n_m = 2, .n_n = 1, .n_k = 1, .m = {1030, 65536}, .n = {1030}, .k = {512}};
    m->grid.rate = rate;
    r->gemm[BF16] = &m->grid;
}

/* The space of a few layers of a large model. */
static void open_shipped(SmallSpace *t, const Shipped *s, Measured *m)
{
    const bool gpt = strncmp(s->model, "gpt2", 4) == 0;
    const ModelField set[] = {{gpt ? "n_layer" : "num_hidden_layers", s->layers, "test", 4}};
    PlanFixed fixed = plan_fixed_none();
    char path[512];
    *t = (SmallSpace){0};
    DO(arena_open(&t->arena, "plans", ARENA_PLENTY));
    DO(arena_open(&t->temp, "compiler", ARENA_PLENTY));
    snprintf(path, sizeof path, "share/clusters/%s.yaml", s->cluster);
    DO(cluster_read(path, &t->arena, &t->cluster));
    add_to(s->addition, &t->cluster, m);
    DO(model_config_load(s->model, set, 1, &t->arena, &t->config));
    t->job = test_job_settings(gpt ? "gpt2" : t->config.experts.n ? "mixtral" : "llama", JOB_STEP);
    t->job.config = &t->config;
    t->job.dtype = BF16;
    t->job.batch.seq_len = s->seq_len;
    t->job.optim.block = 1024;
    t->job.compile.chunk_elements = 32000000;
    if (s->fp8)
        t->job.compile.fp8 = (Fp8Options){.names = "*",
                                          .compute = E4M3,
                                          .gradient = E5M2,
                                          .scaling = SCALING_TENSOR,
                                          .spare_ends = true,
                                          .code_weights = true};
    if (s->fix) s->fix(&fixed);
    t->s = (PlanSearch){.space = {.base = &t->job,
                                  .cluster = &t->cluster,
                                  .global = s->global,
                                  .ranks = s->ranks,
                                  .fixed = fixed},
                        .arena = &t->arena,
                        .temp = &t->temp};
    DO(plan_cache_open(&t->arena, &t->s.cache));
    DO(plan_search_open(&t->s));
}

/* A ring over nodes: sends and receives of a hop take place at the same time. */
static void fix_ring(PlanFixed *f)
{
    f->tp = 8;
    f->cp = 4;
    f->context = CONTEXT_RING;
    f->micro = 8;
}

/* Tied, with layers in FP8 and others: units of both stages have their own RUNs. */
static void fix_ends(PlanFixed *f)
{
    f->tp = f->pp = 2;
    f->cp = 1;
}

/* The first stage gathers the embedding and reduces its gradients, beside few frames. */
static void fix_embedding(PlanFixed *f)
{
    f->pp = 2;
    f->zero = 3;
    f->schedule = "1f1b";
    f->micro = 8;
    f->tp = f->cp = 1;
}

/* Backward phases in two: what I reads is gone in W. Shapes differ along cp: no rank has the most
 * of all bytes. */
static void fix_halves(PlanFixed *f)
{
    f->tp = 2;
    f->cp = 3;
    f->pp = 4;
    f->schedule = "zbh2";
    f->context = CONTEXT_ULYSSES;
    f->micro = 8;
    f->tp_search = 0;
    f->tp_weights = "*down_proj.*=outputs";
    f->recompute = RECOMPUTE_FULL;
}

/* Experts over fewer ranks than tp. */
static void fix_experts(PlanFixed *f)
{
    f->tp = 4;
    f->cp = 3;
    f->pp = f->ep = 2;
    f->etp = 1;
    f->micro = f->sequence = f->tp_search = 1;
    f->schedule = "zbh1";
    f->zero = f->by_cost = 0;
}

static void fix_stages(PlanFixed *f)
{
    f->pp = f->tp = 4;
    f->cp = 1;
    f->schedule = "1f1b";
}

static void large_plans(void **state)
{
    static const Shipped row[] = {
        {"h100-sxm", "llama3-70b", "2", 8192, 32, 16, false, AS_SHIPPED, fix_ring},
        {"b200-sxm", "gpt2-xl", "4", 1024, 8, 40, true, AS_SHIPPED, fix_ends},
        {"h100-sxm", "llama3-8b", "4", 8192, 16, 64, false, AS_SHIPPED, fix_embedding},
        {"h100-sxm-efa", "llama3-8b", "4", 8192, 24, 24, false, AS_SHIPPED, fix_halves},
        {"h100-sxm", "qwen3-30b-a3b", "3", 4096, 24, 48, false, AS_SHIPPED, fix_experts},
        {"a100-sxm-hdr8", "gpt2-xl", "4", 1024, 32, 32, false, FAST_PAIRS, fix_stages},
        {"a100-sxm-hdr8", "llama3-8b", "2", 4096, 16, 32, false, SLOW_PAIRS, NULL},
        {"h100-sxm-efa", "mixtral-8x7b", "2", 4096, 16, 32, false, AS_SHIPPED, NULL},
        {"h100-sxm", "llama3-8b", "2", 4096, 16, 32, false, GRID, NULL},
    };
    uint64_t seed = 5;
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        SmallSpace t;
        Measured m;
        int checked = 0;
        open_shipped(&t, &row[i], &m);
        for (int k = 0; k < 6; k++) {
            const PlanPoint p = row[i].fix ? t.s.node[next_random(&seed) % (uint64_t)t.s.n].point
                                           : random_point(&t, &seed);
            checked += check_point(&t, &p);
        }
        if (checked < 3) fail_msg("row %d: %d plans checked", (int)i, checked);
        close_small(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_plans),
                                       cmocka_unit_test(large_plans),
                                       cmocka_unit_test(memory_is_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
