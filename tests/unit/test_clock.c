/* test_clock.c -- the time of a step: sums by hand, and properties that hold for every mesh. */
#include <math.h>

#include "clock_cases.h"
#include "schedule/traffic.h"

static StepTime played(Fixture *f, const Cluster *cluster, bool every_rank)
{
    StepTime t;
    const ClockInput in = {
        .cluster = cluster, .job = &f->set, .mesh = &f->mesh, .every_rank = every_rank};
    DO(clock_step(&in, &f->arena, &f->temp, &t));
    return t;
}

static double sum_of(const double *times)
{
    double sum = 0;
    for (int k = 0; k < N_TIMES; k++) sum += times[k];
    return sum;
}

static bool close_to(double a, double b) { return fabs(a - b) <= 1e-9 * fabs(b); }

/* Breakdown and critical path add up to the step. One rank along dp stands for all, and one along
 * tp if the shapes are equal. */
static void sums_and_classes(void **state)
{
    int merged = 0;
    Fixture f;
    (void)state;
    for (int i = 0; i < 4 * N_CASES; i++) {
        const Cluster cluster = slow_cluster(i % 2 == 0);
        const MeshSizes *m = &cases[i / 4].mesh;
        open_case(&f, &cases[i / 4]);
        if (i / 2 % 2) make_even(&f);
        const StepTime by_class = played(&f, &cluster, false), all = played(&f, &cluster, true);
        if (!close_to(by_class.step_s, all.step_s) || all.played != f.mesh.world)
            fail_msg("case %d: %.9g s by class, %.9g s by rank", i, by_class.step_s, all.step_s);
        assert_true(by_class.step_s > 0 && by_class.played <= all.played);
        const int stages = (m->pp ? m->pp : 1) * (m->cp ? m->cp : 1);
        if (i / 2 % 2 && m->tp % 2 == 0 && m->tp > 0) {
            assert_int_equal(by_class.played, stages);
            merged++;
        }
        assert_true(close_to(by_class.model_flops, all.model_flops));
        const StepTime *t[] = {&by_class, &all};
        for (int k = 0; k < 2; k++) {
            if (!close_to(sum_of(t[k]->spent_s), t[k]->step_s) ||
                !close_to(sum_of(t[k]->path_s), t[k]->step_s))
                fail_msg("case %d: step %.9g, breakdown %.9g, path %.9g", i, t[k]->step_s,
                         sum_of(t[k]->spent_s), sum_of(t[k]->path_s));
            assert_true(t[k]->path_s[TIME_IDLE] == 0);
        }
        close_case(&f);
    }
    assert_true(merged > 0);
}

/* Each rate alone is improved: no step gets longer, and some get shorter. */
static void faster_is_never_longer(void **state)
{
    enum { N_RATES = 8 };
    int shorter[N_RATES] = {0};
    Fixture f;
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        Cluster cluster = slow_cluster(i % 3 != 0);
        cluster.share_links = i % 2;
        open_case(&f, &cases[i]);
        const double before = played(&f, &cluster, false).step_s;
        for (int rate = 0; rate < N_RATES; rate++) {
            Cluster c = cluster;
            if (rate < N_WORK_CLASSES)
                for (int t = 0; t < N_DTYPES; t++) c.rates.flops_per_s[rate][t] *= 3;
            if (rate == 3) c.rates.memory_Bps *= 3;
            if (rate == 4) c.rates.launch_s = 0;
            if (rate == 5) c.rates.level[0].Bps *= 3;
            if (rate == 6) c.rates.level[1].Bps *= 3;
            if (rate == 7) c.rates.level[0].latency_s = c.rates.level[1].latency_s = 0;
            const double after = played(&f, &c, false).step_s;
            if (after > before * (1 + 1e-12))
                fail_msg("case %d, rate %d: %.9g s, then %.9g s", i, rate, before, after);
            shorter[rate] += after < before * (1 - 1e-9);
        }
        close_case(&f);
    }
    for (int rate = 0; rate < N_RATES; rate++) assert_true(shorter[rate] > 0);
}

