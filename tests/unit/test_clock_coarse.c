/* test_clock_coarse.c -- the coarse clock against the clock, and its speed.
 *
 * Both play the same seconds of the same programs, so with transfers that overlap they agree to
 * 0.5%; the rest is the position of waits within a stage. Some things are beyond a summary:
 *
 *     carried out    without overlap a rank carries out transfers in the order of its waits, and
 *                    both ends of a send wait for it; the coarse clock has one order for a stage
 *     uneven nodes   if the axes cut across nodes (tp=3 on nodes of 2), ranks along dp have other
 *                    positions; a summary has those of the first
 *     experts        gathers and reductions of a unit's two packs, over other groups, are one
 *     weights        packs of a unit, by ZeRO level or of coded weights, are gathered and reduced
 *                    one by one
 *     far apart      tied weights are summarized on neighboring stages, which may be on one node
 *                    although the first and the last are not
 *     tied           the steps of a late reduction are one transfer; the head's gather of the
 *                    embedding takes no place of its own in the window of gathers */
#include <math.h>
#include <time.h>

#include "clock_cases.h"
#include "support/models.h"
#include "plan/clock/coarse.h"

static const double OVERLAPS = 0.005, TIED_LATE = 0.02, TIED_GATHERS = 0.1, CARRIED_OUT = 0.05,
                    UNEVEN_NODES = 0.10, FAR_APART = 0.02, EXPERTS = 0.025, WEIGHTS = 0.03,
                    WEIGHTS_CARRIED_OUT = 0.07;

/* Clusters with launches by the host, serial axes, and transfers that slow work down: the host runs
 * ahead within a RUN, and slow-downs move waits. */
enum { N_CLUSTERS = 5 };
static const double OTHERWISE = 0.08;

static Cluster nth_cluster(int n)
{
    Cluster c = slow_cluster(n != 1);
    if (n == 2) c.host_launch_s = 4e-6;
    if (n == 3) c.serial = 1u << TRANSFER_DP, c.slow_transfer = 1.3, c.slow_work = 1.1;
    if (n == 4) c.host_launch_s = 2e-6, c.stops_host = 1u << TRANSFER_TP | 1u << TRANSFER_PP;
    return c;
}

typedef struct {
    LayoutSummary layout;
    Job job; /* what all ranks share */
} CoarseCase;

static void open_coarse(Fixture *f, const Cluster *cluster, CoarseCase *c)
{
    const ClockInput in = {.cluster = cluster, .job = &f->set, .mesh = &f->mesh};
    DO(clock_summarize(&in, &f->arena, &f->temp, &c->layout));
    DO(job_share(&f->set, &f->arena, &c->job));
}

static CoarseTime coarse_step(Fixture *f, const Cluster *cluster, const CoarseCase *c)
{
    const CoarseInput in = {.cluster = cluster, .layout = &c->layout, .moves = &c->job.moves};
    CoarseTime out;
    DO(clock_coarse_step(&in, &f->temp, &out));
    const double sum = out.work_s + out.tp_s + out.cp_s + out.dp_s + out.pp_s + out.update_s +
                       out.host_s + out.idle_s;
    assert_true(fabs(sum - out.step_s) <= 1e-9 * out.step_s);
    return out;
}

/* The ranks of a node are 2: an axis cuts across if neither divides the other. */
static bool is_uneven(const MeshSizes *m)
{
    const int tp = m->tp ? m->tp : 1, cp = m->cp ? m->cp : 1;
    return (tp > 1 && tp % 2) || (cp > 1 && (tp * cp) % 2);
}

