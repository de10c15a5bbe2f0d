/* test_plan_verb.c -- `sheaf plan` prints the best plan with its certificate; the plan that it
 * writes is read by other verbs; impossible requests are refused. */
#define _POSIX_C_SOURCE 200809L
#include "explain_test.h"

#include <math.h>
#include <unistd.h>

/* On a device whose kernels take no memory of their own, so that limits lie within that of the
 * model. */
static const char *const run[] = {"model.name=llama-tiny", "data.seq_len=32", "batch.global=6",
                                  "run.device=cpu"};
enum { N_RUN = sizeof run / sizeof *run };

static int sheaf_verb(int fd, const char *verb, ...)
{
    va_list words;
    va_start(words, verb);
    const int status = run_verb(fd, verb, run, N_RUN, words);
    va_end(words);
    return status;
}

static const char cluster[] = "--cluster=share/clusters/h100-sxm.yaml";
/* A fitted file: constants of published runs, without price and power. */
static const char unpriced[] = "--cluster=share/clusters/h100-sxm-ndr8.yaml";

static double real(const json_t *o, const char *key)
{
    return json_real_value(json_object_get(o, key));
}

static void json_has_the_certificate(void **state)
{
    (void)state;
    assert_int_equal(
        sheaf_verb(1, "plan", cluster, "--gpus=2", "--json", "--top=2", "--alike", NULL), 0);
    json_t *all = parsed();
    const json_t *best = json_object_get(all, "best"), *plans = json_object_get(all, "plans");
    assert_int_equal(number(all, "ranks"), 2);
    assert_true(real(best, "step_ms") > 0 && real(all, "gap") == 0);
    assert_true(real(all, "bound_ms") == real(best, "step_ms"));
    assert_string_equal(json_string_value(json_object_get(all, "certificate")), "optimal");
    assert_int_equal(json_array_size(plans), 2);
    assert_true(real(json_array_get(plans, 1), "step_ms") >= real(best, "step_ms"));
    assert_non_null(strstr(json_string_value(json_object_get(best, "plan")), "  ranks: 2\n"));
    assert_int_equal(json_array_size(json_object_get(all, "frontier")), 1);
    /* Less memory than the best plan needs: another plan, which is slower and fits. */
    char memory[32];
    const double bytes = (double)number(best, "memory_bytes");
    snprintf(memory, sizeof memory, "--memory=%.9g", 0.8 * bytes / 0x1p30);
    const double step = real(best, "step_ms");
    json_decref(all);
    assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", "--json", memory, NULL), 0);
    all = parsed();
    best = json_object_get(all, "best");
    assert_true((double)number(best, "memory_bytes") <= 0.8 * bytes);
    assert_true(real(best, "step_ms") > step);
    json_decref(all);
}

/* The best plan within a byte less than this row needs: the next row of its number of ranks. */
static void check_row(const json_t *row, const json_t *next)
{
    char memory[48], gpus[16];
    const json_int_t ranks = number(row, "ranks");
    const double limit = (double)number(row, "memory_bytes") - 1;
    snprintf(memory, sizeof memory, "--memory=%.17g", limit / 0x1p30);
    snprintf(gpus, sizeof gpus, "--gpus=%lld", (long long)ranks);
    if (!next || number(next, "ranks") != ranks) {
        assert_int_equal(sheaf_verb(2, "plan", cluster, gpus, "--json", memory, "--alike", NULL),
                         2);
        assert_printed("no plan for");
        return;
    }
    assert_true(real(next, "step_ms") > real(row, "step_ms"));
    assert_true((double)number(next, "limit_bytes") == limit);
    assert_int_equal(sheaf_verb(1, "plan", cluster, gpus, "--json", memory, "--alike", NULL), 0);
    json_t *all = parsed();
    assert_true(real(json_object_get(all, "best"), "step_ms") == real(next, "step_ms"));
    json_decref(all);
}

