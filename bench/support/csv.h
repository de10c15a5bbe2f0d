/* csv.h -- tables of measurements: comma-separated, quoted where needed, with a header line. */
#ifndef BENCH_SUPPORT_CSV_H
#define BENCH_SUPPORT_CSV_H

#include "base/arena.h"

enum { MAX_COLUMNS = 64 };

typedef struct {
    int n_columns, n_rows;
    const char *column[MAX_COLUMNS];
    const char **cell; /* [n_rows][n_columns]; "" if empty */
} CsvTable;

/* Local. ERR_CONFIG names file and line if a row has another number of cells than the header. */
Err csv_read(const char *path, Arena *arena, CsvTable *out);
/* Local. A cell by the name of its column; "" if there is no such column. */
const char *csv_text(const CsvTable *t, int row, const char *column);
/* Local. The same as a number; `missing` if it is empty or no number. */
double csv_number(const CsvTable *t, int row, const char *column, double missing);

#endif
