/* test_explain.c -- `sheaf explain` as text: the output is stable and has the compiler's numbers,
 * flags select parts of it, and bad requests are refused. */
#define _POSIX_C_SOURCE 200809L
#include "explain_test.h"
#include "state/save.h"
#include "train/loop.h"

static char previous[OUTPUT_BYTES];

/* Asserts the number that follows these words. */
static void assert_printed_number(const char *words, size_t n)
{
    const char *at = strstr(output, words);
    char *end;
    if (!at) fail_msg("\"%s\" is not in: %s", words, output);
    const unsigned long long number = strtoull(at + strlen(words), &end, 10);
    if (number != n) fail_msg("\"%s\" is followed by %llu, not by %zu", words, number, n);
}

static int count_printed(const char *part)
{
    int n = 0;
    for (const char *s = output; (s = strstr(s, part)); s++) n++;
    return n;
}

static void text_is_stable_and_complete(void **state)
{
    (void)state;
    static const char *const part[] = {
        "llama-tiny: llama, 3 layers",
        "mesh       pp=1 dp=1 cp=1 tp=1",
        "3 micro-batches of 2 sequences: 48 tokens each, the last one fewer",
        "120 tokens per step",
        "schedule   gpipe",
        "adamw",
        "layer x 3",
        "model.embed_tokens.weight",
        "mlp.down_proj.weight",
        "stage 0 | F0 F1 F2 B0 B1 B2",
        "rank 0: F0.0 F1.0 F2.0",
        "norm update.0",
        "frame-w+0",
        "[<=48,64]",
        "attention_dx",
        "6 N + 12 L d T",
        "dparam"};
    assert_int_equal(explain(1, NULL), 0);
    memcpy(previous, output, sizeof output);
    assert_int_equal(explain(1, NULL), 0);
    assert_string_equal(output, previous);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) assert_printed(part[i]);
    assert_int_equal(count_printed("\nlayer x 3\n"), 1); /* one program for all layers */
    assert_not_printed(" \n");
    for (int p = 0; p < N_PHASES; p++) {
        char title[16];
        snprintf(title, sizeof title, "\n  %s: ", phase_name((Phase)p));
        assert_printed(title);
    }
}

/* Every use of a pack either gathers it or finds it resident. */
static void gathers_are_counted(void **state)
{
    (void)state;
    assert_int_equal(explain(1, NULL), 0);
    assert_not_printed("GATHERS of a step"); /* no pack is sharded */
    assert_int_equal(explain(1, "mesh.dp=2", "parallel.zero=3", NULL), 0);
    assert_printed("  unit                         uses  gathers     resident\n");
    assert_printed("  layer.0 to layer.1              4        4            0  each\n"
                   "  layer.2                         4        3            1\n");
    assert_int_equal(explain(1, "mesh.dp=2", "parallel.zero=1", NULL), 0);
    assert_printed("  embed                           2        1            1\n");
}

/* Levels of single weights are shown by unit, and nothing is said of all weights. */
static void levels_of_weights_are_shown(void **state)
{
    (void)state;
    assert_int_equal(explain(1, "mesh.dp=2", "parallel.zero_weights=mlp.*=3", NULL), 0);
    assert_printed(": zero 0, zero_weights mlp.*=3, gradients reduced after the last, at levels 2 "
                   "and 3 after each micro-batch");
    assert_not_printed("nothing is sharded");
    assert_not_printed("never: every rank has all weights");
}

