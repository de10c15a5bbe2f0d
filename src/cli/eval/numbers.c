/* numbers.c -- windows over a text and the score of choices: pure functions. */
#include "cli/eval/eval.h"

/* Returns the end of window i: one past its last token. */
static int64_t end_of(const Windows *w, int64_t i)
{
    const int64_t end = i * w->stride + w->seq_len + 1;
    return end < w->n_tokens ? end : w->n_tokens;
}

int64_t windows_count(const Windows *w)
{
    const int64_t rest = w->n_tokens - 1 - w->seq_len;
    if (w->n_tokens < 2) return 0;
    return rest <= 0 ? 1 : 1 + (rest + w->stride - 1) / w->stride;
}

void windows_at(const Windows *w, int64_t i, int64_t *first, int64_t *n, int64_t *from)
{
    *first = i * w->stride;
    *n = end_of(w, i) - *first;
    *from = i == 0 ? 1 : end_of(w, i - 1) - *first;
}

/* A loss is a negative log-likelihood: the smallest is the likeliest choice. `length` counts the
 * characters of a choice. */
ChoiceScore tasks_score(const ChoiceTasks *tasks, const double *loss)
{
    ChoiceScore score = {0};
    for (int64_t t = 0; t < tasks->n; t++) {
        const ChoiceTask *task = &tasks->task[t];
        int best = 0, best_norm = 0;
        for (int i = 1; i < task->n; i++) {
            if (loss[i] < loss[best]) best = i;
            if (loss[i] / (double)task->length[i] <
                loss[best_norm] / (double)task->length[best_norm])
                best_norm = i;
        }
        score.right += best == task->gold;
        score.right_norm += best_norm == task->gold;
        loss += task->n;
    }
    return score;
}
