/* fuzz_schedule.c -- a schedule as text: an error, or a schedule that is equal after printing and
 * parsing it again, and that the checker accepts or refuses without a crash. */
#define _GNU_SOURCE
#include "fuzz/fuzz.h"
#include "schedule/check/check.h"
#include "schedule/text_form.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena *a = fuzz_arena();
    Schedule s, again;
    const char *text;
    if (schedule_parse("fuzz", (const char *)data, size, a, &s) != OK) return 0;
    if (schedule_print(&s, a, &text) != OK) abort();
    if (schedule_parse("again", text, strlen(text), a, &again) != OK) abort();
    if (!schedule_equal(&s, &again)) abort();
    (void)schedule_check(&s, a);
    return 0;
}
