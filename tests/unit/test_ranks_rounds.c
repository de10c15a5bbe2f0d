/* test_ranks_rounds.c -- rows of experts without room take further rounds.
 *
 * In f64 on ref, with rooms for 0.3 of the even share, losses and gradient norms are those of ranks
 * with room for every row, over 1,000 random routings: even ones, one hot expert, hot ranks, few
 * experts, bursts. Bytes sent are those of the programs and of the rounds that ran. Memory is that
 * of one round: arenas filled with a pattern show that no byte past the peak is written. */
#include "experts_cover.h"

#include <math.h>

#include "schedule/traffic.h"
#include "support/world.h"
#include "verify/trial.h"

typedef enum { EVEN, HOT_EXPERT, HOT_RANKS, FEW_EXPERTS, BURST, N_LOADS } Load;

enum { GLOBAL = 6, ROUTINGS = 200 }; /* sequences a step; steps of a load */

/* Tokens that are alike choose the same experts. */
static void load_tokens(const void *context, int64_t sequence, int64_t i, InputRow *row)
{
    const Load load = *(const Load *)context;
    const int32_t step = (int32_t)(sequence / GLOBAL), one = step * 7 % 499;
    (void)i;
    if (load == HOT_EXPERT) row->token = one;
    if (load == HOT_RANKS && sequence % GLOBAL < GLOBAL / 2) row->token = one;
    if (load == FEW_EXPERTS) row->token = (row->token & 1) + one % 400;
    if (load == BURST && step % 5 == 4) row->token = one;
}

static TrialSettings trial_for(const ModelConfig *config, const char *layout, const Load *load)
{
    const VerifySettings v = settings_for(config);
    ParallelSettings p;
    DO(layout_parse(layout, strlen(layout), &p));
    return (TrialSettings){.job = {.kind = JOB_STEP,
                                   .config = config,
                                   .dtype = F64,
                                   .batch = v.batch,
                                   .schedule = v.schedule,
                                   .optim = v.optim,
                                   .parallel = p},
                           .device = &device_ref,
                           .global = GLOBAL,
                           .steps = ROUTINGS,
                           .lr = 1e-5,
                           .seed = 5,
                           .edit = load_tokens,
                           .context = load,
                           .poison = true};
}

static double off(double a, double b) { return fabs(a - b) / fmax(fabs(b), 1e-3); }

/* Compares a layout with rounds to the same with room for all. Returns the bytes that only the one
 * with rounds would have sent if it had run none. */
static int64_t compare(const ModelConfig *config, const char *layout, const Load *load)
{
    Arena arena;
    Trial few, all;
    TrialSettings s = trial_for(config, layout, load);
    DO(arena_open(&arena, "rounds", ARENA_PLENTY));
    s.job.parallel.rounds = true;
    s.job.parallel.expert_rows = 0.3;
    DO(trial_run(&s, &arena, &few));
    s.job.parallel.rounds = false;
    s.job.parallel.expert_rows = 0;
    DO(trial_run(&s, &arena, &all));
    for (int i = 0; i < ROUTINGS; i++)
        if (!(off(few.loss[i], all.loss[i]) <= 1e-10 && off(few.norm[i], all.norm[i]) <= 1e-10))
            fail_msg("%s, load %d, step %d: loss %.17g, norm %.17g; with room for all %.17g, %.17g",
                     layout, *load, i, few.loss[i], few.norm[i], all.loss[i], all.norm[i]);
    const TrialGap gap = trial_gap(&all, &few, ROUTINGS);
    if (!(gap.gradient <= 1e-10 && gap.weight <= 1e-10 && gap.valid <= 1e-10 && few.copies == 0))
        fail_msg("%s, load %d: gradient of %s %.1e, weight %.1e", layout, *load, gap.gradient_at,
                 gap.gradient, gap.weight);
    assert_int_equal(few.sent_bytes, few.predicted_bytes);
    assert_int_equal(all.sent_bytes, all.predicted_bytes);
    assert_true(few.rank_bytes < all.rank_bytes);
    const int64_t sent = few.sent_bytes;
    arena_close(&arena);
    return sent;
}

static void thousand_routings(void **state)
{
    static const char *const layouts[N_LOADS] = {"dp=2 ep=2", "dp=2 tp=2 ep=4 sequence",
                                                 "dp=2 ep=2 zero=2", "cp=2 dp=2 ep=2 etp=2",
                                                 "dp=3 ep=3 zero=3"};
    const ModelConfig config = model_with(10, 0);
    (void)state;
    for (Load load = EVEN; load < N_LOADS; load++) compare(&config, layouts[load], &load);
}

/* One layout under all loads: a hot expert takes more rounds than an even load. */
static void load_decides_on_bytes(void **state)
{
    const ModelConfig config = model_with(0, 0);
    const Load even = EVEN, hot = HOT_EXPERT;
    (void)state;
    assert_true(compare(&config, "dp=2 ep=2", &hot) > compare(&config, "dp=2 ep=2", &even));
}

