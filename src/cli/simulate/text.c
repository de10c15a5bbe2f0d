/* text.c -- a simulation as text: memory by class, bytes sent, flops. */
#include <math.h>
#include <stdio.h>
#include "cli/context_text.h"
#include "cli/tp_text.h"
#include "cli/simulate/simulate.h"
#include "cli/units_text.h"

/* Ranks along cp have the same micro-batches, and tokens of their own. */
static void micro_text(const SimulationReport *s, Text *t)
{
    const JobSettings *set = s->settings;
    const Job *job = s->all.shared;
    const bool cp = job->strategy.tokens != NULL;
    text_add(t, "  micro      %d micro-batch%s of %lld x %lld tokens%s", set->micros,
             set->micros == 1 ? "" : "es", (long long)set->batch.sequences,
             (long long)set->batch.seq_len, cp ? ", " : " on each rank");
    if (cp) context_share_text(job, t);
    text_add(t, "; %s\n", set->schedule);
    if (!cp) return;
    text_add(t, "  context    ");
    context_text(job, t);
    text_add(t, "\n");
    context_table_text(job, "             ", t);
    text_add(t, "  tokens     ");
    context_tokens_text(job, t);
    text_add(t, "\n");
}

/* Assumptions on the routing, which is known only when a step has run. */
static void experts_text(const SimulationReport *s, Text *t)
{
    const ParallelSettings *p = &s->settings->parallel;
    const ExpertConfig *x = &s->settings->config->experts;
    if (!model_has_experts(s->settings->config)) return;
    text_add(t, "  experts    %lld of %lld for each token", (long long)x->chosen, (long long)x->n);
    if (job_shards_experts(&p->mesh)) {
        text_add(t, "; ");
        mesh_view_text(t, s->mesh, VIEW_EXPERT);
        text_add(t, ": rooms for their rows are counted full, in bytes and flops");
    }
    if (!s->cluster) {
        text_add(t, "\n");
        return;
    }
    text_add(t, "\n             times and mfu are those of balanced routing");
    if (p->rounds && p->expert_rows < 1)
        text_add(t, ", which takes %.0f rounds: times have one of them", ceil(1 / p->expert_rows));
    else if (p->rounds)
        text_add(t, ", without further rounds");
    text_add(t, "\n");
}

static void head_text(const SimulationReport *s, Text *t)
{
    const JobSettings *set = s->settings;
    char a[24];
    text_add(t, "PLAN\n  model      %s, %s parameters, %s\n", set->config->name,
             text_count((double)s->parameters, a), precision_word(set->dtype, &set->compile.fp8));
    fp8_text(set, t);
    text_add(t, "  mesh       ");
    mesh_view_text(t, s->mesh, VIEW_DENSE);
    text_add(t, ": %d rank%s\n", s->mesh->world, s->mesh->world == 1 ? "" : "s");
    experts_text(s, t);
    tp_text(s->all.shared, t);
    units_text(s->all.shared, t);
    if (!set->parallel.units && !set->parallel.zero_weights)
        text_add(t, "  zero       %d; gradients are reduced after %s micro-batch\n",
                 set->parallel.zero,
                 set->parallel.zero >= 2 || set->parallel.reduce_each ? "each" : "the last");
    micro_text(s, t);
    text_add(t, "  counted    %d class%s of equal ranks, from %lld program%s; nothing ran\n",
             s->all.n, s->all.n == 1 ? "" : "es", (long long)s->all.compiled,
             s->all.compiled == 1 ? "" : "s");
}

static void classes_text(const Simulation *all, Text *t)
{
    text_add(
        t,
        "\nMEMORY of a rank, in bytes\n  %10s %8s %14s %14s %14s %14s %14s %14s %14s %14s %16s\n",
        "first rank", "ranks", "state", "step", "work", "host", "kernels", "save", "valid",
        "pinned", "all");
    for (int i = 0; i < all->n; i++) {
        const RankClass *k = &all->class[i];
        const size_t *b = k->count.bytes;
        text_add(t, "  %10d %8lld %14zu %14zu %14zu %14zu %14zu %14zu %14zu %14zu %16zu\n",
                 k->first, (long long)k->ranks, b[ARENA_STATE], b[ARENA_STEP], b[ARENA_WORK],
                 b[ARENA_HOST], b[ARENA_KERNELS], k->count.save_bytes, k->count.valid_bytes,
                 k->count.pinned_bytes, k->count.total_bytes);
    }
}

static void bytes_line(Text *t, const char *what, size_t bytes)
{
    char human[24];
    if (bytes > 0)
        text_add(t, "    %-52s %16zu  %10s\n", what, bytes, text_bytes((int64_t)bytes, human));
}

/* Prints the rank that needs most memory, by scope; for the work arena, the tensors alive at its
 * peak. */
