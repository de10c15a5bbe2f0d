/* train_rank.c -- what each rank of `sheaf train` does: its team and its programs; then, when all
 * have them and all fits, the loop. Rank 0 opens the run folder, and tells. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/fit.h"
#include "cli/machine.h"
#include "cli/train.h"
#include "cli/train_state.h"
#include "train/replicas.h"

enum { VALID_SEQUENCES = 64 };

/* What is one rank's. */
typedef struct {
    TrainSession *s;
    WorldRank *world;
    Job job, valid_job;
    Team *team;
    Trace trace;
    char transport[TRANSPORT_BYTES]; /* by what memory of devices goes between ranks */
} Runner;

static const Job *valid_job(const Runner *r)
{
    return r->s->config.run_valid_every > 0 ? &r->valid_job : NULL;
}

static Err compile(Runner *r)
{
    JobSettings set;
    int64_t bytes;
    TrainSession *s = r->s;
    TRY(config_job(&s->config, &s->model, &set));
    set.parallel.rank = r->world->rank;
    TRY(job_compile(&set, r->world->arena, &r->job));
    set.kind = JOB_LOSS;
    if (valid_job(r)) TRY(job_compile(&set, r->world->arena, &r->valid_job));
    TRY(train_bytes(&r->job, valid_job(r), save_room(s->config.run_save_every), r->world->arena,
                    &bytes));
    atomic_fetch_add(&s->bytes, bytes);
    atomic_fetch_add(&s->device_bytes, fit_bytes(&r->job, valid_job(r), true));
    if (s->config.run_check_every == 0) return OK;
    return replicas_possible(&r->job.linked, r->world->ranks, r->world->arena);
}

static Err open_runner(Runner *r)
{
    TrainSession *s = r->s;
    const int place = r->world->place;
    TRY(compile(r));
    TRY(launch_team(&s->launch, place, &r->team));
    if (!s->trace_path) return OK;
    TRY(trace_open(&r->trace, r->world->rank, s->launch.here, r->world->arena));
    s->trace[place] = &r->trace;
    return OK;
}

/* Of cards that the ranks here share, evenly or nearly. */
static Err check_cards(TrainSession *s, Arena *temp)
{
    DeviceInfo card;
    TRY(machine_card(s->device, &card));
    const int all = s->device->runtime->count(),
              cards = all < s->launch.here ? all : s->launch.here;
    const int64_t own = (int64_t)card.workspace_bytes * s->launch.here; /* of libraries */
    return fit_check(&(Fit){.config = &s->config,
                            .model = &s->model,
                            .device = true,
                            .takes = atomic_load(&s->device_bytes),
                            .has = (int64_t)card.free_bytes * cards - own,
                            .ranks = s->launch.here,
                            .what = cards > 1 ? "of the cards' memory" : "of the card's memory",
                            .temp = temp});
}

/* Told before anything is allocated: what does not fit, and the ways out. */
static Err check_memory(TrainSession *s, Arena *temp)
{
    const int64_t on_device = s->device->runtime ? atomic_load(&s->device_bytes) : 0;
    if (s->device->runtime) TRY(check_cards(s, temp));
    return fit_check(&(Fit){.config = &s->config,
                            .model = &s->model,
                            .takes = atomic_load(&s->bytes) - on_device,
                            .has = machine_memory_bytes(),
                            .ranks = s->launch.here,
                            .what = "of this machine's memory",
                            .temp = temp});
}

/* Where the device is the host there is nothing to tell. */
static void announce_capture(Runner *r)
{
    const TrainSession *s = r->s;
    const RankSettings set = {.program = &r->job.linked,
                              .device = s->device,
                              .capture = s->config.run_capture != CAPTURE_OFF,
                              .trace = s->trace_path ? &r->trace.events : NULL};
    const char *misses = rank_uncaptured(&set);
    if (!s->device->runtime) return;
    if (misses)
        printf("steps are launched op by op, and not captured as one graph: %s\n", misses);
    else
        printf("steps are captured as one graph, from the second on\n");
}