/* For each number of ranks the frontier has the best plan of every limit. */
static void the_frontier_has_all_limits(void **state)
{
    int most = 0, least = 0;
    (void)state;
    assert_int_equal(
        sheaf_verb(1, "plan", cluster, "--gpus=1..2", "--json", "--frontier", "--alike", NULL), 0);
    json_t *all = parsed();
    const json_t *rows = json_object_get(all, "frontier");
    const size_t n = json_array_size(rows);
    assert_true(json_is_true(json_object_get(all, "frontier_complete")));
    assert_int_equal(number(all, "frontier_step_bytes"), 0);
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(rows, i), *next = json_array_get(rows, i + 1);
        const bool ends = !next || number(next, "ranks") != number(row, "ranks");
        least += number(row, "ranks") == 1;
        most += number(row, "ranks") == 2;
        if (ends || i % 4 == 0) check_row(row, next);
    }
    assert_true(least > 3 && most > 3);
    json_decref(all);
    /* Layers that differ: limits in steps. */
    assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", "--json", "--frontier",
                                "--memory=0.006", "mesh.dp=2", "model.num_hidden_layers=6", NULL),
                     0);
    all = parsed();
    rows = json_object_get(all, "frontier");
    const double step = (double)number(all, "frontier_step_bytes");
    assert_true(json_array_size(rows) > 3 && fabs(step * 32 / (0.006 * 0x1p30) - 1) < 1e-4);
    assert_true(real(json_object_get(all, "best"), "step_ms") ==
                real(json_array_get(rows, 0), "step_ms"));
    for (size_t i = 1; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i), *last = json_array_get(rows, i - 1);
        const double limit = (double)number(row, "limit_bytes");
        assert_true(real(row, "step_ms") > real(last, "step_ms"));
        assert_true((double)number(row, "memory_bytes") <= limit &&
                    limit < (double)number(last, "memory_bytes"));
    }
    json_decref(all);
}

/* A limit between two recomputations of all layers: some layers recompute. The gap of the
 * certificate is that of the bound, and other verbs read the plan. */
static void layers_may_differ(void **state)
{
    char path[] = "/tmp/sheaf-plan-mixed-XXXXXX", out[64], plan[64], memory[32];
    static const char layers[] = "model.num_hidden_layers=6";
    (void)state;
    assert_true(close(mkstemp(path)) == 0);
    snprintf(out, sizeof out, "-o=%s", path);
    snprintf(plan, sizeof plan, "--plan=%s", path);
    assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", "--json", "mesh.dp=2", "--alike",
                                "batch.micro=2", "parallel.recompute=none", layers, NULL),
                     0);
    json_t *all = parsed();
    const double bytes = (double)number(json_object_get(all, "best"), "memory_bytes");
    json_decref(all);
    snprintf(memory, sizeof memory, "--memory=%.9g", 0.89 * bytes / 0x1p30);
    assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", "--json", "mesh.dp=2",
                                "batch.micro=2", memory, out, layers, NULL),
                     0);
    all = parsed();
    const json_t *best = json_object_get(all, "best");
    const double step = real(best, "step_ms"), bound = real(all, "bound_ms");
    assert_non_null(strstr(json_string_value(json_object_get(best, "words")), " layers="));
    assert_true(step < real(json_object_get(all, "alike"), "step_ms"));
    assert_true(bound <= step && fabs(real(all, "gap") - (1 - bound / step)) < 1e-9);
    assert_true((double)number(best, "memory_bytes") <= 0.89 * bytes);
    json_decref(all);
    assert_int_equal(sheaf_verb(1, "explain", plan, layers, NULL), 0);
    assert_int_equal(sheaf_verb(1, "simulate", plan, layers, NULL), 0);
    unlink(path);
}

