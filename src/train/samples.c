/* samples.c -- samples.jsonl and skipped.jsonl. */
#include "train/samples.h"

#include <errno.h>
#include <string.h>
#include "base/write_error.h"
#include "train/lines.h"

static void name_file(const SampleFiles *f, const char *name, char path[1100])
{
    snprintf(path, 1100, "%s/%s", f->dir, name);
}

Err samples_open(SampleFiles *f, const Dataset *data, const char *dir, bool log, int64_t step)
{
    char path[1100];
    *f = (SampleFiles){.data = data};
    snprintf(f->dir, sizeof f->dir, "%s", dir);
    name_file(f, "skipped.jsonl", path);
    TRY(lines_cut(path, step));
    name_file(f, "samples.jsonl", path);
    return log ? lines_open(path, step, &f->all) : lines_cut(path, step);
}

static Err write_line(const SampleFiles *f, FILE *to, const SampleStep *s, bool skipped)
{
    const int64_t mark = lines_mark(to);
    fprintf(to, "{\"step\": %lld, \"cursor\": %lld, \"epoch\": %lld", (long long)s->step,
            (long long)s->cursor, (long long)(s->cursor / f->data->n_samples));
    if (skipped) {
        lines_number(to, "loss", s->loss);
        lines_number(to, "grad_norm", s->grad_norm);
        fprintf(to, ", \"why\": \"%s\"", s->why);
    }
    fputs(", \"samples\": [", to);
    for (int64_t i = 0; i < s->n; i++)
        fprintf(to, "%s%lld", i ? ", " : "", (long long)dataset_sample(f->data, s->cursor + i));
    fputs("]}\n", to);
    if (lines_flush(to, mark) == OK) return OK;
    return err_fail(ERR_IO, "%s: cannot write the samples of step %lld: %s", f->dir,
                    (long long)s->step, err_text());
}

Err samples_write(SampleFiles *f, const SampleStep *s)
{
    char path[1100];
    const Err err = f->all ? write_line(f, f->all, s, false) : OK;
    if (!s->why) return err;
    name_file(f, "skipped.jsonl", path);
    if (!f->skipped) TRY(lines_open(path, s->step, &f->skipped));
    TRY(write_line(f, f->skipped, s, true));
    return err;
}

Err samples_close(SampleFiles *f)
{
    int bad = f->all ? fclose(f->all) : 0;
    if (f->skipped) bad |= fclose(f->skipped);
    if (bad)
        return err_fail(ERR_IO, "%s: cannot write the samples: %s", f->dir,
                        write_error_text(errno));
    f->all = f->skipped = NULL;
    return OK;
}
