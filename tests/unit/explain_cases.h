/* explain_cases.h -- ranks of meshes that are explained by the command and compiled by the test. */
#ifndef EXPLAIN_CASES_H
#define EXPLAIN_CASES_H

#include "explain_test.h"

enum { MAX_SET = 16 };

typedef struct {
    const char *set[MAX_SET];
} Case;

/* Sizes that all differ; packs of several blocks, and of less than one block per rank. */
#define MODEL                                                                                      \
    "model.name=llama-tiny", "model.num_hidden_layers=3", "data.seq_len=24", "batch.global=7",     \
        "batch.micro=2", "numerics.block=512"
static const Case cases[] = {
    {{MODEL}},
    {{MODEL, "mesh.dp=2", "mesh.tp=2", "parallel.zero=3", "parallel.sequence=true"}},
    {{MODEL, "mesh.dp=3", "parallel.zero=1", "precision.compute=bf16"}},
    {{MODEL, "mesh.dp=2", "parallel.zero=2", "model.tie_word_embeddings=true"}},
    {{MODEL, "mesh.dp_replicate=2", "mesh.dp_shard=2", "parallel.zero=3", "precision.compute=bf16",
      "model.tie_word_embeddings=true", "parallel.schedule=gpipe"}},
    {{MODEL, "mesh.tp=3", "parallel.regather=false", "optim.kind=sgd"}},
    {{MODEL, "mesh.dp_replicate=2", "mesh.dp_shard=1", "mesh.tp=2", "parallel.reduce=each"}},
    {{MODEL, "mesh.dp=5", "parallel.zero=3", "numerics.block=65536", "parallel.offload=mlp.*"}},
    {{MODEL, "mesh.dp=2", "mesh.tp=2", "parallel.zero=1", "model.tie_word_embeddings=true"}},
    {{MODEL, "mesh.dp=2", "mesh.tp=2", "parallel.zero=1", "parallel.prepack=true", "run.device=cpu",
      "batch.global=13"}},
    {{MODEL, "numerics.fold=2", "model.tie_word_embeddings=true", "precision.compute=f64"}},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static inline int words_of(const Case *c)
{
    int n = 0;
    while (n < MAX_SET && c->set[n]) n++;
    return n;
}

/* Keeps the last of several settings of one key, so that a case can override MODEL. */
static inline int settle(const Case *c, const char *out[MAX_SET])
{
    int n = 0;
    for (int i = 0; i < words_of(c); i++) {
        bool overridden = false;
        const size_t key = strcspn(c->set[i], "=") + 1;
        for (int k = i + 1; k < words_of(c); k++)
            overridden = overridden || strncmp(c->set[i], c->set[k], key) == 0;
        if (!overridden) out[n++] = c->set[i];
    }
    return n;
}

static inline json_t *explained(const Case *c, int rank)
{
    const char *set[MAX_SET];
    char text[16];
    const int n = settle(c, set);
    snprintf(text, sizeof text, "%d", rank);
    if (explain_list(1, set, n, "--json", "--rank", text, NULL) != 0) fail_msg("%s", err_text());
    return parsed();
}

static inline Compiled *compiled_case(const Case *c, int rank)
{
    const char *set[MAX_SET];
    const int n = settle(c, set);
    return compiled_rank(set, n, rank, JOB_STEP);
}

typedef void RankTest(const json_t *all, const Compiled *c);

/* Calls `test` for every rank of every case, with its explanation and its compiled job. */
static inline void for_all_ranks(RankTest *test)
{
    for (int i = 0; i < N_CASES; i++)
        for (int rank = 0, ranks = 1; rank < ranks; rank++) {
            Compiled *c = compiled_case(&cases[i], rank);
            json_t *all = explained(&cases[i], rank);
            ranks = c->job.mesh.world;
            test(all, c);
            json_decref(all);
            done(c);
        }
}

#endif
