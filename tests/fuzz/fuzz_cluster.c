/* fuzz_cluster.c -- any bytes as a cluster file: an error, or a cluster whose printed text is read
 * again and prints the same. */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz/fuzz.h"
#include "plan/cluster/cluster.h"

static const char *printed(const Cluster *c, Arena *a)
{
    const char *text;
    Text t = text_in(a);
    cluster_text(c, &t);
    if (text_done(&t, &text) != OK) abort();
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena *const a = fuzz_arena();
    Cluster c, again;
    if (cluster_read(fuzz_file(data, size), a, &c) != OK) return 0;
    const char *first = printed(&c, a);
    const char *path = fuzz_file((const uint8_t *)first, strlen(first));
    if (cluster_read(path, a, &again) != OK) abort();
    if (strcmp(first, printed(&again, a)) != 0) abort();
    return 0;
}
