/* run.c -- the phases of a training run: agree, compile, check memory, open the folder, train. */
#include "train/run.h"

#include <string.h>
#include "plan/fit.h"
#include "train/replicas.h"

static const Job *valid_job(const TrainRank *r)
{
    return r->run->loop.valid_every > 0 ? &r->valid_job : NULL;
}

Err train_agree(TrainRank *r)
{
    const TrainRun *run = r->run;
    TRY(world_agree(r->world, run->prepared));
    TRY(world_same(r->world, run->config_hash, "configuration",
                   "start all ranks with the same run file and arguments"));
    TRY(world_same(r->world, dataset_fingerprint(run->loop.train), "text to train on",
                   "give all ranks the same data.train"));
    return transport_open(r->world, &run->transport, r->transport);
}

static Err compile(TrainRank *r)
{
    TrainRun *run = r->run;
    WorldRank *w = r->world;
    JobSettings set = run->job;
    int64_t bytes;
    set.parallel.rank = w->rank;
    TRY(job_compile(&set, w->arena, &r->job));
    set.kind = JOB_LOSS;
    if (valid_job(r)) TRY(job_compile(&set, w->arena, &r->valid_job));
    TRY(train_bytes(&r->job, valid_job(r), save_memory(run->loop.save.every), w->arena, &bytes));
    atomic_fetch_add(&run->needed_bytes, bytes);
    atomic_fetch_add(&run->needed_on_device_bytes, fit_bytes(&r->job, valid_job(r), true));
    if (run->loop.check_every > 0) TRY(replicas_possible(&r->job.linked, w->ranks, w->arena));
    if (!run->trace) return OK;
    TRY(trace_open(&r->trace, w->rank, run->ranks_here, w->arena));
    run->trace[w->place] = &r->trace;
    return OK;
}

bool train_captures_transfers(const TrainRank *r)
{
    return r->run->transport.processes && strcmp(comm_transport_name(r->world->comm), "nccl") == 0;
}

Err train_compile(TrainRank *r) { return world_agree(r->world, compile(r)); }

/* Memory in use by others may become free, so this is no error. */
static void warn_if_full(const TrainRun *run, int64_t needed)
{
    char need[24], have[24];
    FILE *to = run->loop.warn ? run->loop.warn : stderr;
    if (needed <= run->host.free.bytes) return;
    fprintf(to,
            "sheaf: WARNING: the run needs %s of memory, and %s are %s; unless other programs end, "
            "the kernel may kill the run: stop them, or use settings that need less (`sheaf "
            "explain` lists what uses the memory)\n",
            text_bytes(needed, need), text_bytes(run->host.free.bytes, have), run->host.free.text);
}

static Err check_fit(TrainRun *run, Arena *temp)
{
    FitRequest fit = {.job = &run->job,
                      .global = run->loop.global,
                      .validates = run->loop.valid_every > 0,
                      .ranks = run->ranks_here,
                      .temp = temp};
    const int64_t on_device = run->devices > 0 ? atomic_load(&run->needed_on_device_bytes) : 0;
    if (run->devices > 0) {
        fit.on_device = true;
        fit.needed_bytes = on_device;
        fit.available_bytes = run->device_bytes;
        fit.memory = run->devices > 1 ? "of the GPUs' memory" : "of the GPU's memory";
        TRY(fit_check(&fit));
    }
    fit.on_device = false;
    fit.needed_bytes = atomic_load(&run->needed_bytes) - on_device;
    fit.available_bytes = run->host.limit.bytes;
    fit.memory = run->host.limit.text;
    TRY(fit_check(&fit));
    warn_if_full(run, fit.needed_bytes);
    return OK;
}

Err train_check_fit(TrainRank *r)
{
    WorldRank *w = r->world;
    return world_agree(w, w->place == 0 ? check_fit(r->run, w->arena) : OK);
}

static Err open_dir(TrainRun *run)
{
    TRY(run_dir_open(&run->folder, run->loop.dir, run->fresh));
    return run_dir_make(run->loop.save.folder);
}

Err train_open_dir(TrainRank *r)
{
    return world_agree(r->world, r->world->rank == 0 ? open_dir(r->run) : OK);
}

static Err measure_peak(TrainRank *r)
{
    TrainRun *run = r->run;
    run->target.team = r->team;
    TRY(profile_peak_load(&run->target, run->peak_cache, &run->device_peak, &run->peak_is_new));
    run->peak = run->device_peak;
    if (run->devices > 0 && run->ranks_here > run->devices) /* ranks share devices */
        run->peak = run->device_peak * run->devices / run->ranks_here;
    return OK;
}

Err train_measure_peak(TrainRank *r)
{
    return world_agree(r->world, r->world->rank == 0 ? measure_peak(r) : OK);
}

Err train_start(TrainRank *r, TrainStart *out)
{
    const TrainRun *run = r->run;
    r->settings = run->loop;
    r->settings.job = &r->job;
    r->settings.valid_job = valid_job(r);
    r->settings.world = r->world;
    r->settings.capture_transfers = train_captures_transfers(r);
    r->settings.team = r->team;
    r->settings.peak_flops = run->peak;
    r->settings.trace = run->trace ? &r->trace : NULL;
    return train_loop_open(&r->settings, &r->loop, out);
}

Err train_steps(TrainRank *r) { return train_loop_run(r->loop); }

Err train_end(TrainRank *r, Err err)
{
    TrainRun *run = r->run;
    TrainResult result;
    train_loop_close(r->loop, err, &result);
    if (err != OK) return err;
    if (r->world->place == 0) run->result = result;
    if (r->world->rank == 0 && run->peak_cache && result.peak_flops > run->peak)
        profile_peak_raise(&run->target, run->peak_cache, result.peak_flops);
    return OK;
}

Err train_write_trace(TrainRank *r, const char *path)
{
    WorldRank *w = r->world;
    Err err = OK;
    TRY(world_agree(w, OK)); /* all ranks of the process have recorded their last event */
    if (w->place == 0) err = trace_write(path, r->run->trace, r->run->ranks_here, &r->job.model);
    return world_agree(w, err); /* no rank releases its events before the file is written */
}
