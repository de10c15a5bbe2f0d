/* test_pass_context.c -- attention by a plan: the moves that the pass writes, their bytes and
 * order, and what F keeps. Nothing runs; test_ranks_context.c has the numbers. */
#include "place_test.h"

#include "ir/program.h"

/* 2 sequences of 7 tokens: ROWS. The ranks' blocks differ. */
static void ring_open(Ranks *r, ModelBed *m, int cp, CompileOptions o)
{
    Mesh mesh;
    DO(mesh_sized(&(MeshSizes){.cp = cp}, &mesh));
    model_bed_open(m, test_model("llama"));
    const Strategy s = strategy_with_context(&m->plain, CONTEXT_RING, &mesh);
    const Strategy with =
        strategy_with_heads(&s, m->config.n_heads, m->config.n_kv_heads, m->config.head_size);
    o.strategy = &with;
    if (o.context) DO(context_row("ring", &m->arena, &o.context));
    ranks_open_mesh(r, &m->model.kind[1], &o, &mesh);
}

static void ring_close(Ranks *r, ModelBed *m)
{
    ranks_close(r);
    model_bed_close(m);
}

static const ContextRow any; /* replaced by the row of ring */

/* Forward: each block of keys and of values makes P-1 hops. Backward: again, and their gradients
 * too. Nothing is gathered. */
static void bytes_are_6f_bsk(void **state)
{
    (void)state;
    for (int cp = 2; cp <= 5; cp++) {
        ModelBed m;
        Ranks r;
        ring_open(&r, &m, cp, (CompileOptions){.backward = true, .context = &any});
        const int64_t keys = ROWS * m.config.n_kv_heads * m.config.head_size;
        ranks_agree(&r, "ring");
        assert_int_equal(ranks_sent(&r, PHASE_F, OP_all_to_all), 2 * (cp - 1) * keys);
        assert_int_equal(ranks_sent(&r, PHASE_I, OP_all_to_all), 4 * (cp - 1) * keys);
        assert_int_equal(ranks_sent(&r, PHASE_B, OP_all_to_all), 4 * (cp - 1) * keys);
        assert_int_equal(ranks_sent(&r, PHASE_W, OP_all_to_all), 0);
        for (int phase = 0; phase < N_PHASES; phase++) {
            assert_int_equal(ranks_sent(&r, (Phase)phase, OP_all_gather), 0);
            assert_int_equal(ranks_sent(&r, (Phase)phase, OP_reduce_scatter), 0);
        }
        ring_close(&r, &m);
    }
}

static size_t frame_bytes(const Program *p)
{
    return p->bytes[REGION_FRAME_I] + p->bytes[REGION_FRAME_W];
}

/* Keys of other ranks travel again in backward: F keeps what it keeps when keys are regathered. */
static void no_keys_of_peers_are_kept(void **state)
{
    ModelBed m[2];
    Ranks r[2];
    (void)state;
    for (int ring = 0; ring < 2; ring++)
        ring_open(&r[ring], &m[ring], 4,
                  (CompileOptions){.backward = true, .context = ring ? &any : NULL});
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(frame_bytes(&r[1].program[rank]), frame_bytes(&r[0].program[rank]));
    for (int ring = 0; ring < 2; ring++) ring_close(&r[ring], &m[ring]);
}

/* The first instruction of the phase from `from` on that has this op and, for a wait, awaits
 * `begun`. */
static int find_instr(const Program *p, Phase phase, int from, OpId op, int begun)
{
    for (int i = from; i < p->first[phase + 1]; i++)
        if (p->instr[i].op == op && (op != OP_wait || p->instr[i].in[0] == begun)) return i;
    fail_msg("no %s", op_info(op)->name);
    return -1;
}

/* Every hop is in flight during a visit: an attention instruction is between begin and wait. The
 * first hop of the backward phase is the exception. */
static void hops_overlap_visits(void **state)
{
    static const Phase phases[] = {PHASE_F, PHASE_I, PHASE_B};
    ModelBed m;
    Ranks r;
    (void)state;
    ring_open(&r, &m, 4, (CompileOptions){.backward = true, .context = &any});
    for (int rank = 0; rank < 4; rank++)
        for (int k = 0; k < 3; k++) {
            const Program *p = &r.program[rank];
            const Phase phase = phases[k];
            const OpId visit = phase == PHASE_F ? OP_attention : OP_attention_dx;
            int exposed = 0, hops = 0;
            for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
                if (p->instr[i].op != OP_all_to_all) continue;
                const int wait = find_instr(p, phase, i, OP_wait, p->instr[i].out[0]);
                exposed += find_instr(p, phase, i, visit, 0) > wait;
                hops++;
            }
            assert_int_equal(hops, phase == PHASE_F ? 6 : 12);
            assert_int_equal(exposed, phase == PHASE_F ? 0 : 2); /* keys and values of one hop */
        }
    ring_close(&r, &m);
}

/* Visits count the keys that they see: together as much as one attention over all keys. */
static void flops_are_those_of_one_attention(void **state)
{
    double flops[2] = {0, 0};
    (void)state;
    for (int ring = 0; ring < 2; ring++) {
        ModelBed m;
        Ranks r;
        ring_open(&r, &m, 5, (CompileOptions){.backward = true, .context = ring ? &any : NULL});
        for (int rank = 0; rank < 5; rank++)
            for (int i = 0; i < r.program[rank].first[PHASE_W]; i++) {
                const OpId op = r.program[rank].instr[i].op;
                if (op == OP_attention || op == OP_attention_dx)
                    flops[ring] += r.program[rank].instr[i].heavy_flops;
            }
        ring_close(&r, &m);
    }
    assert_true(flops[0] > 0);
    assert_true(flops[1] > 0.999999 * flops[0] && flops[1] < 1.000001 * flops[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_6f_bsk),
        cmocka_unit_test(no_keys_of_peers_are_kept),
        cmocka_unit_test(hops_overlap_visits),
        cmocka_unit_test(flops_are_those_of_one_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
