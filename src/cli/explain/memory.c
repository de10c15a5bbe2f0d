/* memory.c -- the memory page of an explanation: rows of each arena, peak of the work arena. */
#include <stdio.h>
#include "cli/explain/explain.h"
#include "schedule/text_form.h"

static void bytes_line(Text *t, const char *arena, const char *scope, const char *what,
                       size_t bytes)
{
    char human[24];
    text_add(t, "  %-6s %-8s %-46s %16zu  %10s\n", arena, scope, what, bytes,
             text_bytes((int64_t)bytes, human));
}

/* Prints the non-empty rows of an arena; the first one after the arena's name. */
static void arena_text(const Facts *f, ArenaId arena, const char *name, Text *t)
{
    for (int i = 0; i < f->n_memory; i++) {
        const MemoryRow *row = &f->memory[i];
        if (row->arena != arena || !row->bytes) continue;
        bytes_line(t, name, row->scope, row->what, row->bytes);
        name = "";
    }
    if (*name) bytes_line(t, name, "", "nothing", 0);
}

/* Prints the peak of the work arena, and the tensors alive at it. */
static void work_text(const Facts *f, Text *t)
{
    const LinkedProgram *lp = &f->job->linked;
    char action[ACTION_TEXT_BYTES], what[128];
    bytes_line(t, "work", "", "peak of tensors packed by lifetime", lp->bytes[ARENA_WORK]);
    bytes_line(t, "", "", "  lower bound of any packing", lp->live[ARENA_WORK]);
    if (lp->n == 0) return;
    action_text(&lp->list[lp->peak_at].action, f->job->units.slices, action);
    text_add(t, "  %-6s %-8s   of which, at %s (action %d of %d):\n", "", "", action,
             lp->peak_at + 1, lp->n);
    for (int i = 0; i < f->n_memory; i++) {
        const MemoryRow *row = &f->memory[i];
        if (row->arena != ARENA_WORK || !row->bytes) continue;
        snprintf(what, sizeof what, "    %s", row->what);
        bytes_line(t, "", row->scope, what, row->bytes);
    }
}

void explain_memory_text(const Facts *f, Text *t)
{
    text_add(t, "\nMEMORY of rank %d, in bytes\n  %-6s %-8s %s\n", f->job->linked.rank, "arena",
             "scope", "what");
    arena_text(f, ARENA_STATE, "state", t);
    arena_text(f, ARENA_STEP, "step", t);
    work_text(f, t);
    bytes_line(t, "host", "frame", "offloaded to host memory", f->job->linked.bytes[ARENA_HOST]);
    if (f->job->settings.workspace)
        bytes_line(t, "kernel", "scratch", "workspace of kernels",
                   f->job->linked.bytes[ARENA_KERNELS]);
    if (f->save_every > 0)
        bytes_line(t, "save", "snapshot", "copy that is saved while training continues", f->save);
    else
        bytes_line(t, "save", "buffer", "for the save after the last step", f->save);
    if (f->validates) bytes_line(t, "valid", "step", "inputs and losses of validation", f->valid);
    if (f->pinned) bytes_line(t, "pinned", "", "host memory: mailbox, buffer of copies", f->pinned);
    bytes_line(t, "all", "", "total, known before the run", f->total);
    if (f->job->settings.workspace)
        text_add(
            t, "  not counted: what the driver and its libraries keep for themselves: its context, "
               "loaded kernels,\n  CUDA graphs, buffers of NCCL or of a transport over the "
               "host\n");
}
