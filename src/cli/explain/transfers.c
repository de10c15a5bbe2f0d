/* transfers.c -- the transfers of a rank in a step, summed by purpose, kind and group.
 *
 *     purpose                        kind         over         times    input     sent
 *     parameters, from home to use   all-gather   dp, 2 ranks     12   370688   370688  362.0 KiB
 *
 * These are the transfers that run/ begins. Their bytes add up to linked_traffic. */
#include <stdio.h>
#include <string.h>
#include "cli/explain/explain.h"
#include "cli/table.h"

const char *axes_text(const Mesh *m, unsigned axes, char buffer[GROUP_TEXT_BYTES])
{
    const View *v = &m->view[VIEW_DENSE];
    const bool all = mesh_parts(m, VIEW_DENSE, axes) == 1;
    size_t used = 0;
    buffer[0] = '\0';
    for (int i = 0; i < v->n_axes; i++)
        if ((axes >> i & 1) && (all ? !used : v->size[i] > 1) && used < GROUP_TEXT_BYTES)
            used += (size_t)snprintf(buffer + used, GROUP_TEXT_BYTES - used, "%s%s",
                                     used ? " x " : "", v->name[i]);
    return buffer;
}

const char *group_text(const Mesh *m, RankList group, char buffer[GROUP_TEXT_BYTES])
{
    enum { LISTED = 8 };
    axes_text(m, group_axes(m, group), buffer);
    size_t used = strlen(buffer);
    const int last = group.n - 1;
    if (last > 1 && group.rank[last] - group.rank[0] == last) {
        snprintf(buffer + used, GROUP_TEXT_BYTES - used, " {%d..%d}", group.rank[0],
                 group.rank[last]);
        return buffer;
    }
    if (group.n > LISTED) {
        snprintf(buffer + used, GROUP_TEXT_BYTES - used, ", %d ranks", group.n);
        return buffer;
    }
    for (int i = 0; i < group.n && used < GROUP_TEXT_BYTES; i++)
        used += (size_t)snprintf(buffer + used, GROUP_TEXT_BYTES - used, "%s%d%s", i ? " " : " {",
                                 group.rank[i], i == last ? "}" : "");
    return buffer;
}

static void transfer_row(const Facts *f, const TransferRow *row, TextTable *t)
{
    char axes[GROUP_TEXT_BYTES], human[24];
    table_cell(t, "%s", row->text);
    table_cell(t, "%s", comm_kind_name(row->kind));
    table_cell(t, "%s, %d rank%s", axes_text(&f->job->mesh, row->axes, axes), row->ranks,
               row->ranks == 1 ? "" : "s");
    table_cell(t, "%lld", (long long)row->times);
    table_cell(t, "%zu", row->bytes);
    table_cell(t, "%zu", row->sent_bytes);
    table_cell(t, "%s", text_bytes((int64_t)row->sent_bytes, human));
}

/* One line for consecutive units of one kind with equal counts. */
/* True if two units are of one kind and their packs have equal counts. */
static bool same_units(const Facts *f, int a, int b)
{
    const Unit *x = &f->job->model.unit[a], *y = &f->job->model.unit[b];
    return x->kind == y->kind && x->n_packs == y->n_packs &&
           memcmp(&f->job->gathers[x->first_pack], &f->job->gathers[y->first_pack],
                  (size_t)x->n_packs * sizeof(GatherCount)) == 0;
}

/* One row per pack of the first unit of a run of units whose packs have equal counts. */
static void gathers_rows(const Facts *f, int first, int last, Text *t)
{
    const Model *m = &f->job->model;
    const Unit *u = &m->unit[first];
    for (int i = 0; i < u->n_packs; i++) {
        const GatherCount *count = &f->job->gathers[u->first_pack + i];
        char name[64], pack[24] = "";
        if (u->n_packs > 1) snprintf(pack, sizeof pack, ", pack %d", u->first_pack + i);
        snprintf(name, sizeof name, last > first ? "%s to %s" : "%s", u->name, m->unit[last].name);
        strncat(name, pack, sizeof name - strlen(name) - 1);
        text_add(t, "  %-24s %8d %8d %12d%s\n", name, count->uses, count->gathers, count->saved,
                 last > first ? "  each" : "");
    }
}

static void gathers_text(const Facts *f, Text *t)
{
    const Model *m = &f->job->model;
    const GatherCount *count = f->job->gathers;
    GatherCount all = {0};
    for (int p = 0; p < m->n_packs; p++) {
        all.uses += count[p].uses;
        all.gathers += count[p].gathers;
        all.saved += count[p].saved;
    }
    if (all.uses == 0) return; /* no pack is sharded */
    text_add(t, "\nGATHERS of a step: all-gathers of sharded parameters\n");
    text_add(t, "  %-24s %8s %8s %12s\n", "unit", "uses", "gathers", "resident");
    for (int u = 0, last; u < m->n_units; u = last + 1) {
        for (last = u; last + 1 < m->n_units && same_units(f, u, last + 1);) last++;
        gathers_rows(f, u, last, t);
    }
    text_add(t, "  %-24s %8d %8d %12d\n", "all", all.uses, all.gathers, all.saved);
}

static void channels_text(const Facts *f, Text *t)
{
    const ChannelCount *c = &f->channels;
    text_add(t,
             "  channels: %d of groups, %d of pairs; on GPUs NCCL opens a communicator for each, "
             "with buffers of its\n  own, which MEMORY does not count; train prints their bytes "
             "after its first step\n",
             c->groups, c->pairs);
}

Err explain_transfers_text(const Facts *f, Arena *temp, Text *out)
{
    TextTable t;
    char human[24];
    text_add(out, "\nTRANSFERS of a step that rank %d begins, in bytes\n", f->job->linked.rank);
    if (f->n_transfers == 0) {
        text_add(out, "  none: a single rank\n");
        gathers_text(f, out);
        return OK;
    }
    TRY(table_open(&t, 7, f->n_transfers + 2, temp));
    for (int i = 3; i <= 6; i++) table_right(&t, i);
    static const char *const head[] = {"purpose", "kind", "over", "times", "input", "sent", ""};
    for (int i = 0; i < 7; i++) table_cell(&t, "%s", head[i]);
    for (int i = 0; i < f->n_transfers; i++) transfer_row(f, &f->transfer[i], &t);
    for (int i = 0; i < 5; i++) table_cell(&t, "%s", i ? "" : "all");
    table_cell(&t, "%zu", f->sent_bytes);
    table_cell(&t, "%s", text_bytes((int64_t)f->sent_bytes, human));
    table_text(&t, "  ", out);
    channels_text(f, out);
    gathers_text(f, out);
    return OK;
}