/* Where there are few micro-batches the option may do nothing; of the rank that speaks. */
static void announce_prepack(const Runner *r)
{
    const int micros = r->job.linked.micros;
    if (!r->s->config.parallel_prepack || micros >= 3 || linked_prepacked(&r->job.linked) > 0)
        return;
    printf("rank %d keeps no weight in the order of products, as parallel.prepack=true asks for: a "
           "step of %d micro-batch%s reads none of its weights three times; a smaller batch.micro "
           "makes more of them\n",
           r->job.linked.rank, micros, micros == 1 ? "" : "es");
}

static void announce(Runner *r)
{
    char count[24], bytes[24], ranks[64] = "";
    const TrainSession *s = r->s;
    if (s->launch.ranks > 1)
        snprintf(ranks, sizeof ranks, "%d ranks of %lld threads; ", s->launch.ranks,
                 (long long)s->config.run_threads);
    printf("%s: %s parameters; %s, %s; %s%lld tokens a step; memory %s%s, known before the run\n",
           s->model.name, text_count((double)model_param_count(&r->job.model), count),
           machine_device_text(s->device), dtype_name(r->job.model.dtype), ranks,
           (long long)(s->config.batch_global * s->config.data_seq_len),
           text_bytes(atomic_load(&s->bytes), bytes), s->launch.here > 1 ? " for all ranks" : "");
    announce_capture(r);
    announce_prepack(r);
    if (r->transport[0]) printf("%s\n", r->transport);
    if (s->launch.why_free[0]) printf("%s\n", s->launch.why_free);
    if (s->dir.old[0]) printf("the run that was in %s is in %s now\n", s->dir.path, s->dir.old);
}

/* ", 989T by the datasheet", of cards that are known. */
static void datasheet(const TrainSession *s, DType dtype, char *out, size_t bytes)
{
    char rate[24];
    DeviceInfo card;
    out[0] = '\0';
    if (!s->device->runtime || machine_card(s->device, &card) != OK) return;
    const double flops = dtype == BF16 ? card.bf16_flops : card.f32_flops;
    if (flops > 0) snprintf(out, bytes, ", %sflop/s by the datasheet", text_count(flops, rate));
}

/* Ranks that share a card share its peak. */
static void share_peak(TrainSession *s)
{
    if (!s->device->runtime) return;
    const int cards = s->device->runtime->count(), here = s->launch.here;
    if (here > cards) s->peak = s->peak * cards / here;
}

static Err measure_peak(TrainSession *s, const Runner *r)
{
    char rate[24], sheet[64];
    bool measured;
    const bool keep = machine_cache_path("peaks.json", s->cache, sizeof s->cache);
    const char *cache = s->cache;
    s->peak_of = (PeakOf){s->device, r->job.model.dtype, r->team,
                          machine_processor(s->processor, sizeof s->processor),
                          machine_device_text(s->device)};
    if (!keep) s->cache[0] = '\0';
    if (!machine_cache_path("kernels.txt", s->kernels, sizeof s->kernels)) s->kernels[0] = '\0';
    TRY(peak_load(&s->peak_of, keep ? cache : NULL, &s->peak, &measured));
    datasheet(s, r->job.model.dtype, sheet, sizeof sheet);
    printf("mfu = flops of products and attention (causal: half) / (seconds x peak); peak "
           "%sflop/s%s, %s%s%s%s\n",
           text_count(s->peak, rate), s->launch.ranks > 1 ? " a rank" : "",
           measured ? "measured now" : "measured before", keep ? ", kept in " : "",
           keep ? cache : "", sheet);
    share_peak(s);
    return OK;
}

/* Rank 0 alone. Last: what is refused moves nothing. */
static Err open_run(Runner *r)
{
    TrainSession *s = r->s;
    TRY(run_dir_open(&s->dir, s->dir_name, s->config.run_fresh));
    TRY(run_dir_make(s->checkpoints));
    announce(r);
    return measure_peak(s, r);
}