/* Seconds of all work of a rank's programs, counted without tapes. */
static double work_of(const LinkedProgram *lp, const CostRates *r)
{
    double sum = 0;
    for (int i = 0; i < lp->n; i++) {
        const LinkedAction *l = &lp->list[i];
        for (int k = l->program ? l->program->first[l->action.phase] : 0;
             l->program && k < l->program->first[l->action.phase + 1]; k++)
            sum += cost_instr_seconds(r, l->program, &l->program->instr[k]);
    }
    return sum;
}

typedef struct {
    const CostRates *rates;
    double seconds;
} TransferSum;

static Err add_transfer(void *context, const Transfer *t, int64_t times)
{
    TransferSum *s = context;
    const Ref *whole = t->kind == COMM_ALL_GATHER ? &t->to : &t->from;
    s->seconds += (double)times *
                  cost_transfer_seconds(s->rates, t->kind, cost_group(s->rates, t->group),
                                        (double)whole->count * (double)dtype_bytes(whole->dtype));
    return OK;
}

/* One rank: the step is its work. Two dp ranks without overlap: work and all transfers. */
static void sums_by_hand(void **state)
{
    (void)state;
    for (int dp = 1; dp <= 2; dp++) {
        const ClockCase c = {{.dp_shard = dp}, 0, 3, "1f1b", 0, 0, RECOMPUTE_NONE};
        const Cluster cluster = slow_cluster(false);
        TransferSum sent = {&cluster.rates, 0}, scalars = {&cluster.rates, 0};
        static Job job;
        Fixture f;
        open_case(&f, &c);
        const StepTime t = played(&f, &cluster, true);
        DO(job_compile(&f.set, &f.arena, &job));
        DO(linked_visit(&job.linked, add_transfer, &sent));
        for (int k = 0; k < N_SCALARS; k++)
            if (job.linked.scalar[k].group.n > 1)
                DO(add_transfer(&scalars, &job.linked.scalar[k].t, 1));
        const double work = work_of(&job.linked, &cluster.rates), update = t.spent_s[TIME_UPDATE];
        const double transfers = sent.seconds - scalars.seconds, rest = t.step_s - update;
        if (!close_to(rest, work + transfers))
            fail_msg("dp=%d: %.9g s, not %.9g", dp, rest, work + transfers);
        assert_true(t.spent_s[TIME_DP] == 0 ? dp == 1 : close_to(t.spent_s[TIME_DP], transfers));
        assert_true(update > scalars.seconds && (dp == 1) == (scalars.seconds == 0));
        close_case(&f);
    }
}

/* With free links, 1f1b on P stages with equal work leaves the bubble of the schedule. More
 * micro-batches have a smaller share of it. */
static void bubbles_shrink_with_micros(void **state)
{
    double share = 1;
    (void)state;
    for (int micros = 2; micros <= 16; micros *= 2) {
        ClockCase c = {{.pp = 2}, 0, micros, "1f1b", 0, 0, RECOMPUTE_NONE};
        Cluster cluster = slow_cluster(true);
        Fixture f;
        for (int l = 0; l < 2; l++)
            cluster.rates.level[l].latency_s = 0, cluster.rates.level[l].Bps = 1e18;
        open_case(&f, &c);
        const StepTime t = played(&f, &cluster, false);
        const double now = t.spent_s[TIME_PP] / t.step_s;
        assert_true(now > 0 && now < share);
        share = now;
        close_case(&f);
    }
}

/* Transfers that overlap are never slower than those that do not. */
static void overlap_hides_time(void **state)
{
    int hidden = 0;
    Fixture f;
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const Cluster with = slow_cluster(true), without = slow_cluster(false);
        open_case(&f, &cases[i]);
        const double a = played(&f, &with, false).step_s, b = played(&f, &without, false).step_s;
        hidden += a < b * (1 - 1e-9);
        close_case(&f);
    }
    assert_true(hidden > N_CASES / 3);
}