/* A cluster file with nodes of two ranks and these lines about nodes. */
static void write_nodes(const char *path, const char *nodes)
{
    char line[512];
    FILE *from = fopen(cluster + strlen("--cluster="), "r"), *to = fopen(path, "w");
    assert_true(from && to);
    while (fgets(line, sizeof line, from)) {
        char *ranks = strstr(line, "{ranks: 8,");
        if (ranks) ranks[strlen("{ranks: ")] = '2';
        fputs(line, to);
    }
    fputs(nodes, to);
    assert_true(!fclose(from) && !fclose(to));
}

static void write_cluster(const char *path, const char *links)
{
    char text[256];
    snprintf(text, sizeof text, "node_links:\n  - %s\n", links);
    write_nodes(path, text);
}

static json_t *placed_plan(const char *path, const char *links, const char *out)
{
    char file[64];
    write_cluster(path, links);
    snprintf(file, sizeof file, "--cluster=%s", path);
    assert_int_equal(sheaf_verb(1, "plan", file, "--gpus=8", "--json", "--alike", "mesh.tp=1",
                                "mesh.dp=4", "batch.micro=1", "parallel.recompute=none", out, NULL),
                     0);
    return parsed();
}

static int node_of(const json_t *best, int block)
{
    return (int)json_integer_value(json_array_get(json_object_get(best, "nodes"), (size_t)block));
}

/* Gradients stay inside of islands, stages cross; a slow pair of nodes exchanges nothing. */
static void nodes_are_ordered(void **state)
{
    char path[] = "/tmp/sheaf-plan-nodes-XXXXXX", at[] = "/tmp/sheaf-plan-order-XXXXXX", out[64];
    char plan[64], file[64];
    (void)state;
    assert_true(close(mkstemp(path)) == 0 && close(mkstemp(at)) == 0);
    snprintf(out, sizeof out, "-o=%s", at);
    snprintf(plan, sizeof plan, "--plan=%s", at);
    snprintf(file, sizeof file, "--cluster=%s", path);
    json_t *all = placed_plan(path, "{islands: [[0, 2], [1, 3]], latency_us: 90, gbps: 0.5}", out);
    const json_t *best = json_object_get(all, "best");
    assert_int_equal(node_of(best, 0) % 2, node_of(best, 1) % 2);
    assert_int_equal(node_of(best, 2) % 2, node_of(best, 3) % 2);
    assert_true(real(best, "links_ms") < real(best, "unordered_links_ms"));
    const double clock = real(best, "clock_ms");
    assert_true(fabs(clock / real(best, "step_ms") - 1) < 0.1);
    json_decref(all);
    assert_int_equal(sheaf_verb(1, "simulate", plan, file, "--json", NULL), 0);
    all = parsed();
    assert_true(fabs(real(all, "step_ms") / clock - 1) < 1e-9);
    json_decref(all);
    all = placed_plan(path, "{nodes: [0, 1], latency_us: 90, gbps: 0.5}", "--top=2");
    best = json_object_get(all, "best");
    for (int i = 0; i < 4; i += 2) /* the ranks of a stage, which reduce gradients */
        assert_false(node_of(best, i) + node_of(best, i + 1) == 1);
    json_decref(all);
    unlink(path);
    unlink(at);
}

static json_t *uneven_plan(const char *path, const char *devices, const char *more)
{
    char text[256], file[64];
    snprintf(text, sizeof text, "node_devices:\n  - {nodes: [0, 2], %s}\n", devices);
    write_nodes(path, text);
    snprintf(file, sizeof file, "--cluster=%s", path);
    assert_int_equal(sheaf_verb(1, "plan", file, "--gpus=8", "--json", "--alike", "mesh.tp=1",
                                "mesh.pp=2", "batch.micro=1", "model.num_hidden_layers=6",
                                "parallel.recompute=none", more, NULL),
                     0);
    return parsed();
}

