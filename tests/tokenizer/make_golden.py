"""Writes tests/golden/tokenizer: small vocabularies, and the official library's ids of hard texts.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python tests/tokenizer/make_golden.py
"""
import json
import os
import random

from tokenizers import Tokenizer

import nasty

FOLDER = os.path.join(os.path.dirname(__file__), "..", "golden", "tokenizer")
KINDS = {"gpt2": 700, "llama3": 1100}


def texts():
    yield from ["", " ", "a", "\n", "Hello, world! It's 2024.", "  two  spaces ", "x\n\ny\r\n\r\nz  \n  end  "]
    yield from nasty.SPECIAL + nasty.ENDINGS + nasty.SPACES + nasty.EMOJI
    yield from (f"a{s}{w}{s}b" for s in (" ", "  ", "\n", "\u3000") for w in ("<mask>", "<rest>", "<both>", "<mask><rest>", "word"))
    yield "".join(chr(p << 16 | c) for p in range(17) for c in (0x41, 0x300, 0x1F600 & 0xFFFF, 0xFFFD, 0xFFFE))
    for first in (0x300, 0x900, 0xD30, 0x1100, 0x1AB0, 0x1DC0, 0x1F00, 0xFB00, 0x10D20, 0x11900, 0x1E100):
        yield "".join("e\u0345" + chr(c) + "\u0334" for c in range(first, first + 24))
    r = random.Random(11)
    for size in (1, 2, 3, 4, 6, 9, 14, 22, 35):
        for _ in range(5):
            yield nasty.document(r, size)


os.makedirs(FOLDER, exist_ok=True)
tokenizers = {}
for kind, size in KINDS.items():
    path = os.path.join(FOLDER, f"{kind}.json")
    nasty.save(nasty.train(kind, nasty.documents(5, 400000), size), path, merges_as_text=kind == "gpt2")
    tokenizers[kind] = Tokenizer.from_file(path)
with open(os.path.join(FOLDER, "texts.jsonl"), "w", encoding="utf-8") as f:
    for text in texts():
        row = {"text": text}
        for kind, t in tokenizers.items():
            ids = t.encode(text, add_special_tokens=False).ids
            row[kind] = ids
            decoded = t.decode(ids, skip_special_tokens=False)
            if decoded != text:
                row[kind + "_decoded"] = decoded
        row["llama3_special"] = tokenizers["llama3"].encode(text).ids[:2]
        json.dump(row, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")
