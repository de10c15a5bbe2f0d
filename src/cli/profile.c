/* profile.c -- `sheaf profile`: measures this machine and writes a cluster file.
 *
 *     sheaf profile [-o cluster.yaml] [--ranks N] [--device D] [--quick]
 *     mpirun -n 16 sheaf profile -o cluster.yaml
 *
 * N ranks (default 1) measure at the same time, as threads that share the cores, or as processes of
 * a launcher. The file is also kept in the user's cache folder, where `sheaf train` finds it. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cores.h"
#include "base/memory_limits.h"
#include "cli/args.h"
#include "cli/launch.h"
#include "cli/machine.h"
#include "cli/new_file.h"
#include "cli/verbs.h"
#include "cli/worker.h"
#include "plan/cluster/cluster.h"
#include "plan/measure/measure.h"

/* Repetitions that differ by more than this share of their median: something else runs. */
static const double busy_spread = 0.25;

typedef struct {
    const Device *device;
    Launch launch;
    int threads;
    bool quick;
    int node_ranks;
    Measurement out; /* of rank 0 */
} ProfileWork;

static void show_progress(void *context, const char *what)
{
    (void)context;
    fprintf(stderr, "measuring %s\n", what);
}

enum { HOST_BYTES = 64 };

/* Consecutive ranks of a host; 0: all ranks are on one, or hosts have other numbers of them. */
static Err find_node(WorldRank *r, int *out)
{
    char(*name)[HOST_BYTES];
    TRY(ARENA_NEW(r->arena, r->ranks, &name));
    gethostname(name[r->rank], HOST_BYTES - 1);
    TRY(comm_register(r->comm, ARENA_CHOICE, name, (size_t)r->ranks * HOST_BYTES));
    const Ref mine = {r->rank, ARENA_CHOICE, (size_t)r->rank * HOST_BYTES, HOST_BYTES / 4, I32};
    const Ref all = {r->rank, ARENA_CHOICE, 0, (int64_t)r->ranks * HOST_BYTES / 4, I32};
    *out = 0;
    if (r->ranks == 1) return OK;
    TRY(comm_do(r->comm,
                &(Transfer){.kind = COMM_ALL_GATHER, .group = r->all, .from = mine, .to = all}));
    int node = 1;
    while (node < r->ranks && strcmp(name[node], name[0]) == 0) node++;
    if (node == r->ranks || r->ranks % node != 0) return OK;
    for (int i = 0; i < r->ranks; i++)
        if (strcmp(name[i], name[i / node * node]) != 0) return OK;
    *out = node;
    return OK;
}

static Err measure_rank(ProfileWork *w, WorldRank *r, Measurement *mine)
{
    MeasureSettings set = {.device = w->device,
                           .grid = w->quick ? GRID_QUICK : GRID_FULL,
                           .budget_s = w->quick ? 0.03 : 0.3,
                           .progress = show_progress};
    const Launch *l = &w->launch;
    const TransportSettings transport = {.device = w->device, .processes = l->comm_world != NULL};
    if (w->device->runtime) set.transport = &transport;
    TRY(find_node(r, &set.node_ranks));
    TRY(team_open_on(&set.team, w->threads, &l->cores, l->sharing, l->first + r->place));
    const Err err = measure_rates(&set, r, mine);
    team_close(set.team);
    return err;
}

static Err profile_rank(WorldRank *r, void *work)
{
    ProfileWork *w = work;
    Measurement *mine;
    Err err = ARENA_NEW(r->arena, 1, &mine);
    if (err == OK) err = measure_rank(w, r, mine);
    if (err == OK && r->rank == 0) w->out = *mine;
    world_leave(r, err);
    return err;
}

/* The largest spread of a number. */
static double worst_spread(const Measurement *m)
{
    double worst = 0;
    for (int i = 0; i < m->n; i++)
        if (m->row[i].spread > worst) worst = m->row[i].spread;
    return worst;
}

/* Prints the numbers, and whether the machine was busy. */
static void report(const Measurement *m, FILE *out)
{
    const double worst = worst_spread(m);
    fprintf(out, "%-16s %14s %-8s %8s\n", "", "median", "", "spread");
    for (int i = 0; i < m->n; i++)
        fprintf(out, "%-16s %14.3f %-8s %7.1f%%\n", m->row[i].what, m->row[i].value, m->row[i].unit,
                100 * m->row[i].spread);
    if (m->transport[0]) fprintf(out, "%s\n", m->transport);
    if (m->slow_pair_Bps > 0)
        fprintf(out, "slowest pair of ranks: %d and %d, %.3f GB/s in each direction\n",
                m->slow_pair[0], m->slow_pair[1], 1e-9 * m->slow_pair_Bps);
    if (worst > busy_spread)
        fprintf(out,
                "the machine was busy: repetitions differ by up to %.0f%%; predictions from "
                "these numbers are as uncertain. Measure again when nothing else runs\n",
                100 * worst);
}

static Err cluster_file(const Cluster *c, Arena *a, const char **out)
{
    Text t = text_in(a);
    text_add(&t, "# measured by sheaf profile on this machine; one rank's share of it\n");
    cluster_text(c, &t);
    return text_done(&t, out);
}

static Err write_output(const char *path, const char *text)
{
    if (path) return new_file_write("-o", path, text);
    if (fputs(text, stdout) >= 0 && fflush(stdout) == 0) return OK;
    return err_fail(ERR_IO, "profile: standard output cannot be written: %s", strerror(errno));
}

