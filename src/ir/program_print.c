/* program_print.c -- a program as text: the tensors that it is given, then its instructions by
 * phase, in columns. A second output has a line of its own; ' marks a recomputed value.
 *
 *   F: 9 instructions on compute; 2.2M flops, 152.0 KiB read and written, 8.0 KiB of scratch
 *        op         flops      bytes  makes       shape      where            from
 *     0  rmsnorm    20.5k   32.5 KiB  %2 attn.in  [<=64,64]  frame-w+0     <- %0 %1
 *                                     %3          [<=64]     frame-w+16384
 *
 * `where` is the region and, in the unit's own regions, the offset in bytes; += adds to the old
 * value. A note ends the line of its instruction: the ranks of a transfer. Chunks of rows, which
 * repeat the same instructions, are printed once. */
#include "ir/program.h"

#include <stdio.h>
#include <string.h>
#include "base/text.h"

enum {
    OP_COLUMNS = 15,
    NAME_COLUMNS = 20,
    WORD_BYTES = 96,
    LINE_BYTES = 4 * WORD_BYTES,
    MAX_PERIOD = 16
};

/* Widths of the columns that depend on the program. */
typedef struct {
    const Program *p;
    const char *const *note;
    int op, name, shape, where;
} ColumnWidths;

static void name_text(const Program *p, int32_t id, char out[WORD_BYTES])
{
    const char *name = p->tensor[id].name;
    snprintf(out, WORD_BYTES, "%%%d%s%s", id, *name ? " " : "", name);
}

static void shape_text(const Program *p, int32_t id, char out[WORD_BYTES])
{
    const ProgTensor *x = &p->tensor[id];
    int at = snprintf(out, WORD_BYTES, "[");
    for (int i = 0; i < x->ndim; i++)
        at += snprintf(out + at, WORD_BYTES - (size_t)at, "%s%s%lld", i ? "," : "",
                       x->dim[i].slot == NO_SLOT ? "" : "<=", (long long)x->dim[i].cap);
    at += snprintf(out + at, WORD_BYTES - (size_t)at, "]");
    if (x->dtype != p->dtype)
        snprintf(out + at, WORD_BYTES - (size_t)at, " %s", dtype_name(x->dtype));
}

static void where_text(const Program *p, int32_t id, int mode, char out[WORD_BYTES])
{
    const Place at = p->tensor[id].at[mode];
    if (at.region < N_OWN_REGIONS)
        snprintf(out, WORD_BYTES, "%s+%zu", region_name(at.region), at.offset);
    else
        snprintf(out, WORD_BYTES, "%s", region_name(at.region));
}

static void widen(int *columns, const char *word, int most)
{
    const int length = (int)strlen(word);
    if (length > *columns) *columns = length < most ? length : most;
}

static ColumnWidths column_widths(const Program *p, const char *const *note)
{
    ColumnWidths c = {.p = p, .note = note, .op = OP_COLUMNS};
    char word[WORD_BYTES];
    for (int i = 0; i < p->n_instr; i++) {
        widen(&c.op, op_info(p->instr[i].op)->name, WORD_BYTES);
        for (int k = 0; k < p->instr[i].n_out; k++) {
            const int32_t id = p->instr[i].out[k];
            name_text(p, id, word);
            widen(&c.name, word, NAME_COLUMNS); /* a longer one shifts its own line alone */
            shape_text(p, id, word);
            widen(&c.shape, word, WORD_BYTES);
            where_text(p, id, p->instr[i].phase == PHASE_B ? MERGED : SPLIT, word);
            widen(&c.where, word, WORD_BYTES);
        }
    }
    return c;
}

/* Appends a word and pads to `column`. A word that is too long takes space from the words after
 * it. */
static int add_word(char *line, int at, const char *word, int column)
{
    return at + snprintf(line + at, (size_t)(LINE_BYTES - at), "%s%-*s ", word,
                         column > at + (int)strlen(word) ? column - at - (int)strlen(word) : 0, "");
}

static void print_tensor(Text *t, const ColumnWidths *c, int32_t id, int mode, bool last)
{
    char word[WORD_BYTES], line[LINE_BYTES];
    name_text(c->p, id, word);
    int at = add_word(line, 0, word, c->name);
    shape_text(c->p, id, word);
    at = add_word(line, at, word, c->name + 1 + c->shape);
    where_text(c->p, id, mode, word);
    at = add_word(line, at, word, last ? 0 : c->name + c->shape + c->where + 2);
    text_add(t, "%.*s", at - 1, line);
}

static void print_instr(Text *t, const ColumnWidths *c, int index)
{
    const Instr *i = &c->p->instr[index];
    const int mode = i->phase == PHASE_B ? MERGED : SPLIT;
    const bool adds = i->n_out && i->keep[0] != SLOT_ZERO;
    char flops[24], bytes[24];
    text_add(t, "  %4d%s %-*s %7s %10s  ", index - c->p->first[i->phase], i->recomputed ? "'" : " ",
             c->op, op_info(i->op)->name, text_count(i->flops, flops),
             text_bytes((int64_t)instr_bytes(i), bytes));
    for (int k = 0; k < i->n_out; k++) {
        if (k) text_add(t, "\n%*s", c->op + 29, "");
        print_tensor(t, c, i->out[k], mode, k > 0);
        if (k) continue;
        text_add(t, " %s", adds ? "+=" : "<-");
        for (int j = 0; j < i->n_in; j++) text_add(t, " %%%d", i->in[j]);
        if (i->queue != QUEUE_COMPUTE) text_add(t, " on %s", queue_name(i->queue));
        if (c->note && c->note[index]) text_add(t, " %s", c->note[index]);
    }
    text_add(t, "\n");
}

