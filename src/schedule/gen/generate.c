/* generate.c -- the table of generators. A new generator is a file and a row. */
#include "schedule/gen/generate.h"

#include <string.h>
#include "base/math.h"
#include "base/text.h"

/* name, about, generator; chunk order, chunks (default, min, max), slices, groups, micros */
static const GeneratorRow table[] = {
    {"gpipe", "all forwards, then all backwards; holds every micro-batch", gen_gpipe, CHUNKS_LOOP,
     1, 1, 1, 1, false, 0, 0},
    {"1f1b", "a backward as soon as possible; holds one micro-batch per later stage, and one",
     gen_1f1b, CHUNKS_LOOP, 1, 1, 1, 0, false, 0, 0},
    {"interleaved", "1f1b over several chunks per stage; waits less, holds more", gen_interleaved,
     CHUNKS_LOOP, 2, 1, 0, 0, true, 0, 0},
    {"bfs", "gpipe over several chunks per stage; a chunk's gradients are complete early", gen_bfs,
     CHUNKS_LOOP, 2, 1, 0, 0, false, 0, 0},
    {"zbh1", "1f1b with delayed parameter gradients; a third of the bubble, holds no more",
     gen_zbh1, CHUNKS_LOOP, 1, 1, 1, 0, false, 0, 0},
    {"zbh2", "zbh1 with twice the micro-batches in flight; waits only at the ends", gen_zbh2,
     CHUNKS_LOOP, 1, 1, 1, 0, false, 0, 0},
    {"izb", "interleaved with delayed parameter gradients; waits and holds less", gen_izb,
     CHUNKS_LOOP, 2, 1, 0, 0, true, 0, 0},
    {"zbv", "two chunks per stage on a V; waits only at the ends, holds as much as 1f1b", gen_zbv,
     CHUNKS_V, 2, 2, 2, 0, false, 2, -1},
    {"dualpipev", "two chunks per stage on a V; pairs forwards with backwards to overlap transfers",
     gen_dualpipev, CHUNKS_V, 2, 2, 2, 0, false, 2, 0},
    {"seq1f1b", "1f1b over slices of sequences; waits and holds less", gen_seq1f1b, CHUNKS_LOOP, 1,
     1, 1, 2, false, 0, 0},
    {"terapipe", "gpipe over slices of sequences, whose lengths are planned", gen_terapipe,
     CHUNKS_LOOP, 1, 1, 1, 2, false, 0, 0},
};
enum { N_GENERATORS = sizeof table / sizeof table[0] };

const GeneratorRow *schedule_generators(int *n)
{
    *n = N_GENERATORS;
    return table;
}

Err schedule_generator(const char *name, Arena *temp, const GeneratorRow **out)
{
    const char *names[N_GENERATORS], *list;
    for (int i = 0; i < N_GENERATORS; i++) {
        names[i] = table[i].name;
        if (strcmp(table[i].name, name) == 0) {
            *out = &table[i];
            return OK;
        }
    }
    const char *near = text_nearest(name, names, N_GENERATORS);
    Text t = text_in(temp);
    for (int i = 0; i < N_GENERATORS; i++) text_add(&t, " %s", names[i]);
    TRY(text_done(&t, &list));
    return err_fail(ERR_CONFIG,
                    "parallel.schedule: there is no '%.64s'%s%s%s; allowed are%s, or a file", name,
                    near ? " (did you mean " : "", near ? near : "", near ? "?)" : "", list);
}

static Err check_chunks(const GeneratorRow *row, int chunks)
{
    const int least = row->min_chunks, most = row->max_chunks;
    if (chunks >= least && (most == 0 || chunks <= most)) return OK;
    return err_fail(ERR_CONFIG,
                    "parallel.chunks is %d; parallel.schedule=%s has %s%d on each stage: set "
                    "parallel.chunks=%d",
                    chunks, row->name, most == 0 ? "at least " : "", least, least);
}

static Err check_slices(const GeneratorRow *row, int slices)
{
    if (slices == 1 || (slices > 1 && row->slices > 0)) return OK;
    if (slices > 1)
        return err_fail(ERR_CONFIG,
                        "parallel.slices is %d; parallel.schedule=%s runs whole micro-batches: set "
                        "parallel.slices=1, or choose gpipe, seq1f1b or terapipe",
                        slices, row->name);
    return err_fail(ERR_CONFIG, "parallel.slices is %d; allowed are 1 to %d", slices, MAX_SCHEDULE);
}

