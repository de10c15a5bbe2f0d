/* stage_splits.c -- devices of stages, and the units that each stage takes of them. */
#include <math.h>
#include <string.h>

#include "plan/search/stages_parts.h"
#include "schedule/chunks.h"

/* ---- devices ---- */

int stage_last(const StageSearch *s, int block)
{
    const int end = (block + 1) * s->each;
    return ((end < s->mesh.world ? end : s->mesh.world) - 1) / s->stage_ranks;
}

static double room_of(const StageSearch *s, int node)
{
    return fmin(s->kind[s->kind_of[node]].memory_bytes, s->r->limit_bytes);
}

void stage_devices(const StageSearch *s, const int *at, double *speed, double *room)
{
    for (int i = 0; i < s->stages; i++) {
        speed[i] = 1;
        room[i] = (double)INFINITY;
    }
    for (int b = 0; b < s->n; b++)
        for (int i = stage_first(s, b); i <= stage_last(s, b); i++) {
            speed[i] = fmin(speed[i], s->kind[s->kind_of[at[b]]].speed);
            room[i] = fmin(room[i], room_of(s, at[b]));
        }
}

static CostDevice device_of(const StageSearch *s, int node)
{
    const CostNodes *nodes = s->r->cluster->rates.nodes;
    CostDevice d = node < nodes->n_devices ? nodes->device[node] : (CostDevice){.speed = 1};
    if (d.memory_bytes == 0) d.memory_bytes = s->r->cluster->memory_bytes;
    return d;
}

void stage_kinds(StageSearch *s)
{
    for (int i = 0; i < s->n; i++) {
        const CostDevice d = device_of(s, i);
        int k = 0;
        while (k < s->n_kinds &&
               (s->kind[k].speed != d.speed || s->kind[k].memory_bytes != d.memory_bytes))
            k++;
        if (k == MAX_DEVICE_KINDS) { /* too many: the last kind has the least of its devices */
            CostDevice *last = &s->kind[--k];
            last->speed = fmin(last->speed, d.speed);
            last->memory_bytes = fmin(last->memory_bytes, d.memory_bytes);
        }
        if (k == s->n_kinds) s->kind[s->n_kinds++] = d;
        s->kind_of[i] = k;
    }
}

/* ---- splits ---- */

static bool same_split(const StageSearch *s, const int16_t *a, const int16_t *b)
{
    return memcmp(a, b, (size_t)s->chunks * sizeof *a) == 0;
}

Err stage_point(const StageSearch *s, const int16_t *count, PlanPoint *out)
{
    Text t = text_in(s->s->arena);
    *out = *s->point;
    if (same_split(s, count, s->given)) return OK;
    for (int c = 0; c < s->chunks; c++) text_add(&t, "%s%d", c ? "," : "", count[c]);
    out->by_cost = true;
    return text_done(&t, &out->split);
}

static Err keep_split(StageSearch *s, const int16_t *count, LinkedSplit **out)
{
    if (s->n_known == s->cap) {
        LinkedSplit *more;
        s->cap = s->cap ? 2 * s->cap : 64;
        TRY(ARENA_NEW(s->s->arena, s->cap, &more));
        if (s->n_known) memcpy(more, s->known, (size_t)s->n_known * sizeof *more);
        s->known = more;
    }
    *out = &s->known[s->n_known];
    TRY(ARENA_NEW(s->s->arena, s->chunks, &(*out)->count));
    TRY(ARENA_NEW(s->s->arena, s->stages, &(*out)->stage_bytes));
    memcpy((*out)->count, count, (size_t)s->chunks * sizeof *count);
    s->n_known++;
    return OK;
}

Err stage_link(StageSearch *s, const int16_t *count, const double **stage_bytes)
{
    LinkedSplit *split;
    PlanPoint p;
    for (int i = 0; i < s->n_known; i++)
        if (same_split(s, s->known[i].count, count)) {
            *stage_bytes = s->known[i].stage_bytes;
            return OK;
        }
    TRY(keep_split(s, count, &split));
    TRY(stage_point(s, count, &p));
    const Err err = plan_link_stages(s->s, &p, split->stage_bytes);
    if (err != OK && err != ERR_CONFIG) return err;
    for (int i = 0; i < s->stages && err != OK; i++) split->stage_bytes[i] = (double)INFINITY;
    *stage_bytes = split->stage_bytes;
    return OK;
}

/* Lowers the limits of chunks whose stages do not fit, to no fewer units than may fit: as if one
 * unit, an embedding, needed none of the memory, and the others all of it in equal parts. *fits: no
 * limit was lowered. False: a chunk has no unit left. */
static bool limit_chunks(const StageSearch *s, const double *bytes, const double *room,
                         const int16_t *count, int16_t *most, bool *fits)
{
    *fits = true;
    for (int i = 0; i < s->stages; i++) {
        int largest = -1;
        if (bytes[i] <= room[i]) continue;
        *fits = false;
        for (int c = 0; c < s->chunks; c++)
            if (s->stage_of[c] == i && (largest < 0 || count[c] > count[largest])) largest = c;
        const int less = 1 + (int)((count[largest] - 1) * room[i] / bytes[i]);
        const bool alone = s->chunks == s->stages;
        most[largest] = (int16_t)(alone && less < count[largest] ? less : count[largest] - 1);
        if (most[largest] < 1) return false;
    }
    return true;
}

Err stage_deal(StageSearch *s, const int *at, bool matters, int16_t *count, bool *found)
{
    const size_t mark = arena_mark(s->s->temp);
    double *speed, *room, *chunk_speed;
    int16_t *most;
    TRY(ARENA_NEW(s->s->temp, s->stages, &speed));
    TRY(ARENA_NEW(s->s->temp, s->stages, &room));
    TRY(ARENA_NEW(s->s->temp, s->chunks, &chunk_speed));
    TRY(ARENA_NEW(s->s->temp, s->chunks, &most));
    stage_devices(s, at, speed, room);
    for (int c = 0; c < s->chunks; c++) {
        chunk_speed[c] = speed[s->stage_of[c]];
        most[c] = (int16_t)s->units;
    }
    const ChunkDeal request = {s->units, s->chunks, s->cost, chunk_speed, most};
    for (bool fits = false; !fits;) {
        const int16_t *first;
        const double *bytes;
        TRY(schedule_deal(&request, s->s->temp, &first, found));
        if (!*found) break;
        for (int c = 0; c < s->chunks; c++) count[c] = (int16_t)(first[c + 1] - first[c]);
        if (!matters) break;
        TRY(stage_link(s, count, &bytes));
        *found = limit_chunks(s, bytes, room, count, most, &fits);
        if (!*found) break;
    }
    arena_rewind(s->s->temp, mark);
    return OK;
}
