/* fuse.c -- fewer, larger ops: the patterns, each of which is applied until it finds no place. */
#include "compile/compile.h"
#include "compile/fuse.h"

static const struct {
    const char *name;
    Err (*rewrite)(Graph *g, bool *found);
} pattern[] = {
    {"siblings", fuse_siblings},
    {"sum into product", fuse_sum},
    {"sum into norm", fuse_onto},
    {"loss at once", fuse_loss},
};

Err fuse(Graph *g)
{
    for (size_t i = 0; i < sizeof pattern / sizeof *pattern; i++)
        for (bool found = true; found;) {
            found = false;
            TRY(pattern[i].rewrite(g, &found));
        }
    return graph_check(g);
}