/* Nodes 0 and 2 are slower: they get one stage, with fewer layers. Other verbs read the plan. */
static void stages_follow_devices(void **state)
{
    static const char layers[] = "model.num_hidden_layers=6";
    char path[] = "/tmp/sheaf-plan-nodes-XXXXXX", at[] = "/tmp/sheaf-plan-order-XXXXXX", out[64];
    char plan[64], file[64], memory[64];
    int first, last;
    (void)state;
    assert_true(close(mkstemp(path)) == 0 && close(mkstemp(at)) == 0);
    snprintf(out, sizeof out, "-o=%s", at);
    snprintf(plan, sizeof plan, "--plan=%s", at);
    snprintf(file, sizeof file, "--cluster=%s", path);
    json_t *even = uneven_plan(path, "speed: 1", "--top=2");
    json_t *all = uneven_plan(path, "speed: 0.4", out);
    const json_t *best = json_object_get(all, "best");
    const double clock = real(best, "clock_ms"), bound = real(all, "bound_ms"),
                 even_ms = real(json_object_get(even, "best"), "step_ms");
    assert_true(clock > even_ms && clock < 2 * even_ms && bound <= clock);
    assert_int_equal(node_of(best, 0) % 2, node_of(best, 1) % 2);
    assert_int_equal(node_of(best, 2) % 2, node_of(best, 3) % 2);
    assert_true(number(all, "searched.placed") > 0 && number(all, "searched.splits") > 3);
    const char *split = strstr(json_string_value(json_object_get(best, "words")), " split=");
    assert_non_null(split);
    assert_int_equal(sscanf(split, " split=%d,%d", &first, &last), 2);
    assert_true(node_of(best, 0) % 2 ? first > last : first < last);
    assert_non_null(strstr(json_string_value(json_object_get(best, "plan")), "split: \""));
    assert_int_equal(sheaf_verb(1, "simulate", plan, file, layers, "--json", NULL), 0);
    json_t *again = parsed();
    assert_true(fabs(real(again, "step_ms") / clock - 1) < 1e-9);
    assert_true(json_is_true(json_object_get(again, "fits")));
    json_decref(again);
    assert_int_equal(sheaf_verb(1, "explain", plan, layers, NULL), 0);
    /* Less memory on the slow nodes: a plan that fits them, or no plan. */
    const double gib = (double)number(best, "memory_bytes") / 0x1p30;
    snprintf(memory, sizeof memory, "speed: 0.4, memory_gib: %.9g", 0.8 * gib);
    unlink(at);
    json_t *less = uneven_plan(path, memory, out);
    assert_int_equal(sheaf_verb(1, "simulate", plan, file, layers, "--json", NULL), 0);
    again = parsed();
    assert_true(json_is_true(json_object_get(again, "fits")));
    json_decref(again);
    json_decref(less);
    json_decref(all);
    json_decref(even);
    snprintf(memory, sizeof memory,
             "node_devices:\n  - {nodes: [0, 2], speed: 1, memory_gib: 1e-5}\n");
    write_nodes(path, memory);
    assert_int_equal(
        sheaf_verb(2, "plan", file, "--gpus=8", "mesh.tp=1", "mesh.pp=2", "--alike", NULL), 2);
    assert_printed("fits the devices of all nodes");
    unlink(path);
    unlink(at);
}

/* Devices that differ a little: the stages' own split is faster than all splits that the search
 * bounds, which the certificate must not leave out. With a given split it counts them alone. */
static void own_splits_are_bounded(void **state)
{
    static const char *const given[] = {"parallel.split=even", "parallel.sequence=false"};
    char path[] = "/tmp/sheaf-plan-nodes-XXXXXX", file[64];
    double step[2], bound[2];
    (void)state;
    assert_true(close(mkstemp(path)) == 0);
    snprintf(file, sizeof file, "--cluster=%s", path);
    write_nodes(path, "node_devices:\n  - {nodes: [0, 2], speed: 0.9999}\n");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sheaf_verb(1, "plan", file, "--gpus=8", "--json", "--alike", "mesh.tp=1",
                                    "mesh.pp=2", "batch.micro=1", "model.num_hidden_layers=7",
                                    "parallel.recompute=none", given[i], NULL),
                         0);
        json_t *all = parsed();
        step[i] = real(json_object_get(all, "best"), "step_ms");
        bound[i] = real(all, "bound_ms");
        json_decref(all);
    }
    assert_true(bound[0] > 0.99 * step[0] && bound[0] <= step[0]);
    assert_true(step[1] < 0.99 * bound[0] && bound[1] <= step[1]);
    unlink(path);
}

