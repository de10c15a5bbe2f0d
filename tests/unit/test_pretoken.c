/* Patterns: hand-written matchers split as PCRE2 does; syntax with different meanings in the two
 * engines is refused. Also the composed form of characters. */
#include <utf8proc.h>
#include "base/philox.h"
#include "data/pretoken.h"
#include "support/data_test.h"

static const unsigned char *traits;

static int setup_traits(void **state)
{
    return setup(state) != 0 || unicode_traits(&arena, &traits) != OK;
}

/* Returns characters that the patterns distinguish more often than their share. */
static uint32_t some_code(const Random *r, uint64_t i)
{
    static const uint32_t common[] = {
        ' ',   ' ',  '\n',   '\r',   '\t',   '\'',   's',     'S',     't',     'r',
        'e',   'v',  'm',    'l',    'L',    'd',    0x17F,   0x212A,  '1',     '2',
        0x661, 0xBD, '.',    '!',    0xA0,   0x85,   0x2003,  0x3000,  0x180E,  0x200B,
        0x301, 0xE9, 0x4E00, 0xAC00, 0x1C8A, 0xA7DA, 0x10D41, 0x1F600, 0x31350, 0};
    const uint64_t word = random_bits(r, i);
    if (word % 8 != 0) return common[word / 8 % (sizeof common / sizeof *common)];
    const uint32_t code = (uint32_t)(word / 8 % UNICODE_CODES);
    return code >= 0xD800 && code < 0xE000 ? 'x' : code;
}

static Bytes some_text(const Random *r, uint64_t from, int n)
{
    static unsigned char text[4 * 64];
    size_t used = 0;
    for (int i = 0; i < n; i++)
        used += (size_t)utf8_put(some_code(r, from + (uint64_t)i), text + used);
    return (Bytes){text, used};
}

static void by_hand_is_by_pcre2(void **state)
{
    (void)state;
    const char *source[] = {pattern_gpt2, pattern_llama3, pattern_qwen2};
    Matcher m;
    DO(matcher_open(&m));
    for (int k = 0; k < 3; k++) {
        const Random r = random_named(7, source[k]);
        PretokenPattern hand, slow;
        DO(pattern_open(&hand, "hand", source[k], traits, true));
        DO(pattern_open(&slow, "slow", source[k], traits, false));
        assert_true(hand.known != KNOWN_NONE && slow.known == KNOWN_NONE);
        for (uint64_t i = 0; i < 6000; i++) {
            const Bytes text = some_text(&r, 64 * i, 1 + (int)(i % 37));
            for (size_t at = 0, end, want; at < text.bytes; at = end) {
                DO(pattern_next(&hand, &m, text, at, &end));
                DO(pattern_next(&slow, &m, text, at, &want));
                if (end != want)
                    fail_msg("pattern %d, text %llu: from %zu to %zu, and PCRE2 says %zu", k,
                             (unsigned long long)i, at, end, want);
            }
        }
        pattern_close(&slow);
    }
    matcher_close(&m);
}

static void what_differs_is_refused(void **state)
{
    (void)state;
    static const char *const row[][2] = {
        {"^a", "has \"^\" at byte 0: anchors are not supported"},
        {"a$", "has \"$\" at byte 1: anchors"},
        {"\\w+", "has \"\\w\" at byte 0: an escape that is not supported"},
        {"\\bx", "has \"\\b\""},
        {"x\\1", "has \"\\1\""},
        {"\\p{Han}+", "has \"\\p{Han}\" at byte 0: not a known general category"},
        {"\\pL", "is written \\p{Name}"},
        {"\\p{Letter", "is written \\p{Name}"},
        {"a{,3}", "not a count"},
        {"a{2}?", "has \"{2}?\""},
        {"a{1,3}+", "has \"{1,3}+\""},
        {"[a[bc]]", "nested sets"},
        {"[a&&b]", "nested sets"},
        {"[[:alpha:]]", "nested sets"},
        {"(?<=a)b", "has \"(?<=\""},
        {"(?<n>b)", "has \"(?<n\""},
        {"(*UCP)b", "a verb"},
        {"(?i:ss)", "match one character if case is ignored"},
        {"(?i:\xC3\xA4)", "case is supported for ASCII letters only"},
        {"(?x: a)", "a group that is not supported"},
        {"a)", "closes no group"},
        {"(a", "is not closed"},
        {"[a", "is not closed"},
        {"[]a]", "an empty set"},
        {"a**", "is not valid"},
        {"\\s*", "also matches the empty string"},
        {"a|", "also matches the empty string"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        PretokenPattern p;
        refused(pattern_open(&p, "file: place", row[i][0], traits, true), ERR_CONFIG, row[i][1]);
        assert_non_null(strstr(err_text(), "file: place: the pattern"));
    }
}

/* Pieces are the matches and the text between them. */
static void pieces(const char *source, const char *text, const char *want)
{
    char got[256] = "";
    const Bytes bytes = {(const unsigned char *)text, strlen(text)};
    PretokenPattern p;
    Matcher m;
    DO(matcher_open(&m));
    DO(pattern_open(&p, "test", source, traits, true));
    for (size_t at = 0, end; at < bytes.bytes; at = end) {
        DO(pattern_next(&p, &m, bytes, at, &end));
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s%.*s", at ? "|" : "",
                 (int)(end - at), text + at);
    }
    assert_string_equal(got, want);
    pattern_close(&p);
    matcher_close(&m);
}

