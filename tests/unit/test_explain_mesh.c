/* test_explain_mesh.c -- `sheaf explain` of a rank of a mesh as text, and that folded action lists
 * unfold to the list that runs. */
#define _POSIX_C_SOURCE 200809L
#include "explain_test.h"

static void plan_names_the_rank(void **state)
{
    (void)state;
    static const char *const part[] = {
        "mesh       pp=1 dp=2 cp=1 tp=2: this is rank 3 of 4: dp 1, tp 1\n",
        "micro      2 micro-batches of 2 sequences: 48 tokens each, 1 without tokens\n",
        "of the step's micro-batches 0 to 3 they are 1, 3: micro-batch j of dp rank r is j x 2 + "
        "r\n",
        "zero       3: moments, gradients and weights are sharded over dp, 2 ranks, in whole "
        "blocks",
        "blocks of 512 elements\n",
        "gather     before each use; at most 3 units at once (parallel.live)\n",
        "reduce     gradients are reduced over ranks after each micro-batch\n",
        "sequence   tokens of the residual stream are sharded over tp\n",
        "regather   activations that F gathered are kept for the backward phases\n",
        "UNITS: in total, and on rank 3:",
        "model over tp {2 3}, scatter over dp {1 3}\n",
        "shard(0 by 16) on tp  64..2111",
        "on comm over tp {2 3}, sends ",
        "on comm maximum over tp {2 3}, sends ",
        "  rank 3: gather.0 gather.1",
        "TRANSFERS of a step that rank 3 begins, in bytes\n",
        "parameters, from home to use  all-gather      dp, 2 ranks",
        "  channels: 4 of groups, 0 of pairs; on GPUs NCCL opens a communicator for each",
        "transfers of layer.1, unit 2",
        "begun here, waited for before F2.0 (action",
        "MEMORY of rank 3, in bytes\n",
        "packs, while gathered",
        "gradients to be reduced",
        "FLOPS of a step on rank 3, with full micro-batches\n",
        "tokens x (6 N + 12 L d T) / ranks",
    };
    assert_int_equal(explain(1, "mesh.dp=2", "mesh.tp=2", "parallel.zero=3", "parallel.live=3",
                             "parallel.sequence=true", "parallel.regather=false",
                             "numerics.block=512", "--rank=3", NULL),
                     0);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) assert_printed(part[i]);
    assert_not_printed(" \n");
    assert_not_printed("rank 0:");
    assert_int_equal(explain(1, "mesh.dp_replicate=2", "mesh.dp_shard=2", "parallel.zero=1",
                             "precision.compute=bf16", "numerics.block=512", "--rank", "1", NULL),
                     0);
    assert_printed("this is rank 1 of 4: dp_replicate 0, dp_shard 1\n");
    assert_printed("scatter over dp_shard {0 1}, data over dp_replicate {1 3}\n");
    assert_printed("gather     once per step, kept until the last use\n");
    assert_printed("weights, gathered; homes are part of them");
    assert_printed("master weights at home");
    assert_int_equal(explain(1, "numerics.fold=2", NULL), 0);
    assert_printed("they are 0, 2, 1, 3: micro-batch j of dp rank r is j x 2 + r\n");
    assert_printed("fold       sums in the order of 2 data-parallel ranks\n");
}

static void missing_ranks_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"4", "-1", "3x", "", "4294967296", "18446744073709551616"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char message[160];
        snprintf(message, sizeof message,
                 "explain: --rank %s: the mesh has 4 ranks; give a number from 0 to 3", bad[i]);
        assert_int_equal(explain(2, "mesh.dp=2", "mesh.tp=2", "--rank", bad[i], NULL), 2);
        assert_printed(message);
    }
}

/* ---- folded lists ---- */

enum { MAX_LIST = 1 << 15 };

typedef struct {
    char word[48];
} Word;
typedef struct {
    Word *at;
    int n;
} Words;

/* Splits "F3.1" or "gather.2" into the name, the unit and the micro-batch; returns the count of
 * numbers. */
static int split_word(const char *word, char *name, int *unit, int *micro)
{
    const size_t length = strcspn(word, ".0123456789");
    const char *rest = word + length + (word[length] == '.');
    snprintf(name, 16, "%.*s%s", (int)length, word, word[length] == '.' ? "." : "");
    *unit = *micro = -1;
    return sscanf(rest, "%d.%d", unit, micro);
}