/* The host's launches bound a step from below, and cost nothing when the device is slower. Tapes
 * can be played again, on another cluster. */
static void hosts_launch_ahead(void **state)
{
    Fixture f;
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const Cluster base = slow_cluster(i % 2 == 0);
        Cluster slow = base, stopped;
        StepClock *clock;
        StepTime t, again, late;
        open_case(&f, &cases[i]);
        const ClockInput in = {.cluster = &base, .job = &f.set, .mesh = &f.mesh};
        DO(clock_open(&in, &f.arena, &f.temp, &clock));
        DO(clock_play(clock, &base, &t));
        slow.host_launch_s = 1e-9;
        DO(clock_play(clock, &slow, &again));
        assert_true(again.step_s >= t.step_s && again.step_s < 1.001 * t.step_s);
        slow.host_launch_s = 1; /* each kernel waits for its launch */
        DO(clock_play(clock, &slow, &late));
        assert_true(late.spent_s[TIME_HOST] > 0.1 * late.step_s && late.step_s > 10);
        assert_true(close_to(sum_of(late.spent_s), late.step_s));
        assert_true(close_to(sum_of(late.path_s), late.step_s));
        slow.host_launch_s = 1e-4, stopped = slow;
        stopped.stops_host = ~0u;
        DO(clock_play(clock, &slow, &late));
        DO(clock_play(clock, &stopped, &again));
        assert_true(again.step_s >= late.step_s);
        stopped = slow;
        stopped.host_member_s = 1; /* for each further member of a transfer */
        DO(clock_play(clock, &stopped, &again));
        assert_true((f.mesh.world == 1) == (again.step_s == late.step_s));
        DO(clock_play(clock, &base, &again));
        assert_true(again.step_s == t.step_s);
        close_case(&f);
    }
}

/* Serial axes hide nothing; work and transfers that overlap slow each other down. */
static void overlap_has_a_price(void **state)
{
    int serial = 0, slower = 0;
    Fixture f;
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const Cluster with = slow_cluster(true);
        Cluster without = with, work = with, transfer = with;
        without.serial = ~0u, work.slow_work = 1.3, transfer.slow_transfer = 1.4;
        open_case(&f, &cases[i]);
        const double a = played(&f, &with, false).step_s, b = played(&f, &without, false).step_s;
        const StepTime c = played(&f, &work, false), d = played(&f, &transfer, false);
        serial += a < b;
        slower += c.step_s > a && d.step_s > a;
        assert_true(c.step_s >= a && d.step_s >= a && c.step_s <= 1.3 * a && d.step_s <= 1.4 * a);
        assert_true(close_to(sum_of(c.spent_s), c.step_s) && close_to(sum_of(c.path_s), c.step_s));
        close_case(&f);
    }
    assert_true(serial > N_CASES / 3 && slower > N_CASES / 4);
}

/* Flows that share links make no step shorter and some longer; one rank of a class still stands for
 * all, sums hold, and tapes can be played again without sharing. */
static void links_are_shared(void **state)
{
    int longer = 0;
    Fixture f;
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const Cluster alone = slow_cluster(true);
        Cluster shared = alone;
        StepClock *clock;
        StepTime a, b, again;
        shared.share_links = true;
        open_case(&f, &cases[i]);
        const ClockInput in = {.cluster = &alone, .job = &f.set, .mesh = &f.mesh};
        DO(clock_open(&in, &f.arena, &f.temp, &clock));
        DO(clock_play(clock, &alone, &a));
        DO(clock_play(clock, &shared, &b));
        DO(clock_play(clock, &alone, &again));
        assert_true(again.step_s == a.step_s);
        if (b.step_s < a.step_s * (1 - 1e-12)) fail_msg("case %d: shorter with sharing", i);
        longer += b.step_s > a.step_s * (1 + 1e-9);
        assert_true(close_to(sum_of(b.spent_s), b.step_s) && close_to(sum_of(b.path_s), b.step_s));
        const double all = played(&f, &shared, true).step_s;
        if (!close_to(b.step_s, all)) fail_msg("case %d: %.9g s, by rank %.9g", i, b.step_s, all);
        close_case(&f);
    }
    assert_true(longer > 3);
}

