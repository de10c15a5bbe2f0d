/* state.c -- scalars of checkpoints, the kill hook of tests, lines at the start of a run. */
#define _POSIX_C_SOURCE 200809L
#include "cli/config/plan_file.h"
#include "cli/train/state.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cli/config/print.h"
#include "cli/config/keys.h"
#include "cli/machine.h"

Err train_scalars(TrainSession *s, StateScalars *out)
{
    const Config *c = &s->config;
    StateScalars made = {.seed = (uint64_t)c->run_seed,
                         .data = dataset_fingerprint(&s->train),
                         .seq_len = c->data_seq_len,
                         .batch = c->batch_global,
                         .pack = c->data_pack,
                         .optim = option_text(c->optim_kind),
                         .dtype = option_text(c->precision_compute),
                         .device = device_text(s->device, s->device_text),
                         .kernels = ""};
    Text t = text_in(&s->arena);
    config_print(c, &t);
    TRY(text_done(&t, &made.config));
    t = text_in(&s->arena);
    model_config_json(&s->model, &t);
    TRY(text_done(&t, &made.model));
    *out = made;
    return OK;
}

/* ---- SHEAF_KILL_AT, for tests ---- */

static void kill_at(void *context, SavePoint point, int rank, int64_t step)
{
    const KillAt *k = context;
    const bool here = (int)point == k->point && (k->rank < 0 || rank == k->rank);
    if (here && (k->step < 0 || step == k->step)) kill(getpid(), SIGKILL);
}

static Err bad_kill(const char *text)
{
    Arena arena;
    const char *names = "";
    TRY(arena_open(&arena, "points", (size_t)1 << 16));
    Text t = text_in(&arena);
    for (int i = 0; i < N_SAVE_POINTS; i++)
        text_add(&t, "%s%s", i ? ", " : "", save_point_name((SavePoint)i));
    (void)text_done(&t, &names);
    const Err err =
        err_fail(ERR_CONFIG,
                 "SHEAF_KILL_AT=%.60s: must be POINT, POINT:RANK or POINT:RANK:STEP; points "
                 "are %s",
                 text, names);
    arena_close(&arena);
    return err;
}

Err kill_at_read(KillAt *out)
{
    const char *text = getenv("SHEAF_KILL_AT");
    char name[40];
    long long step = -1;
    int rank = -1, end = 0;
    *out = (KillAt){.point = -1};
    if (!text || !text[0]) return OK;
    const size_t length = strcspn(text, ":");
    snprintf(name, sizeof name, "%.*s", (int)(length < 39 ? length : 39), text);
    const int point = save_point_of(name);
    const char *rest = text + length;
    if (*rest == ':' && sscanf(rest, ":%d%n:%lld%n", &rank, &end, &step, &end) >= 1) rest += end;
    if (point < 0 || *rest) return bad_kill(text);
    *out = (KillAt){point, rank, step};
    return OK;
}

SaveSettings train_save_settings(TrainSession *s)
{
    const Config *c = &s->config;
    return (SaveSettings){.folder = s->checkpoints,
                          .every = c->run_save_every,
                          .minutes = c->run_save_minutes,
                          .keep = c->run_keep,
                          .despite_errors = c->run_on_save_error == SAVE_CONTINUE,
                          .job = s->scalars,
                          .hook = {.at = s->kill.point >= 0 ? kill_at : NULL, .context = &s->kill}};
}

/* ---- lines at the start of a run ---- */

