/* fuzz_cluster.c -- any bytes as a cluster file: an error, or a cluster whose printed text is read
 * again and prints the same. */
#define _GNU_SOURCE /* memfd_create */
#include "fuzz/fuzz.h"
#include "plan/cluster.h"

static const char *printed(const Cluster *c)
{
    const char *text;
    Text t = text_in(fuzz_arena());
    cluster_text(c, &t);
    if (text_done(&t, &text) != OK) abort();
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Cluster c, again;
    if (cluster_read(fuzz_file(data, size), fuzz_arena(), &c) != OK) return 0;
    char *first = strdup(printed(&c));
    if (!first) abort();
    const char *path = fuzz_file((const uint8_t *)first, strlen(first));
    if (cluster_read(path, fuzz_arena(), &again) != OK) abort();
    if (strcmp(first, printed(&again)) != 0) abort();
    free(first);
    return 0;
}
