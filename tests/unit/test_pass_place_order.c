/* test_pass_place_order.c -- transfers among the other instructions, as data: a transfer begins
 * where its input is made and is waited for where its result is read, and the gradient of the
 * weights is between. */
#include "place_test.h"

/* The wait for the transfer that instruction `begin` began. */
static int wait_of(const Program *p, int begin)
{
    const Phase phase = p->instr[begin].phase;
    for (int i = begin + 1; i < p->first[phase + 1]; i++)
        if (p->instr[i].op == OP_wait && p->instr[i].in[0] == p->instr[begin].out[0]) return i;
    fail_msg("instruction %d is not waited for", begin);
    return -1;
}

/* The instruction that made the value that `at` sends: same bytes, or NO_NODE. */
static int maker_of(const Program *p, int at)
{
    const int32_t root = p->tensor[p->instr[at].in[0]].view_of;
    for (int i = at - 1; i >= p->first[p->instr[at].phase]; i--)
        for (int j = 0; j < p->instr[i].n_out; j++)
            if (p->tensor[p->instr[i].out[j]].view_of == root) return i;
    return NO_NODE;
}

static bool is_sum(const Instr *in)
{
    return in->op == OP_all_reduce || in->op == OP_reduce_scatter;
}

/* Sums of gradients of inputs in B, and how many of them overlap the dW of the same layer. */
static void count_hidden(const Program *p, int *sums, int *hidden)
{
    *sums = *hidden = 0;
    for (int i = p->first[PHASE_B]; i < p->first[PHASE_B + 1]; i++) {
        const int maker = is_sum(&p->instr[i]) ? maker_of(p, i) : NO_NODE;
        if (maker == NO_NODE || p->instr[maker].op != OP_linear_dx) continue;
        bool found = false;
        for (int k = i; k < wait_of(p, i); k++)
            found = found ||
                    (p->instr[k].op == OP_linear_dw && p->instr[k].in[0] == p->instr[maker].in[0]);
        *sums += 1;
        *hidden += found;
    }
}

static void test_hidden(void **state)
{
    (void)state;
    static const char *const name[] = {"gpt2", "llama", "qwen3"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        ModelBed m;
        model_bed_open(&m, test_model(name[i]));
        for (int sequence = 0; sequence < 2; sequence++) {
            const CompileOptions o = {.backward = true,
                                      .strategy = sequence ? &m.sequence : &m.plain};
            Ranks r;
            ranks_open(&r, &m.model.kind[1], &o, 2);
            for (int k = 0; k < r.n; k++) {
                int sums, hidden;
                count_hidden(&r.program[k], &sums, &hidden);
                assert_int_equal(sums, 2); /* after attention, and after the mlp */
                assert_int_equal(hidden, 2);
            }
            ranks_close(&r);
        }
        model_bed_close(&m);
    }
}

/* With in_order nothing overlaps: the wait follows the begin. Without, the same transfers. */
static void test_in_order(void **state)
{
    (void)state;
    ModelBed m;
    model_bed_open(&m, test_model("llama"));
    for (int sequence = 0; sequence < 2; sequence++)
        for (int kind = 0; kind < m.model.n_kinds; kind++) {
            CompileOptions o = {
                .backward = true, .strategy = sequence ? &m.sequence : &m.plain, .in_order = true};
            Ranks r, free;
            ranks_open(&r, &m.model.kind[kind], &o, 3);
            o.in_order = false;
            ranks_open(&free, &m.model.kind[kind], &o, 3);
            for (int k = 0; k < r.n; k++) {
                const Program *p = &r.program[k];
                for (int i = 0; i < p->n_instr; i++)
                    if (op_transfers(p->instr[i].op)) assert_int_equal(wait_of(p, i), i + 1);
            }
            assert_int_equal(ranks_agree(&r, "in order"), ranks_agree(&free, "free"));
            for (int phase = 0; phase < N_PHASES; phase++)
                assert_int_equal(ranks_sent_all(&r, (Phase)phase),
                                 ranks_sent_all(&free, (Phase)phase));
            ranks_close(&r);
            ranks_close(&free);
        }
    model_bed_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hidden),
                                       cmocka_unit_test(test_in_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
