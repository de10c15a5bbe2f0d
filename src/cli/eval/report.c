/* report.c -- the result of an evaluation, as text or JSON. */
#define _DEFAULT_SOURCE
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include "cli/eval/eval.h"
#include "cli/progress.h"
#include "cli/verbs.h"

/* The standard error of a mean of n outcomes that are 0 or 1. */
static double standard_error(double p, int64_t n)
{
    return n > 1 ? sqrt(p * (1 - p) / (double)(n - 1)) : 0;
}

static json_t *open_json(const EvalRequest *e)
{
    json_t *o = json_object();
    json_object_set_new(o, "version", json_string(SHEAF_VERSION));
    json_object_set_new(o, "model", json_string(e->infer.source.dir));
    json_object_set_new(o, "file", json_string(e->what));
    json_object_set_new(o, "seq_len", json_integer(e->windows.seq_len));
    json_object_set_new(o, "seconds", json_real(e->seconds));
    return o;
}

static void close_json(json_t *o)
{
    json_dumpf(o, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    fputc('\n', stdout);
    json_decref(o);
}

void eval_report_text(const EvalRequest *e)
{
    char tokens[COUNT_BYTES], windows[COUNT_BYTES];
    const Windows *w = &e->windows;
    double sum = 0; /* nats of all scored tokens; the first token of the text is not scored */
    for (int64_t i = 0; i < e->n_sequences; i++) sum += e->loss[i];
    const double loss = sum / (double)(w->n_tokens - 1), bits = loss / log(2.0);
    const double byte = e->text_bytes ? sum / log(2.0) / (double)e->text_bytes : 0;
    if (e->json) {
        json_t *o = open_json(e);
        json_object_set_new(o, "stride", json_integer(w->stride));
        json_object_set_new(o, "windows", json_integer(e->n_sequences));
        json_object_set_new(o, "tokens", json_integer(w->n_tokens - 1));
        json_object_set_new(o, "bytes", json_integer(e->text_bytes));
        json_object_set_new(o, "loss", json_real(loss));
        json_object_set_new(o, "perplexity", json_real(exp(loss)));
        json_object_set_new(o, "bits_per_token", json_real(bits));
        json_object_set_new(o, "bits_per_byte", e->text_bytes ? json_real(byte) : json_null());
        close_json(o);
        return;
    }
    printf("%s: %s tokens scored, in %s windows of %lld, stride %lld\n", e->what,
           grouped_digits(w->n_tokens - 1, tokens), grouped_digits(e->n_sequences, windows),
           (long long)w->seq_len, (long long)w->stride);
    printf("loss %.4f nats per token, %.4f bits; perplexity %.4f", loss, bits, exp(loss));
    if (e->text_bytes) printf("; %.4f bits per byte of text", byte);
    printf("\n%.1f s, %.0f tok/s\n", e->seconds, (double)(w->n_tokens - 1) / e->seconds);
}

/* The losses of every choice, task by task, from which other metrics can be computed. */
static json_t *results_json(const EvalRequest *e)
{
    json_t *list = json_array();
    const double *loss = e->loss;
    for (int64_t t = 0; t < e->choices.n; t++) {
        json_t *one = json_object(), *all = json_array();
        for (int i = 0; i < e->choices.task[t].n; i++)
            json_array_append_new(all, json_real(*loss++));
        json_object_set_new(one, "gold", json_integer(e->choices.task[t].gold));
        json_object_set_new(one, "loss", all);
        json_array_append_new(list, one);
    }
    return list;
}

void eval_report_tasks(const EvalRequest *e)
{
    char tasks[COUNT_BYTES], choices[COUNT_BYTES];
    const ChoiceScore score = tasks_score(&e->choices, e->loss);
    const int64_t n = e->choices.n;
    const double acc = (double)score.right / (double)n, norm = (double)score.right_norm / (double)n;
    if (e->json) {
        json_t *o = open_json(e);
        json_object_set_new(o, "tasks", json_integer(n));
        json_object_set_new(o, "choices", json_integer(e->choices.n_choices));
        json_object_set_new(o, "cut", json_integer(e->n_cut));
        json_object_set_new(o, "acc", json_real(acc));
        json_object_set_new(o, "acc_stderr", json_real(standard_error(acc, n)));
        json_object_set_new(o, "acc_norm", json_real(norm));
        json_object_set_new(o, "acc_norm_stderr", json_real(standard_error(norm, n)));
        json_object_set_new(o, "results", results_json(e));
        close_json(o);
        return;
    }
    printf("%s: %s tasks, %s choices\n", e->what, grouped_digits(n, tasks),
           grouped_digits(e->choices.n_choices, choices));
    printf("acc %.4f +- %.4f, acc_norm (likelihood per character) %.4f +- %.4f\n", acc,
           standard_error(acc, n), norm, standard_error(norm, n));
    if (e->n_cut)
        printf("%lld choices were longer than %lld tokens; their first tokens were dropped\n",
               (long long)e->n_cut, (long long)e->windows.seq_len + 1);
}
