/* replicas.c -- hashes the cells of a rank and compares them between ranks. */
#include "train/replicas.h"

#include <stdio.h>
#include <string.h>
#include "state/home_copy.h"
#include "state/hash.h"
#include "state/manifest.h"
#include "train/replicas_parts.h"
#include "world/scalars.h"

static Tensor home_of(const Replicas *r, const StatePart *p)
{
    static const ParamPart part[N_STATE_ROLES] = {PART_MASTER, PART_MOMENT1, PART_MOMENT2};
    return rank_home(r->rank, p->pack, part[r->tensors.tensor[p->tensor].role]);
}

/* Hash of the hashes of the cell's chunks. */
static Err hash_cell(const Replicas *r, const ReplicaCell *c, uint64_t *out)
{
    const StatePart *p = &r->parts.part[c->mine];
    const Tensor home = home_of(r, p);
    const size_t element = dtype_bytes(home.dtype);
    const int64_t most = CHUNK_BYTES / (int64_t)element, n = chunk_count(&c->box, most);
    BoxView at = {.data = (char *)home.data + (size_t)p->at * element};
    uint64_t hash[2] = {0, 0};
    memcpy(at.stride, p->stride, sizeof at.stride);
    for (int64_t i = 0; i < n; i++) {
        int64_t before;
        const Box box = chunk_at(&c->box, most, i, &before);
        const BoxView from = box_inside(&at, &p->box, &box, element);
        TRY(home_read(r->rank, &box, element, &from, r->buffer));
        hash[1] = hash_bytes(r->buffer, (size_t)box_count(&box) * element);
        hash[0] = hash_bytes(hash, sizeof hash);
    }
    *out = hash[0];
    return OK;
}

/* All-gathers rows of `n` numbers, one per rank, back to back; this rank's row is filled in. */
static Err gather(WorldRank *w, int64_t *rows, int64_t n)
{
    TRY(comm_register(w->comm, ARENA_REPLICAS, rows, sizeof *rows * (size_t)(n * w->ranks)));
    return world_gather(w, ARENA_REPLICAS, n, I64);
}

static bool holds(const Replicas *r, int ranks, int set, int rank)
{
    return r->holds[(int64_t)set * ranks + rank];
}

/* True if all holders of the set have the same number in this column. */
static bool agree(const Replicas *r, int ranks, int set, const int64_t *column, int64_t stride)
{
    const int64_t *first = NULL;
    for (int i = 0; i < ranks; i++) {
        if (!holds(r, ranks, set, i)) continue;
        if (first && column[i * stride] != *first) return false;
        if (!first) first = &column[i * stride];
    }
    return true;
}

/* The value that more than half of the holders have; false: there is none. */
static bool majority(const Replicas *r, int ranks, int set, const int64_t *hashes, int64_t *out)
{
    int n = 0;
    for (int i = 0; i < ranks; i++) n += holds(r, ranks, set, i);
    for (int i = 0; i < ranks; i++) {
        int same = 0;
        if (!holds(r, ranks, set, i)) continue;
        for (int k = 0; k < ranks; k++) same += holds(r, ranks, set, k) && hashes[k] == hashes[i];
        *out = hashes[i];
        if (2 * same > n) return true;
    }
    return false;
}

/* "rank 2", "ranks 0 and 1": the ranks that differ from the majority; all holders if there is
 * none. */
static void name_ranks(const Replicas *r, int ranks, int set, const int64_t *hashes, Text *t)
{
    int64_t most = 0;
    const bool known = majority(r, ranks, set, hashes, &most);
    int n = 0, left;
    for (int i = 0; i < ranks; i++) n += holds(r, ranks, set, i) && !(known && hashes[i] == most);
    left = n;
    text_add(t, n > 1 ? "ranks " : "rank ");
    for (int i = 0; i < ranks; i++) {
        if (!holds(r, ranks, set, i) || (known && hashes[i] == most)) continue;
        text_add(t, "%d%s", i, --left > 1 ? ", " : left == 1 ? " and " : "");
    }
    text_add(t, known ? " differ%s from the other copies" : " hold%s copies that differ",
             n > 1 ? "" : "s");
}

static Err name_fault(const Replicas *r, WorldRank *w, const ReplicaCell *c, const int64_t *hashes,
                      int64_t step)
{
    const StateTensor *x = &r->tensors.tensor[c->tensor];
    const char *who;
    Text t = text_in(w->arena);
    name_ranks(r, w->ranks, c->set, hashes, &t);
    TRY(text_done(&t, &who));
    return err_fail(
        ERR_CHECK,
        "after step %lld %s, in %s of %s: a machine has a memory or arithmetic fault, and "
        "weights trained since the previous comparison may be wrong; remove the machine and "
        "start the run again: it resumes from its newest checkpoint",
        (long long)step, who, state_role_name(x->role), x->name);
}

/* Compares the hashes of all cells of the set, and names the first that differs. */
static Err find_fault(Replicas *r, WorldRank *w, int set, int64_t step)
{
    int64_t *rows, *hashes, n = 0, at = 0;
    Err err = OK;
    for (int64_t i = 0; i < r->n_cells; i++) n += r->cell[i].set == set;
    TRY(ARENA_NEW(w->arena, n * w->ranks, &rows));
    TRY(ARENA_NEW(w->arena, w->ranks, &hashes));
    for (int64_t i = 0; i < r->n_cells; i++)
        if (r->cell[i].set == set) memcpy(&rows[n * w->rank + at++], &r->hash[i], sizeof *rows);
    TRY(gather(w, rows, n));
    at = 0;
    for (int64_t i = 0; i < r->n_cells && err == OK; i++) {
        if (r->cell[i].set != set) continue;
        for (int k = 0; k < w->ranks; k++) hashes[k] = rows[n * k + at];
        if (!agree(r, w->ranks, set, hashes, 1)) err = name_fault(r, w, &r->cell[i], hashes, step);
        at++;
    }
    MUST(err != OK, "the hash of a set differs, but that of no cell");
    return err;
}

Err replicas_check(Replicas *r, WorldRank *w, int64_t step)
{
    int64_t *mine = &r->hashes[(int64_t)w->rank * r->n_sets];
    memset(mine, 0, sizeof *mine * (size_t)r->n_sets);
    for (int64_t i = 0; i < r->n_cells; i++) {
        const ReplicaCell *c = &r->cell[i];
        if (c->mine < 0) continue;
        TRY(hash_cell(r, c, &r->hash[i]));
        const uint64_t both[2] = {(uint64_t)mine[c->set], r->hash[i]};
        mine[c->set] = (int64_t)hash_bytes(both, sizeof both);
    }
    TRY(gather(w, r->hashes, r->n_sets));
    for (int s = 0; s < r->n_sets; s++)
        if (!agree(r, w->ranks, s, &r->hashes[s], r->n_sets))
            return world_agree(w, find_fault(r, w, s, step));
    return OK;
}

Err replicas_open(Replicas *r, const Rank *rank, int ranks, Arena *a)
{
    *r = (Replicas){.rank = rank};
    TRY(replicas_plan(r, rank->settings.program, ranks, a));
    TRY(ARENA_NEW(a, r->n_cells, &r->hash));
    TRY(ARENA_NEW(a, (int64_t)r->n_sets * ranks, &r->hashes));
    return arena_push(a, CHUNK_BYTES, &r->buffer);
}