static void agrees_with_the_clock(void **state)
{
    static CoarseCase c;
    (void)state;
    for (int i = 0; i < N_CLUSTERS * N_CASES; i++) {
        const int n = i % N_CLUSTERS;
        const ClockCase *of = &cases[i / N_CLUSTERS];
        const Cluster cluster = nth_cluster(n);
        Fixture f;
        StepTime fine;
        open_case(&f, of);
        if (i % 2) make_even(&f);
        const ClockInput in = {.cluster = &cluster, .job = &f.set, .mesh = &f.mesh};
        DO(clock_step(&in, &f.arena, &f.temp, &fine));
        open_coarse(&f, &cluster, &c);
        const CoarseTime coarse = coarse_step(&f, &cluster, &c);
        const double gap = coarse.step_s / fine.step_s - 1;
        const double bound = is_uneven(&of->mesh) ? UNEVEN_NODES
                             : n == 0             ? OVERLAPS
                             : n == 1             ? CARRIED_OUT
                                                  : OTHERWISE;
        if (fabs(gap) > bound)
            fail_msg("case %d, cluster %d: coarse %.6g s, clock %.6g s: %+.2f%%", i / N_CLUSTERS, n,
                     coarse.step_s, fine.step_s, 100 * gap);
        close_case(&f);
    }
}

/* Coded weights are made before all RUNs, and gathered beside the others of their unit. */
static void codes_agree_with_the_clock(void **state)
{
    static CoarseCase c;
    (void)state;
    for (int i = 0; i < 4 * N_CASES; i++) {
        const ClockCase *of = &cases[i / 4];
        const Cluster cluster = nth_cluster(i % 2);
        Fixture f;
        StepTime fine;
        if (is_uneven(&of->mesh)) continue;
        open_case(&f, of);
        f.set.dtype = BF16;
        f.set.compile.fp8 = (Fp8Options){.names = "*",
                                         .compute = E4M3,
                                         .gradient = i % 4 < 2 ? E5M2 : E4M3,
                                         .scaling = i % 4 < 2 ? SCALING_TENSOR : SCALING_BLOCK,
                                         .code_weights = true};
        const ClockInput in = {.cluster = &cluster, .job = &f.set, .mesh = &f.mesh};
        DO(clock_step(&in, &f.arena, &f.temp, &fine));
        open_coarse(&f, &cluster, &c);
        const CoarseTime coarse = coarse_step(&f, &cluster, &c);
        const double gap = coarse.step_s / fine.step_s - 1;
        if (fabs(gap) > (cluster.overlaps ? WEIGHTS : WEIGHTS_CARRIED_OUT))
            fail_msg("case %d, cluster %d: coarse %.6g s, clock %.6g s: %+.2f%%", i / 4, i % 2,
                     coarse.step_s, fine.step_s, 100 * gap);
        close_case(&f);
    }
}

/* Weights of a layer with other ZeRO levels than the rest. Not with replicas of shards and weights
 * that are whole: these are summed over another group, at the same time. */
static void knows_levels_of_weights(void **state)
{
    static const char *const rules[] = {"mlp.*=3", "self_attn.*=1,mlp.down_proj.*=2", "mlp.*=0",
                                        "self_attn.o_proj.*=0,self_attn.*=3,mlp.*=2"};
    static CoarseCase c;
    int checked = 0;
    (void)state;
    for (int i = 0; i < 8 * N_CASES; i++) {
        const ClockCase *of = &cases[i / 8];
        const Cluster cluster = nth_cluster(i % 8 / 4);
        Fixture f;
        StepTime fine;
        if (of->mesh.dp_shard < 2 || is_uneven(&of->mesh)) continue;
        if (of->mesh.dp_replicate > 1 && i % 4 > 1) continue;
        open_case(&f, of);
        f.set.parallel.zero_weights = rules[i % 4];
        f.set.parallel.reduce_each = false;
        const ClockInput in = {.cluster = &cluster, .job = &f.set, .mesh = &f.mesh};
        DO(clock_step(&in, &f.arena, &f.temp, &fine));
        open_coarse(&f, &cluster, &c);
        const CoarseTime coarse = coarse_step(&f, &cluster, &c);
        const double gap = coarse.step_s / fine.step_s - 1;
        if (fabs(gap) > (cluster.overlaps ? WEIGHTS : WEIGHTS_CARRIED_OUT))
            fail_msg("case %d, %s: coarse %.6g s, clock %.6g s: %+.2f%%", i / 8, rules[i % 4],
                     coarse.step_s, fine.step_s, 100 * gap);
        checked++;
        close_case(&f);
    }
    assert_true(checked > 50);
}

