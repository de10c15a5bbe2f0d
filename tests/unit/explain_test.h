/* explain_test.h -- `sheaf explain` run inside a test, and the same request compiled there. */
#ifndef EXPLAIN_TEST_H
#define EXPLAIN_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>
#include "cli/config/job.h"
#include "cli/verbs.h"
#include "schedule/text_form.h"

#define DO(call)                                                                                   \
    do {                                                                                           \
        if ((call) != OK) fail_msg("%s", err_text());                                              \
    } while (0)

enum { MAX_WORDS = 24, OUTPUT_BYTES = 1 << 22 };
static char output[OUTPUT_BYTES];

/* Sizes that differ from each other: 3 layers, 5 sequences of 24 tokens in micro-batches of 2. */
static const char *const small[] = {"model.name=llama-tiny", "model.num_hidden_layers=3",
                                    "data.seq_len=24",       "batch.global=5",
                                    "batch.micro=2",         "parallel.schedule=gpipe"};
enum { N_SMALL = sizeof small / sizeof *small };

/* Runs `sheaf VERB` with the first arguments and these (ended by NULL); `output` gets its output
 * on fd. */
static int run_verb(int fd, const char *verb, const char *const *first, int n_first, va_list words)
{
    char *argv[N_SMALL + MAX_WORDS] = {"sheaf", (char *)verb};
    int argc = 2;
    for (int i = 0; i < n_first; i++) argv[argc++] = (char *)first[i];
    for (const char *w; (w = va_arg(words, const char *)); argc++) argv[argc] = (char *)w;
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    const int kept = dup(fd);
    assert_true(kept >= 0 && dup2(fileno(file), fd) == fd);
    const int status = cli_run(argc, argv);
    fflush(stdout);
    dup2(kept, fd);
    close(kept);
    rewind(file);
    output[fread(output, 1, sizeof output - 1, file)] = '\0';
    fclose(file);
    return status;
}

static inline int explain(int fd, ...)
{
    va_list words;
    va_start(words, fd);
    const int status = run_verb(fd, "explain", small, N_SMALL, words);
    va_end(words);
    return status;
}

/* As explain(), with this verb. */
static inline int run_small(int fd, const char *verb, ...)
{
    va_list words;
    va_start(words, verb);
    const int status = run_verb(fd, verb, small, N_SMALL, words);
    va_end(words);
    return status;
}

static inline int explain_only(int fd, ...)
{
    va_list words;
    va_start(words, fd);
    const int status = run_verb(fd, "explain", NULL, 0, words);
    va_end(words);
    return status;
}

/* As explain_only(), with the first arguments in a list. */
static inline int explain_list(int fd, const char *const *list, int n, ...)
{
    va_list words;
    va_start(words, n);
    const int status = run_verb(fd, "explain", list, n, words);
    va_end(words);
    return status;
}

static inline void assert_printed(const char *part)
{
    if (!strstr(output, part)) fail_msg("\"%s\" is not in: %s", part, output);
}

static inline void assert_not_printed(const char *part)
{
    if (strstr(output, part)) fail_msg("\"%s\" is in: %s", part, output);
}

/* The same request, compiled by the test. */
typedef struct {
    Arena arena;
    Config config;
    ModelConfig model;
    Job job;
} Compiled;

static inline Compiled *compiled_rank(const char *const *set, int n, int rank, JobKind kind)
{
    Compiled *c = calloc(1, sizeof *c);
    JobSettings settings;
    DO(arena_open(&c->arena, "test", ARENA_PLENTY));
    DO(config_load(NULL, set, n, &c->arena, &c->config));
    DO(config_model(&c->config, &c->arena, &c->model));
    DO(config_job(&c->config, &c->model, &settings));
    settings.kind = kind;
    settings.parallel.rank = rank;
    DO(job_compile(&settings, &c->arena, &c->job));
    return c;
}

static inline Compiled *compiled(const char *more, JobKind kind)
{
    const char *set[N_SMALL + 1];
    memcpy(set, small, sizeof small);
    set[N_SMALL] = more;
    return compiled_rank(set, N_SMALL + (more != NULL), 0, kind);
}

static inline void done(Compiled *c)
{
    arena_close(&c->arena);
    free(c);
}

/* The output as JSON; the caller releases it. */
static inline json_t *parsed(void)
{
    json_error_t error;
    json_t *all = json_loads(output, JSON_REJECT_DUPLICATES, &error);
    if (!all) fail_msg("line %d: %s", error.line, error.text);
    assert_string_equal(json_object_iter_key(json_object_iter(all)), "version");
    return all;
}

/* The member at a path like "memory.work.bytes". */
static inline const json_t *at_path(const json_t *o, const char *path)
{
    char key[64];
    while (*path) {
        const size_t length = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)length, path);
        o = json_object_get(o, key);
        if (!o) fail_msg("there is no %s", key);
        path += length + (path[length] == '.');
    }
    return o;
}

static inline int64_t number(const json_t *o, const char *path)
{
    const json_t *n = at_path(o, path);
    assert_true(json_is_integer(n));
    return json_integer_value(n);
}

#endif
