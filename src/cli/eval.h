/* eval.h -- between eval.c, which prepares, eval_rank.c, which is what each rank does, and
 * eval_say.c, which concludes. */
#ifndef CLI_EVAL_H
#define CLI_EVAL_H

#include "cli/infer.h"
#include "data/tasks.h"
#include "infer/score.h"

/* A token that counts is counted once: of a window, those that the one before did not reach.
 *
 *     seq_len 6, stride 4      |a b c d e f g|              b .. g count
 *                                      |e f g h i j k|      h .. k count, given e f g too
 *
 * stride = seq_len, the largest: windows that share one token, as samples of training do. */
typedef struct {
    int64_t seq_len, stride;
    int64_t n_tokens;
} Windows;

int64_t windows_count(const Windows *w);
/* Local. First token, tokens, and the first of them that counts, of window i. */
void windows_at(const Windows *w, int64_t i, int64_t *first, int64_t *n, int64_t *from);

typedef struct {
    InferContext infer;
    Windows windows; /* of perplexity */
    const int32_t *token;
    int64_t text_bytes; /* that the tokens which count spell; 0: unknown */
    const char *what;   /* the file */
    bool tasks;         /* multiple choice instead */
    ChoiceTasks choices;
    ScoreSequence *sequence;    /* [n_sequences], of the choices */
    int64_t n_sequences, n_cut; /* n_cut: contexts that were too long */
    int micros;
    double *loss; /* [n_sequences], once it is over */
    double seconds;
    bool json;
} EvalRequest;

/* Collective over all ranks: the body of a rank of the world. */
Err eval_rank(WorldRank *w, void *request);

/* Local. On standard output. */
void eval_report_text(const EvalRequest *e);
void eval_report_tasks(const EvalRequest *e);

/* What multiple choice comes to. */
typedef struct {
    int64_t right, right_norm; /* by likelihood, and by likelihood a character of the choice */
} ChoiceScore;
/* Local. Of equal choices the first. loss: of all choices, task by task. */
ChoiceScore tasks_score(const ChoiceTasks *tasks, const double *loss);

#endif
