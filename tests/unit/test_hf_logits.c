/* test_hf_logits.c -- loads folders that the transformers library wrote; the logits of a prompt
 * agree to 1e-4, for every family, on both devices and on meshes.
 *
 *     test_hf_logits FOLDER ...      the same for these folders, with an expected.json each; for
 *                                    tests/hf/compare.py */
#include <math.h>
#include <stdio.h>

#include "device/cpu/cpu.h"
#include "device/ref/ref.h"
#include "state/load.h"
#include "support/expect.h"
#include "support/hf_folders.h"
#include "support/tiny.h"
#include "infer/session.h"

typedef struct {
    const char *dir;
    ModelConfig config;
    HfExpected want;
    MeshSizes mesh;
    const Device *device;
    double worst;
} Case;

static Err load(WorldRank *w, const Case *c, Session *s)
{
    Manifest *m;
    LoadResult loaded;
    TRY(ARENA_NEW(w->arena, 1, &m));
    TRY(hf_open(c->dir, &c->config, F32, w->arena, m));
    const LoadSettings set = {.manifest = m,
                              .scope = LOAD_WEIGHTS,
                              .rank = &s->rank[0],
                              .comm = w->comm,
                              .all = w->all,
                              .temp = w->arena};
    return state_load(&set, &loaded);
}

static void compare(Case *c, const Tensor *logits)
{
    assert_int_equal(logits->n[0], c->want.T);
    assert_int_equal(logits->n[1], c->want.vocab);
    for (int64_t i = 0; i < c->want.T * c->want.vocab; i++) {
        const double off = fabs(real_get(logits, i) - c->want.logit[i]);
        if (!(off <= c->worst)) c->worst = off;
    }
}

static Err body(WorldRank *w, void *work)
{
    Case *c = work;
    JobSettings base = {.config = &c->config, .dtype = F32, .optim = {.block = 16}};
    const SessionShape shape = {c->want.T, c->want.T, 1, c->want.T, true};
    SessionJobs *jobs;
    Session *s;
    SessionRow *row;
    Tensor logits;
    base.parallel.mesh = c->mesh;
    base.parallel.rank = w->rank;
    TRY(ARENA_NEW(w->arena, c->want.T, &row));
    for (int64_t t = 0; t < c->want.T; t++) row[t] = (SessionRow){0, t, c->want.token[t], true};
    TRY(ARENA_NEW(w->arena, 1, &jobs));
    TRY(ARENA_NEW(w->arena, 1, &s));
    TRY(world_agree(w, session_compile(&base, &shape, w->arena, jobs)));
    const SessionSettings set = {jobs, c->device, w, NULL};
    TRY(world_agree(w, session_open(s, &set)));
    for (int i = 0; i < jobs->n; i++)
        for (int a = 0; a < N_ARENAS; a++) rank_poison(&s->rank[i], (ArenaId)a);
    Err err = world_agree(w, load(w, c, s));
    if (err == OK) err = session_call(s, row, c->want.T, &logits);
    if (err == OK && w->rank == s->sampling_rank) compare(c, &logits);
    world_leave(w, err);
    session_close(s);
    return err;
}

static void check_folder(const char *dir, MeshSizes mesh, const Device *device)
{
    Arena arena;
    DO(arena_open(&arena, "logits", ARENA_PLENTY));
    Case c = {.dir = dir, .mesh = mesh, .device = device};
    const int ranks = (mesh.tp ? mesh.tp : 1) * (mesh.pp ? mesh.pp : 1);
    const WorldSettings set = {
        .ranks = ranks, .in_flight = 64, .records = 64, .timeout_s = 20, .body = body, .work = &c};
    DO(model_config_inference(c.dir, &arena, &c.config));
    hf_folder_expected(c.dir, &arena, &c.want);
    if (world_run(&set) != OK) fail_msg("%s: %s", dir, err_text());
    if (!(c.worst <= 1e-4))
        fail_msg("%s, tp=%d pp=%d: logits are off by %g", dir, mesh.tp, mesh.pp, c.worst);
    arena_close(&arena);
}

static void check(const char *name, MeshSizes mesh, const Device *device)
{
    Arena arena;
    DO(arena_open(&arena, "path", ARENA_PLENTY));
    check_folder(hf_folder_path(name, &arena), mesh, device);
    arena_close(&arena);
}

static void on_one_rank(void **state)
{
    (void)state;
    const Device *cpu;
    DO(device_cpu_open(NULL, &cpu));
    for (int i = 0; hf_folders[i]; i++) {
        check(hf_folders[i], (MeshSizes){0}, &device_ref);
        check(hf_folders[i], (MeshSizes){0}, cpu);
    }
}

static void on_meshes(void **state)
{
    (void)state;
    for (int i = 0; hf_folders[i]; i++) {
        check(hf_folders[i], (MeshSizes){.tp = 2}, &device_ref);
        check(hf_folders[i], (MeshSizes){.pp = 2}, &device_ref);
    }
}

/* Folders of the command line. */
static char **given;

static void of_folders_given(void **state)
{
    (void)state;
    const Device *cpu;
    DO(device_cpu_open(NULL, &cpu));
    for (int i = 0; given[i]; i++) {
        check_folder(given[i], (MeshSizes){0}, cpu);
        check_folder(given[i], (MeshSizes){0}, &device_ref);
        check_folder(given[i], (MeshSizes){.tp = 2, .pp = 2}, cpu);
        printf("%s: logits agree\n", given[i]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_one_rank), cmocka_unit_test(on_meshes)};
    const struct CMUnitTest given_folders[] = {cmocka_unit_test(of_folders_given)};
    given = argv + 1;
    return argc > 1 ? cmocka_run_group_tests(given_folders, NULL, NULL)
                    : cmocka_run_group_tests(tests, NULL, NULL);
}
