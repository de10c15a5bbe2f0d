/* test_simulate_verb.c -- `sheaf simulate` prints the counts of programs; impossible requests are
 * refused. */
#define _POSIX_C_SOURCE 200809L
#include "explain_test.h"
#include "plan/simulate.h"

static int run_simulate(int fd, ...)
{
    va_list words;
    va_start(words, fd);
    const int status = run_verb(fd, "simulate", small, N_SMALL, words);
    va_end(words);
    return status;
}

static void one_rank_equals_explain(void **state)
{
    (void)state;
    Compiled *c = compiled(NULL, JOB_STEP);
    RankCount count;
    int64_t save;
    DO(count_rank(&c->job.linked, &count));
    DO(saver_bytes(&c->job.linked, 0, SAVE_MEMORY_BUFFER, &c->arena, &save));
    assert_true(save > 0); /* the last step is always saved */
    count.total_bytes += (size_t)save;
    assert_int_equal(run_simulate(1, "--json", NULL), 0);
    json_t *all = parsed();
    const json_t *rank = json_array_get(json_object_get(all, "classes"), 0);
    assert_int_equal(number(all, "ranks"), 1);
    assert_int_equal(number(rank, "memory.total"), count.total_bytes);
    assert_int_equal(number(rank, "memory.work"), c->job.linked.bytes[ARENA_WORK]);
    assert_int_equal(number(rank, "flops"), (int64_t)count.flops);
    assert_int_equal(json_array_size(json_object_get(all, "sent")), 0);
    assert_true(json_is_null(json_object_get(all, "time")));
    assert_int_equal(explain(1, "--json", NULL), 0);
    json_t *explained = parsed();
    assert_int_equal(number(explained, "memory.total_bytes"), count.total_bytes);
    assert_int_equal(number(explained, "memory.save_bytes"), save);
    assert_int_equal(number(rank, "memory.save"), save);
    json_decref(explained);
    json_decref(all);
    assert_int_equal(run_simulate(1, NULL), 0);
    assert_printed("1 class of equal ranks, from 1 program; nothing ran");
    assert_printed("nothing: there is one rank");
    assert_printed("TIME\n  not predicted in this version\n");
    done(c);
}

/* Totals of the JSON equal the sums over its classes. */
static void tables_add_up(void **state)
{
    (void)state;
    assert_int_equal(run_simulate(1, "--json", "mesh.dp=3", "mesh.tp=2", "parallel.zero=1", NULL),
                     0);
    json_t *all = parsed();
    const json_t *classes = json_object_get(all, "classes"), *sent = json_object_get(all, "sent");
    int64_t ranks = 0, sum = 0, of_all = 0;
    for (size_t i = 0; i < json_array_size(classes); i++) {
        const json_t *k = json_array_get(classes, i), *rows = json_object_get(k, "sent");
        ranks += number(k, "ranks");
        for (size_t r = 0; r < json_array_size(rows); r++)
            sum += number(k, "ranks") * number(json_array_get(rows, r), "sent_bytes");
    }
    for (size_t r = 0; r < json_array_size(sent); r++)
        of_all += number(json_array_get(sent, r), "sent_bytes");
    assert_int_equal(ranks, 6);
    assert_int_equal(number(all, "ranks"), 6);
    assert_true(sum > 0);
    assert_int_equal(of_all, sum);
    json_decref(all);
    assert_int_equal(run_simulate(1, "mesh.dp=3", "mesh.tp=2", "parallel.zero=1", NULL), 0);
    assert_printed("pp=1 dp=3 cp=1 tp=2: 6 ranks");
    assert_printed("  all-gather       dp ");
    assert_printed("  all-reduce       tp ");
    assert_printed("  scalars          dp ");
    assert_not_printed(" \n");
}

static void refusals(void **state)
{
    (void)state;
    assert_int_equal(run_simulate(2, "--cluster", "x.yaml", NULL), 2);
    assert_int_equal(run_simulate(2, "mesh.tq=2", NULL), 2);
    assert_printed("did you mean mesh.tp?");
    assert_int_equal(run_simulate(2, "mesh.dp=2", "run.ranks=3", NULL), 2);
    assert_printed("run.ranks=3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_equals_explain),
        cmocka_unit_test(tables_add_up),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
