/* pretoken.c -- compiles and matches patterns with PCRE2. Only this file uses PCRE2. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "data/pretoken.h"

#include <pcre2.h>
#include <string.h>

enum { MAX_MATCH_STACK = 1 << 26, MIN_MATCH_STACK = 1 << 15 };

static int known_pattern(const char *source)
{
    if (strcmp(source, pattern_gpt2) == 0) return KNOWN_GPT2;
    if (strcmp(source, pattern_llama3) == 0) return KNOWN_LLAMA3;
    return strcmp(source, pattern_qwen2) == 0 ? KNOWN_QWEN2 : KNOWN_NONE;
}

static Err no_memory(const char *what)
{
    return err_fail(ERR_NOMEM, "no memory for %s of PCRE2", what);
}

/* Refuses patterns that match the empty string: engines differ in which empty matches count. */
static Err check_code(const char *where, const char *source, pcre2_code *code)
{
    uint32_t empty = 0;
    pcre2_pattern_info(code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (!empty) return OK;
    return err_fail(ERR_CONFIG,
                    "%s: the pattern %.200s also matches the empty string, which is not supported; "
                    "write + for *",
                    where, source);
}

static Err compile(PretokenPattern *p, const char *where, const char *translated)
{
    int error;
    PCRE2_SIZE place;
    char why[120] = "";
    pcre2_compile_context *c = pcre2_compile_context_create(NULL);
    if (!c) return no_memory("a pattern");
    pcre2_set_newline(c, PCRE2_NEWLINE_LF); /* the newline that . does not match */
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)translated, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &place, c);
    pcre2_compile_context_free(c);
    if (!code) {
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        return err_fail(ERR_CONFIG, "%s: the pattern %.200s is not valid: %s", where, p->source,
                        why);
    }
    p->code = code;
    const Err err = check_code(where, p->source, code);
    if (err != OK) pattern_close(p);
    /* Without a JIT for this machine PCRE2 interprets: the same matches, slower. */
    if (err == OK) (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return err;
}

Err pattern_open(PretokenPattern *p, const char *where, const char *source,
                 const unsigned char *traits, bool by_hand)
{
    Arena temp;
    const char *translated;
    *p = (PretokenPattern){.source = source, .traits = traits};
    if (by_hand) p->known = known_pattern(source);
    if (p->known != KNOWN_NONE) return OK;
    TRY(arena_open(&temp, "pattern", (size_t)1 << 28));
    Err err = pattern_translate(where, source, &temp, &translated);
    if (err == OK) err = compile(p, where, translated);
    arena_close(&temp);
    return err;
}

void pattern_close(PretokenPattern *p)
{
    pcre2_code_free(p->code);
    p->code = NULL;
}

Err matcher_open(Matcher *m)
{
    m->match = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(MIN_MATCH_STACK, MAX_MATCH_STACK, NULL);
    if (m->match && m->context) { /* a NULL stack is no error: PCRE2 interprets */
        if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
        return OK;
    }
    matcher_close(m);
    return no_memory("a match");
}

void matcher_close(Matcher *m)
{
    pcre2_match_data_free(m->match);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    *m = (Matcher){0};
}

Err pattern_next(const PretokenPattern *p, Matcher *m, Bytes text, size_t at, size_t *end)
{
    char why[120] = "";
    if (p->known != KNOWN_NONE) {
        *end = known_next(p, text, at);
        return OK;
    }
    const int found =
        pcre2_match(p->code, text.at, text.bytes, at, PCRE2_NO_UTF_CHECK, m->match, m->context);
    *end = text.bytes;
    if (found == PCRE2_ERROR_NOMATCH) return OK;
    if (found < 0) {
        pcre2_get_error_message(found, (PCRE2_UCHAR *)why, sizeof why);
        return err_fail(ERR_CONFIG,
                        "the pattern %.200s: no match could be found: %s; split the text",
                        p->source, why);
    }
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(m->match);
    *end = place[0] > at ? place[0] : place[1];
    return OK;
}
