/* tensorboard.c -- event files: one protocol buffer per record, framed as TFRecord.
 *
 *     record   u64 length, u32 crc(length), bytes, u32 crc(bytes)      crc: crc32c, masked
 *     Event    1 double wall_time, 2 int64 step, 3 string file_version or 5 Summary or 7 SessionLog
 *     SessionLog  1 enum status: 1 (start): readers discard this step and later ones
 *     Summary  1 repeated Value {1 string tag, 2 float simple_value}
 *
 * Little-endian throughout. Encoded by hand, since only four field types occur. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/write_error.h"
#include "train/lines.h"
#include "train/metrics.h"

typedef struct {
    unsigned char at[2048];
    size_t n;
} EventBuffer;

static uint32_t crc32c(const unsigned char *p, size_t n)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

static uint32_t masked(const unsigned char *p, size_t n)
{
    const uint32_t crc = crc32c(p, n);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static void put_bytes(EventBuffer *b, const void *p, size_t n)
{
    MUST(b->n + n <= sizeof b->at, "an event has more than %zu bytes", sizeof b->at);
    memcpy(b->at + b->n, p, n);
    b->n += n;
}

static void put_varint(EventBuffer *b, uint64_t x)
{
    for (; x >= 0x80; x >>= 7) put_bytes(b, &(unsigned char){(unsigned char)(x | 0x80)}, 1);
    put_bytes(b, &(unsigned char){(unsigned char)x}, 1);
}

static void put_text(EventBuffer *b, int field, const char *text)
{
    put_varint(b, (uint64_t)field << 3 | 2);
    put_varint(b, strlen(text));
    put_bytes(b, text, strlen(text));
}

static void put_value(EventBuffer *summary, const char *tag, double x)
{
    EventBuffer v = {.n = 0};
    const float narrow = (float)x;
    put_text(&v, 1, tag);
    put_varint(&v, 2 << 3 | 5);
    put_bytes(&v, &narrow, sizeof narrow);
    put_varint(summary, 1 << 3 | 2);
    put_varint(summary, v.n);
    put_bytes(summary, v.at, v.n);
}

static double wall_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static Err write_record(const MetricsSink *s, const EventBuffer *b)
{
    FILE *f = s->file;
    unsigned char head[8];
    const int64_t mark = lines_mark(f);
    for (int i = 0; i < 8; i++) head[i] = (unsigned char)((uint64_t)b->n >> 8 * i);
    const uint32_t head_crc = masked(head, sizeof head), crc = masked(b->at, b->n);
    fwrite(head, 1, sizeof head, f);
    fwrite(&head_crc, 1, sizeof head_crc, f);
    fwrite(b->at, 1, b->n, f);
    fwrite(&crc, 1, sizeof crc, f);
    if (lines_flush(f, mark) == OK) return OK;
    return err_fail(ERR_IO, "%s: cannot be written: %s", s->path, err_text());
}

static void put_time(EventBuffer *b)
{
    const double now = wall_s();
    put_varint(b, 1 << 3 | 1);
    put_bytes(b, &now, sizeof now);
}

static Err write_head(const MetricsSink *s, int64_t step)
{
    static const unsigned char starts[] = {1 << 3 | 0, 1};
    EventBuffer b = {.n = 0}, session = {.n = 0};
    put_time(&b);
    put_text(&b, 3, "brain.Event:2");
    TRY(write_record(s, &b));
    if (step == 0) return OK;
    put_time(&session);
    put_varint(&session, 2 << 3 | 0);
    put_varint(&session, (uint64_t)step + 1);
    put_varint(&session, 7 << 3 | 2);
    put_varint(&session, sizeof starts);
    put_bytes(&session, starts, sizeof starts);
    return write_record(s, &session);
}

static Err write_step(MetricsSink *s, const Metrics *m)
{
    EventBuffer b = {.n = 0}, summary = {.n = 0};
    put_value(&summary, "loss", m->loss);
    put_value(&summary, "grad_norm", m->grad_norm);
    put_value(&summary, "lr", m->lr);
    put_value(&summary, "tokens_per_s", m->tokens_per_s);
    put_value(&summary, "step_ms", m->step_ms);
    put_value(&summary, "mfu", m->mfu);
    if (m->has_valid) put_value(&summary, "valid_loss", m->valid_loss);
    if (m->router.layers > 0) {
        put_value(&summary, "aux_loss", m->router.aux);
        put_value(&summary, "z_loss", m->router.z);
        put_value(&summary, "load_max", m->router.max);
        put_value(&summary, "load_min", m->router.min);
        if (m->router.rounds >= 0) put_value(&summary, "expert_rounds", (double)m->router.rounds);
    }
    put_time(&b);
    put_varint(&b, 2 << 3 | 0);
    put_varint(&b, (uint64_t)m->step);
    put_varint(&b, 5 << 3 | 2);
    put_varint(&b, summary.n);
    put_bytes(&b, summary.at, summary.n);
    return write_record(s, &b);
}

/* The number distinguishes files of runs that start within one second. */
static Err create_file(MetricsSink *s, const char *dir)
{
    for (int i = 0; i < 1000; i++) {
        snprintf(s->path, sizeof s->path, "%s/events.out.tfevents.%lld.sheaf.%03d", dir,
                 (long long)wall_s(), i);
        s->file = fopen(s->path, "ax");
        if (s->file) return OK;
        if (errno != EEXIST) break;
    }
    return err_fail(ERR_IO, "%s: cannot be written: %s", s->path, write_error_text(errno));
}

Err tensorboard_open(MetricsSink *s, const MetricsSettings *settings)
{
    if (!settings->tensorboard) return OK;
    s->write = write_step;
    TRY(create_file(s, settings->dir));
    return write_head(s, settings->step);
}