/* True if every group has a micro-batch for each stage, or all micro-batches if there are fewer
 * than stages: then no stage idles. */
static bool group_works(const Pipeline *p, int group)
{
    const int rounds = (p->micros + group - 1) / group;
    return p->micros / rounds >= min_int(p->stages, p->micros);
}

static Err check_group(const GeneratorRow *row, const Pipeline *p)
{
    if (!row->groups && p->group == 0) return OK;
    if (!row->groups)
        return err_fail(ERR_CONFIG,
                        "parallel.group is %d; parallel.schedule=%s takes no groups: leave it out",
                        p->group, row->name);
    if (p->group > 0 && group_works(p, p->group)) return OK;
    const int group = p->group < 1 ? 1 : p->group, rounds = (p->micros + group - 1) / group;
    int near = group;
    while (!group_works(p, near)) near++; /* ends: one group of all micro-batches works */
    return err_fail(
        ERR_CONFIG,
        "parallel.group is %d; with %d stages and %d micro-batches parallel.schedule=%s "
        "would have groups of %d; each needs %d, %s: set parallel.group=%d",
        p->group, p->stages, p->micros, row->name, p->micros / rounds,
        min_int(p->stages, p->micros), p->micros < p->stages ? "all of them" : "one for each stage",
        near);
}

Err schedule_pipeline(const GeneratorRow *row, Pipeline *p)
{
    Pipeline full = *p;
    if (full.chunks == 0) full.chunks = row->chunks;
    if (full.slices == 0) full.slices = row->slices > 1 ? row->slices : 1;
    TRY(check_chunks(row, full.chunks));
    TRY(check_slices(row, full.slices));
    const int64_t chunks = (int64_t)full.stages * full.chunks;
    const Schedule counts = {.stages = full.stages,
                             .chunks = chunks > MAX_SCHEDULE ? MAX_SCHEDULE + 1 : (int)chunks,
                             .micros = full.micros,
                             .slices = full.slices};
    TRY(schedule_check_counts(&counts, ERR_CONFIG));
    if (row->groups && full.group == 0) { /* as many groups as possible */
        const int rounds = full.micros < full.stages ? 1 : full.micros / full.stages;
        full.group = (full.micros + rounds - 1) / rounds;
    }
    TRY(check_group(row, &full));
    *p = full;
    return OK;
}

int pipeline_stage(ChunkOrder order, int stages, int chunk)
{
    const int turn = chunk / stages, from_start = chunk % stages;
    return order == CHUNKS_V && turn % 2 == 1 ? stages - 1 - from_start : from_start;
}

int pipeline_chunk(ChunkOrder order, int stages, int stage, int turn)
{
    return turn * stages + (order == CHUNKS_V && turn % 2 == 1 ? stages - 1 - stage : stage);
}

/* Deletes the RUNs of micro-batches that do not exist. Micro-batches do not wait for each other, so
 * any of them can be left out. */
static int delete_surplus(Action *list, int n, int micros)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (list[i].micro < micros) list[kept++] = list[i];
    return kept;
}

Err schedule_generate(const char *name, const Pipeline *p, Arena *arena, Schedule *out)
{
    const GeneratorRow *row;
    Pipeline full = *p;
    TRY(schedule_generator(name, arena, &row));
    TRY(schedule_pipeline(row, &full));
    int16_t *stage_of;
    Schedule s = {.level = OVER_CHUNKS,
                  .stages = full.stages,
                  .chunks = full.stages * full.chunks,
                  .micros = full.micros,
                  .slices = full.slices};
    TRY(ARENA_NEW(arena, s.chunks, &stage_of));
    for (int chunk = 0; chunk < s.chunks; chunk++)
        stage_of[chunk] = (int16_t)pipeline_stage(row->order, s.stages, chunk);
    s.stage_of = stage_of;
    TRY(schedule_init(&s, NULL, arena, &s));

    const int least = row->micros_per_stage * full.stages + row->micros_more;
    if (full.micros < least) full.micros = least;
    for (int stage = 0; stage < s.stages; stage++) {
        const int64_t room = (int64_t)full.micros * full.slices * full.chunks * 3;
        TRY(ARENA_NEW(arena, room, &s.list[stage]));
        s.n[stage] =
            delete_surplus(s.list[stage], row->generate(&full, stage, s.list[stage]), s.micros);
    }
    *out = s;
    return OK;
}
