/* metrics.c -- metrics.jsonl and the line on the terminal. */
#define _DEFAULT_SOURCE
#include "train/metrics.h"

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/text.h"
#include "train/lines.h"

static double wall_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A run that ended and went on within a second has two; TensorBoard reads them by name. */
static Err open_events(const char *dir, FILE **out)
{
    char path[1200];
    for (int i = 0; i < 1000; i++) {
        snprintf(path, sizeof path, "%s/events.out.tfevents.%lld.sheaf.%03d", dir,
                 (long long)wall_s(), i);
        *out = fopen(path, "wx");
        if (*out) return OK;
        if (errno != EEXIST) break;
    }
    return err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
}

Err metrics_open(MetricsFiles *f, const char *dir, bool tensorboard, int64_t step)
{
    *f = (MetricsFiles){0};
    snprintf(f->path, sizeof f->path, "%s/metrics.jsonl", dir);
    TRY(lines_open(f->path, step, &f->jsonl));
    if (!tensorboard) return OK;
    TRY(open_events(dir, &f->events));
    return events_begin(f->events, step, wall_s());
}

Err metrics_write(MetricsFiles *f, const Metrics *m)
{
    fprintf(f->jsonl, "{\"step\": %lld", (long long)m->step);
    lines_number(f->jsonl, "loss", m->loss);
    lines_number(f->jsonl, "grad_norm", m->grad_norm);
    lines_number(f->jsonl, "lr", m->lr);
    fprintf(f->jsonl, ", \"tokens\": %lld", (long long)m->tokens);
    lines_number(f->jsonl, "step_ms", m->step_ms);
    lines_number(f->jsonl, "tokens_per_s", m->tokens_per_s);
    lines_number(f->jsonl, "mfu", m->mfu);
    fprintf(f->jsonl, ", \"peak_bytes\": %lld, \"sent_bytes\": %lld", (long long)m->peak_bytes,
            (long long)m->sent_bytes);
    if (m->skipped) fprintf(f->jsonl, ", \"skipped\": true");
    if (m->has_valid) lines_number(f->jsonl, "valid_loss", m->valid_loss);
    fprintf(f->jsonl, "}\n");
    if (fflush(f->jsonl) != 0)
        return err_fail(ERR_IO, "%s: cannot be written: %s", f->path, strerror(errno));
    return f->events ? events_write(f->events, m, wall_s()) : OK;
}

Err metrics_close(MetricsFiles *f)
{
    int bad = f->jsonl ? fclose(f->jsonl) : 0;
    if (f->events) bad |= fclose(f->events);
    if (bad) return err_fail(ERR_IO, "%s: cannot be closed: %s", f->path, strerror(errno));
    *f = (MetricsFiles){0};
    return OK;
}

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
    fprintf(out, m->step_ms < 10 ? "%.1f ms  " : "%.0f ms  ", m->step_ms);
    fprintf(out, "%s tok/s  mfu %.1f%%  mem %s", text_count(m->tokens_per_s, rate), 100 * m->mfu,
            text_bytes(m->peak_bytes, bytes));
    if (m->has_valid) fprintf(out, "  valid %.4f", m->valid_loss);
    if (eta_s >= 0) fprintf(out, "  eta %s", duration(eta_s, eta, sizeof eta));
    /* A line with a validation loss stays on the terminal. */
    if (!terminal || m->has_valid || m->step == m->steps) fputc('\n', out);
    fflush(out);
}
