/* test_simulate_verb.c -- `sheaf simulate` prints the counts of programs; impossible requests are
 * refused. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>

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
    assert_null(json_object_get(all, "step_ms")); /* without --cluster there is no time */
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
    assert_printed("not predicted: give a machine, as --cluster share/clusters/h100-sxm.yaml");
    done(c);
}

/* Validation has memory of its own on each rank; explain counts it by another path. */
static void validation_counts(void **state)
{
    (void)state;
    char rank[24];
    assert_int_equal(run_simulate(1, "--json", "run.valid_every=2", "mesh.dp=2", "mesh.pp=2",
                                  "parallel.zero=3", NULL),
                     0);
    json_t *all = parsed();
    const json_t *classes = json_object_get(all, "classes");
    for (size_t i = 0; i < json_array_size(classes); i++) {
        const json_t *k = json_array_get(classes, i);
        snprintf(rank, sizeof rank, "%lld", (long long)number(k, "first"));
        assert_int_equal(explain(1, "--json", "--rank", rank, "run.valid_every=2", "mesh.dp=2",
                                 "mesh.pp=2", "parallel.zero=3", NULL),
                         0);
        json_t *one = parsed();
        assert_true(number(k, "memory.valid") > 0);
        assert_int_equal(number(k, "memory.valid"), number(one, "memory.valid_bytes"));
        assert_int_equal(number(k, "memory.total"), number(one, "memory.total_bytes"));
        json_decref(one);
    }
    json_decref(all);
    assert_int_equal(run_simulate(1, "run.valid_every=2", NULL), 0);
    assert_printed("valid: memory of validation");
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

static double real(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static double sum_of(const json_t *times)
{
    const char *key;
    json_t *value;
    double sum = 0;
    json_object_foreach((json_t *)times, key, value) sum += json_number_value(value);
    return sum;
}

/* With a cluster the step has a time, in text and in JSON; its parts add up. */
static void time_on_a_cluster(void **state)
{
    (void)state;
    assert_int_equal(run_simulate(1, "--json", "--cluster", "share/clusters/a100-sxm.yaml",
                                  "mesh.dp=2", "mesh.pp=2", NULL),
                     0);
    json_t *all = parsed();
    const json_t *time = all;
    const double step = real(time, "step_ms");
    assert_true(step > 0 && real(time, "tokens_per_s") > 0 && real(time, "mfu") > 0);
    assert_true(json_is_true(json_object_get(time, "fits")));
    const int64_t peak = number(time, "peak_bytes");
    assert_true(peak > 0 && peak < number(all, "greatest.bytes")); /* saves are in host memory */
    const double spent = sum_of(json_object_get(time, "breakdown")) / step;
    const double path = sum_of(json_object_get(time, "critical_path")) / step;
    assert_true(spent > 1 - 1e-9 && spent < 1 + 1e-9 && path > 1 - 1e-9 && path < 1 + 1e-9);
    json_decref(all);
    assert_int_equal(run_simulate(1, "--cluster", "share/clusters/a100-sxm.yaml", "mesh.dp=2",
                                  "mesh.pp=2", NULL),
                     0);
    assert_printed("TIME of a step on a100-sxm, full micro-batches; 2 ranks played");
    assert_printed("of 80.0 GiB: fits");
    assert_printed("other stages: bubble, transfers");
}

/* Two stages on nodes of one rank; the second node is slower, and has room for the first stage
 * alone in the second case. */
static void nodes_have_devices(void **state)
{
    static const char file[] = "build/test_simulate_devices.yaml";
    static const char *const runs[] = {"mesh.nodes=0,1", "mesh.nodes=1,0"};
    double gib[2], step[2];
    (void)state;
    for (int i = 0; i < 4; i++) { /* alike, to read the memory of both stages; then not */
        char line[512];
        FILE *from = fopen("share/clusters/a100-sxm.yaml", "r"), *to = fopen(file, "w");
        assert_true(from && to);
        while (fgets(line, sizeof line, from)) {
            char *ranks = strstr(line, "{ranks: 8,");
            if (ranks) ranks[strlen("{ranks: ")] = '1';
            fputs(line, to);
        }
        fputs("node_devices:\n", to);
        if (i < 2) /* the memory of one node is tiny, so `fullest` is its rank */
            fprintf(to, "  - {nodes: [%d], speed: 1, memory_gib: 1e-6}\n", i);
        else
            fprintf(to, "  - {nodes: [1], speed: 0.5, memory_gib: %.12g}\n",
                    0.5 * (gib[0] + gib[1]));
        assert_true(!fclose(from) && !fclose(to));
        assert_int_equal(run_simulate(1, "--json", "--cluster", file, "mesh.pp=2",
                                      "parallel.split=1,4", runs[i > 2], NULL),
                         0);
        json_t *all = parsed();
        if (i < 2) {
            assert_int_equal(number(all, "fullest"), i);
            gib[i] = (double)number(all, "peak_bytes") / 0x1p30;
        } else {
            step[i - 2] = real(all, "step_ms");
            assert_true(json_is_true(json_object_get(all, "fits")) == (i == 3));
            assert_int_equal(number(all, "fullest"), i == 3 ? 0 : 1);
        }
        json_decref(all);
    }
    assert_true(gib[0] < 0.8 * gib[1] && step[1] < 0.9 * step[0]);
    assert_int_equal(
        run_simulate(1, "--cluster", file, "mesh.pp=2", "parallel.split=1,4", runs[0], NULL), 0);
    assert_printed("does NOT fit");
    assert_printed("too much on rank 1");
    remove(file);
}

/* A file that a test reads back and removes. */
static char *take_file(const char *path)
{
    FILE *f = fopen(path, "r");
    static char text[1 << 22];
    assert_non_null(f);
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    remove(path);
    text[n] = 0;
    return text;
}

/* The trace's compute slices of a rank do not overlap, and the last event ends with the step. */
static void trace_of_a_step(void **state)
{
    static const char *const trace = "build/test_simulate_trace.json";
    double last = 0, busy = 0, end[2] = {0};
    size_t i;
    const json_t *e;
    (void)state;
    remove(trace);
    assert_int_equal(run_simulate(1, "--json", "--cluster", "share/clusters/a100-sxm.yaml",
                                  "mesh.dp=2", "mesh.pp=2", "--trace", trace, NULL),
                     0);
    json_t *all = parsed(), *events = json_loads(take_file(trace), 0, NULL);
    assert_non_null(events);
    json_array_foreach(events, i, e)
    {
        if (strcmp(json_string_value(json_object_get(e, "ph")), "X") != 0) continue;
        const double from = real(e, "ts"), to = from + real(e, "dur");
        if (to > last) last = to;
        if (number(e, "tid") != 1) continue;
        double *before = &end[number(e, "pid") > 0];
        assert_true(from > *before - 0.01); /* printed in microseconds, three digits */
        *before = to;
        busy += to - from;
    }
    const double step = 1e3 * real(all, "step_ms"),
                 idle = 2e3 * real(json_object_get(all, "breakdown"), "idle");
    assert_true(last > step - 0.01 && last < step + 0.01);
    assert_true(fabs(busy + idle - 2 * step) < 1e-3 * step); /* two ranks are played */
    json_decref(events);
    json_decref(all);
}

static int count_of(const char *text, const char *word)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word)) n++;
    return n;
}

