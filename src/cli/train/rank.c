/* rank.c -- one rank of `sheaf train`: calls the phases of train/run.h; rank 0 prints between
 * them. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <string.h>

#include "cli/config/print.h"
#include "cli/context_text.h"
#include "cli/tp_text.h"
#include "cli/machine.h"
#include "cli/train/train.h"
#include "cli/train/state.h"
#include "cli/units_text.h"
#include "job/attention.h"

/* ---- the lines that rank 0 prints ---- */

static void report_capture(const TrainSession *s, TrainRank *r)
{
    const RankSettings set = {.program = &r->job.linked,
                              .device = s->device,
                              .capture = s->config.run_capture != CAPTURE_OFF,
                              .capture_transfers = train_captures_transfers(r),
                              .trace = s->trace_path ? &r->trace.events : NULL};
    char text[UNCAPTURED_BYTES];
    const char *reason = rank_uncaptured(&set, text);
    if (!s->device->runtime) return; /* host kernels have no graphs */
    if (reason)
        printf("steps are launched op by op, and not captured as one graph: %s\n", reason);
    else
        printf("steps are captured as %s, from the second on\n",
               s->launch.ranks > 1 ? "graphs with their transfers" : "one graph");
}

/* A weight is prepacked only if a step reads it three times, which few micro-batches may not do. */
static void report_prepack(const TrainSession *s, const TrainRank *r)
{
    const int micros = r->job.linked.micros;
    if (!s->config.parallel_prepack || micros >= 3 || linked_prepacked_bytes(&r->job.linked) > 0)
        return;
    printf(
        "rank %d prepacks no weight although parallel.prepack=true: a step of %d micro-batch%s "
        "reads none of its weights three times; a smaller batch.micro gives more micro-batches\n",
        r->job.linked.rank, micros, micros == 1 ? "" : "es");
}

/* On a GPU: the kernels of the layers on this rank, forward and backward. A mask with document
 * borders is never promised to be causal. */
static Err report_gpu_attention(const TrainSession *s, const TrainRank *r)
{
    Call call;
    char text[2][256];
    for (int backward = 0; backward < 2; backward++) {
        if (!job_attention_call(&r->job, backward, &call)) return OK;
        TRY(machine_attention(s->device, &call, backward, text[backward], sizeof text[0]));
    }
    const char *hint = s->config.data_pack ? "; data.pack=false promises it" : "";
    if (call.attr.attention.causal > 0 || !strstr(text[0], "causal")) hint = "";
    if (strcmp(text[0], text[1]) == 0)
        printf("attention: %s%s\n", text[0], hint);
    else
        printf("attention: forward %s%s; backward %s\n", text[0], hint, text[1]);
    return OK;
}

/* The attention that runs, and why. */
static Err report_attention(const TrainSession *s, const TrainRank *r)
{
    if (s->device->runtime) return report_gpu_attention(s, r);
    if (strcmp(s->device->name, "ref") == 0)
        printf("attention: plain loops of device ref, in f64\n");
    else if (dtype_is_narrow(r->job.model.dtype))
        printf("attention: our own fused kernels, with the instructions for bf16 named above\n");
    else
        printf("attention: our own fused kernels in f32; precision.compute=bf16 uses faster "
               "instructions where the processor has them\n");
    return OK;
}

/* What auto chose for cp depends on the job alone, so rank 0 speaks for all. */
static Err report_context(const TrainRank *r)
{
    const Job *job = &r->job;
    const char *text;
    if (!job->strategy.tokens) return OK;
    Text t = text_in(r->world->arena);
    text_add(&t, "context: ");
    context_text(job, &t);
    text_add(&t, "; tokens ");
    context_tokens_text(job, &t);
    if (job->search.n > 0) {
        text_add(&t, "\ncontext: ");
        context_others_text(job, &t);
    }
    TRY(text_done(&t, &text));
    printf("%s\n", text);
    return OK;
}

static Err report_tp(const TrainRank *r)
{
    const char *text;
    Text t = text_in(r->world->arena);
    tp_line_text(&r->job, &t);
    TRY(text_done(&t, &text));
    printf("%s", text);
    return OK;
}