static void text_has_the_predicted_bytes(void **state)
{
    (void)state;
    static const char *const more[] = {NULL, "parallel.recompute=full", "parallel.offload=mlp.*",
                                       "optim.kind=sgd", "precision.compute=f64"};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        Compiled *c = compiled(more[i], JOB_STEP);
        const LinkedProgram *lp = &c->job.linked;
        int64_t save;
        char action[ACTION_TEXT_BYTES], at[80];
        DO(saver_bytes(lp, 0, SAVE_MEMORY_BUFFER, &c->arena, &save));
        size_t total = (size_t)save;
        assert_int_equal(explain(1, more[i], NULL), 0);
        for (int a = 0; a < N_ARENAS; a++) total += lp->bytes[a];
        assert_printed_number("peak of tensors packed by lifetime", lp->bytes[ARENA_WORK]);
        assert_printed_number("lower bound of any packing", lp->live[ARENA_WORK]);
        assert_printed_number("host   frame    offloaded to host memory", lp->bytes[ARENA_HOST]);
        assert_printed_number("for the save after the last step", (size_t)save);
        assert_printed_number("total, known before the run", total);
        action_text(&lp->list[lp->peak_at].action, 1, action);
        snprintf(at, sizeof at, "at %s (action %d of %d)", action, lp->peak_at + 1, lp->n);
        assert_printed(at);
        assert_printed_number("stream between units (y, read as x)", lp->peak_region[REGION_Y]);
        assert_printed_number("within the phase that runs", lp->peak_region[REGION_SCRATCH]);
        done(c);
    }
}

/* The total is the one that training prints. */
static void validation_is_counted(void **state)
{
    (void)state;
    Compiled *step = compiled(NULL, JOB_STEP), *loss = compiled(NULL, JOB_LOSS);
    int64_t total;
    DO(train_bytes(&step->job, &loss->job, SAVE_MEMORY_BUFFER, &step->arena, &total));
    assert_int_equal(explain(1, NULL), 0);
    assert_not_printed("of validation");
    assert_int_equal(explain(1, "run.valid_every=3", "data.valid=README.md", NULL), 0);
    assert_printed_number("inputs and losses of validation", loss->job.linked.bytes[ARENA_STEP]);
    assert_printed_number("total, known before the run", (size_t)total);
    done(step);
    done(loss);
}

static void flags_select_parts(void **state)
{
    (void)state;
    static const char *const pass[] = {"build", "differentiate", "place", "fuse",
                                       "chunk", "recompute",     "phases"};
    assert_int_equal(explain(1, "--rank", "0", "--unit", "embed", NULL), 0);
    assert_printed("\nembed\n");
    assert_not_printed("\nlayer x 3\n  given");
    assert_int_equal(explain(1, "--unit=head", "--json", NULL), 0);
    json_t *all = parsed();
    assert_int_equal(json_array_size(at_path(all, "programs")), 1);
    json_decref(all);
    for (size_t i = 0; i < sizeof pass / sizeof *pass; i++) {
        assert_int_equal(explain(1, "--pass", pass[i], NULL), 0);
        assert_printed("layer, f32\n");
        assert_printed("head, f32\n");
        assert_int_equal(strstr(output, "linear_dw") != NULL, i > 0);
        assert_int_equal(strstr(output, "q_proj.weight..3") != NULL, i >= 3);
        assert_int_equal(strstr(output, "\n  W ") != NULL, i == 6);
        assert_not_printed("MEMORY");
    }
    assert_int_equal(explain(1, "--pass=fuse", "--unit=layer", "--json", NULL), 0);
    all = parsed();
    assert_int_equal(json_array_size(at_path(all, "graphs")), 1);
    json_decref(all);
}

