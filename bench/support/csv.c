/* csv.c -- splits a file into cells, in place. */
#include "support/csv.h"

#include <stdlib.h>
#include <string.h>
#include "base/text.h"

enum { MAX_CSV_BYTES = 1 << 28 };

/* Ends the cell at `s` with a NUL and returns its first character; *s is then after the comma or at
 * the end of the line. Quotes around a cell are removed, and doubled ones inside become one. */
static char *take_cell(char **s, bool *last)
{
    char *from = *s, *to = *s, *cell = *s;
    const bool quoted = *from == '"';
    if (quoted) from++;
    for (; *from && (quoted || (*from != ',' && *from != '\n')); from++) {
        if (quoted && *from == '"' && from[1] != '"') break;
        if (quoted && *from == '"') from++;
        *to++ = *from;
    }
    if (quoted && *from == '"') from++;
    *last = *from != ',';
    if (*from) from++;
    if (to > cell && to[-1] == '\r') to--;
    *to = '\0';
    *s = from;
    return cell;
}

/* Reads a line; returns its number of cells, of which at most MAX_COLUMNS are stored. */
static int take_line(char **s, const char **cell)
{
    bool last = false;
    int n = 0;
    while (!last) {
        char *c = take_cell(s, &last);
        if (n < MAX_COLUMNS) cell[n] = c;
        n++;
    }
    return n;
}

Err csv_read(const char *path, Arena *arena, CsvTable *out)
{
    const char *text, *line[MAX_COLUMNS];
    size_t length;
    int lines = 0;
    TRY(text_read_file(path, MAX_CSV_BYTES, arena, &text, &length));
    for (size_t i = 0; i < length; i++) lines += text[i] == '\n';
    char *copy, *s;
    TRY(ARENA_NEW(arena, length + 1, &copy));
    memcpy(copy, text, length + 1);
    s = copy;
    CsvTable t = {.n_columns = take_line(&s, line)};
    if (t.n_columns > MAX_COLUMNS)
        return err_fail(ERR_CONFIG, "%s:1: %d columns; at most %d are read", path, t.n_columns,
                        MAX_COLUMNS);
    memcpy(t.column, line, (size_t)t.n_columns * sizeof *line);
    TRY(ARENA_NEW(arena, (int64_t)(lines + 1) * t.n_columns, &t.cell));
    while (*s) {
        const int n = take_line(&s, line);
        if (n == 1 && !*line[0]) continue; /* an empty line */
        if (n != t.n_columns)
            return err_fail(ERR_CONFIG, "%s: row %d has %d cells, the header has %d", path,
                            t.n_rows + 2, n, t.n_columns);
        memcpy(&t.cell[(int64_t)t.n_rows++ * n], line, (size_t)n * sizeof *line);
    }
    *out = t;
    return OK;
}

const char *csv_text(const CsvTable *t, int row, const char *column)
{
    for (int i = 0; i < t->n_columns; i++)
        if (strcmp(t->column[i], column) == 0) return t->cell[(int64_t)row * t->n_columns + i];
    return "";
}

double csv_number(const CsvTable *t, int row, const char *column, double missing)
{
    const char *text = csv_text(t, row, column);
    char *end;
    const double x = strtod(text, &end);
    return *text && !*end ? x : missing;
}