/* Without a pipeline each rank has the same memory: the best plan that fits the smallest device. */
static void small_devices_count(void **state)
{
    char path[] = "/tmp/sheaf-plan-nodes-XXXXXX", file[64], nodes[128];
    double bytes[2];
    (void)state;
    assert_true(close(mkstemp(path)) == 0);
    snprintf(file, sizeof file, "--cluster=%s", path);
    for (int i = 0; i < 2; i++) {
        snprintf(nodes, sizeof nodes,
                 "node_devices:\n  - {nodes: [1], speed: 1, memory_gib: %.9g}\n",
                 i ? 0.9 * bytes[0] / 0x1p30 : 1);
        write_nodes(path, nodes);
        assert_int_equal(sheaf_verb(1, "plan", file, "--gpus=4", "--json", "--alike", "mesh.tp=1",
                                    "mesh.pp=1", "mesh.cp=1", NULL),
                         0);
        json_t *all = parsed();
        bytes[i] = (double)number(json_object_get(all, "best"), "memory_bytes");
        json_decref(all);
    }
    assert_true(bytes[1] <= 0.9 * bytes[0]);
    unlink(path);
}

/* The memory of the best plan, of one micro-batch size so that other clusters choose it too. */
static double planned_bytes(const char *file, const char *key)
{
    assert_int_equal(sheaf_verb(1, "plan", file, "--gpus=2", "--json", "mesh.tp=2", "batch.micro=1",
                                "parallel.recompute=none", "parallel.sequence=false", key, NULL),
                     0);
    json_t *all = parsed();
    const double bytes = (double)number(json_object_get(all, "best"), "memory_bytes");
    json_decref(all);
    return bytes;
}

/* Where host and device share memory, the copies that checkpoints are written from count. */
static void saves_count_in_host_memory(void **state)
{
    char path[] = "/tmp/sheaf-plan-host-XXXXXX", host[64], line[512];
    (void)state;
    FILE *from = fopen(cluster + strlen("--cluster="), "r"), *to = fdopen(mkstemp(path), "w");
    assert_true(from && to);
    while (fgets(line, sizeof line, from)) {
        fputs(line, to);
        if (!strncmp(line, "device:", 7)) fputs("  host_memory: true\n", to);
    }
    assert_true(!fclose(from) && !fclose(to));
    snprintf(host, sizeof host, "--cluster=%s", path);
    const double without = planned_bytes(cluster, "run.save_every=1"),
                 buffer = planned_bytes(host, "run.save_every=0"),
                 snapshot = planned_bytes(host, "run.save_every=1");
    assert_true(without == planned_bytes(cluster, "run.save_every=0"));
    assert_true(without < buffer && buffer <= snapshot);
    unlink(path);
}

/* A verb for two ranks along dp. */
static int on_device(const char *verb, const char *device, ...)
{
    const char *const words[] = {run[0], run[1], run[2], "mesh.dp=2", "batch.micro=1", device};
    va_list rest;
    va_start(rest, device);
    const int status = run_verb(1, verb, words, sizeof words / sizeof *words, rest);
    va_end(rest);
    return status;
}

/* The kernels of a GPU take a workspace, which a plan has room for: 32 MiB of cuBLASLt at least.
 * With run.device=auto the devices are those of the cluster. */