/* "dp=4 zero=3": the keys that differ from one rank. */
static void saved_layout(const char *yaml, char *out, size_t bytes)
{
    static const char *const key[][3] = {
        {"mesh", "pp", "1"},           {"mesh", "dp_replicate", "1"},
        {"mesh", "dp", "1"},           {"mesh", "tp", "1"},
        {"parallel", "zero", "0"},     {"parallel", "sequence", "false"},
        {"parallel", "schedule", NULL}};
    size_t n = 0;
    bool stages = false;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) {
        const char *value = config_yaml_value(yaml, key[i][0], key[i][1]);
        const int length = value ? (int)strcspn(value, "\n") : 0;
        const char *plain = key[i][2] ? key[i][2] : "";
        if (!value || n >= bytes || (!key[i][2] && !stages)) continue;
        if ((int)strlen(plain) == length && strncmp(plain, value, strlen(plain)) == 0) continue;
        if (i == 0) stages = true;
        n += (size_t)snprintf(out + n, bytes - n, "%s%s=%.*s", n ? " " : "", key[i][1],
                              length < 40 ? length : 40, value);
    }
    if (n == 0) snprintf(out, bytes, "one rank");
}

static void report_resumed(const TrainSession *s, const TrainStart *start)
{
    char layout[256];
    saved_layout(start->from->scalars.config, layout, sizeof layout);
    printf("continues at step %lld from %s (saved under %s)\n", (long long)start->at.step + 1,
           start->from->dir, layout);
    if (strcmp(start->from->scalars.device, s->scalars.device) != 0)
        printf("the checkpoint was written by other kernels (%s): results are as accurate, but not "
               "bit-identical\n",
               start->from->scalars.device);
}

/* "text.txt is encoded by DIR/tokenizer.json: 1.2k tokens" */
static void report_encoded(const TrainSession *s)
{
    char tokens[24];
    const Dataset *d = &s->train;
    if (d->n_encoded == 0) return;
    printf("%s%s encoded by %s: %s tokens\n", d->settings.path[0],
           d->settings.n_paths > 1 ? " and the other files are" : " is", d->settings.tokenizer,
           text_count((double)d->n_tokens, tokens));
}

/* "checkpoints: every 100 steps, every 15 minutes and after the last step, in ..." */
static void report_saves(const TrainSession *s)
{
    const Config *c = &s->config;
    const bool between = c->run_save_every > 0 || c->run_save_minutes > 0;
    printf("checkpoints: ");
    if (c->run_save_every > 0) printf("every %lld steps", (long long)c->run_save_every);
    if (c->run_save_every > 0 && c->run_save_minutes > 0) printf(", ");
    if (c->run_save_minutes > 0) printf("every %g minutes", c->run_save_minutes);
    printf("%s after the last step, in %s; the newest %lld are kept%s\n", between ? " and" : "only",
           s->checkpoints, (long long)c->run_keep,
           between ? "" : " (run.save_every=0, run.save_minutes=0)");
}

/* "plan: best.yaml, predicted for h100-sxm: 812.5 ms a step, 61.2 GiB a rank" */
static void report_plan(const TrainSession *s)
{
    char bytes[24];
    const PlanFile *p = s->config.plan;
    if (!p) return;
    printf("plan: %s", p->path);
    if (p->is_current)
        printf(", predicted for %s: %.3f ms a step, %s a rank\n", p->predicted.cluster,
               p->predicted.step_ms, text_bytes(p->predicted.memory_bytes, bytes));
    else
        printf("%s\n", p->choices ? ", edited since it was made: its predictions do not hold" : "");
}

void report_start(const TrainSession *s, const TrainStart *start)
{
    report_plan(s);
    report_encoded(s);
    report_saves(s);
    if (start->restarted)
        printf("the earlier run in this folder ended before its first checkpoint: training starts "
               "again at step 1 from the initial weights\n");
    if (start->init) printf("starts from the weights of %s; moments are 0\n", start->init->dir);
    if (start->from && manifest_is_weights(start->from))
        printf("starts from the weights of %s, which nobody has trained yet: moments are 0\n",
               start->from->dir);
    else if (start->from)
        report_resumed(s, start);
    if (start->from && *s->config.model_init)
        printf("model.init=%s is not used: it applies to runs without a checkpoint\n",
               s->config.model_init);
}
