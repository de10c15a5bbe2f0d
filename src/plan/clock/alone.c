/* alone.c -- one tape, which is the only member of all its transfers. */
#include "plan/clock/alone.h"

#include "plan/clock/parts.h"

static Err play_alone(StepClock *c, const LinkedProgram *lp, Action run, const Cluster *cluster,
                      Arena *temp, double *out)
{
    const ClockPart part = {.kind = PART_RUN, .run = run};
    StepTime time;
    c->tape[0].n = 0;
    TRY(clock_record_part(c, lp, &part, temp, &c->tape[0]));
    for (int i = 0; i < c->n_channels; i++) c->channel[i].members = 1;
    TRY(clock_recorded(c));
    TRY(clock_play(c, cluster, &time));
    *out = time.step_s;
    return OK;
}

Err clock_runs_alone(const Job *job, const Cluster *cluster, Arena *temp, double (*run_s)[N_PHASES])
{
    const size_t mark = arena_mark(temp);
    const ClockInput in = {.cluster = cluster, .job = &job->settings, .mesh = &job->mesh};
    const ProgramTable *t = &job->programs;
    StepClock c = {.in = &in, .arena = temp};
    TRY(clock_assign(&c, mesh_all_axes(&job->mesh, VIEW_DENSE)));
    for (int k = 0; k < t->n_classes; k++) {
        int unit = 0;
        while (t->class_of[unit] != k) unit++;
        for (int phase = 0; phase < N_PHASES; phase++)
            TRY(play_alone(&c, &job->linked, action_run((Phase)phase, unit, 0, 0), cluster, temp,
                           &run_s[k][phase]));
    }
    arena_rewind(temp, mark);
    return OK;
}
