/* test_tp_choice.c -- a job's layouts of weights along tp: what the search of its units finds is
 * rules that the job takes, and what they cost depends on its mesh and its price of memory. */
#include "support/expect.h"

#include <string.h>
#include "job/tp_choice.h"
#include "support/jobs.h"

static JobSettings settings(const char *model, int tp, bool sequence)
{
    JobSettings s = test_job_settings(model, JOB_STEP);
    s.parallel.mesh.tp = tp;
    s.parallel.sequence = sequence;
    s.micros = 64;
    return s;
}

static void rules_are_taken(void **state)
{
    (void)state;
    static const char *const model[] = {"llama", "llama-tied", "gpt2", "qwen3", "mixtral"};
    Arena arena, temp;
    DO(arena_open(&arena, "test", ARENA_PLENTY));
    DO(arena_open(&temp, "temp", ARENA_PLENTY));
    for (size_t m = 0; m < sizeof model / sizeof *model; m++)
        for (int tp = 2; tp <= 4; tp++)
            for (int sequence = 0; sequence < 2; sequence++) {
                JobSettings s = settings(model[m], tp, sequence);
                TpChoice c;
                Job *job;
                DO(ARENA_NEW(&arena, 1, &job));
                DO(job_choose_tp(&s, 0, &arena, &temp, &c));
                assert_null(c.rates);
                for (int k = 0; k < c.n_kinds; k++)
                    assert_true(c.kind[k].seconds > 0 && c.kind[k].seconds <= c.kind[k].megatron_s);
                s.parallel.tp_weights = c.rules;
                DO(job_compile(&s, &arena, job));
            }
    arena_close(&temp);
    arena_close(&arena);
}

/* The state of rank 0. */
static size_t state_bytes(JobSettings s, const char *rules, Arena *arena)
{
    Job *job;
    s.parallel.tp_weights = rules;
    DO(ARENA_NEW(arena, 1, &job));
    DO(job_compile(&s, arena, job));
    return job->linked.bytes[ARENA_STATE];
}

/* With many micro-batches whole weights are the fastest; with a price for memory they are not, and
 * the state is no larger than Megatron's. */
static void memory_has_a_price(void **state)
{
    (void)state;
    const JobSettings s = settings("llama", 2, true);
    TpChoice free_of, priced;
    Arena arena, temp;
    DO(arena_open(&arena, "test", ARENA_PLENTY));
    DO(arena_open(&temp, "temp", ARENA_PLENTY));
    DO(job_choose_tp(&s, 0, &arena, &temp, &free_of));
    DO(job_choose_tp(&s, 1, &arena, &temp, &priced));
    const size_t megatron = state_bytes(s, NULL, &arena);
    assert_true(state_bytes(s, free_of.rules, &arena) > megatron);
    assert_true(state_bytes(s, priced.rules, &arena) <= megatron);
    arena_close(&temp);
    arena_close(&arena);
}

/* Tied weights are in two units, which agree: they stay. */
static void tied_weights_stay(void **state)
{
    (void)state;
    const JobSettings s = settings("llama-tied", 2, true);
    TpChoice c;
    Arena arena, temp;
    DO(arena_open(&arena, "test", ARENA_PLENTY));
    DO(arena_open(&temp, "temp", ARENA_PLENTY));
    DO(job_choose_tp(&s, 0, &arena, &temp, &c));
    assert_non_null(c.rules);
    assert_null(strstr(c.rules, "embed_tokens"));
    arena_close(&temp);
    arena_close(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rules_are_taken),
                                       cmocka_unit_test(memory_has_a_price),
                                       cmocka_unit_test(tied_weights_stay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
