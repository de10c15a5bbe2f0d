/* writer.c -- writes the formats that tokens.h reads. The header is written last, when the counts
 * are known. */
#define _POSIX_C_SOURCE 200809L
#include "data/writer.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include "base/text.h"
#include "data/tokens_parts.h"

enum { BLOCK = 1 << 13, SIZES_PER_BLOCK = 1 << 14 };

static void put_u32(unsigned char *p, uint32_t x)
{
    for (int i = 0; i < 4; i++) p[i] = (unsigned char)(x >> 8 * i);
}

static void put_u64(unsigned char *p, uint64_t x)
{
    put_u32(p, (uint32_t)x);
    put_u32(p + 4, (uint32_t)(x >> 32));
}

static Err put(Writer *w, int which, const void *bytes, size_t n)
{
    if (fwrite(bytes, 1, n, w->file[which]) == n) return OK;
    return err_fail(ERR_IO, "%s: cannot write: %s; is the disk full?", w->tmp[which],
                    strerror(errno));
}

static Err write_i64(Writer *w, int64_t x)
{
    unsigned char bytes[8];
    put_u64(bytes, (uint64_t)x);
    return put(w, 1, bytes, sizeof bytes);
}

static Err name_files(Writer *w)
{
    const size_t length = strlen(w->path);
    const char *end = length > 4 ? w->path + length - 4 : "";
    const bool bin = strcmp(end, ".bin") == 0;
    w->idx = "";
    if (strcmp(end, ".idx") == 0)
        return err_fail(ERR_CONFIG,
                        "%s: is the name of an index; tokens need a name that ends in .bin",
                        w->path);
    Text t = text_in(&w->arena);
    text_add(&t, "%s.part", w->path);
    TRY(text_done(&t, &w->tmp[0]));
    if (w->format != FORMAT_MEGATRON) return OK;
    if (!bin)
        return err_fail(ERR_CONFIG,
                        "%s: a Megatron pair is NAME.bin and NAME.idx; give the name of the .bin",
                        w->path);
    Text i = text_in(&w->arena);
    text_add(&i, "%.*s.idx", (int)length - 4, w->path);
    TRY(text_done(&i, &w->idx));
    Text p = text_in(&w->arena);
    text_add(&p, "%s.part", w->idx);
    return text_done(&p, &w->tmp[1]);
}

/* Refuses existing files that are not plain: a rename would replace a device, a FIFO or a dangling
 * link as well. */
static Err check_plain(const char *path, bool *there)
{
    struct stat s, at;
    *there = lstat(path, &s) == 0;
    if (!*there) return OK;
    const bool reached = stat(path, &at) == 0;
    if (reached && S_ISREG(at.st_mode)) return OK;
    const char *what = !reached               ? "a link to nothing"
                       : S_ISDIR(at.st_mode)  ? "a folder"
                       : S_ISFIFO(at.st_mode) ? "a FIFO"
                       : S_ISSOCK(at.st_mode) ? "a socket"
                                              : "a device";
    return err_fail(ERR_CONFIG, "%s: already exists and is %s%s; choose another name", path,
                    S_ISLNK(s.st_mode) && reached ? "a link to " : "", what);
}

/* Megatron's 4-byte tokens are signed. */
static bool writes_signed(const Writer *w) { return w->format == FORMAT_MEGATRON && w->width == 4; }

