/* test_pass_weights.c -- programs with weights that travel over cp (compile/weights.c): every rank
 * multiplies every shard once, holds at most two shards besides its own and two of their gradients,
 * and its sends meet the receives of the next rank. Nothing runs; test_ranks_weights.c has the
 * numbers. */
#include "support/expect.h"

#include "support/jobs.h"

enum { MAX_PARTS = 5, SHARDS, GRADIENTS, N_KINDS_OF_SHARD };

typedef struct {
    Arena arena;
    Job job[MAX_PARTS];
    int ranks;
    ModelConfig config;
} WeightsBed;

static void bed_open(WeightsBed *b, int ranks, ContextKind context, Recompute recompute, int zero)
{
    JobSettings set = test_job_settings("llama", JOB_STEP);
    *b = (WeightsBed){.ranks = ranks, .config = *set.config};
    set.config = &b->config;
    set.parallel.mesh = (MeshSizes){.cp = ranks, .stream_weights = true};
    set.parallel.context = context;
    set.parallel.zero = zero;
    set.compile.recompute = recompute;
    DO(arena_open(&b->arena, "weights", ARENA_PLENTY));
    for (int i = 0; i < ranks; i++) {
        set.parallel.rank = i;
        DO(job_compile(&set, &b->arena, &b->job[i]));
    }
}

static void bed_close(WeightsBed *b) { arena_close(&b->arena); }

/* The program of the first layer. */
static const Program *layer_of(const WeightsBed *b, int rank)
{
    const Job *job = &b->job[rank];
    return &job->program[job->programs.class_of[1]];
}

static bool is_move(const Program *p, const Instr *in)
{
    return op_pairs(in->op) && p->move[in->attr.move.index].weights;
}

static int32_t root_of(const Program *p, int32_t tensor) { return p->tensor[tensor].view_of; }

/* The kind of shard that the bytes of a root are; 0: none. */
static int kind_of(const Program *p, int32_t root)
{
    bool received = false;
    for (int i = 0; i < p->n_instr; i++) {
        const Instr *in = &p->instr[i];
        if (in->op == OP_linear_part_dw && root_of(p, in->out[0]) == root) return GRADIENTS;
        if (in->op == OP_pack && root_of(p, in->in[0]) == root &&
            p->tensor[in->out[0]].at[SPLIT].region == REGION_DPARAM)
            return GRADIENTS;
        received =
            received || (is_move(p, in) && in->op == OP_recv && root_of(p, in->out[0]) == root);
    }
    return received ? SHARDS : 0;
}

static bool touches(const Program *p, const Instr *in, int32_t root)
{
    for (int k = 0; k < in->n_in; k++)
        if (in->in[k] >= 0 && root_of(p, in->in[k]) == root) return true;
    for (int k = 0; k < in->n_out; k++)
        if (root_of(p, in->out[k]) == root) return true;
    return false;
}

/* The instruction at which a transfer is done. */
static int end_of(const Program *p, int instr)
{
    for (int i = instr; i < p->n_instr && op_begins(p->instr[instr].op); i++)
        if (p->instr[i].op == OP_wait && p->instr[i].in[0] == p->instr[instr].out[0]) return i;
    return instr;
}

/* Most shards of a kind that are there at once in a phase. */
static int most_at_once(const Program *p, Phase phase, int kind)
{
    int most = 0;
    for (int at = p->first[phase]; at < p->first[phase + 1]; at++) {
        int n = 0;
        for (int32_t t = 0; t < p->n_tensors; t++) {
            int first = -1, last = -1;
            if (root_of(p, t) != t || kind_of(p, t) != kind) continue;
            for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
                if (!touches(p, &p->instr[i], t)) continue;
                if (first < 0) first = i;
                if (end_of(p, i) > last) last = end_of(p, i);
            }
            n += first >= 0 && first <= at && at <= last;
        }
        if (n > most) most = n;
    }
    return most;
}