static void workspace_counts(void **state)
{
    static const char *const device[] = {"run.device=cpu", "run.device=cuda", "run.device=auto"};
    double bytes[3];
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(on_device("plan", device[i], cluster, "--gpus=2", "--json", NULL), 0);
        json_t *all = parsed();
        bytes[i] = (double)number(json_object_get(all, "best"), "memory_bytes");
        json_decref(all);
        assert_int_equal(on_device("simulate", device[i], cluster, "--json", NULL), 0);
        all = parsed();
        const json_t *memory =
            json_object_get(json_array_get(json_object_get(all, "classes"), 0), "memory");
        assert_int_equal(number(memory, "kernels"), i ? 32 << 20 : 0);
        assert_true(i ? number(memory, "pinned") > 16 << 20 : number(memory, "pinned") == 0);
        json_decref(all);
    }
    assert_true(bytes[1] == bytes[2] && bytes[1] > bytes[0] + (32 << 20));
    assert_int_equal(on_device("plan", device[2], cluster, "--gpus=2", "--memory=0.03", NULL), 2);
    assert_int_equal(on_device("plan", device[0], cluster, "--gpus=2", "--memory=0.0625", NULL), 0);
}

static void fixed_keys_and_choices(void **state)
{
    (void)state;
    assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", "mesh.tp=2",
                                "--explain-choice=parallel.recompute=full", NULL),
                     0);
    assert_printed("dp=1 tp=2");
    assert_printed("CHOICE parallel.recompute=full");
    assert_printed("it costs      work +");
    assert_not_printed(" pp=2");
    assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", "--explain-choice=mesh.tp=3", NULL),
                     0);
    assert_printed("mesh.tp=3: the 2 ranks of --gpus are no multiple of 3");
    assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", "--memory=0.0018",
                                "--explain-choice=mesh.dp=2", NULL),
                     0);
    assert_printed("plans with it fits: each needs at least");
}

/* Why the space has no plan with a choice, and choices that only some meshes give an effect. */
static void choices_have_reasons(void **state)
{
    static const char *const rows[][3] = {
        {"--explain-choice=parallel.context=ring", "batch.micro=1",
         "mesh.cp=2 leaves a rank 16 of the 32 tokens of a sequence"},
        {"--explain-choice=parallel.context=ring", "mesh.cp=1",
         "it has an effect on two or more ranks along cp, and mesh.cp=1 is given"},
        {"--explain-choice=parallel.schedule=zbv", "mesh.dp=1", "best with it  dp=1 pp=2 zbv"},
        {"--explain-choice=mesh.tp=2", "mesh.pp=2",
         "mesh.tp=2 x mesh.pp=2: the 2 ranks of --gpus are no multiple of 4"},
        {"--explain-choice=mesh.tp=64", "batch.micro=1", "mesh.tp=64: the model has 4 heads"},
        {"--explain-choice=mesh.pp=9", "batch.micro=1", "no multiple of 9"},
        {"--explain-choice=mesh.ep=2", "batch.micro=1", "mesh.ep=2: the model has no experts"},
        {"--explain-choice=parallel.sequence=true", "mesh.tp=1", "and mesh.tp=1 is given"},
        {"--explain-choice=parallel.zero=3", "mesh.dp=1", "ZeRO shards over two or more ranks"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", rows[i][0], rows[i][1], NULL),
                         0);
        assert_printed(rows[i][2]);
    }
    assert_int_equal(
        sheaf_verb(2, "plan", cluster, "--gpus=8", "mesh.tp=1", "mesh.cp=1", "mesh.pp=1", NULL), 2);
    assert_printed("mesh.dp=8 leaves ranks without one of the 6 sequences of batch.global");
    assert_int_equal(
        sheaf_verb(1, "plan", cluster, "--gpus=2", "--json", "--explain-choice=mesh.tp=3", NULL),
        0);
    assert_printed("\"no_choice\": \"the space has no plan with it");
}

