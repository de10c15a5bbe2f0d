/* text.c -- an explanation as text: the programs and the drawn schedule. The other sections are in
 * plan.c, units.c, pipeline.c, actions.c, transfers.c, steps.c, memory.c and cost.c. */
#include <stdio.h>
#include <string.h>
#include "cli/explain/explain.h"
#include "schedule/draw.h"

enum { DRAW_COLUMNS = 100, DRAW_LINES = 8, NOTE_BYTES = GROUP_TEXT_BYTES + 48 };

static void legend(bool sliced, bool scaled, Text *t)
{
    text_add(t, "\nPROGRAMS: one for each kind of unit, for one micro-batch%s\n",
             sliced ? ": for its longest slice" : "");
    text_add(
        t,
        "  F forward; I gradients of inputs; W gradients of parameters; B is I and W in one order\n"
        "  [<=n,m]  at most n live rows          w..3     three adjacent parameters\n"
        "  '        recomputed                   +=       accumulates\n"
        "  scratch  freed after its phase        y, dx    read by the neighbor units\n"
        "  frame-i  kept from F to I             param, dparam  weights, sums of gradients\n"
        "  frame-w  kept from F to W             input, loss    of the micro-batch\n"
        "  carry    kept from I to W             host     offloaded to host memory\n");
    if (scaled) text_add(t, "  scale    of weights in 8 bits\n");
    if (sliced) text_add(t, "  micro    rows of all slices           dmicro   their gradients\n");
}

/* Prints the bytes that a unit holds for one micro-batch between its phases, by region. */
static void kept_text(const Program *p, Text *t)
{
    char human[24];
    bool any = false;
    text_add(t, "  kept for each micro-batch:");
    for (int r = REGION_SCRATCH + 1; r < N_OWN_REGIONS; r++) {
        if (!p->bytes[r]) continue;
        text_add(t, "%s %s %s", any ? "," : "", region_name((Region)r),
                 text_bytes((int64_t)p->bytes[r], human));
        any = true;
    }
    text_add(t, "%s\n", any ? "" : " nothing");
}

/* The notes of instructions that transfer: "over tp {2 3}, sends 32.0 KiB". */
static Err notes_of(const Facts *f, const Program *p, Arena *temp, const char *const **out)
{
    const char **note;
    char group[GROUP_TEXT_BYTES], human[24], *text;
    TRY(ARENA_NEW(temp, p->n_instr + 1, &note));
    for (int i = 0; i < p->n_instr; i++) {
        if (!op_transfers(p->instr[i].op)) continue;
        const Transfer t = instr_transfer(p, &p->instr[i]);
        TRY(ARENA_NEW(temp, NOTE_BYTES, &text));
        snprintf(text, NOTE_BYTES, "%sover %s, sends %s", t.reduce == REDUCE_MAX ? "maximum " : "",
                 group_text(&f->job->mesh, t.group, group),
                 text_bytes((int64_t)transfer_sent(&t, f->job->linked.rank), human));
        note[i] = text;
    }
    *out = note;
    return OK;
}

/* One program per class of units: all units of a class run the same one. */
static Err programs_text(const Facts *f, Arena *temp, Text *t)
{
    legend(f->job->linked.slices > 1, f->job->linked.scale_cells > 0, t);
    for (int c = 0; c < f->job->programs.n_classes; c++) {
        const char *program, *const *note;
        const int units = f->class[c].units;
        if (!facts_show(f, c)) continue;
        text_add(t, units > 1 ? "\n%s x %d\n" : "\n%s\n", f->class[c].label, units);
        TRY(notes_of(f, &f->job->program[c], temp, &note));
        TRY(program_print(&f->job->program[c], note, temp, &program));
        text_add(t, "%s", program);
        kept_text(&f->job->program[c], t);
    }
    return OK;
}

/* Wraps a line of the drawing at DRAW_COLUMNS. Continuation lines start below the first word; after
 * DRAW_LINES lines the rest is omitted. */
static void add_wrapped(Text *t, const char *line, size_t length)
{
    const char *bar = memchr(line, '|', length);
    const int indent = bar ? (int)(bar - line) + 1 : 0;
    size_t at = 0, column = 0;
    int lines = 1;
    while (at < length) {
        const size_t spaces = strspn(line + at, " ");
        const size_t word = strcspn(line + at + spaces, " \n");
        if (at && column + spaces + word > DRAW_COLUMNS) {
            if (lines++ == DRAW_LINES) {
                text_add(t, " .. and so on");
                break;
            }
            text_add(t, "\n%*s", indent, "");
            column = (size_t)indent;
        }
        text_add(t, "%.*s", (int)(spaces + word), line + at);
        column += spaces + word;
        at += spaces + word;
    }
    text_add(t, "\n");
}

static Err schedule_text(const Facts *f, Arena *temp, Text *t)
{
    const char *drawing;
    TRY(schedule_draw(&f->job->chunks, "  ", temp, &drawing));
    text_add(t, "\nSCHEDULE of the pipeline: phase and micro-batch, all units at once\n");
    while (*drawing) {
        const size_t length = strcspn(drawing, "\n");
        add_wrapped(t, drawing, length);
        drawing += length + (drawing[length] == '\n');
    }
    return OK;
}

Err explain_text(const Facts *f, Arena *temp, Text *t)
{
    TRY(explain_plan_text(f, temp, t));
    TRY(explain_units_text(f, temp, t));
    TRY(programs_text(f, temp, t));
    TRY(schedule_text(f, temp, t));
    explain_pipeline_text(f, t);
    TRY(explain_actions_text(f, temp, t));
    TRY(explain_transfers_text(f, temp, t));
    TRY(explain_steps_text(f, temp, t));
    explain_memory_text(f, t);
    explain_cost_text(f, t);
    return OK;
}
