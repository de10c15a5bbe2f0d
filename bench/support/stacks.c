/* stacks.c -- reads share/stacks.csv. */
#include "support/stacks.h"

#include <string.h>

/* A list of axes: "tp dp". */
static Err read_axes(const char *path, int row, const char *text, unsigned *out)
{
    static const char *const name[] = {
        [TRANSFER_TP] = "tp", [TRANSFER_CP] = "cp", [TRANSFER_DP] = "dp", [TRANSFER_PP] = "pp"};
    *out = 0;
    for (const char *s = text; *s;) {
        const size_t length = strcspn(s, " ");
        int axis = 0;
        while (axis < 4 && (strlen(name[axis]) != length || strncmp(s, name[axis], length) != 0))
            axis++;
        if (axis == 4)
            return err_fail(ERR_CONFIG,
                            "%s: row %d: \"%.40s\" has an axis that is none of tp, cp, "
                            "dp, pp",
                            path, row + 2, text);
        *out |= 1u << axis;
        s += length;
        s += *s == ' ';
    }
    return OK;
}

/* A number of at least 0; an empty cell is `missing`. */
static Err read_cell(const char *path, const CsvTable *t, int row, const char *column,
                     double missing, double *out)
{
    const char *text = csv_text(t, row, column);
    *out = *text ? csv_number(t, row, column, -1) : missing;
    if (*out >= 0) return OK;
    return err_fail(ERR_CONFIG, "%s: row %d: %s: \"%.40s\" is not a number of at least 0", path,
                    row + 2, column, text);
}

static Err read_row(const char *path, const CsvTable *t, int row, StackRow *out)
{
    double reserve_gib, capacity_gib, bucket_mib;
    *out = (StackRow){.source = csv_text(t, row, "source"),
                      .gpu = csv_text(t, row, "gpu"),
                      .cluster = csv_text(t, row, "cluster")};
    if (!*out->source || !*out->gpu || !*out->cluster)
        return err_fail(ERR_CONFIG, "%s: row %d has no source, gpu or cluster", path, row + 2);
    TRY(read_cell(path, t, row, "node_below", 0, &out->node_below));
    TRY(read_cell(path, t, row, "time", 1, &out->time));
    TRY(read_axes(path, row, csv_text(t, row, "serial"), &out->serial));
    TRY(read_axes(path, row, csv_text(t, row, "stops_host"), &out->stops_host));
    out->eager = csv_number(t, row, "eager", 0) == 1;
    out->split_sends = csv_number(t, row, "split_sends", 0) == 1;
    out->interleaves = csv_number(t, row, "interleaves", 0) == 1;
    out->stages_by_cost = csv_number(t, row, "stages_by_cost", 0) == 1;
    TRY(read_cell(path, t, row, "bucket_mib", 0, &bucket_mib));
    out->bucket_bytes = bucket_mib * 0x1p20;
    TRY(read_cell(path, t, row, "zero_calls", 1, &out->zero_calls));
    TRY(read_cell(path, t, row, "zero3_bytes", 1, &out->zero3_bytes));
    TRY(read_cell(path, t, row, "grad_bytes", 4, &out->grad_bytes));
    out->softmax_of = (int)csv_number(t, row, "softmax_of", 0);
    TRY(read_cell(path, t, row, "weight_bytes", 0, &out->weight_bytes));
    TRY(read_cell(path, t, row, "replica_bytes", 0, &out->replica_bytes));
    TRY(read_cell(path, t, row, "state_bytes", 0, &out->state_bytes));
    TRY(read_cell(path, t, row, "gathered", 0, &out->gathered));
    TRY(read_cell(path, t, row, "kept", 0, &out->kept));
    TRY(read_cell(path, t, row, "logit_bytes", 0, &out->logit_bytes));
    TRY(read_cell(path, t, row, "reserve_gib", 0, &reserve_gib));
    TRY(read_cell(path, t, row, "capacity_gib", 0, &capacity_gib));
    TRY(read_cell(path, t, row, "fits_share", 1, &out->fits_share));
    out->reserve_bytes = reserve_gib * 0x1p30;
    out->capacity_bytes = capacity_gib * 0x1p30;
    out->peak = csv_number(t, row, "peak", 0) == 1;
    return OK;
}

Err stacks_read(const char *path, Arena *arena, StackTable *out)
{
    CsvTable t;
    TRY(csv_read(path, arena, &t));
    if (t.n_rows > MAX_STACKS)
        return err_fail(ERR_CONFIG, "%s: %d rows; at most %d are read", path, t.n_rows, MAX_STACKS);
    for (out->n = 0; out->n < t.n_rows; out->n++)
        TRY(read_row(path, &t, out->n, &out->row[out->n]));
    return OK;
}

StackRow *stack_find(StackTable *t, const char *source, const char *gpu, double node_gbps)
{
    for (int i = 0; i < t->n; i++)
        if (strcmp(t->row[i].source, source) == 0 &&
            strncmp(gpu, t->row[i].gpu, strlen(t->row[i].gpu)) == 0 &&
            (t->row[i].node_below == 0 || node_gbps < t->row[i].node_below))
            return &t->row[i];
    return NULL;
}
