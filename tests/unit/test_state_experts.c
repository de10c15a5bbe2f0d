/* test_state_experts.c -- checkpoints of a model with experts: saved under one expert grid, loaded
 * under another. Every tensor is the right slice to the bit. Where routing is the same, training
 * continues as without the save. */
#include "support/experts.h"
#include "support/states.h"

#include <math.h>

enum { EXPERTS = 12, SAVED_AT = 2, NEXT = 2 };

static const struct {
    const char *words;
    int ep;
} grid[] = {{"dp=4 ep=2", 2},
            {"dp=4 ep=2 zero=1", 2},
            {"dp=4 ep=2 zero=2", 2},
            {"dp=4 ep=2 zero=3", 2},
            {"dp=2 ep=2 zero=1", 2},
            {"dp=6 ep=2 zero=3", 2},
            {"", 1},
            {"dp=4 zero=3", 1},
            {"dp=6 ep=3 zero=1", 3},
            {"dp=4 ep=4 zero=3", 4},
            {"dp=6 ep=6 zero=2", 6}};
enum { N_GRIDS = (int)(sizeof grid / sizeof grid[0]) };

typedef struct {
    StateWhole whole;
    char folder[64];
    double loss[NEXT];
    bool same; /* the rank that loads has the routing of the one that saved */
} Saved;

static Err train_and_save(StateRank *r, void *work)
{
    Saved *s = work;
    double loss;
    TRY(rank_init_weights(&r->rank, 11));
    for (int step = 1; step <= SAVED_AT; step++) TRY(state_step(r, step, &loss));
    TRY(state_collect(r, &s->whole));
    TRY(state_save(r, s->folder, SAVED_AT, true));
    for (int i = 0; i < NEXT; i++) {
        TRY(state_step(r, SAVED_AT + 1 + i, &loss));
        if (r->world->rank == 0) s->loss[i] = loss;
    }
    return OK;
}

static Err load_and_train(StateRank *r, void *work)
{
    Saved *s = work;
    LoadResult result;
    TRY(state_load_from(r, s->folder, SAVED_AT, &result));
    TRY(state_collect(r, &s->whole)); /* ERR_CHECK if an element differs */
    for (int i = 0; i < NEXT; i++) {
        double loss;
        TRY(state_step(r, SAVED_AT + 1 + i, &loss));
        if (s->same && !(fabs(loss - s->loss[i]) <= 1e-10))
            return err_fail(ERR_CHECK, "step %d has loss %.17g, without a save %.17g",
                            SAVED_AT + 1 + i, loss, s->loss[i]);
    }
    return OK;
}

static void open_grid(StateWorld *w, int i, ModelConfig *config)
{
    *config = experts_config(EXPERTS / grid[i].ep);
    state_world_open_as(
        w, &(StateSpec){.words = grid[i].words, .config = config, .change = experts_shard});
}

static void grids_exchange_checkpoints(void **state)
{
    (void)state;
    for (int a = 0; a < N_GRIDS; a += 3) {
        StateWorld from, to;
        ModelConfig config, other;
        Saved s = {0};
        open_grid(&from, a, &config);
        state_whole_open(&s.whole, &from);
        state_folder(s.folder);
        if (state_world_run(&from, train_and_save, &s) != OK)
            fail_msg("%s: %s", grid[a].words, err_text());
        for (int b = 0; b < N_GRIDS; b++) {
            s.same = grid[a].ep == grid[b].ep;
            open_grid(&to, b, &other);
            if (state_world_run(&to, load_and_train, &s) != OK)
                fail_msg("%s -> %s: %s", grid[a].words, grid[b].words, err_text());
            state_world_close(&to);
        }
        state_folder_remove(s.folder);
        state_whole_close(&s.whole);
        state_world_close(&from);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(grids_exchange_checkpoints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
