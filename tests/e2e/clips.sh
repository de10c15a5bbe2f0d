#!/usr/bin/env bash
# clips.sh BINARY -- a diffusion transformer from clips to samples: build, show, train, resume,
# reshape, sample; other layouts; requests that make no sense.
. tests/support/e2e.sh
clips=$top/shapes.npy run=$top/run

quiet() { "$@" >"$top/out" 2>"$top/err"; }
says() { # word, command...: refused, exit status 2, with the word
    local word=$1
    shift
    "$@" >"$top/out" 2>"$top/err"
    [ $? = 2 ] && grep -q -- "$word" "$top/err" || { cat "$top/out" "$top/err" && false; }
}
train() { quiet "$sheaf" train model.name=stdit-tiny data.train="$clips" optim.lr=1e-3 "$@"; }
losses() { grep -o '"loss":[^,]*' "$1/metrics.jsonl"; }
weights() { cat "$1"/checkpoints/step-00000006/*.safetensors | cksum; }
# The largest difference of two files of samples.
off() { paste <(od -An -v -w4 -j128 -tf4 "$1") <(od -An -v -w4 -j128 -tf4 "$2") |
    awk '{d = $1 - $2; if (d < 0) d = -d; if (!(d <= m)) m = d} END {exit !(NR > 100 && m < 1e-4)}'; }

ok "synthetic clips" quiet "$sheaf" data build --moving-shapes 20 --frames 7 --size 8 -o "$clips"
ok "show" quiet "$sheaf" data show "$clips"
ok "shapes" grep -q "20 of 7 frames of 8 x 8 latents of 1 channel" "$top/out"
ok "join and cut" quiet "$sheaf" data build "$clips" "$clips" --frames 3 -o "$top/cut.npy"
ok "two of each" grep -q "80 clips of 3 frames" "$top/out"
ok "no file is replaced" says "cut.npy" "$sheaf" data build "$clips" -o "$top/cut.npy"

# The same with a number that is not finite, as damaged(FILE, COPY) makes it.
damaged() { cp "$1" "$2" && printf '\0\0\300\177' | dd of="$2" bs=1 seek=132 conv=notrunc status=none; }
fails() { # word, command...: exit status 1, with the word
    local word=$1
    shift
    "$@" >"$top/out" 2>"$top/err"
    [ $? = 1 ] && grep -q -- "$word" "$top/err" || { cat "$top/out" "$top/err" && false; }
}
ok "a damaged array" damaged "$clips" "$top/nan.npy"
ok "a build of NaN fails" fails "element 1 is" "$sheaf" data build "$clips" "$top/nan.npy" -o "$top/joined.npy"
ok "its output is removed" test ! -e "$top/joined.npy"
if [ -c /dev/full ]; then
    ln -s /dev/full "$top/full.npy"
    ok "a full disk" fails "No space left" "$sheaf" data build --moving-shapes 3 -o "$top/full.npy"
    ok "no part of a file stays" test ! -L "$top/full.npy"
fi
ok "a build of clips has no tokenizer" says "--tokenizer" "$sheaf" data build "$clips" --tokenizer bytes -o "$top/joined.npy"
ok "nor moving shapes a border" says "--eot" "$sheaf" data build --moving-shapes 2 --eot none -o "$top/joined.npy"
ok "no text to latents" says "corpus.bin" "$sheaf" data build README.md -o "$top/joined.npy"
ok "no ids to check" says "--vocab" "$sheaf" data check "$clips" --vocab 5

head -c 128 "$clips" >"$top/empty.npy"
for _ in $(seq 8960); do printf '\0\0\300\177'; done >>"$top/empty.npy"
ok "a run on NaN that changes no weights fails" fails "none of the steps of this run changed the weights" \
    "$sheaf" train model.name=stdit-tiny data.train="$top/empty.npy" batch.global=2 run.steps=3 run.dir="$top/nan"
ok "and saves nothing" test ! -e "$top/nan/checkpoints/latest"
ok "train" train batch.global=6 batch.micro=2 run.steps=6 run.dir="$run" data.valid="$clips" run.valid_every=3
ok "no causal mask" grep -q "attention (all pairs)" "$top/out"
ok "validation" grep -q '"valid_loss"' "$run/metrics.jsonl"
ok "train half" train batch.global=6 batch.micro=2 run.steps=6 run.dir="$top/half" run.save_every=3
cp -r "$top/half" "$top/again" && rm -r "$top/again/checkpoints/step-00000006"
ok "resume" train batch.global=6 batch.micro=2 run.steps=6 run.dir="$top/again" run.save_every=3
ok "same losses after a resume" diff <(losses "$top/half") <(losses "$top/again")
ok "same weights after a resume" diff <(weights "$top/half") <(weights "$top/again")
ok "recomputed" train batch.global=6 batch.micro=2 run.steps=6 run.dir="$top/full" parallel.recompute=full
ok "same losses when recomputed" diff <(losses "$top/half") <(losses "$top/full")
ok "ZeRO and pipeline" train run.steps=6 run.dir="$top/ranks" run.ranks=4 mesh.dp=2 mesh.pp=2 parallel.zero=2 batch.global=6
ok "a batch with a short micro-batch" train run.steps=2 run.dir="$top/short" batch.global=5 batch.micro=2
ok "reshape" quiet "$sheaf" reshape "$run" "$top/tp" mesh.tp=2
ok "continue under tp" train batch.global=6 batch.micro=2 run.steps=7 run.dir="$top/tp" run.ranks=2 mesh.tp=2 data.valid="$clips" run.valid_every=3
ok "explain" quiet "$sheaf" explain model.name=stdit-720m batch.global=1 mesh.tp=2
ok "simulate" quiet "$sheaf" simulate model.name=stdit-3b batch.global=8 mesh.dp=8 parallel.zero=3

generate() { quiet "$sheaf" generate "$run" --clips 5 --steps 4 --seed 3 "$@"; }
ok "samples" generate -o "$top/one.npy"
ok "samples by other calls" generate -o "$top/two.npy" --batch 2
ok "the same" off "$top/one.npy" "$top/two.npy"
ok "room for more clips" generate -o "$top/room.npy" --batch 9
ok "the same in a larger batch" off "$top/one.npy" "$top/room.npy"
ok "samples under tp and pp" generate -o "$top/four.npy" run.ranks=4 mesh.tp=2 mesh.pp=2
ok "the same on four ranks" off "$top/one.npy" "$top/four.npy"
ok "samples under cp" generate -o "$top/cp.npy" run.ranks=4 mesh.cp=2 mesh.pp=2
ok "the same by frames" off "$top/one.npy" "$top/cp.npy"
ok "another seed" quiet "$sheaf" generate "$run" --clips 5 --steps 4 --seed 4 -o "$top/other.npy"
ok "other samples" status 1 off "$top/one.npy" "$top/other.npy"
ok "samples can be shown" quiet "$sheaf" data show "$top/one.npy"

ok "no text to train on" says "clips" "$sheaf" train model.name=stdit-tiny data.train=README.md
ok "no clips for text" says "model of text" "$sheaf" train model.name=llama-tiny data.train="$clips"
ok "no packing" says "data.pack" train data.pack=false run.dir="$top/x"
ok "no tokenizer" says "data.tokenizer" train data.tokenizer=bytes run.dir="$top/x"
ok "another size" says "latent_height=8" train model.latent_height=16 run.dir="$top/x"
ok "no slices" says "slice" train parallel.schedule=seq1f1b mesh.pp=2 run.ranks=2 run.dir="$top/x"
ok "no texts" says "text_length" train model.text_length=3 model.text_width=4 run.dir="$top/x"
ok "no prompt" says "models of text" "$sheaf" generate "$run" -p hello
ok "a file for samples" says "-o NAME.npy" "$sheaf" generate "$run"
ok "no texts for samples" says "no text" "$sheaf" generate "$run" --texts "$clips" -o "$top/y.npy"
ok "no heads for ulysses" says "set parallel.context=dsp, or mesh.cp=4 or less" train mesh.cp=8 parallel.context=ulysses run.dir="$top/x"
ok "a plan of clips" quiet "$sheaf" explain model.name=stdit-tiny mesh.cp=2
ok "in clips" grep -q "batch      8 clips of 24 tokens" "$top/out"
ok "by frames" grep -q "tokens     whole frames over 2 ranks: this one has 12" "$top/out"
ok "no data" says "file of clips" "$sheaf" train model.name=stdit-tiny run.dir="$top/x"
ok "no such value" says "no value of any unit; there are" train parallel.offload=nothing run.dir="$top/x"
ok "each name once" test "$(grep -o 'along0\.o' "$top/err" | wc -l)" = 1
ok "no plan of text" says "docs/DSP.md" "$sheaf" explain model.name=stdit-tiny mesh.cp=2 --context ring
# texts FILE N: N texts of 2 states of 3, all zero, as numpy writes them.
texts() {
    printf '\223NUMPY\1\0v\0%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': ($2, 2, 3), }" >"$1"
    head -c $(($2 * 24)) /dev/zero >>"$1"
}
with_texts() { quiet "$sheaf" generate "$top/texts" --clips 2 --steps 2 "$@"; }
ok "texts of clips" texts "$top/shapes.text.npy" 20
ok "train on texts" train model.text_length=2 model.text_width=3 batch.global=2 run.steps=1 run.dir="$top/texts"
ok "texts of samples" texts "$top/two.texts.npy" 2
ok "samples by texts" with_texts --texts "$top/two.texts.npy" -o "$top/by-texts.npy"
ok "texts with NaN" damaged "$top/two.texts.npy" "$top/nan.texts.npy"
ok "no samples by NaN" fails "element 1 is" "$sheaf" generate "$top/texts" --clips 2 --texts "$top/nan.texts.npy" -o "$top/z.npy"
ok "a number of texts" says "it needs 1" "$sheaf" generate "$top/texts" --texts "$top/two.texts.npy" -o "$top/z.npy"
ok "no eval" says "clips" "$sheaf" eval "$run" --text README.md
ok "no Hugging Face" says "Hugging Face" "$sheaf" reshape "$run" "$top/hf" --hf
counted
