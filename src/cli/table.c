/* table.c -- cells in an array, row by row. */
#include "cli/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

Err table_open(TextTable *t, int columns, int rows, Arena *arena)
{
    MUST(columns <= MAX_COLUMNS, "a table of %d columns", columns);
    *t = (TextTable){.columns = columns, .rows = rows};
    return ARENA_NEW(arena, (int64_t)columns * rows, &t->cell);
}

void table_right(TextTable *t, int column) { t->right |= 1u << column; }

void table_cell(TextTable *t, const char *format, ...)
{
    va_list args;
    MUST(t->n < t->columns * t->rows, "a table of %d rows is full", t->rows);
    va_start(args, format);
    vsnprintf(t->cell[t->n++], CELL_BYTES, format, args);
    va_end(args);
}

void table_end_row(TextTable *t)
{
    while (t->n % t->columns) t->cell[t->n++][0] = '\0';
}

/* Empty cells at the end of a row print nothing, so that lines have no trailing spaces. */
static void row_text(const TextTable *t, int row, const int *width, Text *out)
{
    char(*cell)[CELL_BYTES] = &t->cell[row * t->columns];
    int last = t->columns - 1;
    while (last > 0 && !cell[last][0]) last--;
    for (int c = 0; c <= last; c++) {
        const bool right = t->right >> c & 1;
        const int pad = c < last || right ? width[c] : 0;
        text_add(out, right ? "%*s%s" : "%-*s%s", pad, cell[c], c < last ? "  " : "\n");
    }
}

void table_text(const TextTable *t, const char *indent, Text *out)
{
    int width[MAX_COLUMNS] = {0};
    for (int i = 0; i < t->n; i++) {
        const int length = (int)strlen(t->cell[i]);
        if (width[i % t->columns] < length) width[i % t->columns] = length;
    }
    for (int row = 0; row < t->n / t->columns; row++) {
        text_add(out, "%s", indent);
        row_text(t, row, width, out);
    }
}
