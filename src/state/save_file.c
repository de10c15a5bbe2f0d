/* save_file.c -- writes boxes to a file: hashed chunk by chunk, written in long runs, the
 * header last. */
#include "state/save_file.h"

#include <string.h>
#include "state/home_copy.h"
#include "state/disk.h"
#include "state/hash.h"
#include "state/rank_file.h"

static size_t element_of(const SaveParts *p, int64_t part)
{
    return dtype_bytes(p->tensors.tensor[p->parts.part[part].tensor].dtype);
}

static int64_t max_chunk(const SaveParts *p, int64_t part)
{
    return CHUNK_BYTES / (int64_t)element_of(p, part);
}

Err save_parts_open(SaveParts *p, const LinkedProgram *lp, int rank, Arena *a)
{
    *p = (SaveParts){0};
    TRY(state_tensors(lp, a, &p->tensors));
    TRY(state_parts(lp, rank, true, a, &p->parts));
    const int64_t n = p->parts.n;
    TRY(ARENA_NEW(a, n, &p->in_file));
    TRY(ARENA_NEW(a, n + 1, &p->at));
    TRY(ARENA_NEW(a, n + 1, &p->first));
    for (int64_t i = 0; i < n; i++) {
        const Box *box = &p->parts.part[i].box;
        p->at[i + 1] = p->at[i] + box_count(box) * (int64_t)element_of(p, i);
        p->first[i + 1] = p->first[i] + chunk_count(box, max_chunk(p, i));
    }
    TRY(ARENA_NEW(a, p->first[n], &p->hash));
    for (int64_t i = 0; i < n; i++)
        p->in_file[i] = (ManifestPart){.tensor = p->parts.part[i].tensor,
                                       .box = p->parts.part[i].box,
                                       .hash = p->hash + p->first[i]};
    return OK;
}

/* Returns the view of a part in the rank's home. */
static BoxView at_home(const SaveParts *p, const Rank *r, int64_t part)
{
    static const ParamPart of_role[N_STATE_ROLES] = {PART_MASTER, PART_MOMENT1, PART_MOMENT2};
    const StatePart *s = &p->parts.part[part];
    const Tensor home = rank_home(r, s->pack, of_role[p->tensors.tensor[s->tensor].role]);
    BoxView at = {.data = (char *)home.data + s->at * (int64_t)dtype_bytes(home.dtype)};
    memcpy(at.stride, s->stride, sizeof at.stride);
    return at;
}

/* A chunk: its part, its box, and its bytes, with the offset from the beginning of the data. */
typedef struct {
    int64_t part;
    Box box;
    int64_t at, bytes;
} SaveChunk;

static SaveChunk chunk_of(const SaveParts *p, int64_t part, int64_t i)
{
    int64_t before;
    SaveChunk c = {.part = part};
    c.box = chunk_at(&p->parts.part[part].box, max_chunk(p, part), i, &before);
    c.at = p->at[part] + before * (int64_t)element_of(p, part);
    c.bytes = box_count(&c.box) * (int64_t)element_of(p, part);
    return c;
}

static Err copy_chunk(const SaveParts *p, const Rank *r, const SaveChunk *c, char *to)
{
    const BoxView home = at_home(p, r, c->part);
    const size_t element = element_of(p, c->part);
    const BoxView in = box_inside(&home, &p->parts.part[c->part].box, &c->box, element);
    return home_read(r, &c->box, element, &in, to);
}

typedef struct {
    const SaveParts *parts;
    const Rank *rank;
} SnapshotCopy;

/* Copies one tile of the team: a chunk, numbered over all parts. */
static Err copy_nth(const SnapshotCopy *c, int64_t tile)
{
    const SaveParts *p = c->parts;
    int64_t lo = 0, hi = p->parts.n; /* the part is in [lo, hi) */
    while (hi - lo > 1) {
        const int64_t mid = lo + (hi - lo) / 2;
        if (p->first[mid] <= tile)
            lo = mid;
        else
            hi = mid;
    }
    const SaveChunk chunk = chunk_of(p, lo, tile - p->first[lo]);
    return copy_chunk(p, c->rank, &chunk, p->snapshot + chunk.at);
}

