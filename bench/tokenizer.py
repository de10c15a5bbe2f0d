"""Speed of encoding text to ids on one thread: the official tokenizers library against Sheaf.

    python3 bench/tokenizer.py [build/release/bench/tokenizer [MEGABYTES]]

MEGABYTES is 8 by default. Needs the Python package tokenizers. There are two texts: this
repository's sources and documents, repeated; and the hard texts of tests/tokenizer. Each is encoded
by GPT-2's and by Llama 3's pattern, with vocabularies of 16,000 trained on the text. The library's
fastest call is measured (encode_batch_fast: no offsets), without threads, on the same parts of
64 KiB, alternating with Sheaf. The numbers of ids must be equal.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, os.path.join(ROOT, "tests", "tokenizer"))
import nasty  # noqa: E402
import tokenizers  # noqa: E402

PART = 1 << 16


def parts(data):
    """The parts of bench/tokenizer.c, which end with a newline."""
    n = len(data) // PART + 1
    at = [0]
    for i in range(1, n):
        line = data.find(b"\n", len(data) // n * i)
        at.append(line + 1 if line >= 0 else len(data))
    return [data[a:b].decode() for a, b in zip(at, at[1:] + [len(data)])]


def official(t, texts):
    """Returns seconds and the number of ids."""
    encode = getattr(t, "encode_batch_fast", t.encode_batch)
    begin = time.perf_counter()
    ids = sum(len(e.ids) for e in encode(texts, add_special_tokens=False))
    return time.perf_counter() - begin, ids


def ours(binary, path, text):
    printed = subprocess.run([binary, path, text, "threads=64"], check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"(\d+) threads?: ([\d.]+) MB/s, .* \((\d+) ids", printed)
    return {int(n): float(speed) for n, speed, _ in rows}, int(rows[0][2])


def texts_of(total):
    files = sorted(f for end in ("*.c", "*.h", "*.md", "*.py") for f in glob.glob(os.path.join(ROOT, "**", end), recursive=True)
                   if "/build/" not in f)
    sources = "".join(open(f, encoding="utf-8").read() for f in files)
    yield "sources", (sources * (total // len(sources) + 1))[:total]
    yield "hard texts", "\n".join(nasty.documents(4, total))


def main():
    binary = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build", "release", "bench", "tokenizer")
    total = int(float(sys.argv[2]) * 1e6) if len(sys.argv) > 2 else 8000000
    print(f"tokenizers {tokenizers.__version__}, one thread; load before: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts_of(total):
            data = text.encode()
            file = os.path.join(folder, "text")
            open(file, "wb").write(data)
            for kind in ("gpt2", "llama3"):
                path = os.path.join(folder, kind + ".json")
                nasty.save(nasty.train(kind, parts(data)[:30], 16000), path, merges_as_text=False)
                t = tokenizers.Tokenizer.from_file(path)
                theirs_s, mine, ids = [], {}, None
                for _ in range(2):  # alternating
                    s, ids = official(t, parts(data))
                    theirs_s.append(s)
                    speeds, n = ours(binary, path, file)
                    assert n == ids, (n, ids)
                    for threads, speed in speeds.items():
                        mine[threads] = max(speed, mine.get(threads, 0))
                theirs = len(data) / min(theirs_s) / 1e6
                more = ", ".join(f"{n} threads {v:.1f}" for n, v in mine.items() if 1 < n <= os.cpu_count())
                print(f"{name}, {kind}: official {theirs:.2f} MB/s, Sheaf {mine[1]:.1f} MB/s: {mine[1] / theirs:.1f}x; {more}")


main()
