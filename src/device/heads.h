/* heads.h -- the key head that a query head reads, also if a rank has a part of the heads.
 *
 * Neighboring heads share a key head. A cut of the heads need not fall between such groups. A part
 * then holds the key heads that its heads read, and neighbors hold copies of one:
 *
 *     heads       0 1 2 | 3 4 5 | 6 7          8 heads over 2 key heads on 3 ranks: group = 4
 *     key heads   0 0 0 | 0 1 1 | 1 1
 *     head_at     0     | 3     | 2            index of a part's first head within its group
 *
 * So the middle part has 3 heads and 2 key heads: head 0 reads key head 0, heads 1 and 2 read 1. */
#ifndef DEVICE_HEADS_H
#define DEVICE_HEADS_H

#include "device/device.h"

/* Query heads of a call that read one key head: [from, to), which may be empty. */
typedef struct {
    int64_t from, to;
} Heads;

/* Number of heads that read one key head; key_heads > 0. */
static inline int64_t head_group(const Attr *attr, int64_t heads, int64_t key_heads)
{
    return attr->attention.group > 0 ? attr->attention.group : heads / key_heads;
}

/* The key head that a query head reads. */
static inline int64_t key_head(const Call *call, int64_t head)
{
    const int64_t group = head_group(&call->attr, call->in[0].n[1], call->in[1].n[1]);
    return (call->attr.attention.head_at + head) / group;
}

/* The query heads of this call that read a key head. */
static inline Heads key_readers(const Call *call, int64_t key)
{
    const int64_t heads = call->in[0].n[1], at = call->attr.attention.head_at;
    const int64_t group = head_group(&call->attr, heads, call->in[1].n[1]);
    const int64_t from = key * group - at, to = (key + 1) * group - at;
    return (Heads){from < 0 ? 0 : from, to > heads ? heads : to};
}

/* Number of keys of a call: 0 if there is no key head. */
static inline int64_t key_count(const Call *call)
{
    return call->in[1].n[1] > 0 ? call->in[1].n[0] : 0;
}

#endif