static bool is_read(const Program *p, int32_t root)
{
    for (int i = 0; i < p->n_instr; i++)
        for (int k = 0; k < p->instr[i].n_in; k++)
            if (p->tensor[p->instr[i].in[k]].view_of == root) return true;
    return false;
}

static void print_given(Text *t, const Program *p)
{
    char name[WORD_BYTES], shape[WORD_BYTES];
    text_add(t, "  given:\n");
    for (int v = 0; v < p->n_tensors; v++) {
        const ProgTensor *x = &p->tensor[v];
        if (x->at[SPLIT].region < N_OWN_REGIONS || x->view_of != v || !is_read(p, v)) continue;
        name_text(p, v, name);
        shape_text(p, v, shape);
        text_add(t, "      %-6s %-36s %s\n", region_name(x->at[SPLIT].region), name, shape);
    }
}

/* "9 instructions on compute, 2 on d2h; 2.2M flops, ..." */
static void print_title(Text *t, const Program *p, Phase phase)
{
    int n[N_QUEUES] = {0};
    double flops = 0;
    size_t bytes = 0;
    char a[24], b[24], c[24];
    bool first = true;
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        n[p->instr[i].queue]++;
        flops += p->instr[i].flops;
        bytes += instr_bytes(&p->instr[i]);
    }
    text_add(t, "  %s: ", phase_name(phase));
    for (int q = 0; q < N_QUEUES; q++) {
        if (!n[q]) continue;
        text_add(t, "%s%d%s on %s", first ? "" : ", ", n[q],
                 !first      ? ""
                 : n[q] == 1 ? " instruction"
                             : " instructions",
                 queue_name((Queue)q));
        first = false;
    }
    text_add(t, "; %s flops, %s read and written, %s of scratch\n", text_count(flops, a),
             text_bytes((int64_t)bytes, b), text_bytes((int64_t)p->scratch_bytes[phase], c));
}

/* True if both do the same work on other tensors: chunks of rows. */
static bool same_work(const Program *p, const Instr *a, const Instr *b)
{
    const bool moves = op_info(a->op)->class == CLASS_ORDER; /* transfers between ranks are alike */
    if (a->op != b->op || a->recomputed != b->recomputed ||
        (moves && a->op != OP_wait && !op_transfers(a->op)))
        return false;
    for (int k = 0; k < a->n_out; k++) {
        const ProgTensor *x = &p->tensor[a->out[k]], *y = &p->tensor[b->out[k]];
        if (x != y && (*x->name || *y->name || x->ndim != y->ndim)) return false;
        for (int d = 0; d < x->ndim; d++)
            if (x->dim[d].cap != y->dim[d].cap) return false;
    }
    return true;
}

/* The number of times that the next *period instructions repeat after themselves; 0 if too few. */
static int repeats(const Program *p, int from, int end, int *period)
{
    for (int n = 2; n <= MAX_PERIOD; n++) {
        int at = from + n;
        while (at < end && same_work(p, &p->instr[at - n], &p->instr[at])) at++;
        *period = n;
        if (at - from >= 4 * n) return (at - from) / n - 1;
    }
    return 0;
}

static void print_phase(Text *t, const ColumnWidths *c, Phase phase)
{
    const Program *p = c->p;
    const int end = p->first[phase + 1];
    print_title(t, p, phase);
    text_add(t, "        %-*s %7s %10s  %-*s %-*s %-*s    from\n", c->op, "op", "flops", "bytes",
             c->name, "makes", c->shape, "shape", c->where, "where");
    for (int i = p->first[phase]; i < end;) {
        int period = 1;
        const int more = repeats(p, i, end, &period);
        for (int k = 0; k < (more ? period : 1); k++) print_instr(t, c, i + k);
        if (more)
            text_add(t,
                     "        the same %d instructions, %d times more: for the rows after these\n",
                     period, more);
        i += more ? period * (more + 1) : 1;
    }
}

/* The bodies that instructions of the phase loop over; F is all that they have. */
static void print_bodies(Text *t, const Program *p, Phase phase)
{
    for (int i = p->first[phase]; i < p->first[phase + 1]; i++) {
        if (!op_loops(p->instr[i].op)) continue;
        const Program *body = instr_body(p, &p->instr[i]);
        const ColumnWidths c = column_widths(body, NULL);
        text_add(t, "  body of %s %d, %s%s: once for each further round\n", phase_name(phase),
                 i - p->first[phase], op_info(p->instr[i].op)->name,
                 p->instr[i].recomputed ? "'" : "");
        print_phase(t, &c, PHASE_F);
    }
}

Err program_print(const Program *p, const char *const *note, Arena *arena, const char **out)
{
    const ColumnWidths c = column_widths(p, note);
    Text t = text_in(arena);
    print_given(&t, p);
    for (int ph = 0; ph < N_PHASES; ph++)
        if (p->first[ph] < p->first[ph + 1]) print_phase(&t, &c, (Phase)ph);
    for (int ph = 0; ph < N_PHASES; ph++) print_bodies(&t, p, (Phase)ph);
    return text_done(&t, out);
}