/* A token file of the same kind may be overwritten. Any other file may be valuable to its owner. */
static Err check_overwrite(Writer *w)
{
    Tokens old;
    bool there, idx = false;
    TRY(check_plain(w->path, &there));
    if (*w->idx) TRY(check_plain(w->idx, &idx));
    if (!there && !idx) return OK;
    const Err err = there ? tokens_open(w->path, FORMAT_AUTO, &w->arena, &old) : ERR_IO;
    if (err == OK) tokens_close(&old);
    if (err != OK || (old.format != FORMAT_TOKENS && old.format != FORMAT_MEGATRON))
        return err_fail(
            ERR_CONFIG,
            "%s: already exists and is not a token file; remove it or choose another name",
            there ? w->path : w->idx);
    const Tokens ours = {.format = w->format, .width = w->width, .is_signed = writes_signed(w)};
    if (old.format == ours.format && old.width == ours.width && old.is_signed == ours.is_signed)
        return OK;
    return err_fail(ERR_CONFIG,
                    "%s: already exists as %s, but %s would be written; remove it or "
                    "choose another name",
                    w->path, tokens_describe(&old), tokens_describe(&ours));
}

/* Never overwrites a temporary file: another build may still be writing it. */
static Err open_part(Writer *w, int which)
{
    w->file[which] = fopen(w->tmp[which], "wbx");
    w->made[which] = w->file[which] != NULL;
    if (w->made[which]) return OK;
    if (errno == EEXIST)
        return err_fail(ERR_CONFIG,
                        "%s: already exists: another build is writing it, or one was stopped; if "
                        "none runs, remove it",
                        w->tmp[which]);
    return err_fail(ERR_IO, "%s: cannot create: %s", w->tmp[which], strerror(errno));
}

static Err start(Writer *w)
{
    static const unsigned char zero[LLMC_HEADER_BYTES];
    TRY(name_files(w));
    TRY(check_overwrite(w));
    TRY(open_part(w, 0));
    if (*w->idx) return open_part(w, 1);
    return put(w, 0, zero, sizeof zero); /* space for the header */
}

Err writer_open(Writer *w, const char *path, TokenFormat format)
{
    return writer_open_ids(w, path, format, BYTE_VOCAB);
}

Err writer_open_ids(Writer *w, const char *path, TokenFormat format, int64_t vocab)
{
    if (format != FORMAT_TOKENS && format != FORMAT_MEGATRON)
        return err_fail(ERR_CONFIG, "%s: files are written as tokens or megatron, not as %s", path,
                        token_format_name(format));
    *w = (Writer){.path = path, .format = format, .width = vocab > 1 << 16 ? 4 : 2};
    TRY(arena_open(&w->arena, "token writer", ARENA_PLENTY));
    const Err err = start(w);
    if (err != OK) writer_close(w);
    return err;
}

/* Stores a size. The array grows by blocks of a multiple of ARENA_ALIGN, which the arena places
 * back to back. */
static Err add_size(Writer *w, int64_t tokens)
{
    if (tokens > INT32_MAX)
        return err_fail(ERR_CONFIG,
                        "%s: document %lld has %lld tokens, and an index counts %ld at most; "
                        "split it",
                        w->path, (long long)w->n_documents, (long long)tokens, (long)INT32_MAX);
    if (w->n_documents == w->n_sizes) {
        void *more;
        TRY(arena_push(&w->arena, SIZES_PER_BLOCK * sizeof *w->size, &more));
        if (w->n_sizes == 0) w->size = more;
        w->n_sizes += SIZES_PER_BLOCK;
    }
    w->size[w->n_documents] = (int32_t)tokens;
    return OK;
}

static Err count_tokens(Writer *w, int64_t n)
{
    if (w->format == FORMAT_TOKENS && n > INT32_MAX - w->n_tokens)
        return err_fail(ERR_CONFIG,
                        "%s: llm.c's header counts at most %ld tokens, and there are more; use "
                        "--format megatron, or write several files",
                        w->path, (long)INT32_MAX);
    w->n_tokens += n;
    w->document_tokens += n;
    return OK;
}

Err writer_ids(Writer *w, const int32_t *id, int64_t n)
{
    unsigned char block[4 * BLOCK];
    TRY(count_tokens(w, n));
    for (int64_t at = 0; at < n; at += BLOCK) {
        const int64_t part = n - at < BLOCK ? n - at : BLOCK;
        for (int64_t i = 0; i < part; i++) {
            unsigned char bytes[4];
            put_u32(bytes, (uint32_t)id[at + i]);
            memcpy(block + i * w->width, bytes, (size_t)w->width);
        }
        TRY(put(w, 0, block, (size_t)(part * w->width)));
    }
    return OK;
}

