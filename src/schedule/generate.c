/* generate.c -- the table of generators. A new one is a file and a row. */
#include "schedule/generate.h"

#include <string.h>
#include "base/text.h"

static const GeneratorRow table[] = {
    {"gpipe", "all forwards, then all backwards; holds every micro-batch", gen_gpipe, true},
    {"1f1b", "a backward as soon as there is one; holds one micro-batch a stage after mine",
     gen_1f1b, false},
};
enum { N_GENERATORS = sizeof table / sizeof table[0] };

const GeneratorRow *schedule_generators(int *n)
{
    *n = N_GENERATORS;
    return table;
}

static Err find(const char *name, Arena *arena, const GeneratorRow **out)
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
    Text t = text_in(arena);
    for (int i = 0; i < N_GENERATORS; i++) text_add(&t, " %s", names[i]);
    TRY(text_done(&t, &list));
    return err_fail(ERR_CONFIG, "there is no schedule '%.64s'%s%s%s; allowed are%s", name,
                    near ? " (did you mean " : "", near ? near : "", near ? "?)" : "", list);
}

Err schedule_generate(const char *name, int ranks, int micros, int slices, Arena *arena,
                      Schedule *out)
{
    const GeneratorRow *row;
    TRY(find(name, arena, &row));
    if (slices > 1 && !row->slices)
        return err_fail(ERR_CONFIG,
                        "schedule %s runs whole micro-batches, slices is %d; set slices to 1", name,
                        slices);

    const Schedule shape = {
        .grain = OVER_CHUNKS, .ranks = ranks, .chunks = ranks, .micros = micros, .slices = slices};
    Schedule s;
    TRY(schedule_init(&shape, NULL, arena, &s)); /* says which size is out of range */
    for (int rank = 0; rank < ranks; rank++) {
        const int64_t room = (int64_t)micros * slices * 3;
        TRY(ARENA_NEW(arena, room, &s.list[rank]));
        s.n[rank] = row->generate(&s, rank, s.list[rank]);
    }
    *out = s;
    return OK;
}
