/* experts.c -- the axes of experts in what `sheaf explain` prints, and the rows that ranks have
 * room for. */
#include "cli/explain/json.h"

/* The instruction that numbers the rows which the rank sends, or NULL. */
static const Instr *sending(const Job *job)
{
    for (int c = 0; c < job->programs.n_classes; c++)
        for (int i = 0; i < job->program[c].n_instr; i++)
            if (job->program[c].instr[i].op == OP_send_rows) return &job->program[c].instr[i];
    return NULL;
}

static void bound_text(const Job *job, const Instr *send, Text *t)
{
    const ExpertConfig *x = &job->settings.config->experts;
    const int64_t room = send->attr.kernel.exchange.room;
    const int parts = send->attr.kernel.exchange.ep;
    const int sources = parts * send->attr.kernel.exchange.etp;
    text_add(t, "             a rank sends at most %lld rows of a micro-batch to each of %d ranks",
             (long long)room, parts);
    if (job->settings.parallel.expert_rows > 0)
        text_add(t, ": parallel.expert_rows=%g", job->settings.parallel.expert_rows);
    if (x->capacity > 0) text_add(t, ", parallel.capacity=%g", x->capacity);
    text_add(t, "; %lld rows meet here\n", (long long)(room * sources));
}

/* A further round has the memory of a region in each program. */
static void rounds_text(const Job *job, const Instr *send, Text *t)
{
    const RoundTraffic r = linked_rounds(&job->linked);
    char human[24];
    bool any = false;
    if (!send->attr.kernel.exchange.rounds) {
        text_add(t, "             that is room for any routing: there are no further rounds\n");
        return;
    }
    text_add(t, "             rows without room take further rounds, in the same memory");
    for (int p = 0; p < N_PHASES; p++) {
        if (r.sent_bytes[p] == 0) continue;
        text_add(t, any ? ", " : "; one of a layer and a micro-batch sends ");
        text_add(t, "%s in %s", text_bytes((int64_t)r.sent_bytes[p], human), phase_name((Phase)p));
        any = true;
    }
    text_add(t, "\n");
}

void explain_experts_text(const Job *job, Text *t)
{
    const Mesh *m = &job->mesh;
    const View *v = &m->view[VIEW_EXPERT];
    const Instr *send = sending(job);
    int coord[MAX_AXES];
    if (!job_shards_experts(&job->settings.parallel.mesh)) return;
    mesh_coords(m, VIEW_EXPERT, job->linked.rank, coord);
    text_add(t, "  experts    ");
    mesh_view_text(t, m, VIEW_EXPERT);
    text_add(t, ": this is");
    for (int i = 1; i < v->n_axes; i++)
        text_add(t, "%s %s %d", i > 1 ? "," : "", v->name[i], coord[i]);
    text_add(t, "\n");
    if (send) bound_text(job, send, t);
    if (send && job->settings.parallel.rounds) rounds_text(job, send, t);
}

json_t *experts_json(const Job *job)
{
    const View *v = &job->mesh.view[VIEW_EXPERT];
    const Instr *send = sending(job);
    json_t *o = json_object();
    for (int i = 0; i < v->n_axes; i++) set_count(o, v->name[i], v->size[i]);
    if (send) set_count(o, "rows", send->attr.kernel.exchange.room);
    if (!send || !send->attr.kernel.exchange.rounds) return o;
    const RoundTraffic r = linked_rounds(&job->linked);
    json_t *round = json_object();
    for (int p = 0; p < N_PHASES; p++)
        if (r.sent_bytes[p] > 0) set_bytes(round, phase_name((Phase)p), r.sent_bytes[p]);
    set(o, "round_sent", round);
    return o;
}
