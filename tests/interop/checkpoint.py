"""checkpoint.sh runs this script and describes it."""
import glob, pathlib, re, shutil, subprocess, sys, tempfile
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

root = pathlib.Path(__file__).parents[2]
sheaf = sys.argv[1]
golden = root / "tests/golden/checkpoint/step-00000020"
temp = tempfile.TemporaryDirectory()
failed = 0


def ok(what, condition):
    global failed
    if not condition:
        failed += 1
    print("ok" if condition else "FAILED", what)


def fails(what, part, call):
    try:
        call()
    except Exception as error:
        return ok(what, part in str(error))
    ok(what, False)


# element k of tensor t is 1000 t + k + 1/4
want = {
    ("layers.0.up", "weight"): np.arange(96, dtype=np.float32).reshape(12, 8) + 0.25,
    ("layers.0.up", "moment1"): np.arange(96, dtype=np.float32).reshape(12, 8) + 1000.25,
    ("layers.0.up", "moment2"): np.arange(96, dtype=np.float32).reshape(12, 8) + 2000.25,
    ("bias", "weight"): np.arange(5, dtype=np.float64) + 3000.25,
}

# the official library reads our files
n = 0
for path in sorted(glob.glob(f"{golden}/*.safetensors")):
    with safe_open(path, framework="np") as file:
        meta = file.metadata()
    ok("metadata", meta["format"] == "sheaf checkpoint 1" and meta["step"] == "20" and meta["rank"] == str(n))
    n += 1
    for key, box in load_file(path).items():
        stem, origin = key.rsplit("@", 1)
        name, role = stem.rsplit(".", 1)
        place = tuple(slice(int(lo), int(lo) + size) for lo, size in zip(origin.split(","), box.shape))
        ok(key, box.dtype == want[name, role].dtype and np.array_equal(box, want[name, role][place]))
ok("two files", n == 2)

# the reader of docs/CHECKPOINT.md reads them, and detects damage
text = (root / "docs/CHECKPOINT.md").read_text()
reader = {}
exec(re.search(r"```python\n(.*?)```", text, re.S).group(1), reader)
for (name, role), tensor in want.items():
    got = reader["read_tensor"](str(golden), name, role)
    ok(f"read_tensor {name} {role}", got.dtype == tensor.dtype and np.array_equal(got, tensor))
ok("chunks", reader["chunk_counts"]([3, 5, 4], 9) == [8, 8, 4] * 3 and reader["chunk_counts"]([], 9) == [1])
ok("chunks", reader["chunk_counts"]([7, 8], 20) == [16, 16, 16, 8])
copy = pathlib.Path(temp.name) / "copy"
for name, at in (("rank-00001.safetensors", 850), ("manifest.json", 60)):
    shutil.copytree(golden, copy, dirs_exist_ok=True)
    data = bytearray((golden / name).read_bytes())
    data[at] ^= 1
    (copy / name).write_bytes(data)
    if reader["xxhash"]:
        fails(f"{name} damaged", "is damaged", lambda: reader["read_tensor"](str(copy), "layers.0.up"))
    ours = subprocess.run([sheaf, "inspect", "--check", copy], capture_output=True, text=True)
    ok(f"{name} damaged, inspect", ours.returncode == 1 and name in ours.stderr)
if not reader["xxhash"]:
    print("SKIPPED: the reader found nothing damaged, since there is no xxhash (pip install xxhash)")

# we read files of the official library
random = np.random.default_rng(5)
types = "bool int8 uint8 int16 uint16 float16 int32 uint32 float32 float64 int64 uint64".split()
words = "BOOL I8 U8 I16 U16 F16 I32 U32 F32 F64 I64 U64".split()
for turn in range(40):
    tensors = {}
    for i in range(random.integers(1, 12)):
        shape = [int(x) for x in random.integers(0 if random.random() < 0.1 else 1, 5, random.integers(0, 6))]
        tensors[f"t{i}.{'x' * random.integers(1, 9)}"] = np.asarray(random.integers(0, 2, shape)).astype(types[(turn + i) % 12])
    path = pathlib.Path(temp.name) / "theirs.safetensors"
    save_file(tensors, path, metadata={"turn": str(turn)})
    result = subprocess.run([sheaf, "inspect", path], capture_output=True, text=True)
    rows = {tuple(line.split(None, 2)) for line in result.stdout.splitlines()}
    all_there = result.returncode == 0 and f"  metadata   turn: {turn}\n" in result.stdout
    for name, x in tensors.items():
        row = (name, words[types.index(x.dtype.name)], " x ".join(map(str, x.shape)) or "scalar")
        all_there = all_there and row in rows
    ok(f"theirs, {len(tensors)} tensors", all_there)

# a real run with uneven shards: the reader's tensors equal the library's, box by box
run = pathlib.Path(temp.name) / "run"
(pathlib.Path(temp.name) / "text").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
words = "model.name=llama-tiny data.seq_len=33 batch.global=4 run.steps=2 run.save_every=1 run.ranks=3 mesh.tp=3".split()
(pathlib.Path(temp.name) / "run.yaml").write_text("data: {}\n")
trained = subprocess.run(
    [sheaf, "train", f"{temp.name}/run.yaml", f"data.train={temp.name}/text", f"run.dir={run}", *words],
    capture_output=True, text=True,
)
ok("train", trained.returncode == 0)
for step in sorted(glob.glob(f"{run}/checkpoints/step-*")):
    tensors = {(t["name"], t["role"]): t for t in reader["read_manifest"](step)["tensors"]}
    got = {key: reader["read_tensor"](step, *key) for key in tensors}
    seen = {key: np.zeros(t["shape"], int) for key, t in tensors.items()}
    same = True
    for path in glob.glob(f"{step}/*.safetensors"):
        for key, box in load_file(path).items():
            stem, origin = key.rsplit("@", 1)
            name = tuple(stem.rsplit(".", 1))
            place = tuple(slice(int(lo), int(lo) + size) for lo, size in zip(origin.split(","), box.shape))
            same = same and np.array_equal(got[name][place], box)
            seen[name][place] += 1
    ok(f"{pathlib.Path(step).name}: {len(got)} tensors", same and all((x == 1).all() for x in seen.values()))
    ok("finite, and not zero", all(np.isfinite(x).all() for x in got.values()) and any(x.any() for x in got.values()))
ok("two checkpoints", len(glob.glob(f"{run}/checkpoints/step-*")) == 2)

print(f"{failed} failed")
sys.exit(failed > 0)