Err writer_text(Writer *w, Bytes text)
{
    unsigned char block[2 * BLOCK];
    MUST(w->width == 2, "bytes into a file of %d bytes a token", w->width);
    TRY(count_tokens(w, (int64_t)text.bytes));
    for (size_t at = 0; at < text.bytes; at += BLOCK) {
        const size_t n = text.bytes - at < BLOCK ? text.bytes - at : BLOCK;
        for (size_t i = 0; i < n; i++) block[2 * i] = text.at[at + i], block[2 * i + 1] = 0;
        TRY(put(w, 0, block, 2 * n));
    }
    return OK;
}

Err writer_end(Writer *w)
{
    if (w->format == FORMAT_MEGATRON) TRY(add_size(w, w->document_tokens));
    w->document_tokens = 0;
    w->n_documents++;
    return OK;
}

static Err write_header(Writer *w)
{
    unsigned char header[16];
    put_u32(header, w->width == 2 ? LLMC_MAGIC_U16 : LLMC_MAGIC_U32);
    put_u32(header + 4, w->width == 2 ? LLMC_VERSION_U16 : LLMC_VERSION_U32);
    put_u32(header + 8, (uint32_t)w->n_tokens);
    put_u32(header + 12, (uint32_t)w->start);
    if (fseek(w->file[0], 0, SEEK_SET) != 0)
        return err_fail(ERR_IO, "%s: cannot seek to its header: %s", w->tmp[0], strerror(errno));
    return put(w, 0, header, sizeof header);
}

static Err write_index(Writer *w)
{
    unsigned char header[MEGATRON_HEADER_BYTES] = MEGATRON_MAGIC, size[4];
    put_u64(header + 9, 1);
    header[17] = w->width == 2 ? MEGATRON_UINT16 : MEGATRON_INT32;
    put_u64(header + 18, (uint64_t)w->n_documents); /* a document is one sequence */
    put_u64(header + 26, (uint64_t)w->n_documents + 1);
    TRY(put(w, 1, header, sizeof header));
    for (int64_t d = 0; d < w->n_documents; d++) {
        put_u32(size, (uint32_t)w->size[d]);
        TRY(put(w, 1, size, sizeof size));
    }
    for (int64_t d = 0, byte = 0; d < w->n_documents; byte += w->width * (int64_t)w->size[d++])
        TRY(write_i64(w, byte));
    for (int64_t d = 0; d <= w->n_documents; d++) TRY(write_i64(w, d));
    return OK;
}

static Err close_file(Writer *w, int which)
{
    FILE *file = w->file[which];
    w->file[which] = NULL;
    if (fclose(file) == 0) return OK;
    return err_fail(ERR_IO, "%s: cannot write: %s; is the disk full?", w->tmp[which],
                    strerror(errno));
}

static Err rename_part(const char *from, const char *to)
{
    if (rename(from, to) == 0) return OK;
    return err_fail(ERR_IO, "%s: cannot rename to %s: %s", from, to, strerror(errno));
}

Err writer_finish(Writer *w)
{
    TRY(*w->idx ? write_index(w) : write_header(w));
    for (int i = 0; i < 2; i++)
        if (w->file[i]) TRY(close_file(w, i));
    TRY(rename_part(w->tmp[0], w->path));
    if (*w->idx) TRY(rename_part(w->tmp[1], w->idx));
    w->made[0] = w->made[1] = false;
    return OK;
}

void writer_close(Writer *w)
{
    for (int i = 0; i < 2; i++) {
        if (w->file[i]) {
            fclose(w->file[i]);
            w->file[i] = NULL;
        }
        if (w->made[i]) remove(w->tmp[i]);
    }
    arena_close(&w->arena);
}