static Err report_run(const TrainSession *s, TrainRank *r)
{
    char count[24], bytes[24], ranks[64] = "";
    const RunDir *dir = &s->run.folder;
    if (s->launch.ranks > 1)
        snprintf(ranks, sizeof ranks, "%d ranks of %lld threads; ", s->launch.ranks,
                 (long long)s->config.run_threads);
    printf("%s: %s parameters; %s, %s; %s%lld tokens a step; memory %s%s, known before the run\n",
           s->model.name, text_count((double)model_param_count(&r->job.model), count),
           s->device_text, precision_word(r->job.model.dtype, &r->job.settings.compile.fp8), ranks,
           (long long)(s->config.batch_global * s->config.data_seq_len),
           text_bytes(atomic_load(&s->run.needed_bytes), bytes),
           s->launch.here > 1 ? " for all ranks" : "");
    TRY(report_attention(s, r));
    if (s->config.data_valid.n > 0 && s->config.run_valid_every == 0)
        printf("validation: none, as run.valid_every=0; data.valid is not read\n");
    TRY(report_tp(r));
    TRY(report_context(r));
    report_capture(s, r);
    report_prepack(s, r);
    if (r->transport[0]) printf("%s\n", r->transport);
    if (s->launch.why_free[0]) printf("%s\n", s->launch.why_free);
    if (dir->old[0]) printf("the earlier run in %s was renamed to %s\n", dir->path, dir->old);
    return OK;
}

/* ", 989Tflop/s by the datasheet" for known GPUs, else "". */
static void datasheet_text(const TrainSession *s, char *out, size_t bytes)
{
    char rate[24];
    DeviceInfo card;
    out[0] = '\0';
    if (!s->device->runtime || machine_card(s->device, &card) != OK) return;
    const double flops = s->run.job.dtype == BF16 ? card.bf16_flops : card.f32_flops;
    if (flops > 0) snprintf(out, bytes, ", %sflop/s by the datasheet", text_count(flops, rate));
}

enum { EXPERTS_TEXT = 96 };

/* "; 3 rows of experts a token": the rows that balanced routing makes, not the room for them. */
static const char *experts_text(const ModelConfig *c, char out[EXPERTS_TEXT])
{
    const ExpertConfig *x = &c->experts;
    const bool drops = x->capacity > 0 && x->capacity < 1;
    const double rows = (double)x->chosen * (drops ? x->capacity : 1);
    out[0] = '\0';
    if (model_has_experts(c))
        snprintf(out, EXPERTS_TEXT, "; %g row%s of experts a token", rows, rows == 1 ? "" : "s");
    return out;
}

static void report_peak(const TrainSession *s)
{
    char rate[24], sheet[64], experts[EXPERTS_TEXT];
    const TrainRun *run = &s->run;
    datasheet_text(s, sheet, sizeof sheet);
    printf("mfu = flops of GEMMs and attention (%s pairs%s) / (seconds x measured GEMM peak); "
           "GEMM peak %sflop/s%s, %s%s%s%s\n",
           run->job.config->full_mask ? "all" : "causal", experts_text(run->job.config, experts),
           text_count(run->device_peak, rate), s->launch.ranks > 1 ? " a rank" : "",
           run->peak_is_new ? "measured now" : "measured before",
           run->peak_cache ? ", kept in " : "", run->peak_cache ? run->peak_cache : "", sheet);
}

static void report_trace(const TrainSession *s, const TrainRank *r, const char *path)
{
    const int64_t missed = trace_missed(&r->trace);
    printf("trace of %s in %s: open it in ui.perfetto.dev\n",
           s->launch.comm_world ? "each rank" : "all ranks", path);
    if (missed > 0)
        printf("the trace is incomplete: it has room for %lld events of a rank, %lld more were "
               "dropped; trace fewer steps (run.steps)\n",
               (long long)(r->trace.events.n + r->trace.n_transfers), (long long)missed);
}