/* More tokens, and so more bytes in every transfer, never make a step shorter; nor do more bytes a
 * transfer, at any size, on any group. */
static void more_bytes_are_never_faster(void **state)
{
    Fixture f;
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const Cluster cluster = slow_cluster(i % 2 == 0);
        double before = 0;
        for (int sequences = 1; sequences <= 3; sequences++) {
            open_case(&f, &cases[i]);
            f.set.batch.sequences = sequences;
            const double now = played(&f, &cluster, false).step_s;
            if (now < before) fail_msg("case %d: %d sequences %.9g s", i, sequences, now);
            before = now;
            close_case(&f);
        }
    }
    for (int kind = 0; kind < N_COMM_KINDS; kind++)
        for (int members = 1; members <= 24; members++) {
            const Cluster cluster = slow_cluster(true);
            const CostRates *r = &cluster.rates;
            double before = 0;
            for (double bytes = 1; bytes < 1e12; bytes *= 1.7) {
                const double now = cost_transfer_seconds(
                    r, (CommKind)kind, cost_group_strided(r, members, 1 + members % 3), bytes);
                assert_true(now >= before);
                before = now;
            }
        }
}

/* A message between stages that tp ranks send in parts takes less time; nothing else changes. */
static void parts_of_messages_are_shorter(void **state)
{
    double whole = 0;
    (void)state;
    for (int parts = 1; parts <= 3; parts++) {
        const ClockCase c = {{.pp = 2, .tp = 3}, 0, 1, "1f1b", 0, 0, RECOMPUTE_NONE};
        Cluster cluster = slow_cluster(false);
        StepTime t;
        Fixture f;
        cluster.rates.level[0].pair_Bps = cluster.rates.level[1].pair_Bps = 1; /* B/s */
        open_case(&f, &c);
        const ClockInput in = {
            .cluster = &cluster, .job = &f.set, .mesh = &f.mesh, .send_parts = parts};
        DO(clock_step(&in, &f.arena, &f.temp, &t));
        if (parts == 1) whole = t.path_s[TIME_PP];
        assert_true(whole > 100 && fabs(parts * t.path_s[TIME_PP] / whole - 1) < 1e-3);
        close_case(&f);
    }
}

/* Other stacks: latencies of n collectives for one, bytes n times as many, more kernels for each
 * attention. Nothing else of the step changes. */
static void calls_of_other_stacks_are_counted(void **state)
{
    const ClockCase c = {{.dp_shard = 3}, 1, 2, "1f1b", 0, 0, RECOMPUTE_NONE};
    double time[6];
    (void)state;
    for (int i = 0; i < 6; i++) {
        Cluster cluster = slow_cluster(false);
        StepTime t;
        Fixture f;
        open_case(&f, &c);
        for (int l = 0; l < cluster.rates.n_levels; l++) {
            cluster.rates.level[l].latency_s = i < 3 ? 1 : 0;
            cluster.rates.level[l].Bps = i < 3 ? 1e30 : 1e3;
        }
        cluster.host_launch_s = i < 5 ? 0 : 1;
        const ClockInput in = {.cluster = &cluster,
                               .job = &f.set,
                               .mesh = &f.mesh,
                               .dp_calls = i == 1   ? 3
                                           : i == 2 ? 0.5
                                                    : 0,
                               .dp_bytes = i == 4 ? 3 : 0,
                               .attention_launches = i == 5 ? 4 : 0};
        DO(clock_step(&in, &f.arena, &f.temp, &t));
        time[i] = t.spent_s[TIME_DP];
        if (i < 5) {
            close_case(&f);
            continue;
        }
        const ClockInput plain = {.cluster = &cluster, .job = &f.set, .mesh = &f.mesh};
        time[5] = t.step_s;
        DO(clock_step(&plain, &f.arena, &f.temp, &t));
        time[5] -= t.step_s;
        close_case(&f);
    }
    assert_true(time[0] > 1 && fabs(time[1] / time[0] - 3) < 1e-6);
    assert_true(fabs(time[2] / time[0] - 0.5) < 1e-6);
    assert_true(time[3] > 1 && fabs(time[4] / time[3] - 3) < 1e-6);
    assert_true(time[5] > 4); /* two layers, forward and backward, two micro-batches */
}

