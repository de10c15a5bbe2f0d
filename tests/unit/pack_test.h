/* pack_test.h -- schedules over units and tables of packs, for tests of gathers and reductions. */
#ifndef TESTS_PACK_TEST_H
#define TESTS_PACK_TEST_H

#include "support/test_arena.h"

#include <stdio.h>
#include <string.h>
#include "base/philox.h"
#include "base/text.h"
#include "schedule/check/check.h"
#include "schedule/check/packs.h"
#include "schedule/expand.h"
#include "schedule/gen/generate.h"
#include "schedule/text_form.h"

#ifndef SHEAF_SOURCE_DIR
#define SHEAF_SOURCE_DIR "."
#endif

enum { MAX_UNITS = 8 };

/* Splits every B into I and W. */
static inline void split_backward(Arena *a, Schedule *s)
{
    for (int stage = 0; stage < s->stages; stage++) {
        Action *list;
        int n = 0;
        DO(ARENA_NEW(a, 2 * s->n[stage], &list));
        for (int i = 0; i < s->n[stage]; i++) {
            Action run = s->list[stage][i];
            if (run.phase == PHASE_B) {
                run.phase = PHASE_I;
                list[n++] = run;
                run.phase = PHASE_W;
            }
            list[n++] = run;
        }
        s->list[stage] = list;
        s->n[stage] = n;
    }
}

/* Units in chunks as equal as possible, one per stage. */
static inline Schedule units_of(Arena *a, const char *name, int stages, int units, int micros,
                                bool split)
{
    Schedule s, out;
    int16_t *first;
    DO(schedule_generate(name, &(Pipeline){.stages = stages, .micros = micros}, a, &s));
    DO(ARENA_NEW(a, stages + 1, &first));
    for (int r = 0; r <= stages; r++) first[r] = (int16_t)(r * units / stages);
    s.first_unit = first;
    if (split) split_backward(a, &s);
    DO(schedule_expand(&s, EXPAND_STEP, a, &out));
    DO(schedule_check(&out, a));
    return out;
}

/* Unit 0 is the embedding: only its F reads. The last unit is the head: only its F reads, also from
 * the pack of unit 0 if they are tied. Layers read in F and I, and therefore in B. */
static inline void fill_packs(UnitPacks *packs, int units, bool tied)
{
    memset(packs, 0, (size_t)units * sizeof *packs);
    for (int u = 0; u < units; u++) {
        DO(packs_add(&packs[u].adds, u));
        DO(packs_add(&packs[u].reads[PHASE_F], u));
        if (u == 0 || u == units - 1) continue;
        DO(packs_add(&packs[u].reads[PHASE_I], u));
        DO(packs_add(&packs[u].reads[PHASE_B], u));
    }
    if (!tied) return;
    DO(packs_add(&packs[units - 1].adds, 0));
    DO(packs_add(&packs[units - 1].reads[PHASE_F], 0));
}

/* The stage's list in one line. */
static inline const char *list_text(Arena *a, const Schedule *s, int stage)
{
    const char *out;
    char word[ACTION_TEXT_BYTES];
    Text t = text_in(a);
    for (int i = 0; i < s->n[stage]; i++)
        text_add(&t, "%s%s", i ? " " : "", action_text(&s->list[stage][i], s->slices, word));
    DO(text_done(&t, &out));
    return out;
}

/* Checks that a head comment shows this line after `word`; dots may cut it short. */
static inline void assert_drawn(Arena *a, const char *file, const char *word, const char *line)
{
    char path[512];
    const char *source;
    size_t length;
    snprintf(path, sizeof path, SHEAF_SOURCE_DIR "/src/schedule/%s", file);
    DO(text_read_file(path, 1 << 20, a, &source, &length));
    const char *at = strstr(source, word);
    if (!at) fail_msg("%s draws no '%s'", file, word);
    for (at += strlen(word); *at == ' ';) at++;
    while (*at && *at != '\n') {
        const size_t n = strcspn(at, " \n");
        if (strncmp(at, "...", 3) == 0 || strncmp(at, "  ", 2) == 0) return;
        if (strncmp(at, line, n) != 0)
            fail_msg("%s, %s: drawn '%.*s', is '%s'", file, word, (int)n, at, line);
        at += n;
        line += n;
        if (*at == ' ' && *line == ' ') at++, line++;
    }
    assert_string_equal(line, "");
}

/* Checks that the list without the actions that a pass adds is the pass's input. */
static inline void assert_rest_is(const Schedule *s, const Schedule *before, unsigned added)
{
    for (int stage = 0; stage < s->stages; stage++) {
        int n = 0;
        for (int i = 0; i < s->n[stage]; i++) {
            if (added >> s->list[stage][i].kind & 1) continue;
            assert_true(n < before->n[stage]);
            assert_memory_equal(&s->list[stage][i], &before->list[stage][n++], sizeof(Action));
        }
        assert_int_equal(n, before->n[stage]);
    }
}

#endif