/* A case with GPT-2 of six layers, whose embedding and head are one parameter. */
static void open_tied(Fixture *f, const ClockCase *of)
{
    open_case(f, of);
    f->set = test_job_settings("gpt2", JOB_STEP);
    f->config = *f->set.config;
    f->config.n_layers = 6;
    f->set.config = &f->config;
    f->set.parallel.mesh = of->mesh;
    f->set.parallel.zero = of->zero;
    f->set.micros = of->micros;
    f->set.schedule = of->schedule;
}

/* GPT-2, whose embedding and head are one parameter, on two stages: their reduction follows all
 * RUNs of both. In a V both are on the first stage, and nothing is reduced between stages. */
static void tied_weights_are_reduced_at_the_end(void **state)
{
    static const char *const schedule[] = {"1f1b",        "gpipe", "zbh1", "zbh2",
                                           "interleaved", "izb",   "zbv",  "dualpipev"};
    static CoarseCase c;
    (void)state;
    for (int i = 0; i < 16; i++) {
        const Cluster cluster = slow_cluster(true);
        const bool is_v = i % 8 >= 6;
        const ClockCase of = {.mesh = {.pp = 2 + i / 8 * 2, .dp_shard = 1 + i % 2},
                              .zero = i % 3 == 2 && i % 2,
                              .micros = is_v ? 8 : 5,
                              .schedule = schedule[i % 8]};
        Fixture f;
        StepTime fine;
        open_tied(&f, &of);
        const ClockInput in = {.cluster = &cluster, .job = &f.set, .mesh = &f.mesh};
        DO(clock_step(&in, &f.arena, &f.temp, &fine));
        open_coarse(&f, &cluster, &c);
        assert_true(c.layout.class[c.layout.class_of[0]].late == !is_v);
        const CoarseTime coarse = coarse_step(&f, &cluster, &c);
        if (fabs(coarse.step_s / fine.step_s - 1) >
            (of.mesh.pp > 2 && !is_v ? FAR_APART : OVERLAPS))
            fail_msg("case %d, %s: coarse %.6g s, clock %.6g s: %+.2f%%", i, of.schedule,
                     coarse.step_s, fine.step_s, 100 * (coarse.step_s / fine.step_s - 1));
        close_case(&f);
    }
}

/* Where gradients take longer than the work, the reduction of tied weights follows those of the
 * stage's other units. With ZeRO 3 on one stage the head gathers the embedding again; the window of
 * gathers counts it as one unit with the head's own weights, so some are begun early. */
static void tied_weights_wait_for_slow_links(void **state)
{
    static const char *const schedule[] = {"1f1b", "gpipe", "zbh1", "zbh2", "izb", "1f1b"};
    static CoarseCase c;
    (void)state;
    for (int i = 0; i < 6; i++) {
        Cluster cluster = slow_cluster(true);
        const bool gathers = i == 5;
        const ClockCase of = {.mesh = {.pp = gathers ? 1 : 2, .dp_shard = 2},
                              .zero = gathers ? 3 : i % 2,
                              .micros = gathers ? 1 : 4,
                              .schedule = schedule[i]};
        Fixture f;
        StepTime fine;
        for (int l = 0; l < cluster.rates.n_levels; l++) cluster.rates.level[l].Bps /= 100;
        open_tied(&f, &of);
        const ClockInput in = {.cluster = &cluster, .job = &f.set, .mesh = &f.mesh};
        DO(clock_step(&in, &f.arena, &f.temp, &fine));
        open_coarse(&f, &cluster, &c);
        const double gap = coarse_step(&f, &cluster, &c).step_s / fine.step_s - 1;
        if (fabs(gap) > (gathers ? TIED_GATHERS : TIED_LATE))
            fail_msg("case %d, %s: %+.2f%%", i, of.schedule, 100 * gap);
        close_case(&f);
    }
}