static void copy_tile(void *work, int64_t tile)
{
    MUST(copy_nth(work, tile) == OK, "the host's own memory is read");
}

/* On the host the team copies. A device is used by one thread at a time. */
Err save_parts_copy(const SaveParts *p, const Rank *r)
{
    SnapshotCopy c = {p, r};
    const int64_t n = p->first[p->parts.n];
    if (rank_on_host(r)) team_run(r->settings.team, n, copy_tile, &c);
    for (int64_t i = 0; !rank_on_host(r) && i < n; i++) TRY(copy_nth(&c, i));
    return OK;
}

void save_point(const SaveFile *f, SavePoint point)
{
    if (f->hook->at) f->hook->at(f->hook->context, point, f->rank->settings.program->rank, f->step);
}

/* A file being written. `ready` bytes of its data are hashed, `written` bytes are written. */
typedef struct {
    SaveParts *parts;
    const SaveFile *file;
    char path[DISK_PATH_BYTES];
    int fd;
    int64_t data_at, ready, written;
    bool half;
} RankFileWriter;

/* Returns the address of the data's byte `at`, which is not written yet. */
static char *in_memory(const RankFileWriter *w, int64_t at)
{
    return w->parts->snapshot ? w->parts->snapshot + at : w->parts->buffer + (at - w->written);
}

static Err write_ready(RankFileWriter *w)
{
    const int64_t all = w->parts->at[w->parts->parts.n];
    TRY(disk_write(w->fd, w->path, w->data_at + w->written, in_memory(w, w->written),
                   (size_t)(w->ready - w->written)));
    w->written = w->ready;
    if (!w->half && 2 * w->written >= all) {
        w->half = true;
        save_point(w->file, SAVE_HALF);
    }
    return OK;
}

static Err write_data(RankFileWriter *w)
{
    SaveParts *p = w->parts;
    const int64_t all = p->at[p->parts.n];
    for (int64_t part = 0; part < p->parts.n; part++)
        for (int64_t i = p->first[part]; i < p->first[part + 1]; i++) {
            const SaveChunk c = chunk_of(p, part, i - p->first[part]);
            char *data = in_memory(w, c.at);
            if (!p->snapshot) TRY(copy_chunk(p, w->file->rank, &c, data));
            p->hash[i] = hash_bytes(data, (size_t)c.bytes);
            w->ready = c.at + c.bytes;
            const bool at_half = !w->half && 2 * w->ready >= all;
            if (at_half || w->ready - w->written >= SAVE_WRITE_BYTES) TRY(write_ready(w));
        }
    return write_ready(w);
}

static Err write_open(RankFileWriter *w, RankFile *layout)
{
    const char *head;
    size_t bytes;
    w->data_at = layout->data_at;
    TRY(write_data(w));
    TRY(rank_file_header(&w->parts->tensors, layout, w->file->temp, &head, &bytes));
    TRY(disk_write(w->fd, w->path, 0, head, bytes));
    save_point(w->file, SAVE_DATA);
    return OK;
}

static Err write_file(RankFileWriter *w, const char *folder, int64_t *written)
{
    const SaveFile *f = w->file;
    char name[RANK_FILE_NAME_BYTES];
    RankFile layout = {.step = f->step,
                       .rank = f->rank->settings.program->rank,
                       .n = w->parts->parts.n,
                       .part = w->parts->in_file};
    rank_file_name(layout.rank, name);
    TRY(disk_path(folder, name, w->path));
    TRY(rank_file_layout(&w->parts->tensors, &layout, f->temp));
    TRY(disk_create(w->path, &w->fd));
    const Err err = write_open(w, &layout);
    if (err != OK) {
        disk_close(w->fd);
        return err;
    }
    TRY(disk_finish(w->fd, w->path));
    *written = layout.bytes;
    return OK;
}

Err save_file_write(SaveParts *p, const SaveFile *f, int64_t *written)
{
    RankFileWriter w = {.parts = p, .file = f};
    char folder[DISK_PATH_BYTES];
    *written = 0;
    TRY(folder_begin(f->checkpoints, f->step, folder, sizeof folder));
    save_point(f, SAVE_FOLDER);
    if (p->parts.n > 0) TRY(write_file(&w, folder, written));
    save_point(f, SAVE_SYNCED);
    return OK;
}
