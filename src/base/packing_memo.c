/* packing_memo.c -- packings that were found before.
 *
 * Ranks that differ in their coordinates alone often have the same pieces, and packing is a quarter
 * of the time of linking thousands of them. An entry stores the pieces that were given, which are
 * compared if the hashes are equal, and their offsets. */
#include "base/packing.h"

#include <string.h>

enum { MEMO_SLOTS = 1 << 12, MEMO_LEAST_PIECES = 64 /* fewer are packed as fast as found */ };

typedef struct {
    int32_t first, last;
    size_t bytes;
} Asked;

typedef struct MemoEntry MemoEntry;
struct MemoEntry {
    MemoEntry *next;
    uint64_t hash;
    int n;
    const Asked *asked;   /* [n] */
    const size_t *offset; /* [n] */
    PackResult result;
};

struct PackMemo {
    Arena arena;
    MemoEntry *slot[MEMO_SLOTS];
};

Err pack_memo_open(Arena *arena, size_t bytes, PackMemo **out)
{
    void *base;
    TRY(ARENA_NEW(arena, 1, out));
    TRY(arena_push(arena, bytes, &base));
    (*out)->arena = (Arena){.name = "packings", .base = base, .cap_bytes = bytes};
    return OK;
}

static uint64_t hash_pieces(const Piece *piece, int n)
{
    uint64_t h = (uint64_t)n;
    for (int i = 0; i < n; i++) {
        h = (h ^ ((uint64_t)(uint32_t)piece[i].first << 32 | (uint32_t)piece[i].last)) *
            0xFF51AFD7ED558CCDu;
        h = (h ^ h >> 32 ^ piece[i].bytes) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return h;
}

static bool has_pieces(const MemoEntry *e, const Piece *piece, int n)
{
    bool same = e->n == n;
    for (int i = 0; i < n && same; i++)
        same = e->asked[i].first == piece[i].first && e->asked[i].last == piece[i].last &&
               e->asked[i].bytes == piece[i].bytes;
    return same;
}

/* Nothing if the memo is full. */
static void keep(PackMemo *m, uint64_t hash, const Piece *piece, int n, const PackResult *result)
{
    MemoEntry *e, **slot = &m->slot[hash % MEMO_SLOTS];
    Asked *asked;
    size_t *offset;
    const size_t needed = sizeof *e + (size_t)n * (sizeof *asked + sizeof *offset);
    if (m->arena.cap_bytes - m->arena.used_bytes < needed + 4 * ARENA_ALIGN) return;
    if (ARENA_NEW(&m->arena, 1, &e) != OK || ARENA_NEW(&m->arena, n, &asked) != OK ||
        ARENA_NEW(&m->arena, n, &offset) != OK)
        return;
    for (int i = 0; i < n; i++) {
        asked[i] = (Asked){piece[i].first, piece[i].last, piece[i].bytes};
        offset[i] = piece[i].offset;
    }
    *e = (MemoEntry){*slot, hash, n, asked, offset, *result};
    *slot = e;
}

Err pack_with(PackMemo *memo, Piece *piece, int n, Arena *temp, PackResult *out)
{
    if (!memo || n < MEMO_LEAST_PIECES) return pack(piece, n, temp, out);
    const uint64_t hash = hash_pieces(piece, n);
    for (const MemoEntry *e = memo->slot[hash % MEMO_SLOTS]; e; e = e->next) {
        if (e->hash != hash || !has_pieces(e, piece, n)) continue;
        for (int i = 0; i < n; i++) piece[i].offset = e->offset[i];
        *out = e->result;
        return OK;
    }
    TRY(pack(piece, n, temp, out));
    keep(memo, hash, piece, n, out);
    return OK;
}