static void move_word(const char *word, int unit_by, int micro_by, char out[48])
{
    char name[16];
    int unit, micro;
    const int n = split_word(word, name, &unit, &micro);
    if (n <= 0)
        snprintf(out, 48, "%s", word);
    else if (n == 1)
        snprintf(out, 48, "%s%d", name, unit + unit_by);
    else
        snprintf(out, 48, "%s%d.%d", name, unit + unit_by, micro + micro_by);
}

static void push(Words *w, const char *word)
{
    assert_true(w->n < MAX_LIST);
    snprintf(w->at[w->n++].word, sizeof w->at->word, "%s", word);
}

/* Expands `[a, b) .. [b, n)`: inserts the groups between the two, in steps of one unit or one
 * micro-batch. */
static void fill_between(Words *w, int a, int b)
{
    const int length = b - a;
    char name[16], moved[48];
    int u0, m0, u1, m1, du = 0, dm = 0;
    assert_int_equal(w->n - b, length);
    for (int i = 0; i < length; i++) {
        split_word(w->at[a + i].word, name, &u0, &m0);
        split_word(w->at[b + i].word, name, &u1, &m1);
        if (u1 != u0) du = u1 - u0;
        if (m1 != m0) dm = m1 - m0;
    }
    assert_true((du == 0) != (dm == 0)); /* a fold is over units or over micro-batches */
    const int steps = abs(du + dm), sign = du + dm > 0 ? 1 : -1;
    w->n = b;
    for (int s = 1; s <= steps; s++)
        for (int i = 0; i < length; i++) {
            move_word(w->at[a + i].word, du ? s * sign : 0, dm ? s * sign : 0, moved);
            push(w, moved);
        }
}

/* Reads a word, or a group in brackets. */
static const char *unfold_one(const char *s, Words *w);
static const char *after_head(const char *s)
{
    for (;;) {
        s += strspn(s, " \n");
        if (strncmp(s, "rank ", 5) != 0) return s;
        s = strchr(s, ':') + 1;
    }
}

static const char *unfold(const char *s, Words *w)
{
    for (s = after_head(s); *s && *s != ')'; s = after_head(s)) {
        const int a = w->n;
        s = after_head(unfold_one(s, w));
        if (strncmp(s, "..", 2) != 0) continue;
        const int b = w->n;
        s = unfold_one(after_head(s + 2), w);
        fill_between(w, a, b);
    }
    return s;
}

static const char *unfold_one(const char *s, Words *w)
{
    char word[48];
    if (*s == '(') {
        s = unfold(s + 1, w);
        assert_true(*s == ')');
        return s + 1;
    }
    const size_t length = strcspn(s, " \n)");
    snprintf(word, sizeof word, "%.*s", (int)length, s);
    push(w, word);
    return s + length;
}

static void unfold_case(const char *const *set, int n, const char *must)
{
    Compiled *c = compiled_rank(set, n, 1, JOB_STEP);
    Words w = {calloc(MAX_LIST, sizeof(Word)), 0};
    char action[ACTION_TEXT_BYTES];
    assert_int_equal(explain_list(1, set, n, "--rank=1", NULL), 0);
    assert_printed(must);
    char *list = strstr(output, "  rank 1:"), *end = strstr(list, "\n\n");
    *end = '\0';
    unfold(list, &w);
    assert_int_equal(w.n, c->job.linked.n);
    for (int i = 0; i < w.n; i++)
        assert_string_equal(w.at[i].word, action_text(&c->job.linked.list[i].action, 1, action));
    assert_true(strlen(list) < 2600); /* for any number of layers and micro-batches */
    free(w.at);
    done(c);
}

#define LAYERS "model.name=llama-tiny", "data.seq_len=8", "mesh.dp=2"
static void folded_lists_unfold_to_the_list_that_runs(void **state)
{
    (void)state;
    static const char *const layers[] = {LAYERS, "model.num_hidden_layers=31", "batch.global=4",
                                         "parallel.zero=3"};
    static const char *const micros[] = {LAYERS, "model.num_hidden_layers=2", "batch.global=58",
                                         "parallel.zero=3"};
    static const char *const both[] = {LAYERS, "model.num_hidden_layers=23", "batch.global=60",
                                       "parallel.zero=2"};
    static const char *const gpipe[] = {LAYERS,
                                        "model.num_hidden_layers=23",
                                        "batch.global=60",
                                        "parallel.schedule=gpipe",
                                        "parallel.zero=3",
                                        "model.tie_word_embeddings=true",
                                        "parallel.live=4"};
    unfold_case(layers, 6, "(gather.1 F0.0 drop.0) .. (gather.");
    unfold_case(micros, 6, ") .. (");
    unfold_case(both, 6, ") .. (");
    unfold_case(gpipe, 9, ") .. (");
}