/* A mixture of experts on these axes; balance loss, so its load is summed over ranks. */
static void open_experts(Fixture *f, const MeshSizes *mesh, double rows)
{
    const ClockCase of = {.mesh = *mesh, .micros = 4, .schedule = "1f1b", .zero = 1};
    open_case(f, &of);
    f->config = *test_model("qwen2_moe");
    f->config.n_layers = 4;
    f->config.experts.n = 8;
    f->config.experts.chosen = 2;
    f->config.experts.width = 20;
    f->config.experts.dense_layers = NULL;
    f->config.experts.aux_loss = 0.1;
    f->set.config = &f->config;
    f->set.parallel.expert_rows = rows;
    f->set.parallel.sequence = mesh->tp > 1;
}

static void experts_agree_with_the_clock(void **state)
{
    static const MeshSizes mesh[] = {{.dp_shard = 4, .ep = 2},
                                     {.dp_shard = 4, .ep = 4},
                                     {.dp_shard = 2, .tp = 2, .ep = 4},
                                     {.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2},
                                     {.dp_shard = 2, .cp = 2, .ep = 4},
                                     {.pp = 2, .dp_shard = 4, .ep = 2},
                                     {.pp = 2, .dp_shard = 2, .tp = 2, .ep = 4}};
    static CoarseCase c;
    (void)state;
    for (size_t i = 0; i < 2 * sizeof mesh / sizeof *mesh; i++) {
        const Cluster cluster = slow_cluster(i % 2 == 0);
        Fixture f;
        StepTime fine;
        open_experts(&f, &mesh[i / 2], 2);
        const ClockInput in = {.cluster = &cluster, .job = &f.set, .mesh = &f.mesh};
        DO(clock_step(&in, &f.arena, &f.temp, &fine));
        open_coarse(&f, &cluster, &c);
        const CoarseTime coarse = coarse_step(&f, &cluster, &c);
        const double gap = coarse.step_s / fine.step_s - 1;
        if (fabs(gap) > EXPERTS)
            fail_msg("case %zu: coarse %.6g s, clock %.6g s: %+.2f%%", i, coarse.step_s,
                     fine.step_s, 100 * gap);
        close_case(&f);
    }
}

/* Room for more rows is sent, and not computed. */
static void rooms_are_sent_and_rows_computed(void **state)
{
    const MeshSizes mesh = {.dp_shard = 4, .ep = 4};
    const Cluster cluster = slow_cluster(true);
    StepTime time[2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        Fixture f;
        open_experts(&f, &mesh, i ? 3 : 1);
        const ClockInput in = {.cluster = &cluster, .job = &f.set, .mesh = &f.mesh};
        DO(clock_step(&in, &f.arena, &f.temp, &time[i]));
        close_case(&f);
    }
    assert_true(fabs(time[1].spent_s[TIME_GEMM] / time[0].spent_s[TIME_GEMM] - 1) < 1e-9);
    assert_true(time[1].step_s > 1.05 * time[0].step_s);
    assert_true(time[1].spent_s[TIME_EP] > 2 * time[0].spent_s[TIME_EP]);
    assert_true(time[1].spent_s[TIME_TP] == 0 && time[0].spent_s[TIME_EP] > 0);
}

/* llama3.1-405b on 16,384 ranks. */
static void open_405b(Fixture *f, const char *schedule)
{
    f->set = test_job_settings("llama", JOB_STEP);
    DO(arena_open(&f->arena, "clock", ARENA_PLENTY));
    DO(arena_open(&f->temp, "compiler", ARENA_PLENTY));
    DO(model_config_load("llama3.1-405b", NULL, 0, &f->arena, &f->config));
    f->set.config = &f->config;
    f->set.dtype = BF16;
    f->set.batch = (BatchShape){1, 8192};
    f->set.causal = true;
    f->set.optim.block = 0;
    f->set.compile.chunk_elements = 0;
    f->set.compile.device_memory = true;
    f->set.micros = 16;
    f->set.schedule = schedule;
    f->set.parallel.mesh = (MeshSizes){.pp = 16, .dp_shard = 128, .tp = 8};
    f->set.parallel.sequence = true;
    DO(mesh_sized(&f->set.parallel.mesh, &f->mesh));
}