/* Forward, in I and in B two shards, recomputed or not; gradients in W and in B. */
static void two_shards_at_once(void **state)
{
    static const struct {
        int ranks;
        ContextKind context;
        Recompute recompute;
    } row[] = {{2, CONTEXT_GATHER, RECOMPUTE_NONE},
               {3, CONTEXT_RING, RECOMPUTE_NONE},
               {4, CONTEXT_GATHER, RECOMPUTE_FULL},
               {5, CONTEXT_RING, RECOMPUTE_SELECTIVE},
               {4, CONTEXT_LIGHTSEQ, RECOMPUTE_NONE}};
    (void)state;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        WeightsBed b;
        bed_open(&b, row[i].ranks, row[i].context, row[i].recompute, 0);
        for (int rank = 0; rank < b.ranks; rank++) {
            const Program *p = layer_of(&b, rank);
            const int shards = b.ranks == 2 ? 1 : 2; /* of two ranks none is passed on */
            for (int phase = 0; phase < N_PHASES; phase++) {
                const bool has = phase != PHASE_W; /* recomputed ones are in I */
                const int n = most_at_once(p, (Phase)phase, SHARDS);
                const int g = most_at_once(p, (Phase)phase, GRADIENTS);
                if (n > shards || (has && n < 1))
                    fail_msg("case %d, rank %d, phase %d: %d shards", (int)i, rank, phase, n);
                if (g > 2 || (g > 0) != (phase >= PHASE_W))
                    fail_msg("case %d, rank %d, phase %d: %d gradients", (int)i, rank, phase, g);
            }
        }
        bed_close(&b);
    }
}

/* GEMMs of an op in a phase. */
static int count(const Program *p, Phase phase, OpId op)
{
    int n = 0;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) n += p->instr[i].op == op;
    return n;
}

/* 7 matrices of a layer, each in as many parts as there are ranks. */
static void every_shard_is_visited(void **state)
{
    enum { MATRICES = 7 };
    (void)state;
    for (int ranks = 2; ranks <= MAX_PARTS; ranks++) {
        WeightsBed b;
        bed_open(&b, ranks, CONTEXT_GATHER, RECOMPUTE_NONE, 0);
        for (int rank = 0; rank < ranks; rank++) {
            const Program *p = layer_of(&b, rank);
            assert_int_equal(count(p, PHASE_F, OP_linear), 0);
            assert_int_equal(count(p, PHASE_F, OP_linear_part), MATRICES * ranks);
            assert_int_equal(count(p, PHASE_I, OP_linear_part_dx), MATRICES * ranks);
            assert_int_equal(count(p, PHASE_W, OP_linear_part_dw), MATRICES * (ranks - 1));
            assert_int_equal(count(p, PHASE_W, OP_linear_dw), MATRICES);
            assert_int_equal(count(p, PHASE_B, OP_linear_part_dx), MATRICES * ranks);
            assert_int_equal(count(p, PHASE_F, OP_send), MATRICES * (ranks - 1));
            assert_int_equal(count(p, PHASE_B, OP_send), 2 * MATRICES * (ranks - 1));
        }
        bed_close(&b);
    }
}

/* The n-th send to the next rank has the number and the size of its n-th receive. */
static void sends_meet_receives(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= MAX_PARTS; ranks++) {
        WeightsBed b;
        bed_open(&b, ranks, ranks % 2 ? CONTEXT_RING : CONTEXT_GATHER, RECOMPUTE_NONE, 0);
        for (int rank = 0; rank < ranks; rank++)
            for (int phase = 0; phase < N_PHASES; phase++) {
                const Program *p = layer_of(&b, rank), *q = layer_of(&b, (rank + 1) % ranks);
                int j = q->first[phase], met = 0;
                for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
                    if (!is_move(p, &p->instr[i]) || p->instr[i].op != OP_send) continue;
                    while (j < q->first[phase + 1] &&
                           (!is_move(q, &q->instr[j]) || q->instr[j].op != OP_recv))
                        j++;
                    assert_true(j < q->first[phase + 1]);
                    const TransferPart *to = &p->move[p->instr[i].attr.move.index];
                    const TransferPart *from = &q->move[q->instr[j].attr.move.index];
                    const ProgTensor *x = &p->tensor[p->instr[i].in[0]],
                                     *y = &q->tensor[q->instr[j].out[0]];
                    assert_int_equal(to->peer, (rank + 1) % ranks);
                    assert_int_equal(from->peer, rank);
                    assert_int_equal(to->number, from->number);
                    assert_true(x->dim[0].cap == y->dim[0].cap && x->dim[1].cap == y->dim[1].cap);
                    j++;
                    met++;
                }
                assert_true(met > 0);
            }
        bed_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_shards_at_once),
        cmocka_unit_test(every_shard_is_visited),
        cmocka_unit_test(sends_meet_receives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