/* ---- memory ---- */

static World world_with(const ModelConfig *config, MeshSizes mesh, double rows)
{
    World w = world_of(test_job_settings("qwen2_moe", JOB_STEP));
    w.set.config = config;
    w.set.parallel.mesh = mesh;
    w.set.parallel.rounds = true;
    w.set.parallel.expert_rows = rows;
    return w;
}

static void peaks_are_exact(void **state)
{
    static const Recompute recompute[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    const ModelConfig config = model_with(10, 0);
    (void)state;
    for (int variant = 0; variant < 12; variant++) {
        World w =
            world_with(&config, (MeshSizes){.dp_shard = 2 + variant % 2, .ep = 2 + variant % 2},
                       0.2 + 0.1 * (variant % 4));
        w.set.parallel.zero = variant % 4;
        w.set.split = variant / 4 % 2;
        w.set.compile.recompute = recompute[variant % 3];
        world_peaks_are_exact("rounds", w);
    }
}

/* The region of a body is as large as its scratch, whatever the number of rounds: a rank with
 * smaller rooms needs less memory. */
static void memory_follows_the_room(void **state)
{
    const ModelConfig config = model_with(10, 0);
    size_t last = 0;
    (void)state;
    for (int i = 1; i <= 4; i++) {
        Arena arena;
        Job job;
        World w = world_with(&config, (MeshSizes){.dp_shard = 2, .ep = 2}, 0.2 * i);
        DO(arena_open(&arena, "room", ARENA_PLENTY));
        DO(job_compile(&w.set, &arena, &job));
        assert_true(job.linked.bytes[ARENA_WORK] > last);
        last = job.linked.bytes[ARENA_WORK];
        arena_close(&arena);
    }
}

/* ---- what is known before the run ---- */

/* The rows of a room of the job's rank. */
static int64_t room_of(const Job *job)
{
    for (int c = 0; c < job->programs.n_classes; c++)
        for (int i = 0; i < job->program[c].n_instr; i++)
            if (job->program[c].instr[i].op == OP_send_rows)
                return job->program[c].instr[i].attr.kernel.exchange.room;
    fail_msg("no rows are sent");
    return 0;
}

/* Without a row too many, the bytes are those of overflow=error. A further round sends a room of B
 * rows of width w to the other ep - 1 ranks for each payload: tokens and outputs in F; tokens,
 * gradients of outputs and of rows in B. W, where it runs apart, receives the first two again. */
static void bytes_follow_the_formula(void **state)
{
    const ModelConfig config = model_with(10, 0);
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        Arena arena;
        Job rounds, error;
        Traffic a, b;
        const int ep = 2 + variant % 2;
        World w = world_with(&config, (MeshSizes){.dp_shard = ep, .ep = ep}, 0.4);
        w.set.split = variant / 2;
        DO(arena_open(&arena, "formula", ARENA_PLENTY));
        DO(job_compile(&w.set, &arena, &rounds));
        w.set.parallel.rounds = false;
        DO(job_compile(&w.set, &arena, &error));
        DO(linked_traffic(&rounds.linked, &a));
        DO(linked_traffic(&error.linked, &b));
        assert_int_equal(a.n, b.n);
        for (int i = 0; i < a.n; i++) assert_int_equal(a.row[i].sent_bytes, b.row[i].sent_bytes);
        const RoundTraffic r = linked_rounds(&rounds.linked), none = linked_rounds(&error.linked);
        const size_t payload =
            (size_t)(room_of(&rounds) * (ep - 1) * config.width) * sizeof(double);
        const size_t split[] = {2, 3, 2, 0}, merged[] = {2, 0, 0, 3};
        for (int p = 0; p < N_PHASES; p++) {
            assert_int_equal(r.sent_bytes[p], payload * (variant / 2 ? split : merged)[p]);
            assert_int_equal(none.sent_bytes[p], 0);
        }
        arena_close(&arena);
    }
}

static const Program *with_loops(const Job *job)
{
    for (int c = 0; c < job->programs.n_classes; c++)
        if (job->program[c].n_bodies) return &job->program[c];
    fail_msg("no program has bodies");
    return NULL;
}

static void refused(const Program *p, const char *part)
{
    if (program_check(p) == OK) fail_msg("accepted, despite: %s", part);
    assert_non_null(strstr(err_text(), part));
}