static void other_patterns_match(void **state)
{
    (void)state;
    const char *literal;
    pieces("\\p{Lu}\\p{Ll}*|\\d{1,2}", "aBcDEf12345\u0661", "a|Bc|D|Ef|12|34|5\u0661");
    pieces("[^\\S\\n]+", "a \t\nb\u00a0c", "a| \t|\nb|\u00a0|c");
    pieces("\\P{L}+|\\p{^N}", "ab1!", "a|b|1!");
    pieces("(a|b)+(?!c)", "abcab", "a|bc|ab");
    pieces("(?i:x\\|k)", "aX|\u212Ab", "a|X|\u212A|b");
    pieces("[\\]\\-a]+", "x]-ay", "x|]-a|y");
    DO(pattern_literal("a.b(", &arena, &literal));
    pieces(literal, "a.b(axb(", "a.b(|axb(");
}

/* A code point alone and after letters composes as in utf8proc, unless it is inert. */
static void composition_is_utf8procs(void **state)
{
    (void)state;
    static const char *const around[][2] = {{"", ""}, {"e", ""}, {"q\u0345", "\u0334"}};
    const size_t mark = arena_mark(&arena);
    for (uint32_t code = 1; code < UNICODE_CODES; code++) {
        if (code >= 0xD800 && code < 0xE000) continue;
        for (int k = 0; k < 3; k++) {
            unsigned char text[32];
            size_t n = strlen(around[k][0]);
            Bytes got;
            memcpy(text, around[k][0], n);
            n += (size_t)utf8_put(code, text + n);
            memcpy(text + n, around[k][1], strlen(around[k][1]) + 1);
            n += strlen(around[k][1]);
            DO(unicode_nfc(traits, (Bytes){text, n}, &arena, &got));
            utf8proc_uint8_t *want = utf8proc_NFC(text);
            const bool inert = traits[code] & CHAR_INERT;
            const char *same = inert ? (const char *)text : (const char *)want;
            if (strlen(same) != got.bytes || memcmp(same, got.at, got.bytes) != 0)
                fail_msg("U+%lX in form %d", (unsigned long)code, k);
            free(want);
            arena_rewind(&arena, mark);
        }
    }
}

/* Long sequences of marks take only a sort; utf8proc's own sort is quadratic. */
static void long_rows_of_marks_are_sorted(void **state)
{
    (void)state;
    enum { N = 200000 };
    static unsigned char text[2 * N + 1];
    Bytes got;
    text[0] = 'q';
    for (int i = 0; i < N; i++) memcpy(text + 1 + 2 * i, i % 2 ? "\u0316" : "\u0301", 2);
    DO(unicode_nfc(traits, (Bytes){text, sizeof text}, &arena, &got));
    assert_int_equal(got.bytes, sizeof text);
    for (int i = 0; i < N; i++)
        assert_memory_equal(got.at + 1 + 2 * i, i < N / 2 ? "\u0316" : "\u0301", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand_is_by_pcre2),           cmocka_unit_test(what_differs_is_refused),
        cmocka_unit_test(other_patterns_match),          cmocka_unit_test(composition_is_utf8procs),
        cmocka_unit_test(long_rows_of_marks_are_sorted),
    };
    return cmocka_run_group_tests(tests, setup_traits, teardown);
}
