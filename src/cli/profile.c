/* profile.c -- `sheaf profile`: measures this machine and writes a cluster file.
 *
 *     sheaf profile [-o cluster.yaml] [--ranks N] [--quick]
 *
 * N ranks (default 1) measure at the same time, as threads that share the cores. cpu only. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "base/memory_limits.h"
#include "cli/args.h"
#include "cli/machine.h"
#include "cli/new_file.h"
#include "cli/verbs.h"
#include "plan/cluster.h"
#include "plan/measure.h"

/* Repetitions that differ by more than this share of their median: something else runs. */
static const double busy_spread = 0.25;

typedef struct {
    const Device *device;
    Cores cores;
    int threads;
    bool quick;
    Measurement out; /* of rank 0 */
} ProfileWork;

static void show_progress(void *context, const char *what)
{
    (void)context;
    fprintf(stderr, "measuring %s\n", what);
}

static Err profile_rank(WorldRank *r, void *work)
{
    ProfileWork *w = work;
    Measurement mine;
    Team *team;
    TRY(team_open_on(&team, w->threads, &w->cores, r->ranks, r->rank));
    const MeasureSettings set = {.device = w->device,
                                 .team = team,
                                 .budget_s = w->quick ? 0.2 : 2.0,
                                 .progress = show_progress};
    const Err err = measure_rates(&set, r, &mine);
    team_close(team);
    if (err == OK && r->rank == 0) w->out = mine;
    world_leave(r, err);
    return err;
}

/* Prints the numbers, and whether the machine was busy. */
static void report(const Measurement *m, FILE *out)
{
    double worst = 0;
    fprintf(out, "%-16s %14s %-8s %8s\n", "", "median", "", "spread");
    for (int i = 0; i < m->n; i++) {
        fprintf(out, "%-16s %14.3f %-8s %7.1f%%\n", m->row[i].what, m->row[i].value, m->row[i].unit,
                100 * m->row[i].spread);
        if (m->row[i].spread > worst) worst = m->row[i].spread;
    }
    if (worst > busy_spread)
        fprintf(out,
                "the machine was busy: repetitions differ by up to %.0f%%; predictions from "
                "these numbers are as uncertain. Measure again when nothing else runs\n",
                100 * worst);
}

/* Opens the output before anything is measured. */
static Err open_output(const char *path, FILE **out)
{
    *out = stdout;
    if (!path) return OK;
    TRY(new_file_check("-o", path));
    *out = fopen(path, "w");
    if (*out) return OK;
    return err_fail(ERR_IO, "-o %s: cannot be written: %s; choose another file", path,
                    strerror(errno));
}

static Err close_output(const char *path, FILE *out, Err err)
{
    const bool written = fflush(out) == 0 && !ferror(out);
    if (!path) return err;
    if (fclose(out) != 0 || !written || err != OK) remove(path);
    if (err != OK || written) return err;
    return err_fail(ERR_IO, "-o %s: cannot be written; choose another file", path);
}

static Err write_cluster(const Cluster *c, FILE *out, Arena *a)
{
    const char *text;
    Text t = text_in(a);
    text_add(&t, "# measured by sheaf profile on this machine; one rank's share of it\n");
    cluster_text(c, &t);
    TRY(text_done(&t, &text));
    fputs(text, out);
    return OK;
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

/* Runs the ranks and writes what rank 0 measured. */
static Err profile_machine(int ranks, bool quick, FILE *out, Arena *arena)
{
    ProfileWork w = {.threads = cores_usable() / ranks, .quick = quick};
    const WorldSettings set = {
        .ranks = ranks, .in_flight = 16, .records = 64, .body = profile_rank, .work = &w};
    MemoryLimits limits;
    char name[128];
    TRY(device_open("cpu", NULL, &w.device));
    cores_find(&w.cores);
    TRY(world_run(&set));
    report(&w.out, stderr);
    memory_limits(&limits);
    Cluster c = {.name = machine_processor(name, sizeof name), .rates = w.out.rates};
    memcpy(c.peak_flops_per_s, w.out.peak_flops_per_s, sizeof c.peak_flops_per_s);
    c.memory_bytes = (double)limits.limit.bytes / ranks;
    return write_cluster(&c, out, arena);
}

static Err profile_request(int argc, char **argv, Arena *arena)
{
    const char *path = NULL, *ranks_text = NULL;
    bool quick = false;
    const Flag flags[] = {
        {"-o", &path, NULL}, {"--ranks", &ranks_text, NULL}, {"--quick", NULL, &quick}};
    PlainArgs plain;
    FILE *out;
    int ranks;
    TRY(args_plain(argc, argv, flags, 3, arena, &plain));
    if (plain.n > 0)
        return err_fail(ERR_CONFIG,
                        "profile: %s: takes no file and reads no key; the output is -o FILE, the "
                        "ranks are --ranks N",
                        plain.at[0]);
    TRY(read_ranks(ranks_text, cores_usable(), &ranks));
    TRY(open_output(path, &out));
    return close_output(path, out, profile_machine(ranks, quick, out, arena));
}

int verb_profile(int argc, char **argv)
{
    Arena arena = {0};
    Err err = arena_open(&arena, "profile", ARENA_PLENTY);
    if (err == OK) err = profile_request(argc, argv, &arena);
    arena_close(&arena);
    return err == OK ? 0 : cli_fail(err);
}