/* A choice that cannot be searched is refused before the search. */
static void bad_choices_are_refused(void **state)
{
    static const char *const rows[][2] = {
        {"--explain-choice=parallel.context=auto", "auto is what the search chooses"},
        {"--explain-choice=mesh.dp=-1", "give a number of ranks from 1 on"},
        {"--explain-choice=parallel.zero_weights=mlp.*=3", "takes none as given"},
        {"parallel.zero_weights=mlp.*=3", "parallel.zero_weights: the search chooses the weights"},
        {"--explain-choice=data.seq_len=3", "docs/PLAN.md lists those that it chooses"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(sheaf_verb(2, "plan", cluster, "--gpus=2", rows[i][0], NULL), 2);
        assert_printed(rows[i][1]);
    }
}

static void written_plans_are_read(void **state)
{
    char path[] = "/tmp/sheaf-plan-verb-XXXXXX", out[64], plan[64];
    (void)state;
    assert_true(close(mkstemp(path)) == 0); /* an empty file may be written */
    snprintf(out, sizeof out, "-o=%s", path);
    snprintf(plan, sizeof plan, "--plan=%s", path);
    assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", "mesh.pp=2", out, NULL), 0);
    assert_int_equal(sheaf_verb(1, "explain", plan, NULL), 0);
    assert_printed("pp=2");
    assert_int_equal(sheaf_verb(2, "explain", plan, "mesh.pp=1", NULL), 2);
    assert_printed("mesh.pp=1: the plan decides it: mesh.pp=2");
    assert_int_equal(sheaf_verb(2, "simulate", plan, "optim.lr=1", "model.vocab_size=300", NULL),
                     2);
    assert_printed("made for another model");
    unlink(path);
}

/* Layouts of weights along tp that the search found are rules in the plan file. */
static void layouts_along_tp_are_written(void **state)
{
    char path[] = "/tmp/sheaf-plan-tp-XXXXXX", out[64], plan[64];
    (void)state;
    assert_true(close(mkstemp(path)) == 0);
    snprintf(out, sizeof out, "-o=%s", path);
    snprintf(plan, sizeof plan, "--plan=%s", path);
    assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", "mesh.tp=2",
                                "parallel.sequence=true", "parallel.tp_weights=search", out,
                                "--explain-choice=parallel.tp_weights=megatron", NULL),
                     0);
    assert_printed("tp=2 sequence tp_weights=search");
    assert_printed("CHOICE parallel.tp_weights=megatron");
    assert_printed("dp=1 tp=2 sequence micro=");
    assert_int_equal(sheaf_verb(1, "explain", plan, NULL), 0);
    assert_printed("  tp         embed: all weights");
    assert_int_equal(sheaf_verb(2, "explain", plan, "parallel.tp_weights=search", NULL), 2);
    assert_printed("parallel.tp_weights=search: the plan decides it");
    assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", "mesh.tp=2",
                                "parallel.tp_weights=*.down_proj.*=outputs", NULL),
                     0);
    assert_printed("tp_weights=*.down_proj.*=outputs");
    assert_int_equal(sheaf_verb(2, "plan", cluster, "--gpus=2",
                                "--explain-choice=parallel.tp_weights=*.down_proj.*=whole", NULL),
                     2);
    assert_printed("set mesh.tp too, or parallel.tp_weights=megatron or search");
    unlink(path);
}

