/* memory.c -- the memory page of an explanation: rows of each arena, peak of the work arena. */
#include <stdio.h>
#include "cli/explain/explain.h"
#include "schedule/text_form.h"
#include "state/save.h"

static MemoryRow *row_of(Facts *f, ArenaId arena, const char *scope, const char *key,
                         const char *what)
{
    MUST(f->n_memory < MAX_MEMORY_ROWS, "more than %d rows of memory", MAX_MEMORY_ROWS);
    f->memory[f->n_memory] = (MemoryRow){arena, scope, key, what, 0};
    return &f->memory[f->n_memory++];
}

size_t memory_sum(const Facts *f, ArenaId arena, const char *key)
{
    size_t bytes = 0;
    for (int i = 0; i < f->n_memory; i++)
        if (f->memory[i].arena == arena && (!key || strcmp(f->memory[i].key, key) == 0))
            bytes += f->memory[i].bytes;
    return bytes;
}

static void state_rows(Facts *f)
{
    const LinkedProgram *lp = &f->job->linked;
    const size_t narrow = dtype_bytes(lp->model->dtype),
                 wide = dtype_bytes(dtype_wide(lp->model->dtype));
    const bool cut = lp->unit[0].home.shard != 0;
    MemoryRow *packs = row_of(f, ARENA_STATE, "state", "packs",
                              cut ? "weights, gathered; their homes in place" : "weights");
    MemoryRow *homes = row_of(f, ARENA_STATE, "state", "homes", "weights at home");
    MemoryRow *master = row_of(f, ARENA_STATE, "state", "master",
                               cut ? "master weights at home" : "master weights");
    MemoryRow *moments =
        row_of(f, ARENA_STATE, "state", "moments",
               cut ? "moments of the optimizer at home" : "moments of the optimizer");
    for (int u = 0; u < lp->model->n_units; u++) {
        const UnitPlace *p = &lp->unit[u];
        const size_t home = (size_t)(p->mine.shard.hi - p->mine.shard.lo);
        if (p->pack != NO_BASE)
            packs->bytes += align_up((size_t)p->mine.pack_count * narrow);
        else
            homes->bytes += align_up(home * narrow);
        if (p->master != p->weights) master->bytes += align_up(home * wide);
        moments->bytes += (size_t)lp->n_moments * align_up(home * wide);
    }
}

static void step_rows(Facts *f)
{
    const LinkedProgram *lp = &f->job->linked;
    const size_t wide = dtype_bytes(dtype_wide(lp->model->dtype));
    MemoryRow *sums = row_of(f, ARENA_STEP, "step", "sums", "sums of gradients");
    MemoryRow *homes = row_of(f, ARENA_STEP, "step", "home_sums", "sums of gradients at home");
    MemoryRow *guests =
        row_of(f, ARENA_STEP, "step", "guest_sums", "sums of tied weights in their other units");
    row_of(f, ARENA_STEP, "step", "prepacked", "prepacked weights")->bytes = linked_prepacked(lp);
    for (int u = 0; u < lp->model->n_units; u++) {
        const UnitPlace *p = &lp->unit[u];
        if (p->grads != NO_BASE)
            sums->bytes += align_up((size_t)p->mine.pack_count * wide);
        else if (p->sums != NO_BASE)
            homes->bytes += align_up((size_t)(p->mine.shard.hi - p->mine.shard.lo) * wide);
        if (p->guests != NO_BASE) guests->bytes += align_up((size_t)p->guest_count * wide);
    }
    row_of(f, ARENA_STEP, "step", "inputs", "inputs of the micro-batches")->bytes =
        lp->input_stride * (size_t)lp->micros;
    row_of(f, ARENA_STEP, "step", "losses", "losses of the micro-batches")->bytes =
        align_up((size_t)lp->micros * ARENA_ALIGN);
    MemoryRow *scalars =
        row_of(f, ARENA_STEP, "step", "scalars", "what ranks tell: tokens, loss, squares");
    for (int i = 0; i < N_SCALARS; i++)
        scalars->bytes += align_up((size_t)lp->scalar[i].cells * sizeof(double));
}