/* Can a line be written over? */
static bool renews_lines(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

static TrainSettings settings_of(Runner *r)
{
    const TrainSession *s = r->s;
    const Config *c = &s->config;
    return (TrainSettings){.job = &r->job,
                           .valid_job = valid_job(r),
                           .device = s->device,
                           .deterministic = c->numerics_deterministic,
                           .capture = c->run_capture != CAPTURE_OFF,
                           .world = r->world,
                           .team = r->team,
                           .train = &s->train,
                           .valid = &s->valid,
                           .lr = config_lr(c),
                           .global = c->batch_global,
                           .valid_every = c->run_valid_every,
                           .valid_limit = VALID_SEQUENCES,
                           .seed = (uint64_t)c->run_seed,
                           .init = s->init ? &s->init->manifest : NULL,
                           .dir = s->dir_name,
                           .kernels_cache = s->kernels[0] ? s->kernels : NULL,
                           .tensorboard = c->run_tensorboard,
                           .log_samples = c->run_log_samples,
                           .check_every = c->run_check_every,
                           .peak_flops = s->peak,
                           .stop = s->stop,
                           .save = train_saves(r->s),
                           .begin = train_begins,
                           .context = r->s,
                           .out = stdout,
                           .terminal = renews_lines(),
                           .trace = s->trace_path ? &r->trace : NULL};
}

/* All ranks have theirs, and none gives it back before the file is written. */
static Err write_trace(Runner *r)
{
    TrainSession *s = r->s;
    char path[1100];
    Err err = OK;
    if (!s->trace_path) return OK;
    snprintf(path, sizeof path, s->launch.mpi ? "%.1000s.%d" : "%.1000s", s->trace_path,
             r->world->rank);
    TRY(world_agree(r->world, OK));
    if (r->world->place == 0) err = trace_write(path, s->trace, s->launch.here, &r->job.model);
    TRY(world_agree(r->world, err));
    if (r->world->rank != 0) return OK;
    printf("trace of %s in %s: open it in ui.perfetto.dev\n",
           s->launch.mpi ? "each rank" : "all ranks", path);
    if (trace_missed(&r->trace) > 0)
        printf("the trace ends early: it holds %lld events of a rank, %lld more came; trace fewer "
               "steps (run.steps)\n",
               (long long)(r->trace.events.n + r->trace.n_transfers),
               (long long)trace_missed(&r->trace));
    return OK;
}

static Err run_phases(Runner *r)
{
    TrainSession *s = r->s;
    WorldRank *w = r->world;
    TrainResult result;
    TRY(world_agree(w, s->prepared));
    TRY(train_same(w, s));
    const TransportSettings transport =
        config_transport(&s->config, s->device, s->launch.mpi != NULL);
    TRY(transport_open(w, &transport, r->transport));
    TRY(world_agree(w, open_runner(r)));
    Err err = w->place == 0 ? check_memory(s, w->arena) : OK;
    if (err == OK && w->rank == 0) err = open_run(r);
    TRY(world_agree(w, err));
    if (w->place == 0) memcpy(s->board->dir, s->dir_name, sizeof s->dir_name); /* it is there now */
    const TrainSettings set = settings_of(r);
    TRY(train_run(&set, &result));
    if (w->place == 0) s->result = result;
    if (w->rank == 0 && s->cache[0] && result.peak_flops > s->peak)
        peak_raise(&s->peak_of, s->cache, result.peak_flops);
    return write_trace(r);
}

Err train_rank(WorldRank *w, void *session)
{
    Runner *r;
    TRY(world_agree(w, ARENA_NEW(w->arena, 1, &r)));
    r->s = session;
    r->world = w;
    const Err err = run_phases(r);
    if (w->place == 0) r->s->agreed = w->agreed;
    if (r->team) team_close(r->team);
    return err;
}
