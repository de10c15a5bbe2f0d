/* report.c -- the result of a verification, as a table and as JSON. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "cli/machine.h"
#include "cli/units_text.h"
#include "cli/verify/verify.h"

void verify_print_head(const Verification *v)
{
    const ModelConfig *c = &v->trial_model;
    const char *grade = grade_name(dtype_is_narrow(v->set.dtype) ? GRADE_BF16 : GRADE_BOUNDED);
    char device[DEVICE_TEXT_BYTES];
    printf("%s%s: %lld layers, width %lld, %lld heads", v->model.name,
           v->shrunken ? ", a shrunken copy" : "", (long long)c->n_layers, (long long)c->width,
           (long long)c->n_heads);
    if (c->frames)
        printf("; clips of %lld frames of %lld tokens\n", (long long)c->frames,
               (long long)c->places);
    else
        printf(" and %lld of keys, vocabulary %lld; sequences of %lld\n", (long long)c->n_kv_heads,
               (long long)c->vocab, (long long)v->set.batch.seq_len);
    if (v->launch.ranks > 1) printf("ranks are %d processes\n", v->launch.ranks);
    if (!v->set.on_device_only)
        printf("f64 on ref: 1 step of SGD and %d of AdamW; %s", v->set.steps,
               v->set.is_plain ? "\n" : "");
    if (!v->set.is_plain)
        printf("%s%s in %s on %s\n", v->set.own_order ? "" : "exact and ", grade,
               precision_word(v->set.dtype, &v->set.compile.fp8), device_text(v->device, device));
    printf("loss is the worse of training and validation; gradients include their norm%s\n",
           c->full_mask ? "" : "; f64 also compares generated text");
    printf("deviations are relative to the largest entry of each tensor%s\n\n",
           dtype_is_narrow(v->set.dtype)
               ? "; those of grade bf16 are errors against f64, as multiples of "
                 "the error of one rank in the same precision"
               : "");
    printf("%-48s %-8s %9s %9s %9s %9s %12s %12s\n", "layout", "grade", "loss", "gradients",
           "weights", "bound", "sent", "predicted");
}

/* Prints a deviation. An exact comparison shows `=` for equal bits, so that 0.0e+00 always means a
 * value rounded to 0. */
static void print_gap(Grade grade, double gap)
{
    if (grade == GRADE_EXACT && gap == 0)
        printf(" %9s", "=");
    else if (grade == GRADE_BF16)
        printf(" %9.2f", gap);
    else
        printf(" %9.1e", gap);
}

/* Ends the line: tokens whose experts are not those of f64. */
static void print_ties(const VerifyLine *l)
{
    char ties[COUNTED_BYTES];
    if (l->ties + l->one_ties > 0 && l->tie <= l->tie_bound)
        printf("; %s, %lld on one rank", text_counted(l->ties, "tie", ties),
               (long long)l->one_ties);
    printf("\n");
}

/* Choices that are no tie: of experts, or of rows that a capacity drops. */
static void print_unexplained(const VerifyLine *l)
{
    if (isinf(l->tie))
        printf("; in %s no rounding explains the experts of a token, or what a capacity drops",
               l->tie_at);
    else
        printf("; in %s a token has experts %.1e below those of f64, and rounding explains %.1e",
               l->tie_at, l->tie, l->tie_bound);
}

/* The reference as a layout. Rules that one rank has for its precision are no layout. */
static const char *reference_words(const VerifyLine *l, char *buffer)
{
    ParallelSettings p = l->reference;
    if (l->grade != GRADE_EXACT) p.units = NULL;
    return layout_words(&p, buffer);
}

/* One line per grade; the layout is printed on the first. A failed comparison adds a line with its
 * reference and the largest deviation. */
void verify_print_lines(const VerifyLine *line, int n)
{
    char words[LAYOUT_TEXT_BYTES], reference[LAYOUT_TEXT_BYTES], sent[24], predicted[24];
    for (int i = 0; i < n; i++) {
        const VerifyLine *l = &line[i];
        printf("%-48s %-8s", i ? "" : layout_words(&l->layout, words), grade_name(l->grade));
        print_gap(l->grade, fmax(l->loss, l->valid));
        print_gap(l->grade, fmax(l->gradient, l->norm));
        print_gap(l->grade, l->weight);
        if (l->grade == GRADE_EXACT)
            printf(" %9s", "bits");
        else
            print_gap(l->grade, l->bound);
        printf(" %12s %12s  %s", text_bytes(l->sent_bytes, sent),
               text_bytes(l->predicted_bytes, predicted), l->ok ? "ok" : "DEVIATES");
        print_ties(l);
        if (l->ok) continue;
        printf("    compared with %s", reference_words(l, reference));
        if (l->worst[0]) printf("; the gradient of %s deviates most", l->worst);
        if (l->norm > l->bound) printf("; the gradient norm deviates by %.1e", l->norm);
        if (l->valid > l->bound) printf("; the loss of validation deviates by %.1e", l->valid);
        if (!l->same_text) printf("; the generated text differs");
        if (!(l->tie <= l->tie_bound)) print_unexplained(l);
        if (!l->same_choices) printf("; ranks choose different experts for a token");
        if (l->copies > 0) printf("; replicas differ by %.1e", l->copies);
        if (l->sent_bytes != l->predicted_bytes)
            printf("; %lld bytes were sent, %lld were predicted", (long long)l->sent_bytes,
                   (long long)l->predicted_bytes);
        printf("\n");
    }
    fflush(stdout);
}