/* The picture has every RUN of every stage. */
static void picture_of_a_step(void **state)
{
    static const char *const svg = "build/test_simulate.svg";
    (void)state;
    remove(svg);
    assert_int_equal(run_simulate(1, "--cluster", "share/clusters/a100-sxm.yaml", "mesh.pp=2",
                                  "--svg", svg, NULL),
                     0);
    const char *text = take_file(svg);
    assert_int_equal(count_of(text, "class=\"F\""), 2 * 3);
    assert_int_equal(count_of(text, "class=\"B\""), 2 * 3);
    assert_non_null(strstr(text, "times in ms"));
    assert_int_equal(run_simulate(2, "--svg", svg, NULL), 2);
    assert_printed("--svg build/test_simulate.svg: shows the time of a step; give a machine too");
}

/* The sum over ranks, and the most and the least of any rank; returns the sum. */
static double flops_by_rank(double *most, double *least)
{
    json_t *all = parsed();
    const json_t *classes = json_object_get(all, "classes");
    const double sum = real(all, "flops");
    *most = 0, *least = sum;
    for (size_t i = 0; i < json_array_size(classes); i++) {
        const double flops = real(json_array_get(classes, i), "flops");
        if (flops > *most) *most = flops;
        if (flops < *least) *least = flops;
    }
    json_decref(all);
    return sum;
}

