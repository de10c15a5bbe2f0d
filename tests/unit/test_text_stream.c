/* test_text_stream.c -- streamed text: only whole characters, no part of a stop string, and the
 * order of the prompts. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include "cli/text_stream.h"
#include "support/expect.h"

enum { PROMPTS = 3, TOKENS = 40 };

typedef struct {
    Arena arena;
    TextStream s;
    char *printed;
    size_t n_printed;
} StreamTest;

static const Bytes prompt[PROMPTS] = {{(const unsigned char *)"A:", 2},
                                      {(const unsigned char *)"B:", 2},
                                      {(const unsigned char *)"C:", 2}};

static void stream_test_open(StreamTest *st, const char *stop, const char *other)
{
    static Prompts prompts = {.text = (Bytes *)prompt, .n = PROMPTS};
    *st = (StreamTest){0};
    DO(arena_open(&st->arena, "test", ARENA_PLENTY));
    st->s = (TextStream){.prompts = &prompts, .stop = {stop, other}};
    st->s.n_stops = (stop != NULL) + (other != NULL);
    st->s.out = open_memstream(&st->printed, &st->n_printed);
    assert_non_null(st->s.out);
    DO(text_stream_open(&st->s, TOKENS, &st->arena));
}

static void stream_test_close(StreamTest *st)
{
    fclose(st->s.out);
    free(st->printed);
    arena_close(&st->arena);
}

/* Feeds the text byte by byte; true if a stop string ended it. */
static bool feed(StreamTest *st, int64_t of, const char *text)
{
    bool enough = false;
    for (; *text && !enough; text++) enough = text_stream_token(&st->s, of, (unsigned char)*text);
    return enough;
}

#define NONE "\xef\xbf\xbd"
static void only_whole_characters_are_printed(void **state)
{
    (void)state;
    StreamTest st;
    stream_test_open(&st, NULL, NULL);
    const char *const part[] = {"a",    "\xc3", "\xa9", "\xe2\x82", "\xac", "\xf0\x9f\x98",
                                "\x80", "\xa9", "\xff", "z"};
    const char *const want[] = {"A:a", "A:a", "A:a\xc3\xa9", "A:a\xc3\xa9",
                                "A:a\xc3\xa9\xe2\x82\xac", "A:a\xc3\xa9\xe2\x82\xac",
                                "A:a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
                                /* invalid UTF-8 is not held back: U+FFFD replaces it */
                                "A:a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" NONE,
                                "A:a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" NONE NONE,
                                "A:a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" NONE NONE "z"};
    for (int i = 0; i < 10; i++) {
        assert_false(feed(&st, 0, part[i]));
        assert_string_equal(st.printed, want[i]);
    }
    assert_false(feed(&st, 0, "\xe2\x82"));
    text_stream_end(&st.s, 0, END_LENGTH); /* an incomplete character ends as U+FFFD */
    assert_string_equal(st.printed,
                        "A:a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80" NONE NONE "z" NONE "\n");
    stream_test_close(&st);
}

static void stop_strings_are_not_printed(void **state)
{
    (void)state;
    StreamTest st;
    stream_test_open(&st, "END", "EX");
    assert_false(feed(&st, 0, "xE"));
    assert_string_equal(st.printed, "A:x");
    assert_false(feed(&st, 0, "N"));
    assert_string_equal(st.printed, "A:x");
    assert_false(feed(&st, 0, "E")); /* ENE is no stop string, but its last E may begin one */
    assert_string_equal(st.printed, "A:xEN");
    assert_true(feed(&st, 0, "ND"));
    text_stream_end(&st.s, 0, END_STOP);
    assert_string_equal(st.printed, "A:xEN\n");
    assert_int_equal(st.s.completion[0].n_ids, 6);
    assert_true(feed(&st, 1, "EX")); /* with the first token that completes it */
    text_stream_end(&st.s, 1, END_STOP);
    assert_false(feed(&st, 2, "E"));
    text_stream_end(&st.s, 2, END_LENGTH); /* the held-back suffix is printed */
    assert_string_equal(st.printed, "A:xEN\nB:\nC:E\n");
    stream_test_close(&st);
}

static void output_keeps_the_order_of_prompts(void **state)
{
    (void)state;
    StreamTest st;
    stream_test_open(&st, NULL, NULL);
    feed(&st, 1, "one");
    feed(&st, 0, "no");
    assert_string_equal(st.printed, "A:no");
    text_stream_end(&st.s, 1, END_TOKEN);
    feed(&st, 2, "tw");
    feed(&st, 0, "ne");
    assert_string_equal(st.printed, "A:none");
    text_stream_end(&st.s, 0, END_LENGTH);
    assert_string_equal(st.printed, "A:none\nB:one\nC:tw");
    feed(&st, 2, "o");
    text_stream_end(&st.s, 2, END_LENGTH);
    assert_string_equal(st.printed, "A:none\nB:one\nC:two\n");
    stream_test_close(&st);
}

static void ids_are_printed_as_numbers(void **state)
{
    (void)state;
    StreamTest st;
    stream_test_open(&st, NULL, NULL);
    st.s.ids = true;
    feed(&st, 0, "ab");
    text_stream_end(&st.s, 0, END_LENGTH);
    feed(&st, 1, "c");
    assert_string_equal(st.printed, "97 98\n99");
    stream_test_close(&st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_whole_characters_are_printed),
        cmocka_unit_test(stop_strings_are_not_printed),
        cmocka_unit_test(output_keeps_the_order_of_prompts),
        cmocka_unit_test(ids_are_printed_as_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