static void greatest_text(const Simulation *all, Text *t)
{
    const RankClass *k = &all->class[all->greatest];
    const RankCount *c = &k->count;
    const size_t *peak = c->peak_region;
    text_add(t, "  rank %d needs most%s\n", k->first,
             k->ranks > 1 ? ", like the others of its class:" : ":");
    bytes_line(t, "state: weights, optimizer moments", c->bytes[ARENA_STATE]);
    bytes_line(t, "step: gradient sums, inputs, losses", c->bytes[ARENA_STEP]);
    bytes_line(t, "work: packed; of which, at the peak:", c->bytes[ARENA_WORK]);
    bytes_line(t, "  frame: saved in F for backward",
               peak[REGION_FRAME_I] + peak[REGION_FRAME_W] + peak[REGION_CARRY]);
    bytes_line(t, "  frame: the stream and its gradient", peak[REGION_Y] + peak[REGION_DX]);
    bytes_line(t, "  scratch: within a phase", peak[REGION_SCRATCH]);
    bytes_line(t, "  gathered parameters", c->peak_packs);
    bytes_line(t, "  gradients to be reduced", c->peak_grads);
    bytes_line(t, "host: offloaded frames", c->bytes[ARENA_HOST]);
    bytes_line(t, "kernels: workspace of kernels", c->bytes[ARENA_KERNELS]);
    bytes_line(t, "save: copy that checkpoints are written from", c->save_bytes);
    bytes_line(t, "valid: memory of validation", c->valid_bytes);
    bytes_line(t, "pinned: host memory for the device's copies", c->pinned_bytes);
    bytes_line(t, "all", c->total_bytes);
}

/* "all-gather"; "scalars" for the reductions of loss, norm and token counts. */
static const char *traffic_kind_text(const TrafficRow *row)
{
    return row->scalar ? "scalars" : comm_kind_name(row->kind);
}

/* The row of the same kind and axes in a rank's table; NULL: the rank sends none. */
static const TrafficRow *traffic_row(const Traffic *s, const TrafficRow *like)
{
    for (int i = 0; i < s->n; i++)
        if (s->row[i].kind == like->kind && s->row[i].axes == like->axes &&
            s->row[i].scalar == like->scalar)
            return &s->row[i];
    return NULL;
}

/* The most bytes of this kind that one rank sends. */
static size_t max_traffic(const Simulation *all, const TrafficRow *like)
{
    size_t most = 0;
    for (int i = 0; i < all->n; i++) {
        const TrafficRow *row = traffic_row(&all->class[i].count.traffic, like);
        if (row && row->sent_bytes > most) most = row->sent_bytes;
    }
    return most;
}

static void axes_text(const Mesh *m, unsigned axes, char *out, size_t bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < m->view[VIEW_DENSE].n_axes; i++)
        if ((axes >> i & 1) && used < bytes)
            used += (size_t)snprintf(out + used, bytes - used, "%s%s", used ? " x " : "",
                                     m->view[VIEW_DENSE].name[i]);
}

/* The most bytes of a phase of a further round that one rank sends. */
static size_t max_round(const Simulation *all, int phase)
{
    size_t most = 0;
    for (int i = 0; i < all->n; i++) {
        const size_t bytes = all->class[i].count.round.sent_bytes[phase];
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Bytes that parallel.overflow=rounds may add: they depend on the routing. */
static void rounds_text(const Simulation *all, Text *t)
{
    char human[24];
    bool any = false;
    for (int p = 0; p < N_PHASES; p++) {
        const size_t bytes = max_round(all, p);
        if (bytes == 0) continue;
        text_add(t,
                 any ? ", " : "  a further round of a layer and a micro-batch adds, on a rank: ");
        text_add(t, "%s %zu (%s)", phase_name((Phase)p), bytes, text_bytes((int64_t)bytes, human));
        any = true;
    }
    if (any) text_add(t, "; none is counted here\n");
}

static void sent_text(const SimulationReport *s, Text *t)
{
    const Simulation *all = &s->all;
    size_t sum = 0;
    char axes[96], human[24];
    text_add(t, "\nSENT in a step, in bytes\n");
    if (all->traffic.n == 0) text_add(t, "  nothing: there is one rank\n");
    if (all->traffic.n > 0)
        text_add(t, "  %-16s %-24s %16s %16s %20s %16s\n", "kind", "along", "mean per rank",
                 "most per rank", "all ranks", "in transfers");
    for (int i = 0; i < all->traffic.n; i++) {
        const TrafficRow *row = &all->traffic.row[i];
        axes_text(s->mesh, row->axes, axes, sizeof axes);
        text_add(t, "  %-16s %-24s %16.0f %16zu %20zu %16lld\n", traffic_kind_text(row), axes,
                 (double)row->sent_bytes / s->mesh->world, max_traffic(all, row), row->sent_bytes,
                 (long long)row->transfers);
        sum += row->sent_bytes;
    }
    if (all->traffic.n > 0)
        text_add(t, "  %-16s %-24s %16.0f %16s %20zu %16s\n", "all", "",
                 (double)sum / s->mesh->world, "", sum, text_bytes((int64_t)sum, human));
    rounds_text(all, t);
}

static void flops_text(const SimulationReport *s, Text *t)
{
    const RankCount *c = &s->all.class[0].count;
    char a[24], b[24];
    text_add(t, "\nFLOPS of a step, all rows live\n");
    text_add(t, "  %-16s %24.0f  %8s\n", "all ranks", s->all.flops, text_count(s->all.flops, a));
    text_add(t, "  %-16s %24.0f  %8s\n", "recomputed", s->all.flops_recomputed,
             text_count(s->all.flops_recomputed, a));
    text_add(t, "  %-16s %24.0f  %8s, and %s recomputed\n", "rank 0", c->flops,
             text_count(c->flops, a), text_count(c->flops_recomputed, b));
}

void simulate_text(const SimulationReport *s, Text *out)
{
    head_text(s, out);
    classes_text(&s->all, out);
    greatest_text(&s->all, out);
    sent_text(s, out);
    flops_text(s, out);
    simulate_time_text(s, out);
}