/* Without fusion a step has more kernels, and so takes more launches. */
static void unfused_steps_have_more_kernels(void **state)
{
    const ClockCase c = {{.tp = 1}, 0, 2, "1f1b", 0, 0, RECOMPUTE_NONE};
    Cluster cluster = slow_cluster(true);
    Fixture f;
    (void)state;
    cluster.host_launch_s = 1;
    open_case(&f, &c);
    const double fused = played(&f, &cluster, false).step_s;
    f.set.compile.unfused = true;
    assert_true(played(&f, &cluster, false).step_s > 1.2 * fused);
    close_case(&f);
}

/* A matrix of pairs with the numbers of the levels changes nothing. One slow pair of stages holds
 * up all ranks, although it is not of the rank that is played for its class. */
static void pairs_have_links_of_their_own(void **state)
{
    enum { RANKS = 6, PAIRS = RANKS * (RANKS - 1) / 2, SLOW = 7 }; /* SLOW: ranks 1 and 4 */
    static const ClockCase stages = {{.pp = 2, .dp_shard = 3}, 0, 3, "1f1b", 0, 0, RECOMPUTE_NONE};
    float latency[PAIRS], Bps[PAIRS];
    const CostPairs pairs = {RANKS, latency, Bps};
    Cluster c = slow_cluster(true);
    Fixture f;
    (void)state;
    c.rates.level[0].ranks = 3; /* a stage: ranks along dp are alike */
    for (int a = 0, at = 0; a < RANKS; a++)
        for (int b = a + 1; b < RANKS; b++, at++) {
            const CostLink *l = &c.rates.level[a / 3 != b / 3];
            latency[at] = (float)l->latency_s;
            Bps[at] = (float)l->Bps;
        }
    open_case(&f, &stages);
    const StepTime levels = played(&f, &c, false);
    c.rates.pairs = &pairs;
    const StepTime matrix = played(&f, &c, false);
    assert_true(levels.played < RANKS && matrix.played == RANKS);
    assert_true(fabs(matrix.step_s / levels.step_s - 1) < 1e-6); /* numbers are rounded to float */
    Bps[SLOW] /= 100;
    assert_true(played(&f, &c, false).step_s > 1.01 * levels.step_s);
    close_case(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_and_classes),
                                       cmocka_unit_test(faster_is_never_longer),
                                       cmocka_unit_test(sums_by_hand),
                                       cmocka_unit_test(bubbles_shrink_with_micros),
                                       cmocka_unit_test(overlap_hides_time),
                                       cmocka_unit_test(hosts_launch_ahead),
                                       cmocka_unit_test(overlap_has_a_price),
                                       cmocka_unit_test(parts_of_messages_are_shorter),
                                       cmocka_unit_test(unfused_steps_have_more_kernels),
                                       cmocka_unit_test(calls_of_other_stacks_are_counted),
                                       cmocka_unit_test(more_bytes_are_never_faster),
                                       cmocka_unit_test(links_are_shared),
                                       cmocka_unit_test(pairs_have_links_of_their_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
