/* play_period.c -- the period of steps without the barrier at the end of a step.
 *
 * Each stage continues without the barrier:
 *
 *     zbh2    stage 0 F F F F F I F I W ...  W W W | F F F ...
 *             stage 2   . . F F F I F I W ...    W W W | F F F ...
 *             |------------ makespan ------------|
 *             |---------- period ----------|                          a barrier costs the rest */
#include "schedule/play.h"

/* Repeats the lists `times` times, each time with its own micro-batches. */
static Err repeat(const Schedule *s, int times, Arena *arena, Schedule *out)
{
    *out = *s;
    out->micros = s->micros * times;
    TRY(ARENA_NEW(arena, s->stages, &out->n));
    TRY(ARENA_NEW(arena, s->stages, &out->list));
    for (int stage = 0; stage < s->stages; stage++) {
        TRY(ARENA_NEW(arena, (int64_t)s->n[stage] * times, &out->list[stage]));
        for (int i = 0; i < s->n[stage] * times; i++) {
            Action a = s->list[stage][i % s->n[stage]];
            a.micro = (int16_t)(a.micro + i / s->n[stage] * s->micros);
            out->list[stage][i] = a;
        }
        out->n[stage] = s->n[stage] * times;
    }
    return OK;
}

static Err makespan_of(const Schedule *s, int times, const PlayCosts *costs, Arena *arena,
                       double *out)
{
    Schedule many;
    Play play;
    const size_t mark = arena_mark(arena);
    TRY(repeat(s, times, arena, &many));
    TRY(schedule_play(&many, costs, arena, &play));
    *out = play.makespan;
    arena_rewind(arena, mark);
    return OK;
}

/* From the third step to the fourth the stages are in a steady state. */
Err play_period(const Schedule *s, const PlayCosts *costs, Arena *temp, double *out)
{
    double three = 0, four = 0;
    if (s->micros > MAX_SCHEDULE / 4)
        return err_fail(ERR_CONFIG,
                        "schedule: %d micro-batches: a few steps in a row are played up to %d",
                        s->micros, MAX_SCHEDULE / 4);
    TRY(makespan_of(s, 3, costs, temp, &three));
    TRY(makespan_of(s, 4, costs, temp, &four));
    *out = four - three;
    return OK;
}