static void refusals(void **state)
{
    (void)state;
    assert_int_equal(sheaf_verb(2, "plan", "--gpus=2", NULL), 2);
    assert_printed("--cluster FILE is missing");
    assert_int_equal(sheaf_verb(2, "plan", cluster, "--gpus=4..2", NULL), 2);
    assert_printed("--gpus 4..2: must be a number of ranks, or a range");
    assert_int_equal(sheaf_verb(2, "plan", cluster, "--gpus=2", "parallel.zero=3@layers:0,1", NULL),
                     2);
    assert_printed("values for single layers are not in the space of a search");
    assert_int_equal(sheaf_verb(2, "plan", cluster, "parallel.schedule=terapipe", NULL), 2);
    assert_printed("parallel.schedule=terapipe: a search fixes 1f1b");
    assert_int_equal(sheaf_verb(2, "plan", cluster, "parallel.offload=mid", NULL), 2);
    assert_printed("set parallel.recompute=none too");
    assert_int_equal(sheaf_verb(2, "plan", cluster, "--gpus=2", "mesh.tp=3", NULL), 2);
    assert_printed("the space has no plan for 2 ranks");
    assert_printed("mesh.tp=3: the 2 ranks of --gpus are no multiple of 3; leave a key out");
    assert_int_equal(sheaf_verb(2, "plan", unpriced, "--objective=cost", NULL), 2);
    assert_printed("has no price_per_hour; add it");
    assert_int_equal(sheaf_verb(2, "plan", unpriced, "--objective=energy", NULL), 2);
    assert_printed("has no power_w; add it");
    assert_int_equal(sheaf_verb(2, "plan", cluster, "--gpus=2", "--memory=1e-5", NULL), 2);
    assert_printed("no plan for 2 ranks fits into 10.5 KiB a rank");
    assert_int_equal(sheaf_verb(2, "plan", cluster, "--gpus=2", "mesh.tp=2",
                                "parallel.tp_weights=mpl.*=whole", NULL),
                     2);
    assert_printed("the compiler refuses the");
    assert_printed("parallel.tp_weights=mpl.*: matches no weight whose layout along tp");
    assert_int_equal(sheaf_verb(2, "plan", cluster, "--gpus=2", "parallel.evict=true", NULL), 2);
    assert_printed("parallel.evict: the search does not choose it");
    assert_int_equal(sheaf_verb(2, "plan", cluster, "--gpus=2", "--explain-choice=mesh.tq=2", NULL),
                     2);
    assert_printed("mesh.tq");
    assert_int_equal(sheaf_verb(2, "plan", cluster, "--gpus=2", "run.ranks=4", NULL), 2);
    assert_printed("run.ranks=4 contradicts --gpus 2");
    assert_int_equal(sheaf_verb(1, "plan", cluster, "--gpus=2", "run.ranks=2", "mesh.tp=2", NULL),
                     0);
}

/* The request is impossible too; the file is reported, so the search has not begun. */
static void unwritable_files(void **state)
{
    static const char *const flag[] = {"-o=/tmp/sheaf-no-folder/plan.yaml", "-o=/tmp",
                                       "--svg=/tmp/sheaf-no-folder/plan.svg"};
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(
            sheaf_verb(2, "plan", cluster, "--gpus=2", "--memory=1e-5", flag[i], NULL), 0);
        assert_printed("cannot be written");
        assert_not_printed("fits into");
    }
    assert_int_equal(sheaf_verb(2, "plan", cluster, "--gpus=2", "--memory=1e-5",
                                "-o=/tmp/sheaf-plan-never-written.yaml", NULL),
                     2);
    assert_int_not_equal(access("/tmp/sheaf-plan-never-written.yaml", F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(json_has_the_certificate),
                                       cmocka_unit_test(the_frontier_has_all_limits),
                                       cmocka_unit_test(layers_may_differ),
                                       cmocka_unit_test(nodes_are_ordered),
                                       cmocka_unit_test(stages_follow_devices),
                                       cmocka_unit_test(own_splits_are_bounded),
                                       cmocka_unit_test(small_devices_count),
                                       cmocka_unit_test(saves_count_in_host_memory),
                                       cmocka_unit_test(workspace_counts),
                                       cmocka_unit_test(fixed_keys_and_choices),
                                       cmocka_unit_test(choices_have_reasons),
                                       cmocka_unit_test(bad_choices_are_refused),
                                       cmocka_unit_test(written_plans_are_read),
                                       cmocka_unit_test(layouts_along_tp_are_written),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(unwritable_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