static Err read_ranks(const char *text, int cores, int *out)
{
    char *end;
    const long n = text ? strtol(text, &end, 10) : 1;
    if (text && (end == text || *end || n < 1 || n > cores))
        return err_fail(ERR_CONFIG, "--ranks %s: this machine has %d usable cores; set 1 to %d",
                        text, cores, cores);
    *out = (int)n;
    return OK;
}

/* Keeps the file where `sheaf train` finds it, unless the machine was busy. */
static void keep_profile(const ProfileWork *w, const char *text)
{
    char path[1024];
    if (worst_spread(&w->out) > busy_spread) {
        fprintf(stderr, "not kept for `sheaf train`, as the machine was busy\n");
        return;
    }
    if (!machine_profile_path(w->device, w->launch.ranks, w->threads, path, sizeof path)) return;
    if (new_file_write("kept", path, text) != OK) return;
    fprintf(stderr, "kept in %s: `sheaf train` on %d rank%s of %d thread%s plans with it\n", path,
            w->launch.ranks, w->launch.ranks == 1 ? "" : "s", w->threads,
            w->threads == 1 ? "" : "s");
}

static Err run_ranks(ProfileWork *w)
{
    const WorldSettings set = {.ranks = w->launch.ranks,
                               .comm_world = w->launch.comm_world,
                               .in_flight = 16,
                               .records = 64,
                               .timeout_s = 600,
                               .body = profile_rank,
                               .work = w};
    return world_run(&set);
}

/* Runs the ranks; rank 0 writes the cluster file to `path`, or to standard output. */
static Err profile_machine(ProfileWork *w, const char *path, Arena *arena)
{
    MemoryLimits limits;
    const char *text;
    char name[128];
    DeviceInfo card;
    TRY(run_ranks(w));
    if (w->launch.by.rank > 0) return OK;
    report(&w->out, stderr);
    memory_limits(&limits);
    Cluster c = {.name = machine_processor(name, sizeof name), .rates = measurement_rates(&w->out)};
    c.slow_work = w->out.slow_work;
    c.slow_transfer = w->out.slow_transfer;
    memcpy(c.peak_flops_per_s, w->out.peak_flops_per_s, sizeof c.peak_flops_per_s);
    c.memory_bytes = (double)limits.limit.bytes / w->launch.sharing;
    c.host_memory = !w->device->runtime;
    if (w->device->runtime) { /* its queues move bytes while it computes */
        TRY(machine_card(w->device, &card));
        c.name = card.name;
        c.memory_bytes = (double)card.total_bytes;
        if (card.bf16_flops > 0) c.peak_flops_per_s[BF16] = card.bf16_flops;
        if (card.f32_flops > 0) c.peak_flops_per_s[F32] = card.f32_flops;
        c.overlaps = true;
    }
    TRY(cluster_file(&c, arena, &text));
    TRY(write_output(path, text));
    keep_profile(w, text);
    return OK;
}

/* Ranks: those of the launcher, or --ranks threads. */
static Err set_ranks(ProfileWork *w, const char *ranks_text)
{
    Launch *l = &w->launch;
    cores_find(&l->cores);
    if (l->comm_world && ranks_text)
        return err_fail(ERR_CONFIG, "--ranks %s: %s started %d ranks; remove --ranks", ranks_text,
                        l->by.by, l->by.ranks);
    if (!l->comm_world) TRY(read_ranks(ranks_text, cores_usable(), &l->ranks));
    l->here = l->comm_world ? 1 : l->ranks;
    launch_sharing(l);
    w->threads = cores_usable() / l->sharing;
    if (w->threads < 1) w->threads = 1;
    return OK;
}

static Err profile_request(ProfileWork *w, int argc, char **argv, Arena *arena)
{
    const char *path = NULL, *ranks_text = NULL, *device = "cpu";
    const Flag flags[] = {{"-o", &path, NULL},
                          {"--ranks", &ranks_text, NULL},
                          {"--device", &device, NULL},
                          {"--quick", NULL, &w->quick}};
    PlainArgs plain;
    TRY(args_plain(argc, argv, flags, 4, arena, &plain));
    if (plain.n > 0)
        return err_fail(ERR_CONFIG,
                        "profile: %s: takes no file and reads no key; the output is -o FILE, the "
                        "ranks are --ranks N",
                        plain.at[0]);
    if (strcmp(device, "cpu") != 0 && strcmp(device, "cuda") != 0)
        return err_fail(ERR_CONFIG, "--device %s: is neither cpu nor cuda", device);
    TRY(set_ranks(w, ranks_text));
    TRY(device_open(device, NULL, &w->device));
    if (path && w->launch.by.rank == 0) TRY(new_file_try("-o", path));
    return profile_machine(w, path, arena);
}

static int profile(int argc, char **argv, FlightRecorder *recorder)
{
    static ProfileWork w; /* large */
    Arena arena = {0};
    w = (ProfileWork){0};
    Err err = arena_open(&arena, "profile", ARENA_PLENTY);
    if (err == OK) err = launch_open(&w.launch, recorder);
    if (err == OK) err = profile_request(&w, argc, argv, &arena);
    launch_close(&w.launch);
    arena_close(&arena);
    return err == OK ? 0 : cli_fail(err);
}

int verb_profile(int argc, char **argv) { return worker_run(profile, argc, argv, NULL, NULL); }