static void bad_requests_exit_with_2(void **state)
{
    (void)state;
    static const struct {
        const char *word, *message;
    } bad[] = {
        {"--rank=1", "--rank 1: the mesh has 1 rank; give a number from 0 to 0"},
        {"--rank=x", "--rank x: the mesh has 1 rank; give a number from 0 to 0"},
        {"--rank=-1", "--rank -1: the mesh has 1 rank"},
        {"--rank=0x", "--rank 0x: the mesh has 1 rank"},
        {"--rank=99999999999999999999", "the mesh has 1 rank"},
        {"--unit=block", "--unit block: no such unit; there are embed, layer, head"},
        {"--pass=fues", "--pass fues: no such pass; there are build, differentiate, place, fuse, "
                        "chunk, recompute, epilogues, phases"},
        {"--jsno", "did you mean --json?"},
        {"--unit", "needs a value"},
        {"parallel.recompute=mlp.akt",
         "parallel.recompute=mlp.akt: matches no value of any unit; did you mean mlp.act?"},
        {"parallel.recompute=mlp.*,*.mlp.*", "parallel.recompute=*.mlp.*: matches no value"},
        {"parallel.offload=mlp.act,attn.q",
         "parallel.offload=attn.q: no value of that name is kept"},
        {"parallel.recompute=head.in", "there are attn.in, attn.q"},
        {"parallel.offload=nothing", "parallel.offload=nothing: matches no value of any unit"},
        {"parallel.offload=none,mid", "none stands alone"},
        {"parallel.offload=", "parallel.offload"},
        {"mesh.ep=2", "mesh.ep is for a mixture of experts"},
        {"data.seq_leng=3", "did you mean data.seq_len?"},
        {"no-such-file.yaml", "no-such-file.yaml"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int status = explain(2, bad[i].word, NULL);
        assert_printed(bad[i].message);
        assert_int_equal(status, strstr(bad[i].word, ".yaml") ? 1 : 2);
    }
    assert_int_equal(explain(2, "parallel.recompute=full", "parallel.offload=mlp.*", NULL), 2);
    assert_printed("parallel.offload=mlp.*: with parallel.recompute=full nothing is kept");
    assert_int_equal(explain_only(2, NULL), 2);
    assert_printed("model.name is not set");
    assert_int_equal(
        explain_only(2, "model.name=gpt2-tiny", "data.seq_len=64", "batch.global=40000", NULL), 2);
    assert_printed("the most is 32767: set batch.micro=2");
}

/* The device is the one that `sheaf train` would open, and both refuse the same requests. */
static void names_the_device_of_training(void **state)
{
    (void)state;
    static const struct {
        const char *device, *compute, *text, *name;
    } row[] = {
        {"auto", "f32", "device     cpu, f32; sums and statistics in f32\n", "cpu"},
        {"auto", "bf16", "device     cpu, bf16; sums and statistics in f32\n", "cpu"},
        {"auto", "f64", "device     ref, f64; sums and statistics in f64\n", "ref"},
        {"cpu", "f32", "device     cpu, f32; sums and statistics in f32\n", "cpu"},
        {"ref", "f32", "device     ref, f32; sums and statistics in f32\n", "ref"},
        {"ref", "bf16", "command line: precision.compute=bf16: ref computes in f32 and f64;", NULL},
        {"cpu", "f64", "command line: run.device=cpu computes in f32 and bf16;", NULL},
        {"cuda", "f64", "command line: run.device=cuda computes in f32 and bf16;", NULL},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char device[32], compute[32];
        snprintf(device, sizeof device, "run.device=%s", row[i].device);
        snprintf(compute, sizeof compute, "precision.compute=%s", row[i].compute);
        const int status = explain(row[i].name ? 1 : 2, device, compute, NULL);
        assert_printed(row[i].text);
        assert_int_equal(status, row[i].name ? 0 : 2);
        if (!row[i].name) {
            memcpy(previous, output, sizeof output);
            assert_int_equal(run_small(2, "train", device, compute, "data.train=README.md", NULL),
                             2);
            assert_string_equal(output, previous);
            continue;
        }
        assert_int_equal(explain(1, device, compute, "--json", NULL), 0);
        json_t *all = parsed();
        assert_string_equal(json_string_value(at_path(all, "plan.device")), row[i].name);
        json_decref(all);
    }
}

/* Prepacked weights need a device that has a panel format, and weights that stay on the rank. */
static void weights_are_prepacked_if_possible(void **state)
{
    (void)state;
    const char *const prepack = "parallel.prepack=true";
    assert_int_equal(explain(1, "run.device=cpu", prepack, NULL), 0);
    assert_printed("prepacked weights");
    assert_int_equal(explain(1, "run.device=cpu", NULL), 0);
    assert_null(strstr(output, "prepacked weights"));
    assert_int_equal(explain(2, "run.device=ref", prepack, NULL), 2);
    assert_printed("GEMMs on ref do not use prepacked weights; set run.device=cpu");
    assert_int_equal(explain(2, "run.device=cpu", "parallel.zero=3", "mesh.dp=2", prepack, NULL),
                     2);
    assert_printed("parallel.prepack=true with parallel.zero=3");
}

static int explain_layers(const char *layers, const char *more)
{
    return explain_only(1, "model.name=llama-tiny", layers, "data.seq_len=24", "batch.global=3",
                        "parallel.schedule=gpipe", more, NULL);
}

/* More than eight consecutive units are printed as the first and the last; up to eight are all
 * printed. */
static void long_runs_are_folded(void **state)
{
    (void)state;
    assert_int_equal(explain_layers("model.num_hidden_layers=6", NULL), 0); /* 8 units */
    assert_printed("  rank 0: F0.0 F1.0 F2.0 F3.0 F4.0 F5.0 F6.0 F7.0 F0.1");
    assert_printed(" update.6 update.7\n");
    assert_not_printed(" .. ");
    assert_int_equal(explain_layers("model.num_hidden_layers=7", NULL), 0);
    assert_printed("  rank 0: F0.0 .. F8.0 F0.1 .. F8.1 F0.2 .. F8.2 B8.0 .. B0.0 B8.1 .. B0.1 "
                   "B8.2 .. B0.2 norm\n  rank 0: update.0 .. update.8\n");
    assert_int_equal(explain_layers("model.num_hidden_layers=7", "model.tie_word_embeddings=true"),
                     0);
    assert_printed("B8.2 .. B0.2 reduce.0 norm\n  rank 0: update.0 .. update.8\n");
}

static void examples_are_explained(void **state)
{
    (void)state;
    assert_int_equal(explain_only(1, "examples/llama-tiny.yaml", NULL), 0);
    assert_printed("4 micro-batches of 2 sequences: 256 tokens each\n");
    assert_int_equal(explain_only(1, "examples/gpt2-tiny.yaml", NULL), 0);
    assert_printed("layer x 4");
    assert_printed("recompute  mlp.act,mlp.in");
    assert_printed("mlp.act'");
    assert_int_equal(
        explain_only(1, "model.name=llama3.2-1b", "numerics.logits=16", "--unit=head", NULL), 0);
    assert_printed("the same as in embed"); /* tied */
    assert_printed("times more: for the rows after these");
}

/* The SVG file has a box for every RUN of every stage. */
static void a_schedule_is_drawn_into_a_file(void **state)
{
    char flag[64], text[65536];
    int boxes = 0;
    (void)state;
    snprintf(flag, sizeof flag, "--svg=test_explain.%d.svg", (int)getpid());
    assert_int_equal(explain(1, "mesh.pp=2", flag, NULL), 0);
    FILE *f = fopen(flag + 6, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    remove(flag + 6);
    assert_non_null(strstr(text, "gpipe, 2 stages, 3 micro-batches"));
    for (const char *at = text; (at = strstr(at, "<rect")); at++) boxes++;
    assert_true(boxes >= 2 * 2 * 3); /* F and B of three micro-batches on two stages */
    snprintf(flag, sizeof flag, "--schedule=test_explain.%d.txt", (int)getpid());
    assert_int_equal(explain(1, "mesh.pp=2", flag, NULL), 0); /* lists for parallel.schedule */
    f = fopen(flag + 11, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    remove(flag + 11);
    assert_non_null(strstr(text, "sheaf schedule 2\n"));
    assert_non_null(strstr(text, "over chunks\n"));
    assert_non_null(strstr(text, "stage 1: F1.0"));
    assert_int_equal(explain(2, "--svg=no/such/folder/x.svg", NULL), 1);
    assert_printed("--svg no/such/folder/x.svg: cannot be written");
}

/* Two units on each of three or four stages; six stages of layers, the first with the embedding. */
static void a_pipeline_is_simulated(void **state)
{
    (void)state;
    static const char *const tiny[] = {"model.name=llama-tiny", "data.seq_len=24", "batch.micro=2"};
    static const char *const six[] = {"model.name=llama-tiny", "data.seq_len=24",
                                      "batch.micro=2",         "model.num_hidden_layers=6",
                                      "batch.global=12",       "mesh.pp=6",
                                      "parallel.evict=true"};
    assert_int_equal(explain_list(1, tiny, 3, "model.num_hidden_layers=4", "batch.global=5",
                                  "mesh.pp=3", "parallel.split=2,2,2", NULL),
                     0);
    assert_printed("  makespan   30\n"
                   "  bubble     12: idle time of the busiest stage; all stages together are idle "
                   "40.0% of the "
                   "time\n"
                   "  frames     at most 3 2 1 on stages 0 to 2\n"
                   "  barrier    0: no stage could start the next step earlier\n\n");
    assert_int_equal(explain_list(1, tiny, 3, "model.num_hidden_layers=6", "batch.global=16",
                                  "mesh.pp=4", "parallel.split=2,2,2,2", "parallel.schedule=zbh2",
                                  NULL),
                     0);
    assert_printed("  makespan   54\n  bubble     6:");
    assert_printed("  barrier    6, 11.1% of the makespan: finished stages wait for the global");
    assert_int_equal(explain_list(1, six, 7, NULL), 0);
    assert_printed("  frames     at most 5 5 4 3 3 3 on stages 0 to 5\n");
    assert_printed(
        "  evict      3 frames evicted and fetched; without eviction, stages hold 6 5 4 3 2 1, and "
        "the work arena of rank 0 takes ");
    assert_int_equal(explain_list(1, six, 7, "--json", NULL), 0);
    json_t *all = parsed();
    assert_true(json_real_value(at_path(all, "pipeline.makespan")) == 54);
    assert_true(json_real_value(at_path(all, "pipeline.barrier")) == 0);
    assert_int_equal(json_array_size(at_path(all, "pipeline.frames")), 6);
    assert_int_equal(number(all, "pipeline.evicted"), 3);
    assert_true(number(all, "pipeline.work_without_evict") > number(all, "memory.work.bytes"));
    json_decref(all);
}

static void expect_part(const char *part)
{
    if (!strstr(output, part)) fail_msg("no \"%s\" in\n%s", part, output);
}

/* --context: the plan of the cp ranks, checked, and a table of all plans. */
static void context_plan_is_printed(void **state)
{
    (void)state;
    assert_int_equal(explain(1, "mesh.cp=4", "--context", "ring", NULL), 0);
    expect_part("ATTENTION PLAN ring: keys travel");
    expect_part("  4 ranks of cp, zigzag tokens, causal mask\n");
    expect_part("    rank 1 | kv1>2,kv0<0 1x1 kv0>2,kv3<0 1x0 kv3>2,kv2<0 1x3 1x2\n");
    expect_part("    rank 1 | kv1>2,kv0<0 kv0>2,kv3<0 1x0 dkv0>2,dkv3<0 kv3>2,kv2<0 1x3");
    /* 48 tokens, 2 key heads of 16: 2f BSK = 2 * 3/4 * 48 * 32, and twice that */
    expect_part("  ring         contiguous       2.3k      4.6k  busiest rank 1.750 of the mean\n");
    expect_part("  ring         zigzag           2.3k      4.6k  busiest rank 1.000 of the mean\n");
    assert_int_equal(explain(2, "--context=ring", NULL), 2);
    expect_part("mesh.cp=1 and mesh.cp_heads=1 leave one rank; set mesh.cp=2 or more");
    assert_int_equal(explain(2, "mesh.cp=2", "mesh.cp_heads=2", "--context=ring", NULL), 2);
    expect_part("mesh.cp=2 and mesh.cp_heads=2 leave one rank; leave mesh.cp_heads out");
    assert_int_equal(explain(2, "mesh.cp=2", "--context=rign", NULL), 2);
    expect_part("did you mean ring?");
    assert_int_equal(explain(2, "mesh.cp=2", "--context=ring", "--json", NULL), 2);
    expect_part("leave out --json");
}

static int count_of(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) n++;
    return n;
}

/* --context --svg: one bar for each visit, one for each arrival, both ways. */
static void context_plan_is_drawn(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int kv, q, o, dkv, dq; /* arrivals */
    } row[] = {{"ring", 2 * 12, 0, 0, 12, 0},
               {"double-ring", 2 * 12, 0, 0, 12, 0},
               {"lightseq", 2 * 5, 2 * 1, 1, 5, 1},
               {"token-ring", 0, 2 * 12, 12, 0, 12}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char flag[80], svg[65536];
        snprintf(flag, sizeof flag, "--svg=test_explain_context.%d.svg", (int)getpid());
        assert_int_equal(explain(1, "mesh.cp=4", "--context", row[i].name, flag, NULL), 0);
        FILE *f = fopen(flag + 6, "r");
        assert_non_null(f);
        svg[fread(svg, 1, sizeof svg - 1, f)] = '\0';
        fclose(f);
        remove(flag + 6);
        assert_non_null(strstr(svg, row[i].name));
        const int visits = row[i].name[0] == 'l' ? 2 * 10 : 2 * 16;
        assert_int_equal(count_of(svg, "class=\"visit\""), visits);
        assert_int_equal(count_of(svg, "class=\"kv\""), row[i].kv);
        assert_int_equal(count_of(svg, "class=\"q\""), row[i].q);
        assert_int_equal(count_of(svg, "class=\"o\""), row[i].o);
        assert_int_equal(count_of(svg, "class=\"dkv\""), row[i].dkv);
        assert_int_equal(count_of(svg, "class=\"dq\""), row[i].dq);
        assert_null(strstr(svg, "nan"));
        assert_null(strstr(svg, "inf"));
    }
    assert_int_equal(explain(2, "mesh.cp=40", "--context=ring", "--svg=no.svg", NULL), 2);
    expect_part("allowed are 32");
}

/* A plan in passes: keys, then values; it is for models without shared key heads. */
static void plan_in_passes_is_drawn(void **state)
{
    (void)state;
    char flag[80], svg[65536];
    snprintf(flag, sizeof flag, "--svg=test_explain_rsa.%d.svg", (int)getpid());
    assert_int_equal(explain(2, "mesh.cp=4", "--context=rsa", NULL), 2);
    expect_part("not defined for 2 key heads that 4 query heads share");
    assert_int_equal(
        explain(1, "mesh.cp=4", "model.num_key_value_heads=4", "--context=rsa", flag, NULL), 0);
    FILE *f = fopen(flag + 6, "r");
    assert_non_null(f);
    svg[fread(svg, 1, sizeof svg - 1, f)] = '\0';
    fclose(f);
    remove(flag + 6);
    assert_int_equal(count_of(svg, "class=\"visit\""), 4 * 16);
    assert_int_equal(count_of(svg, "class=\"k\""), 2 * 12);
    assert_int_equal(count_of(svg, "class=\"v\""), 2 * 12);
    assert_int_equal(count_of(svg, "class=\"dk\""), 12);
    assert_int_equal(count_of(svg, "class=\"dv\""), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_plan_is_drawn),
        cmocka_unit_test(plan_in_passes_is_drawn),
        cmocka_unit_test(context_plan_is_printed),
        cmocka_unit_test(text_is_stable_and_complete),
        cmocka_unit_test(gathers_are_counted),
        cmocka_unit_test(levels_of_weights_are_shown),
        cmocka_unit_test(text_has_the_predicted_bytes),
        cmocka_unit_test(validation_is_counted),
        cmocka_unit_test(flags_select_parts),
        cmocka_unit_test(bad_requests_exit_with_2),
        cmocka_unit_test(a_schedule_is_drawn_into_a_file),
        cmocka_unit_test(a_pipeline_is_simulated),
        cmocka_unit_test(names_the_device_of_training),
        cmocka_unit_test(weights_are_prepacked_if_possible),
        cmocka_unit_test(long_runs_are_folded),
        cmocka_unit_test(examples_are_explained),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
