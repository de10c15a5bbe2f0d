/* metrics.c -- the table of sinks, metrics.jsonl, and the line for people. */
#include "train/metrics.h"

#include <errno.h>
#include <string.h>
#include "base/text.h"
#include "base/write_error.h"
#include "train/lines.h"

/* ---- metrics.jsonl ---- */

/* Loads of all experts of all layers only if they fit a line that people still read. */
enum { MAX_LOADS = 1024 };

static void write_router(FILE *f, const RouterMetrics *r)
{
    lines_number(f, "aux_loss", r->aux);
    lines_number(f, "z_loss", r->z);
    lines_number(f, "load_max", r->max);
    lines_number(f, "load_min", r->min);
    if (r->rounds >= 0) fprintf(f, ", \"expert_rounds\": %lld", (long long)r->rounds);
    if (r->layers * r->experts > MAX_LOADS) return;
    fprintf(f, ", \"expert_load\": [");
    for (int l = 0; l < r->layers; l++)
        for (int e = 0; e < r->experts; e++)
            fprintf(f, "%s%s%.0f%s", l && e == 0 ? ", " : "", e ? ", " : "[",
                    r->load(r->context, l)[e], e + 1 == r->experts ? "]" : "");
    fprintf(f, "]");
}

static Err jsonl_write(MetricsSink *s, const Metrics *m)
{
    FILE *f = s->file;
    const int64_t mark = lines_mark(f);
    fprintf(f, "{\"step\": %lld", (long long)m->step);
    lines_number(f, "loss", m->loss);
    lines_number(f, "grad_norm", m->grad_norm);
    lines_number(f, "lr", m->lr);
    fprintf(f, ", \"tokens\": %lld", (long long)m->tokens);
    lines_number(f, "step_ms", m->step_ms);
    if (m->predicted_ms > 0) lines_number(f, "predicted_ms", m->predicted_ms);
    lines_number(f, "tokens_per_s", m->tokens_per_s);
    lines_number(f, "mfu", m->mfu);
    fprintf(f, ", \"peak_bytes\": %lld, \"sent_bytes\": %lld", (long long)m->peak_bytes,
            (long long)m->sent_bytes);
    if (m->skipped) fprintf(f, ", \"skipped\": true");
    if (m->has_valid) lines_number(f, "valid_loss", m->valid_loss);
    if (m->router.layers > 0) write_router(f, &m->router);
    fprintf(f, "}\n");
    if (lines_flush(f, mark) == OK) return OK;
    return err_fail(ERR_IO, "%s: cannot be written: %s", s->path, err_text());
}

static Err jsonl_open(MetricsSink *s, const MetricsSettings *settings)
{
    snprintf(s->path, sizeof s->path, "%s/metrics.jsonl", settings->dir);
    s->write = jsonl_write;
    return lines_open(s->path, settings->step, &s->file);
}

/* ---- all sinks ---- */

/* Each sets write, file and path; file stays NULL if the settings do not request the sink. */
static Err (*const open_sink[])(MetricsSink *s,
                                const MetricsSettings *settings) = {jsonl_open, tensorboard_open};
enum { N_SINKS = sizeof open_sink / sizeof *open_sink };
_Static_assert((int)N_SINKS <= (int)MAX_SINKS, "MetricsSinks has room for every sink");

Err metrics_open(MetricsSinks *s, const MetricsSettings *settings)
{
    *s = (MetricsSinks){0};
    for (int i = 0; i < N_SINKS; i++) {
        TRY(open_sink[i](&s->sink[s->n], settings));
        s->n += s->sink[s->n].file != NULL;
    }
    return OK;
}

Err metrics_write(MetricsSinks *s, const Metrics *m)
{
    Err err = OK;
    for (int i = s->n - 1; i >= 0; i--) {
        const Err failed = s->sink[i].write(&s->sink[i], m);
        if (failed != OK) err = failed;
    }
    return err;
}

Err metrics_close(MetricsSinks *s)
{
    Err err = OK;
    for (int i = 0; i < s->n; i++)
        if (fclose(s->sink[i].file) != 0)
            err = err_fail(ERR_IO, "%s: cannot be closed: %s", s->sink[i].path,
                           write_error_text(errno));
    *s = (MetricsSinks){0};
    return err;
}

/* ---- the line for people ---- */

static const char *duration(double s, char *buffer, size_t bytes)
{
    const long long n = (long long)(s + 0.5);
    if (n < 60)
        snprintf(buffer, bytes, "%llds", n);
    else if (n < 3600)
        snprintf(buffer, bytes, "%lldm%02lld", n / 60, n % 60);
    else
        snprintf(buffer, bytes, "%lldh%02lld", n / 3600, n / 60 % 60);
    return buffer;
}

void metrics_line(FILE *out, bool terminal, const Metrics *m, double eta_s)
{
    char rate[24], bytes[24], eta[32];
    fprintf(out, "%sstep %lld/%lld  loss %.4f  gnorm %.2f  lr %.1e  ", terminal ? "\r\033[K" : "",
            (long long)m->step, (long long)m->steps, m->loss, m->grad_norm, m->lr);
    fprintf(out, m->step_ms < 10 ? "%.1f ms" : "%.0f ms", m->step_ms);
    if (m->predicted_ms > 0)
        fprintf(out, m->predicted_ms < 10 ? " (plan %.1f)" : " (plan %.0f)", m->predicted_ms);
    fprintf(out, "  ");
    fprintf(out, "%s tok/s  mfu %.1f%% of measured GEMM peak  mem %s",
            text_count(m->tokens_per_s, rate), 100 * m->mfu, text_bytes(m->peak_bytes, bytes));
    if (m->router.rounds > 0) fprintf(out, "  rounds +%lld", (long long)m->router.rounds);
    if (m->has_valid) fprintf(out, "  valid %.4f", m->valid_loss);
    if (eta_s >= 0) fprintf(out, "  eta %s", duration(eta_s, eta, sizeof eta));
    /* A line with a validation loss is not overwritten. */
    if (!terminal || m->has_valid || m->step == m->steps) fputc('\n', out);
    fflush(out);
}
