/* table.h -- text in columns, each as wide as its widest cell.
 *
 *     TextTable t;
 *     TRY(table_open(&t, 3, 2, temp));            3 columns, at most 2 rows
 *     table_right(&t, 2);                         the third is right-aligned
 *     table_cell(&t, "%s", name); ...             row by row
 *     table_text(&t, "  ", out);                  two spaces before each row */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include "base/text.h"

enum { CELL_BYTES = 112, MAX_COLUMNS = 12 };

typedef struct {
    int columns, rows; /* rows: capacity */
    int n;             /* cells so far */
    unsigned right;    /* bit i: column i is right-aligned */
    char (*cell)[CELL_BYTES];
} TextTable;

/* Local. */
Err table_open(TextTable *t, int columns, int rows, Arena *arena);
void table_right(TextTable *t, int column);
/* Local. Fills the next cell, row by row; text past CELL_BYTES - 1 characters is dropped. */
void table_cell(TextTable *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Local. Fills the row with empty cells. */
void table_end_row(TextTable *t);
/* Local. Prints all complete rows, without trailing spaces. */
void table_text(const TextTable *t, const char *indent, Text *out);

#endif
