/* reshape_config.c -- the configuration of the target: the source's, changed as asked for. */
#include "cli/reshape.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "cli/config_job.h"
#include "cli/config_print.h"

/* How work lies over ranks may change; what is trained may not. */
Err reshape_check_keys(const Reshape *r)
{
    static const char *const may[] = {"mesh.",     "parallel.", "precision.",
                                      "numerics.", "run.",      "batch.micro="};
    for (int i = 0; i < r->n_set; i++) {
        bool fine = false;
        for (size_t k = 0; k < sizeof may / sizeof *may; k++)
            fine = fine || strncmp(r->set[i], may[k], strlen(may[k])) == 0;
        if (strncmp(r->set[i], "run.dir=", 8) == 0)
            return err_fail(ERR_CONFIG, "reshape: %s: the run folder is DST, %s", r->set[i],
                            r->target);
        if (!fine)
            return err_fail(ERR_CONFIG,
                            "reshape: %.80s: changes what is trained, not how it lies over ranks; "
                            "give it to `sheaf train` instead",
                            r->set[i]);
    }
    return OK;
}

static bool is_given(const Reshape *r, const char *begin)
{
    for (int i = 0; i < r->n_set; i++)
        if (strncmp(r->set[i], begin, strlen(begin)) == 0) return true;
    return false;
}

/* Keys that follow from those that are given: settled anew. */
static bool is_settled_anew(const Reshape *r, const char *section, const char *line)
{
    static const struct {
        const char *section, *key, *by[2];
    } row[] = {{"run", "ranks:", {"", ""}},
               {"run", "threads:", {"", ""}},
               {"run", "dir:", {"", ""}},
               {"mesh", "dp:", {"mesh.dp", "run.ranks="}},
               {"mesh", "dp_replicate:", {"mesh.dp", "run.ranks="}},
               {"mesh", "dp_shard:", {"mesh.dp", "run.ranks="}},
               {"parallel", "reduce:", {"parallel.zero=", "parallel.zero="}}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (strcmp(section, row[i].section) == 0 &&
            strncmp(line, row[i].key, strlen(row[i].key)) == 0)
            return is_given(r, row[i].by[0]) || is_given(r, row[i].by[1]) || !row[i].by[0][0];
    return false;
}

/* The stored configuration, less what is settled anew, as a run file. */
static Err write_base(const Reshape *r, const char *path)
{
    char section[64] = "";
    FILE *f = fopen(path, "w");
    if (!f) return err_fail(ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    for (const char *at = r->manifest.scalars.config, *end; *at; at = end) {
        end = strchr(at, '\n');
        end = end ? end + 1 : at + strlen(at);
        if (*at != ' ') snprintf(section, sizeof section, "%.*s", (int)strcspn(at, ":"), at);
        if (!is_settled_anew(r, section, at + strspn(at, " ")))
            fwrite(at, 1, (size_t)(end - at), f);
    }
    const bool bad = ferror(f) != 0;
    return fclose(f) != 0 || bad ? err_fail(ERR_IO, "%s: cannot be written", path) : OK;
}

Err reshape_config(Reshape *r)
{
    char path[RUNDIR_MAX + 64];
    const char *dir;
    JobSettings set;
    snprintf(path, sizeof path, "%s/config.yaml", r->dir);
    TRY(write_base(r, path));
    Text t = text_in(&r->arena);
    text_add(&t, "run.dir=%s", r->target);
    TRY(text_done(&t, &dir));
    r->set[r->n_set] = dir;
    TRY(config_load(path, r->set, r->n_set + 1, &r->arena, &r->config));
    TRY(config_write(&r->config, r->dir));
    TRY(config_model(&r->config, &r->arena, &r->model));
    TRY(config_job(&r->config, &r->model, &set));
    return job_compile(&set, &r->arena, &r->job);
}