/* The checker of programs refuses loops whose bodies do not fit them. */
static void faults_are_found(void **state)
{
    const ModelConfig config = model_with(10, 0);
    const World w = world_with(&config, (MeshSizes){.dp_shard = 2, .ep = 2}, 0.4);
    Arena arena;
    Job job;
    Instr *instr;
    ProgTensor *tensor;
    (void)state;
    DO(arena_open(&arena, "faults", ARENA_PLENTY));
    DO(job_compile(&w.set, &arena, &job));
    const Program *good = with_loops(&job);
    DO(program_check(good));
    Program p = *good;
    DO(ARENA_NEW(&arena, p.n_instr, &instr));
    DO(ARENA_NEW(&arena, p.n_tensors, &tensor));
    p.instr = instr, p.tensor = tensor;
    for (int i = 0; i < p.n_instr; i++) {
        if (!op_loops(good->instr[i].op)) continue;
        memcpy(instr, good->instr, (size_t)p.n_instr * sizeof *instr);
        memcpy(tensor, good->tensor, (size_t)p.n_tensors * sizeof *tensor);
        tensor[instr[i].out[instr_region(&instr[i])]].dim[0].cap--;
        refused(&p, "too small for the scratch of its body");
        memcpy(tensor, good->tensor, (size_t)p.n_tensors * sizeof *tensor);
        instr[i].attr.rounds.body = instr[i].attr.rounds.merged = p.n_bodies;
        refused(&p, "there is no such body");
        memcpy(instr, good->instr, (size_t)p.n_instr * sizeof *instr);
        instr[i].in[0] = instr[i].in[1]; /* choices in place of tokens */
        refused(&p, "an argument of its body is not an operand");
        if (instr[i].op != OP_rounds_dw && instr[i].op != OP_rounds_back) continue;
        memcpy(instr, good->instr, (size_t)p.n_instr * sizeof *instr);
        for (int k = p.first[instr[i].phase]; k < i; k++)
            if (instr[k].op == OP_grouped_linear_dw) instr[k].out[0] = instr[k].in[0];
        refused(&p, "before round 1 has begun it");
    }
    arena_close(&arena);
}

/* ---- FP8 ---- */

static bool is_plain_gemm(OpId op)
{
    return op == OP_grouped_linear || op == OP_grouped_linear_dx || op == OP_grouped_linear_dw ||
           op == OP_grouped_linear_swiglu || op == OP_grouped_linear_dswiglu ||
           op == OP_grouped_linear_dx2;
}

/* Bodies run their GEMMs in FP8 as round 1 does, on weights that are coded or not. */
static void bodies_run_in_fp8(void **state)
{
    const ModelConfig config = model_with(10, 0);
    (void)state;
    for (int variant = 0; variant < 6; variant++) {
        Arena arena;
        Job job;
        World w = world_with(&config, (MeshSizes){.dp_shard = 2, .ep = 2}, 0.4);
        w.set.dtype = BF16;
        w.set.split = variant % 2;
        w.set.parallel.zero = variant % 4;
        w.set.compile.fp8 =
            (Fp8Options){.names = "*",
                         .compute = E4M3,
                         .gradient = variant / 2 == 1 ? E4M3 : E5M2,
                         .scaling = variant / 2 == 1 ? SCALING_BLOCK : SCALING_TENSOR,
                         .experts = true,
                         .code_weights = variant / 2 < 2};
        DO(arena_open(&arena, "fp8", ARENA_PLENTY));
        DO(job_compile(&w.set, &arena, &job));
        const Program *p = with_loops(&job);
        for (int b = 0; b < p->n_bodies; b++) {
            int fp8 = 0;
            for (int i = 0; i < p->body[b]->n_instr; i++) {
                assert_false(is_plain_gemm(p->body[b]->instr[i].op));
                fp8 += p->body[b]->instr[i].op == OP_grouped_linear_fp8;
            }
            assert_true(fp8 >= 2);
        }
        arena_close(&arena);
    }
}

/* ---- order ---- */

/* Ranks that sleep at random, and transfers that complete in any order, change no bit. Phases I and
 * W that run apart compute the same. */
static void order_does_not_matter(void **state)
{
    const ModelConfig config = model_with(10, 0);
    WorldResult calm, wild, apart;
    char what[128];
    World w = world_with(&config, (MeshSizes){.dp_shard = 4, .ep = 2, .etp = 2}, 0.3);
    (void)state;
    w.set.parallel.zero = 2;
    DO(world_run_job(&w, &calm));
    w.hostile = true, w.jitter_s = 1e-4, w.seed = 3;
    DO(world_run_job(&w, &wild));
    if (!world_equal(&calm, &wild, what)) fail_msg("hostile: %s", what);
    w.set.split = true;
    DO(world_run_job(&w, &apart));
    assert_true(world_differ_all(&calm, &apart) <= 1e-10);
    world_result_close(&calm);
    world_result_close(&wild);
    world_result_close(&apart);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_follow_the_formula), cmocka_unit_test(faults_are_found),
        cmocka_unit_test(memory_follows_the_room),  cmocka_unit_test(peaks_are_exact),
        cmocka_unit_test(order_does_not_matter),    cmocka_unit_test(thousand_routings),
        cmocka_unit_test(load_decides_on_bytes),    cmocka_unit_test(bodies_run_in_fp8)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
