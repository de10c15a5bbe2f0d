/* test_speak.c -- text that comes as it is made: whole characters, nothing of a stop string, and the
 * order of prompts. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include "cli/speak.h"
#include "support/expect.h"

enum { PROMPTS = 3, TOKENS = 40 };

typedef struct {
    Arena arena;
    Speaker s;
    char *shown;
    size_t n_shown;
} Stage;

static const Bytes prompt[PROMPTS] = {{(const unsigned char *)"A:", 2},
                                      {(const unsigned char *)"B:", 2},
                                      {(const unsigned char *)"C:", 2}};

static void stage_open(Stage *st, const char *stop, const char *other)
{
    static Prompts prompts = {.text = (Bytes *)prompt, .n = PROMPTS};
    *st = (Stage){0};
    DO(arena_open(&st->arena, "test", ARENA_PLENTY));
    st->s = (Speaker){.prompts = &prompts, .stop = {stop, other}};
    st->s.n_stops = (stop != NULL) + (other != NULL);
    st->s.out = open_memstream(&st->shown, &st->n_shown);
    assert_non_null(st->s.out);
    DO(speaker_open(&st->s, TOKENS, &st->arena));
}

static void stage_close(Stage *st)
{
    fclose(st->s.out);
    free(st->shown);
    arena_close(&st->arena);
}

/* Bytes one by one; true: the speaker has enough. */
static bool say(Stage *st, int64_t of, const char *text)
{
    bool enough = false;
    for (; *text && !enough; text++) enough = speaker_token(&st->s, of, (unsigned char)*text);
    return enough;
}

#define NONE "\xef\xbf\xbd"
static void characters_are_whole(void **state)
{
    (void)state;
    Stage st;
    stage_open(&st, NULL, NULL);
    const char *const part[] = {"a",    "\xc3", "\xa9", "\xe2\x82", "\xac", "\xf0\x9f\x98",
                                "\x80", "\xa9", "\xff", "z"};
    const char *const want[] = {"A:a", "A:a", "A:a\xc3\xa9", "A:a\xc3\xa9",
                                "A:a\xc3\xa9\xe2\x82\xac", "A:a\xc3\xa9\xe2\x82\xac",
                                "A:a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
                                /* what is no UTF-8 is not waited for, U+FFFD stands there */
                                "A:a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" NONE,
                                "A:a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" NONE NONE,
                                "A:a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" NONE NONE "z"};
    for (int i = 0; i < 10; i++) {
        assert_false(say(&st, 0, part[i]));
        assert_string_equal(st.shown, want[i]);
    }
    assert_false(say(&st, 0, "\xe2\x82"));
    speaker_end(&st.s, 0, END_LENGTH); /* it never became a character */
    assert_string_equal(st.shown,
                        "A:a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" NONE NONE "z" NONE "\n");
    stage_close(&st);
}

static void stops_are_not_shown(void **state)
{
    (void)state;
    Stage st;
    stage_open(&st, "END", "EX");
    assert_false(say(&st, 0, "xE"));
    assert_string_equal(st.shown, "A:x");
    assert_false(say(&st, 0, "N"));
    assert_string_equal(st.shown, "A:x");
    assert_false(say(&st, 0, "E")); /* it was none, but this may be one */
    assert_string_equal(st.shown, "A:xEN");
    assert_true(say(&st, 0, "ND"));
    speaker_end(&st.s, 0, END_STOP);
    assert_string_equal(st.shown, "A:xEN\n");
    assert_int_equal(st.s.of[0].n_ids, 6);
    assert_true(say(&st, 1, "EX")); /* at once */
    speaker_end(&st.s, 1, END_STOP);
    assert_false(say(&st, 2, "E"));
    speaker_end(&st.s, 2, END_LENGTH); /* what was held back comes */
    assert_string_equal(st.shown, "A:xEN\nB:\nC:E\n");
    stage_close(&st);
}

static void prompts_keep_their_order(void **state)
{
    (void)state;
    Stage st;
    stage_open(&st, NULL, NULL);
    say(&st, 1, "one");
    say(&st, 0, "no");
    assert_string_equal(st.shown, "A:no");
    speaker_end(&st.s, 1, END_TOKEN);
    say(&st, 2, "tw");
    say(&st, 0, "ne");
    assert_string_equal(st.shown, "A:none");
    speaker_end(&st.s, 0, END_LENGTH);
    assert_string_equal(st.shown, "A:none\nB:one\nC:tw");
    say(&st, 2, "o");
    speaker_end(&st.s, 2, END_LENGTH);
    assert_string_equal(st.shown, "A:none\nB:one\nC:two\n");
    stage_close(&st);
}

static void ids_are_numbers(void **state)
{
    (void)state;
    Stage st;
    stage_open(&st, NULL, NULL);
    st.s.ids = true;
    say(&st, 0, "ab");
    speaker_end(&st.s, 0, END_LENGTH);
    say(&st, 1, "c");
    assert_string_equal(st.shown, "97 98\n99");
    stage_close(&st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(characters_are_whole),
        cmocka_unit_test(stops_are_not_shown),
        cmocka_unit_test(prompts_keep_their_order),
        cmocka_unit_test(ids_are_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
