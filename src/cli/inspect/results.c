/* results.c -- the results of a run: metrics.jsonl, and recorder.json after a failure. */
#define _POSIX_C_SOURCE 200809L
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "cli/inspect/inspect.h"
#include "cli/progress.h"
#include "world/flight_recorder.h"

/* ---- metrics ---- */

static bool is_metrics(const char *path, Bytes data)
{
    return inspect_ends_in(path, "metrics.jsonl") ||
           (inspect_head_holds(data, "\"step\"") && inspect_head_holds(data, "\"loss\""));
}

typedef struct {
    int64_t lines, first_step, last_step, tokens;
    double first_loss, last_loss, least_loss;
    bool cut; /* the last line is incomplete, and is not counted */
} LossCurve;

/* Adds one step. `tokens` is cumulative in the file, so the last line has the total. */
static Err add_line(const char *path, const char *line, size_t bytes, LossCurve *c)
{
    json_error_t why;
    json_t *o = json_loadb(line, bytes, 0, &why);
    if (!o)
        return err_fail(ERR_CHECK,
                        "%s:%lld: not JSON: %s; a run may have been killed while it wrote the line",
                        path, (long long)c->lines + 1, why.text);
    const int64_t step = json_integer_value(json_object_get(o, "step"));
    const double loss = json_number_value(json_object_get(o, "loss"));
    if (c->lines == 0) c->first_step = step, c->first_loss = c->least_loss = loss;
    c->last_step = step, c->last_loss = loss;
    if (loss < c->least_loss) c->least_loss = loss;
    c->tokens = json_integer_value(json_object_get(o, "tokens"));
    c->lines++;
    json_decref(o);
    return OK;
}

/* Reads all lines. The last one may be incomplete, after a kill or while the run is writing; the
 * lines before it are valid. */
static Err read_curve(const char *path, Bytes data, LossCurve *c)
{
    const char *at = (const char *)data.at;
    for (size_t left = data.bytes; left > 0;) {
        const char *end = memchr(at, '\n', left);
        const size_t n = end ? (size_t)(end - at) : left;
        const Err err = add_line(path, at, n, c);
        c->cut = err != OK && !end;
        if (!c->cut) TRY(err);
        at += n + (end != NULL);
        left -= n + (end != NULL);
    }
    return OK;
}

static Err describe_metrics(const char *path, Bytes data, Arena *a)
{
    LossCurve c = {0};
    char count[COUNT_BYTES];
    (void)a;
    TRY(read_curve(path, data, &c));
    printf("%s: metrics of a run, one line per step\n", path);
    printf("  lines      %s%s\n", grouped_digits(c.lines, count),
           c.cut ? ", and an incomplete last one: the run was killed while it wrote, or is running"
                 : "");
    if (c.lines == 0) return OK;
    printf("  steps      %lld to %lld\n", (long long)c.first_step, (long long)c.last_step);
    printf("  loss       %.4f to %.4f, lowest %.4f\n", c.first_loss, c.last_loss, c.least_loss);
    printf("  tokens     %s\n", grouped_digits(c.tokens, count));
    return OK;
}

/* ---- recorders ---- */

static bool is_recorder(const char *path, Bytes data)
{
    (void)path;
    return inspect_head_holds(data, "\"sheaf\": \"recorder\"");
}

static Err describe_recorder(const char *path, Bytes data, Arena *a)
{
    enum { LATEST = 5 };
    FlightRecorder recorder;
    const char *reason, *words;
    (void)data;
    TRY(flight_recorder_read(path, a, &recorder, &reason));
    printf("%s: the last actions of each rank of a failed run\n", path);
    printf("  reason     %s\n", reason);
    printf("  ranks      %d of %d\n", recorder.n_here, recorder.ranks);
    Text t = text_in(a);
    flight_recorder_report(&recorder, LATEST, &t);
    TRY(text_done(&t, &words));
    fputs(words, stdout);
    return OK;
}

const InspectKind inspect_results[] = {
    {is_recorder, describe_recorder}, {is_metrics, describe_metrics}, {NULL, NULL}};