/* Bytes of the linked program of a stage, without host memory. */
static double linked_bytes(Fixture *f, const Job *shared, int stage)
{
    static Job job;
    const size_t mark = arena_mark(&f->temp);
    DO(job_compile_rank(shared, stage * f->mesh.world / shared->moves.stages, &f->temp, &job));
    const LinkedProgram *lp = &job.linked;
    arena_rewind(&f->temp, mark);
    return (double)lp->bytes[ARENA_STATE] + (double)lp->bytes[ARENA_STEP] +
           (double)lp->bytes[ARENA_WORK];
}

/* Live bytes are a little less than packed ones, and packs gathered ahead a little more. */
static void knows_bytes(void **state)
{
    static const char *const schedule[] = {"1f1b", "zbv", "gpipe", "interleaved"};
    static CoarseCase c;
    (void)state;
    for (int i = 0; i < 12; i++) {
        const Cluster cluster = {.name = "h100", .rates = *cost_default_rates(), .overlaps = true};
        Fixture f;
        open_405b(&f, schedule[i % 4]);
        f.set.parallel.zero = i % 3;
        f.set.compile.recompute = (Recompute)(i / 4);
        open_coarse(&f, &cluster, &c);
        const CoarseTime coarse = coarse_step(&f, &cluster, &c);
        const double exact = linked_bytes(&f, &c.job, coarse.peak_stage);
        if (fabs((double)coarse.peak_bytes / exact - 1) > 0.05)
            fail_msg("case %d, %s: coarse %.5g bytes, linked %.5g", i, schedule[i % 4],
                     (double)coarse.peak_bytes, exact);
        close_case(&f);
    }
}

static double cpu_s(clock_t since) { return (double)(clock() - since) / CLOCKS_PER_SEC; }

/* Processor time, not elapsed time: the machine may be busy. */
static void is_fast_at_scale(void **state)
{
    static const char *const schedule[] = {"1f1b", "zbv"};
    static CoarseCase c;
    (void)state;
    for (int i = 0; i < 4; i++) {
        Cluster cluster = {.name = "h100", .rates = *cost_default_rates(), .overlaps = true};
        enum { PLANS = 50 };
        Fixture f;
        StepTime fine;
        CoarseTime coarse = {0};
        open_405b(&f, schedule[i % 2]);
        f.set.parallel.zero = i < 2 ? 1 : 0;
        const ClockInput in = {.cluster = &cluster, .job = &f.set, .mesh = &f.mesh};
        clock_t start = clock();
        DO(clock_step(&in, &f.arena, &f.temp, &fine));
        const double fine_s = cpu_s(start);
        start = clock();
        open_coarse(&f, &cluster, &c);
        const double summary_s = cpu_s(start);
        start = clock();
        for (int k = 0; k < PLANS; k++) coarse = coarse_step(&f, &cluster, &c);
        const double coarse_s = cpu_s(start) / PLANS;
        print_message("%s: clock %.2f s with compiling; summaries %.1f ms, coarse %.3f ms\n",
                      schedule[i % 2], fine_s, 1e3 * summary_s, 1e3 * coarse_s);
        assert_true(fabs(coarse.step_s / fine.step_s - 1) <= OVERLAPS);
        assert_true(coarse_s <= 1e-3);
        assert_true(fine_s <= 10);
        close_case(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(agrees_with_the_clock),
                                       cmocka_unit_test(codes_agree_with_the_clock),
                                       cmocka_unit_test(knows_levels_of_weights),
                                       cmocka_unit_test(tied_weights_are_reduced_at_the_end),
                                       cmocka_unit_test(tied_weights_wait_for_slow_links),
                                       cmocka_unit_test(experts_agree_with_the_clock),
                                       cmocka_unit_test(rooms_are_sent_and_rows_computed),
                                       cmocka_unit_test(knows_bytes),
                                       cmocka_unit_test(is_fast_at_scale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
