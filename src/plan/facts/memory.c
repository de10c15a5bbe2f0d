/* memory.c -- the contents of a rank's arenas, from the addresses that linking assigned.
 *
 *     state    packs or homes, master weights, moments          of each pack
 *     step     gradient sums, prepacked weights, optimizer lists, inputs, losses, scalars
 *     work     tensors alive at the peak
 *     kernels  scratch of the kernels of a device
 *     save     snapshot of the boxes to be saved, or a buffer for the last save; in no arena
 *     valid    memory of validation that is not shared with training; in no arena
 *
 * State and step are sums of pieces that are stored back to back (schedule/link/memory_static.c); a
 * test finds the same pieces by their addresses. */
#include <string.h>
#include "plan/facts/facts.h"
#include "run/rank.h"
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
    bool cut = false;
    for (int k = 0; k < lp->model->n_packs; k++) cut = cut || lp->pack[k].home.shard != 0;
    MemoryRow *packs = row_of(f, ARENA_STATE, "state", "packs",
                              cut ? "weights, gathered; homes are part of them" : "weights");
    MemoryRow *homes = row_of(f, ARENA_STATE, "state", "homes", "weights at home");
    MemoryRow *master = row_of(f, ARENA_STATE, "state", "master",
                               cut ? "master weights at home" : "master weights");
    MemoryRow *moments =
        row_of(f, ARENA_STATE, "state", "moments",
               cut ? "moments of the optimizer at home" : "moments of the optimizer");
    for (int k = 0; k < lp->model->n_packs; k++) {
        const PackMemory *p = &lp->pack[k];
        const PackTypes type = lp->model->pack[k].type;
        const size_t narrow = dtype_bytes(type.use), wide = dtype_bytes(type.wide);
        const size_t home = (size_t)(p->mine.shard.hi - p->mine.shard.lo);
        if (p->whole != NO_BASE)
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
    MemoryRow *sums = row_of(f, ARENA_STEP, "step", "sums", "sums of gradients");
    MemoryRow *homes = row_of(f, ARENA_STEP, "step", "home_sums", "sums of gradients at home");
    MemoryRow *tied_grads =
        row_of(f, ARENA_STEP, "step", "tied_grads", "gradient sums of tied weights, other units");
    row_of(f, ARENA_STEP, "step", "prepacked", "prepacked weights (GEMM panels)")->bytes =
        linked_prepacked_bytes(lp);
    if (lp->scale_cells > 0)
        row_of(f, ARENA_STEP, "step", "scales", "scales of weights in FP8")->bytes =
            2 * align_up((size_t)lp->scale_cells * sizeof(float));
    row_of(f, ARENA_STEP, "step", "lists", "lists of the optimizer's kernels")->bytes =
        align_up(lp->list_bytes);
    for (int k = 0; k < lp->model->n_packs; k++) {
        const PackMemory *p = &lp->pack[k];
        const size_t wide = dtype_bytes(lp->model->pack[k].type.wide);
        if (p->grad_sums != NO_BASE)
            sums->bytes += align_up((size_t)p->mine.pack_count * wide);
        else if (p->reduced_grads != NO_BASE)
            homes->bytes += align_up((size_t)(p->mine.shard.hi - p->mine.shard.lo) * wide);
    }
    for (int u = 0; u < lp->model->n_units; u++)
        if (lp->unit[u].tied_grads != NO_BASE)
            tied_grads->bytes += align_up((size_t)lp->unit[u].tied_count *
                                          dtype_bytes(dtype_wide(lp->model->dtype)));
    row_of(f, ARENA_STEP, "step", "inputs", "inputs of the micro-batches")->bytes =
        lp->input_stride * (size_t)lp->micros;
    row_of(f, ARENA_STEP, "step", "losses", "losses of the micro-batches")->bytes =
        align_up((size_t)lp->micros * ARENA_ALIGN);
    MemoryRow *stats =
        lp->stats ? row_of(f, ARENA_STEP, "step", "statistics", "statistics of routers") : NULL;
    for (int u = 0; u < lp->model->n_units && stats; u++)
        if (lp->unit[u].stats != NO_BASE)
            stats->bytes += (size_t)lp->micros * linked_stat_bytes(lp);
    MemoryRow *scalars =
        row_of(f, ARENA_STEP, "step", "scalars", "scalars to reduce: tokens, loss, squares");
    for (int i = 0; i < N_SCALARS; i++)
        scalars->bytes += align_up((size_t)lp->scalar[i].cells * sizeof(double));
    if (lp->device_scalars != NO_BASE) scalars->bytes += ARENA_ALIGN;
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
    row_of(f, ARENA_WORK, "gather", "gathered", "packs, while gathered")->bytes = lp->peak_packs;
    row_of(f, ARENA_WORK, "reduce", "gradients", "gradients to be reduced")->bytes = lp->peak_grads;
    row_of(f, ARENA_HOST, "frame", "offloaded", "offloaded to host memory")->bytes =
        lp->bytes[ARENA_HOST];
    row_of(f, ARENA_SESSION, "session", "cache", "KV cache")->bytes = lp->bytes[ARENA_SESSION];
    row_of(f, ARENA_KERNELS, "scratch", "workspace", "workspace of kernels")->bytes =
        lp->bytes[ARENA_KERNELS];
}

/* As in train_bytes. */
static Err save_bytes(Facts *f, Arena *temp)
{
    const LinkedProgram *lp = &f->job->linked;
    int64_t bytes;
    TRY(saver_bytes(lp, lp->rank, save_memory(f->save_every), temp, &bytes));
    f->save = (size_t)bytes;
    f->total += f->save;
    return OK;
}

/* As in train_bytes. */
static Err valid_bytes(Facts *f, Arena *temp)
{
    JobSettings set = f->job->settings;
    Job *valid;
    if (!f->validates) return OK;
    set.kind = JOB_LOSS;
    TRY(ARENA_NEW(temp, 1, &valid));
    TRY(job_compile(&set, temp, valid));
    f->valid = program_set_extra_bytes(&(ProgramSet){2, {&f->job->linked, &valid->linked}});
    f->pinned += valid->linked.pinned_bytes;
    f->total += f->valid;
    return OK;
}

Err facts_memory(Facts *f, Arena *temp)
{
    static const char *const name[N_ARENAS] = {"state", "step",    "work",
                                               "host",  "session", "kernels"};
    const LinkedProgram *lp = &f->job->linked;
    TRY(save_bytes(f, temp));
    TRY(valid_bytes(f, temp));
    f->pinned += lp->pinned_bytes;
    f->total += f->pinned;
    state_rows(f);
    step_rows(f);
    work_rows(f);
    for (int a = 0; a < N_ARENAS; a++) {
        const size_t all = a == ARENA_WORK ? lp->live[a] : lp->bytes[a];
        f->total += lp->bytes[a];
        if (memory_sum(f, (ArenaId)a, NULL) != all)
            return err_fail(
                ERR_CHECK,
                "explain: the rows of the %s arena add up to %zu bytes, but the program "
                "allocates %zu",
                name[a], memory_sum(f, (ArenaId)a, NULL), all);
    }
    return OK;
}
