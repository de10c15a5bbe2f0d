/* eval.h -- a request of `sheaf eval`: filled by eval.c, executed on each rank by rank.c,
 * reported by report.c. */
#ifndef CLI_EVAL_EVAL_H
#define CLI_EVAL_EVAL_H

#include "cli/infer.h"
#include "data/tasks.h"
#include "infer/score.h"

/* Windows over a text. Every token but the first is scored once, in the first window that reaches
 * it.
 *
 *     seq_len 6, stride 4      |a b c d e f g|              scores b .. g
 *                                      |e f g h i j k|      scores h .. k, with context e f g
 *
 * The largest stride is seq_len: consecutive windows then share one token, like training
 * samples. */
typedef struct {
    int64_t seq_len, stride;
    int64_t n_tokens;
} Windows;

int64_t windows_count(const Windows *w);
/* Local. Window i: its first token, its number of tokens, and the index within the window of the
 * first token that is scored. */
void windows_at(const Windows *w, int64_t i, int64_t *first, int64_t *n, int64_t *from);

typedef struct {
    InferContext infer;
    Windows windows; /* of perplexity */
    const int32_t *token;
    int64_t text_bytes; /* length of the scored text in bytes; 0: unknown */
    const char *what;   /* the file */
    bool tasks;         /* multiple choice instead of perplexity */
    ChoiceTasks choices;
    ScoreSequence *sequence;    /* [n_sequences], one per choice */
    int64_t n_sequences, n_cut; /* n_cut: sequences shortened to the context */
    int micros;
    double *loss; /* [n_sequences], in nats; valid after the run */
    double seconds;
    bool json;
} EvalRequest;

/* Collective over all ranks: the body of a rank; `request` is an EvalRequest. */
Err eval_rank(WorldRank *w, void *request);

/* Local. Print the result to standard output, as text or JSON. */
void eval_report_text(const EvalRequest *e);
void eval_report_tasks(const EvalRequest *e);

/* Number of tasks whose predicted choice is the gold one. */
typedef struct {
    int64_t right, right_norm; /* predicted by likelihood, and by likelihood per character */
} ChoiceScore;
/* Local. `loss` holds the losses of all choices, task by task. Ties go to the first choice. */
ChoiceScore tasks_score(const ChoiceTasks *tasks, const double *loss);

#endif