/* Context parallelism repeats no work. Contiguous tokens give the last of P ranks 2 P - 1 times the
 * pairs of the first (up to the diagonal), zigzag tokens give all ranks the same. */
static void work_follows_the_tokens(void **state)
{
    double most, least;
    (void)state;
    assert_int_equal(run_simulate(1, "--json", NULL), 0);
    const double one = flops_by_rank(&most, &least);
    assert_true(most == one && least == one);
    assert_int_equal(run_simulate(1, "--json", "mesh.cp=4", "parallel.tokens=zigzag",
                                  "parallel.context=gather", NULL),
                     0);
    assert_true(flops_by_rank(&most, &least) == one && most == one / 4 && least == one / 4);
    assert_int_equal(run_simulate(1, "--json", "mesh.cp=4", "parallel.tokens=contiguous",
                                  "parallel.context=gather", NULL),
                     0);
    assert_true(flops_by_rank(&most, &least) == one && most > one / 4 && least < one / 4);
    /* A part of 6 rows has 21 pairs, and 36 more for each part before it. */
    const double mean = one / 4, pairs = (most - least) / (3 * 36);
    assert_true(most - mean == 1.5 * 36 * pairs && mean - least == 1.5 * 36 * pairs);
    assert_true(pairs > 0);
}

/* Ranks along cp share the tokens of a micro-batch; the plan says how. */
static void cp_is_named(void **state)
{
    (void)state;
    assert_int_equal(run_simulate(1, "mesh.cp=4", NULL), 0);
    assert_printed("3 micro-batches of 2 x 24 tokens, 12 on each rank of cp; gpipe\n");
    assert_printed(", chosen by auto\n             attention and its transfers, all layers of a");
    assert_printed(", chosen by auto, over 4 ranks\n");
    assert_int_equal(run_simulate(1, "mesh.cp=5", "mesh.cp_heads=1", NULL), 0);
    assert_printed("of 2 x 24 tokens, at most 10 on each rank of cp; gpipe\n");
    assert_int_equal(run_simulate(1, "mesh.cp=4", "mesh.cp_heads=2", NULL), 0);
    assert_printed("of 2 x 24 tokens, 12 on each rank of cp; gpipe\n");
    assert_int_equal(run_simulate(1, "mesh.dp=2", NULL), 0);
    assert_printed("of 2 x 24 tokens on each rank; gpipe\n");
    assert_not_printed("  context  ");
    assert_int_equal(run_simulate(1, "--json", "mesh.cp=4", "parallel.context=gather", NULL), 0);
    json_t *all = parsed();
    assert_string_equal(json_string_value(at_path(all, "context.kind")), "gather");
    assert_string_equal(json_string_value(at_path(all, "context.tokens")), "zigzag");
    json_decref(all);
}

static void refusals(void **state)
{
    (void)state;
    assert_int_equal(run_simulate(2, "--cluster", "none.yaml", NULL), 1);
    assert_printed("none.yaml");
    assert_int_equal(run_simulate(2, "mesh.tq=2", NULL), 2);
    assert_printed("did you mean mesh.tp?");
    assert_int_equal(run_simulate(2, "mesh.dp=2", "run.ranks=3", NULL), 2);
    assert_printed("run.ranks=3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_equals_explain),
        cmocka_unit_test(validation_counts),
        cmocka_unit_test(tables_add_up),
        cmocka_unit_test(time_on_a_cluster),
        cmocka_unit_test(nodes_have_devices),
        cmocka_unit_test(trace_of_a_step),
        cmocka_unit_test(picture_of_a_step),
        cmocka_unit_test(work_follows_the_tokens),
        cmocka_unit_test(refusals),
        cmocka_unit_test(cp_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