static void work_rows(Facts *f)
{
    static const struct {
        Region region;
        const char *scope, *what;
    } row[] = {
        {REGION_FRAME_I, "frame", "kept from F for I"},
        {REGION_FRAME_W, "frame", "kept from F for W"},
        {REGION_CARRY, "frame", "carried from I to W"},
        {REGION_Y, "frame", "stream between units (y, read as x)"},
        {REGION_DX, "frame", "gradient of the stream (dx, read as dy)"},
        {REGION_MICRO, "micro", "kept across slices of a micro-batch"},
        {REGION_DMICRO, "micro", "gradients summed across slices"},
        {REGION_SCRATCH, "scratch", "within the phase that runs"},
    };
    const LinkedProgram *lp = &f->job->linked;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        row_of(f, ARENA_WORK, row[i].scope, region_name(row[i].region), row[i].what)->bytes =
            lp->peak_region[row[i].region];
    row_of(f, ARENA_WORK, "gather", "gathered", "packs gathered for a while")->bytes =
        lp->peak_packs;
    row_of(f, ARENA_WORK, "reduce", "gradients", "gradients that wait for their sums")->bytes =
        lp->peak_grads;
    row_of(f, ARENA_HOST, "frame", "offloaded", "offloaded, in the host's memory")->bytes =
        lp->bytes[ARENA_HOST];
    row_of(f, ARENA_SESSION, "session", "cache", "keys and values, from call to call")->bytes =
        lp->bytes[ARENA_SESSION];
}

/* As train_bytes has it. */
static Err save_bytes(Facts *f, Arena *temp)
{
    const LinkedProgram *lp = &f->job->linked;
    int64_t bytes;
    TRY(saver_bytes(lp, lp->rank, save_room(f->config->run_save_every), temp, &bytes));
    f->save = (size_t)bytes;
    f->total += f->save;
    return OK;
}

/* Likewise. */
static Err valid_bytes(Facts *f, Arena *temp)
{
    JobSettings set = f->job->settings;
    Job *valid;
    if (f->config->run_valid_every == 0) return OK;
    set.kind = JOB_LOSS;
    TRY(ARENA_NEW(temp, 1, &valid));
    TRY(job_compile(&set, temp, valid));
    for (int a = 0; a < N_ARENAS; a++)
        f->valid += rank_bytes_beside(&valid->linked, &f->job->linked, (ArenaId)a);
    f->total += f->valid;
    return OK;
}

Err facts_memory(Facts *f, Arena *temp)
{
    static const char *const name[N_ARENAS] = {"state", "step", "work", "host", "session"};
    const LinkedProgram *lp = &f->job->linked;
    TRY(save_bytes(f, temp));
    TRY(valid_bytes(f, temp));
    state_rows(f);
    step_rows(f);
    work_rows(f);
    for (int a = 0; a < N_ARENAS; a++) {
        const size_t all = a == ARENA_WORK ? lp->live[a] : lp->bytes[a];
        f->total += lp->bytes[a];
        if (memory_sum(f, (ArenaId)a, NULL) != all)
            return err_fail(ERR_CHECK,
                            "explain: what is known of the %s arena comes to %zu bytes, and the "
                            "program takes %zu",
                            name[a], memory_sum(f, (ArenaId)a, NULL), all);
    }
    return OK;
}

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
    if (f->save_every > 0)
        bytes_line(t, "save", "snapshot", "copy that is saved while training continues", f->save);
    else
        bytes_line(t, "save", "buffer", "for the save after the last step", f->save);
    if (f->validates) bytes_line(t, "valid", "step", "inputs and losses of validation", f->valid);
    bytes_line(t, "all", "", "total, known before the run", f->total);
}
