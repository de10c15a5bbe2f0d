/* states_save.c -- states of tests, saved. */
#define _DEFAULT_SOURCE
#include "support/states.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

StateScalars state_scalars(int64_t step)
{
    return (StateScalars){.step = step,
                          .cursor = STATE_SEQUENCES * step,
                          .tokens = 53 * step,
                          .seed = 11,
                          .data = 0x0123456789abcdef,
                          .seq_len = TEST_T,
                          .batch = STATE_SEQUENCES,
                          .optim = "adamw",
                          .dtype = "f64",
                          .device = "ref",
                          .kernels = "",
                          .config = "run:\n  seed: 11\n",
                          .model = "{}"};
}

/* Until the writer is no longer at it. */
static SaverState wait_while(const Saver *s, SaverState state)
{
    while (saver_poll(s) == state) usleep(200);
    return saver_poll(s);
}

static Err saver_came_to(const Saver *s, SaverState got, SaverState want)
{
    if (got == want) return OK;
    return err_fail(ERR_IO, "the saver is in state %d: %s", (int)got, saver_error(s));
}

static Err save_with(StateRank *r, Saver *s, int64_t step)
{
    const StateScalars scalars = state_scalars(step);
    TRY(saver_begin(s, &scalars));
    Err err = saver_came_to(s, wait_while(s, SAVER_WRITING), SAVER_WRITTEN);
    TRY(world_agree(r->world, err));
    if (r->world->rank == 0) {
        saver_commit(s);
        err = saver_came_to(s, wait_while(s, SAVER_COMMITTING), SAVER_COMMITTED);
    }
    TRY(world_agree(r->world, err));
    return saver_end(s, false);
}

Err state_save(StateRank *r, const char *checkpoints, int64_t step, bool snapshot)
{
    const SaverSettings set = {.rank = &r->rank,
                               .checkpoints = checkpoints,
                               .ranks = r->world->ranks,
                               .keep = 2,
                               .memory = snapshot ? SAVE_MEMORY_SNAPSHOT : SAVE_MEMORY_BUFFER};
    Saver *saver;
    TRY(saver_open(&set, r->world->arena, &saver));
    const Err err = save_with(r, saver, step);
    saver_close(saver);
    return err;
}

Err state_load_from(StateRank *r, const char *checkpoints, int64_t step, LoadResult *out)
{
    char dir[128];
    Manifest manifest;
    const LoadSettings set = {.manifest = &manifest,
                              .rank = &r->rank,
                              .comm = r->world->comm,
                              .all = r->world->all,
                              .temp = r->world->arena};
    snprintf(dir, sizeof dir, "%s/step-%08lld", checkpoints, (long long)step);
    TRY(world_agree(r->world, manifest_read(dir, r->world->arena, &manifest)));
    TRY(world_agree(r->world, state_load(&set, out)));
    return comm_idle(r->world->comm);
}

void state_folder(char path[64])
{
    const char *memory = "/dev/shm"; /* a sync costs nothing there */
    snprintf(path, 64, "%s/sheaf_state_XXXXXX", access(memory, W_OK) == 0 ? memory : "/tmp");
    assert_non_null(mkdtemp(path));
}

void state_folder_remove(const char *path)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    assert_int_equal(system(command), 0);
}
