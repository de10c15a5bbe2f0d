"""Writes src/data/unicode_table.c: the general categories that the official library's patterns go by (Unicode 16), and
the characters that its normalization (Unicode 9) does not know yet, found by asking it.

    venv/bin/pip install tokenizers==0.23.3 unicodedata2==18.0.0
    venv/bin/pip install --target u16 unicodedata2==16.0.0
    PYTHONPATH=u16 venv/bin/python -c 'import unicodedata2 as u; print(*(u.category(chr(c)) for c in range(0x110000)))' >16.txt
    venv/bin/python tests/tokenizer/make_unicode.py 16.txt >src/data/unicode_table.c
"""
import sys

import unicodedata2 as ucd
from tokenizers import normalizers

NAMES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
nfc = normalizers.NFC().normalize_str
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def category_runs(categories):
    runs = []
    for name in categories:
        if runs and runs[-1][1] == name:
            runs[-1][0] += 1
        else:
            runs.append([1, name])
    return [length << 5 | NAMES.index(name) for length, name in runs]


def known_mark(c):
    """Whether U+0334 (class 1) moves before it: it does not pass what the library takes for a letter."""
    text = "q\u0345" + chr(c) + "\u0334"
    return nfc(text) != text


def inert():
    """Characters that matter to today's NFC and not to the library's."""
    marks = {c for c in ALL if ucd.combining(chr(c))}
    known = {c for c in marks if known_mark(c)}
    out = marks - known
    pairs = {}
    for c in ALL:
        d = ucd.decomposition(chr(c))
        if d and not d.startswith("<"):
            pairs[c] = [int(x, 16) for x in d.split()]
    old = {c for c in pairs if nfc(chr(c)) != chr(c) or nfc("".join(map(chr, pairs[c]))) == chr(c)}
    for c in old:
        known |= {c, *pairs[c]}
    for c in set(pairs) - old:
        out |= {c, *pairs[c]} - known
    return sorted(out)


def ranges(cs):
    out = []
    for c in cs:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def rows(items):
    line, lines = "   ", []
    for item in items:
        if len(line) + len(item) + 1 > 100:
            lines.append(line)
            line = "   "
        line += " " + item
    return "\n".join(lines + [line])


categories = open(sys.argv[1]).read().split()
assert len(categories) == 0x110000
runs = [f"{r}," for r in category_runs(categories)]
quiet = [f"{{0x{a:x}, 0x{b:x}}}," for a, b in ranges(inert())]
print(f"""/* unicode_table.c -- made by tests/tokenizer/make_unicode.py, which says what this is; do not edit. */
#include "data/unicode.h"

/* clang-format off */
const uint32_t unicode_run[] = {{
{rows(runs)}
}};
const int unicode_runs = {len(runs)};

const uint32_t unicode_inert[][2] = {{
{rows(quiet)}
}};
const int unicode_inerts = {len(quiet)};
/* clang-format on */""")
