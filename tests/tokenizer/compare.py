"""Compares the ids of `sheaf data build` with those of the official tokenizers library.

    python3 tests/tokenizer/compare.py build/release/sheaf [MEGABYTES [SEED]]      default: 24 and 3

The hard texts come from the seed. Two vocabularies or more, with different pre-tokenizers, are
trained on a part of them. Status 0: all ids are equal; 1: some differ, and the first is shown; 77:
the tokenizers library is not installed, so nothing was compared.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

try:
    import nasty
    from tokenizers import Tokenizer
except ImportError as why:
    print(f"SKIPPED: no ids were compared: {why} (pip install tokenizers==0.23.3; SHEAF_TEST_PYTHON names another python)")
    sys.exit(77)

SIZES = {"gpt2": 4000, "llama3": 12000, "qwen2": 3000, "odd": 2000}


def built(binary, source, name, *flags):
    """The ids of each document, read from a Megatron pair, and the printed output."""
    printed = subprocess.run([binary, "data", "build", source, "-o", name + ".bin", "--format", "megatron", "--eot", "none", *flags],
                          check=True, capture_output=True, text=True).stdout
    index = open(name + ".idx", "rb").read()
    n, = struct.unpack_from("<Q", index, 18)
    width = {8: 2, 4: 4}[index[17]]
    data = memoryview(open(name + ".bin", "rb").read()).cast("H" if width == 2 else "i")
    out, at = [], 0
    for size in struct.unpack_from(f"<{n}i", index, 34):
        out.append(data[at : at + size].tolist())
        at += size
    return out, printed


def differ(kind, text, got, want):
    i = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    print(f"{kind}: id {i} of {len(want)}: {got[i:i + 5]}, and {want[i:i + 5]} is wanted, in {ascii(text[:300])}")
    return 1


def write_lines(path, texts):
    with open(path, "w", encoding="utf-8") as f:
        for text in texts:
            f.write(json.dumps({"text": text}) + "\n")


def every_code():
    """Every code point, next to words, stripped spaces, and itself; 64 per text."""
    codes = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for at in range(0, len(codes), 64):
        yield "".join(f"word{c} a{c}<mask>{c}{c}1{c}word" for c in map(chr, codes[at : at + 64]))


def compare(binary, kind, texts, folder):
    path, lines = os.path.join(folder, kind + ".json"), os.path.join(folder, "texts.jsonl")
    nasty.save(nasty.train(kind, texts[: len(texts) // 10], SIZES[kind]), path, merges_as_text=kind == "gpt2")
    official = Tokenizer.from_file(path)
    if kind == "llama3":
        texts, lines = texts + list(every_code()), os.path.join(folder, "more.jsonl")
    write_lines(lines, texts)
    got, _ = built(binary, lines, os.path.join(folder, kind), "--tokenizer", path)
    assert len(got) == len(texts), (len(got), len(texts))
    n = 0
    for at in range(0, len(texts), 500):
        for text, ids, want in zip(texts[at : at + 500], got[at : at + 500], official.encode_batch(texts[at : at + 500])):
            if ids != want.ids:
                return differ(kind, text, ids, want.ids)
            n += len(ids)
    print(f"{kind}: {n} ids are equal")
    return compare_raw(binary, kind, path, folder)


def compare_raw(binary, kind, path, folder):
    """One text with invalid UTF-8: U+FFFD replaces it, and the count is printed."""
    raw = bytearray(" and the \xff\xfe end ".encode("latin-1").join(t.encode() for t in nasty.documents(9, 600000)))
    for i in range(7, len(raw), 1013):
        raw[i] = 0x80 | raw[i]
    source = os.path.join(folder, "raw.txt")
    open(source, "wb").write(raw)
    got, printed = built(binary, source, os.path.join(folder, kind + "-raw"), "--tokenizer", path, "--from", "text")
    text = raw.decode("utf-8", errors="replace")
    want = Tokenizer.from_file(path).encode(text).ids
    if got != [want]:
        return differ(kind, text, got[0], want)
    bad = text.count("\ufffd") - raw.count("\ufffd".encode())
    if f"not UTF-8 in {bad} places" not in printed:
        print(f"{kind}: {bad} places are not UTF-8, and this was printed: {printed}")
        return 1
    print(f"{kind}: {len(want)} ids of one text with {bad} places that are not UTF-8 are equal")
    return 0


def main():
    binary = os.path.abspath(sys.argv[1])
    total = float(sys.argv[2]) if len(sys.argv) > 2 else 24
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        texts = list(nasty.documents(seed, total * 1e6))
        print(f"{len(texts)} documents, {sum(len(t.encode()) for t in texts)} bytes")
        for kind in SIZES:
            status |= compare(binary, kind, texts, folder)
    return status


sys.exit(main())