/* A large model on many ranks is explained in a few hundred lines. */
static void many_ranks_fit_few_lines(void **state)
{
    (void)state;
    static const char *const set[] = {"model.name=llama3.1-405b",
                                      "data.seq_len=8192",
                                      "batch.global=262144",
                                      "batch.micro=1",
                                      "precision.compute=bf16",
                                      "mesh.dp=2048",
                                      "mesh.tp=8",
                                      "parallel.zero=3",
                                      "parallel.sequence=true",
                                      "parallel.recompute=full",
                                      "parallel.schedule=gpipe",
                                      "--rank=16383"};
    int lines = 0;
    assert_int_equal(explain_list(1, set, sizeof set / sizeof *set, NULL), 0);
    for (const char *s = output; (s = strchr(s, '\n')); s++) lines++;
    assert_true(lines < 420);
    assert_printed("this is rank 16383 of 16384: dp 2047, tp 7\n");
    assert_printed("they are 2047, 4095, 6143, 8191, 10239, 12287, 14335, 16383, .., 262143:");
    assert_printed("over tp {16376..16383}, sends ");
    assert_printed("scatter over dp, 2048 ranks\n");
    assert_printed(" .. and so on\n");
    assert_printed("instructions, 7 times more: for the rows after these\n");
}

/* The lines about cp, and the work of the busiest rank: under Ulysses by heads, else by tokens, of
 * which a window hides some. */
static void plan_says_how_cp_is_used(void **state)
{
    (void)state;
    static const struct {
        const char *set[3], *part[3];
    } row[] = {
        {{"mesh.cp=4"},
         {", chosen by auto\n             attention and its transfers, all layers of a "
          "micro-batch, by default rates\n             way                      tokens ",
          "double-ring              not possible: one host has all its ranks\n"}},
        {{"mesh.cp=4", "mesh.cp_heads=1", "parallel.tokens=zigzag"},
         {"lightseq                 not possible: lightseq is not defined for zigzag tokens; "
          "tokens "
          "that work: contiguous\n"}},
        {{"mesh.cp=4", "parallel.context=gather"},
         {"context    gather\n",
          "tokens     zigzag, chosen by auto, over 4 ranks: this one has 12 of each micro-batch's "
          "48\n",
          "the mean: contiguous 1.720, zigzag 1.000, striped 1.120\n"}},
        {{"mesh.cp=8"}, {"ulysses                  not possible: 4 heads are left to 8 ranks\n"}},
        {{"mesh.cp=2", "mesh.tp=4", "model.num_attention_heads=8"},
         {"ulysses                  not possible: mesh.tp=4 does not divide the 2 key heads\n"}},
        {{"mesh.cp=4", "parallel.context=ulysses"},
         {"context    ulysses\n", "busiest rank over the mean: 1.000 with any map, by heads\n"}},
        {{"mesh.cp=3", "parallel.context=ulysses"}, {"the mean: 1.500 with any map, by heads\n"}},
        {{"mesh.cp=4", "mesh.cp_heads=2", "parallel.context=gather"},
         {"context    gather over cp_ring, 2 ranks; heads over cp_heads, 2\n",
          "over cp_ring, 2 ranks, and evenly over cp_heads, 2: this one has 12 of each"}},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        assert_int_equal(explain(1, row[i].set[0], row[i].set[1], row[i].set[2], NULL), 0);
        for (int k = 0; k < 3 && row[i].part[k]; k++) assert_printed(row[i].part[k]);
    }
    assert_int_equal(explain(1, "mesh.dp=2", NULL), 0);
    assert_not_printed("  context  ");
    assert_int_equal(explain_only(1, "model.name=mistral-7b", "data.seq_len=32768", "batch.micro=1",
                                  "mesh.cp=8", "parallel.context=gather", NULL),
                     0);
    assert_printed("the mean, within windows of 4096 tokens: contiguous 1.067, zigzag 1.067, ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_names_the_rank),
        cmocka_unit_test(plan_says_how_cp_is_used),
        cmocka_unit_test(missing_ranks_are_refused),
        cmocka_unit_test(folded_lists_unfold_to_the_list_that_runs),
        cmocka_unit_test(many_ranks_fit_few_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