/* ---- memory and cache files of this machine ---- */

/* Free memory of the host and of the devices, once per process. Libraries take workspace_bytes per
 * rank. */
static Err read_memory(TrainSession *s)
{
    DeviceInfo card;
    TrainRun *run = &s->run;
    memory_limits(&run->host);
    if (!s->device->runtime) return OK;
    TRY(machine_card(s->device, &card));
    const int all = s->device->runtime->count(), here = s->launch.here;
    run->devices = all < here ? all : here;
    run->device_bytes =
        (int64_t)card.free_bytes * run->devices - (int64_t)card.workspace_bytes * here;
    return OK;
}

/* Files in the user's cache folder, which is created; rank 0 alone reads and writes them. */
static void name_caches(TrainSession *s)
{
    TrainRun *run = &s->run;
    if (machine_cache_path("peaks.json", s->peak_cache, sizeof s->peak_cache))
        run->peak_cache = s->peak_cache;
    if (machine_cache_path("kernels.txt", s->autotune_cache, sizeof s->autotune_cache))
        run->loop.autotune_cache = s->autotune_cache;
    run->target = (ProfileTarget){.device = s->device,
                                  .dtype = run->job.dtype,
                                  .processor = machine_processor(s->processor, sizeof s->processor),
                                  .text = s->device_text};
}

/* ---- the phases ---- */

static Err write_trace(const TrainSession *s, TrainRank *r)
{
    if (!s->trace_path) return OK;
    TRY(train_write_trace(r, s->trace_path));
    if (r->world->rank == 0) report_trace(s, r, s->trace_path);
    return OK;
}

/* The order of the nodes, or that it has no effect. */
static void report_nodes(const TrainSession *s)
{
    const TextList *nodes = &s->config.mesh_nodes;
    if (nodes->n == 0) return;
    printf("nodes: ");
    for (int i = 0; i < nodes->n; i++) printf("%s%s", i ? "," : "", nodes->at[i]);
    if (s->launch.comm_world)
        printf(", the order in which they run blocks of %d rank%s\n", s->launch.ranks / nodes->n,
               s->launch.ranks == nodes->n ? "" : "s");
    else
        printf(" (mesh.nodes) has no effect: all ranks are threads of this process; mpirun starts "
               "them on several nodes\n");
}

static Err begin_run(TrainSession *s, const TrainLoop *loop, const TrainStart *start)
{
    report_start(s, start);
    report_step_time(s, loop);
    report_nodes(s);
    if (start->init) TRY(train_keep_files(s));
    return config_write(&s->config, s->run.folder.path);
}

static Err run_phases(TrainSession *s, TrainRank *r)
{
    WorldRank *w = r->world;
    const bool first = w->rank == 0;
    TrainStart start;
    TRY(train_agree(r));
    TRY(world_agree(w, launch_team(&s->launch, w->place, &r->team)));
    TRY(train_compile(r));
    TRY(world_agree(w, w->place == 0 ? read_memory(s) : OK));
    TRY(train_check_fit(r));
    TRY(train_open_dir(r));
    if (w->place == 0) memcpy(s->recorder->dir, s->dir_name, sizeof s->dir_name);
    TRY(world_agree(w, first ? report_run(s, r) : OK));
    if (first) name_caches(s);
    TRY(train_measure_peak(r));
    if (first) report_peak(s);
    TRY(world_agree(w, first ? train_read_cluster(s) : OK));
    TRY(train_start(r, &start));
    Err err = world_agree(w, first && !start.done ? begin_run(s, r->loop, &start) : OK);
    if (err == OK) err = train_steps(r);
    TRY(train_end(r, err));
    return write_trace(s, r);
}

Err train_rank(WorldRank *w, void *session)
{
    TrainSession *s = session;
    TrainRank *r;
    TRY(world_agree(w, ARENA_NEW(w->arena, 1, &r)));
    r->run = &s->run;
    r->world = w;
    const Err err = run_phases(s, r);
    if (w->place == 0) s->agreed = w->agreed;
    if (r->team) team_close(r->team);
    return err;
}