/* The widest tie for its bound among comparisons that are ok; NULL: none has ties. */
static const VerifyLine *widest_tie(const Verification *v)
{
    const VerifyLine *most = NULL;
    for (int i = 0; i < v->n_lines; i++) {
        const VerifyLine *l = &v->line[i];
        if (l->ties + l->one_ties == 0 || !(l->tie <= l->tie_bound)) continue;
        if (!most || l->tie * most->tie_bound > most->tie * l->tie_bound) most = l;
    }
    return most;
}

void verify_print_summary(const Verification *v)
{
    const VerifyLine *tie = widest_tie(v);
    char layouts[COUNTED_BYTES], lines[COUNTED_BYTES];
    text_counted(v->n_lines, "comparison", lines);
    if (v->failed)
        printf("\n%d of %s deviate%s: these layouts do not compute the same model\n", v->failed,
               lines, v->n_lines == 1 ? "s" : "");
    else
        printf("\n%s, %s: all compute the same model\n",
               text_counted(v->n_layouts, "layout", layouts), lines);
    if (tie)
        printf("ties: tokens whose experts are not those of f64, which then computes with the same "
               "ones\nvalues of such experts are at most %.1e apart in f64, and rounding explains "
               "%.1e\n",
               tie->tie, tie->tie_bound);
    if (v->left_out > 0)
        printf("%s with other numbers of ranks than %d %s left out\n",
               text_counted(v->left_out, "layout", layouts), v->launch.ranks,
               v->left_out == 1 ? "was" : "were");
    if (v->own_left_out > 0)
        printf("the layout of the run was not compared: it has %s\n",
               text_counted(v->own_left_out, "rank", layouts));
}

/* JSON has neither infinity nor NaN. */
static double finite(double x) { return x <= 1e300 ? x : 1e300; }

static json_t *line_json(const VerifyLine *l)
{
    char words[LAYOUT_TEXT_BYTES], reference[LAYOUT_TEXT_BYTES];
    return json_pack("{s:s, s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:b, s:s, s:I, s:I, s:I, "
                     "s:I, s:f, s:f, s:b, s:b}",
                     "layout", layout_words(&l->layout, words), "reference",
                     reference_words(l, reference), "grade", grade_name(l->grade), "loss",
                     finite(l->loss), "grad_norm", finite(l->norm), "valid_loss", finite(l->valid),
                     "gradients", finite(l->gradient), "weights", finite(l->weight), "copies",
                     finite(l->copies), "bound", finite(l->bound), "same_text", l->same_text,
                     "worst", l->worst, "sent_bytes", (json_int_t)l->sent_bytes, "predicted_bytes",
                     (json_int_t)l->predicted_bytes, "ties", (json_int_t)l->ties, "one_rank_ties",
                     (json_int_t)l->one_ties, "tie", finite(l->tie), "tie_bound",
                     finite(l->tie_bound), "same_choices", l->same_choices, "ok", l->ok);
}

/* Version 2: `reference` is the layout that a comparison is made with. */
Err verify_json(const Verification *v)
{
    json_t *lines = json_array();
    for (int i = 0; i < v->n_lines; i++) json_array_append_new(lines, line_json(&v->line[i]));
    json_t *all = json_pack("{s:i, s:s, s:b, s:i, s:i, s:i, s:b, s:i, s:o}", "version", 2, "model",
                            v->model.name, "shrunken", v->shrunken, "processes", v->launch.ranks,
                            "layouts", v->n_layouts, "left_out", v->left_out, "own_left_out",
                            v->own_left_out > 0, "failed", v->failed, "comparisons", lines);
    if (!all) return err_fail(ERR_NOMEM, "no memory for the result as JSON");
    const int bad = json_dumpf(all, stdout, JSON_INDENT(1));
    json_decref(all);
    puts("");
    return bad ? err_fail(ERR_IO, "the result cannot be written") : OK;
}
