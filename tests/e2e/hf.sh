#!/usr/bin/env bash
# hf.sh BINARY -- a model is exported to a Hugging Face folder and imported again: by model.init and
# by reshape, on one rank and on several; all start from the same weights, to the bit. Bad requests
# are refused and leave no files.
set -u
sheaf=$1
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache
cp LICENSE "$top/text"
common=(data.train="$top/text" data.seq_len=32 batch.global=6 run.threads=1 numerics.block=64)
passed=0 failed=0
check() { # name of the check, command...
    if "${@:2}" >"$top/out" 2>&1; then passed=$((passed + 1)); else
        failed=$((failed + 1))
        echo "FAILED: $1"
        tail -n 5 "$top/out"
    fi
}
refused() { # part of the message, command...
    "${@:2}" >"$top/printed" 2>&1
    [ $? = 2 ] && grep -q -- "$1" "$top/printed" || { cat "$top/printed"; return 1; }
}
prints() { # part of the output, command...
    "${@:2}" >"$top/printed" 2>&1 && grep -q -- "$1" "$top/printed" || { cat "$top/printed"; return 1; }
}
losses() { sed 's/.*"step": \([0-9]*\),.*"loss": \([^,]*\),.*/\1 \2/' "$1/metrics.jsonl"; }
same() { diff <(losses "$1") <(losses "$2") && [ "$(losses "$1" | wc -l)" = 3 ]; }
differs() { ! same "$1" "$2" && [ "$(losses "$2" | wc -l)" = 3 ]; }
train() { "$sheaf" train "${common[@]}" run.steps="${steps:-3}" "$@"; }

for model in gpt2-tiny llama-tiny; do
    d=$top/$model
    mkdir "$d"
    "$sheaf" train "${common[@]}" model.name=$model run.dir="$d/a" run.steps=4 run.ranks=3 mesh.dp=3 parallel.zero=3 \
        >/dev/null || exit 1
    check "$model: export to a folder" "$sheaf" reshape "$d/a" "$d/hf" --hf
    check "in shards" "$sheaf" reshape "$d/a" "$d/shards" --hf --shard-size 100KB --threads 3
    check "with an index" test -f "$d/shards/model.safetensors.index.json" -a ! -e "$d/shards/model.safetensors"
    check "the folder exported to another folder" "$sheaf" reshape "$d/shards" "$d/copy" --hf
    check "has the same bytes" cmp "$d/hf/model.safetensors" "$d/copy/model.safetensors"
    check "a run starts from the checkpoint's weights" prints "moments are 0" train model.name=$model model.init="$d/a" run.dir="$d/b"
    check "from the folder's weights and model" prints "starts from the weights of $d/hf" train model.init="$d/hf" run.dir="$d/c"
    check "both have the same losses" same "$d/b" "$d/c"
    check "from shards, on two ranks" train model.name=$model model.init="$d/shards" run.dir="$d/d" run.ranks=2 mesh.dp=2 \
        parallel.zero=3 numerics.fold=1
    check "from shards, on two ranks of tp" train model.name=$model model.init="$d/shards" run.dir="$d/e" mesh.tp=2
    check "the folder imported as a run" "$sheaf" reshape "$d/hf" "$d/f" mesh.pp=2
    check "which resumes" prints "nobody has trained yet: moments are 0" train model.name="$d/f/hf" run.dir="$d/f"
    check "with the same losses" same "$d/b" "$d/f"
    steps=4 check "and resumes from its own checkpoint" prints "is not used: it applies to runs without" train model.name="$d/f/hf" run.dir="$d/f" \
        model.init="$d/nowhere"
    check "in bf16" "$sheaf" reshape "$d/a" "$d/bf16" --hf --dtype bf16
    check "which is half the size" test $(($(stat -c %s "$d/bf16/model.safetensors") * 2 - 20000)) -lt $(stat -c %s "$d/hf/model.safetensors")
done
d=$top/llama-tiny
mkdir "$top/names"
cp tests/golden/tokenizer/gpt2.json "$top/names/mine.json"
for i in 1 2 3 4 5 6; do echo '{"text": "some words of one document, and more of them"}'; done >"$top/lines.jsonl"
cp tests/golden/tokenizer/llama3.json "$top/names/tokenizer.json"
"$sheaf" data build "$top/text" -o "$top/text.bin" --tokenizer "$top/names/mine.json" >/dev/null || exit 1
check "a tokenizer of another name" "$sheaf" train "${common[@]:1}" data.train="$top/text.bin" model.name=llama-tiny \
    model.vocab_size=707 data.tokenizer="$top/names/mine.json" run.steps=1 run.dir="$d/named"
check "is exported" prints "1 of tokenizer" "$sheaf" reshape "$d/named" "$d/named-hf" --hf
check "and not the one next to it" cmp "$top/names/mine.json" "$d/named-hf/tokenizer.json"
check "and is used there" "$sheaf" generate "$d/named-hf" -p "The " -n 3
# A folder with a tokenizer, in bf16, with keys that only its owner knows.
m=$top/model
"$sheaf" reshape "$d/named" "$m" --hf --dtype bf16 >/dev/null || exit 1
more='s/"torch_dtype": "bfloat16"/"is_llama_config": true, "max_length": 7, "my_key": 3, "torch_dtype": "bfloat16"/'
sed -i "$more" "$m/config.json"
"$sheaf" reshape "$m" "$top/canonical" --hf model.ignore=my_key >/dev/null && mv "$top/canonical/config.json" "$m/config.json"
tuned=("${common[@]}" model.init="$m" model.ignore=my_key run.steps=3)
binary=("${common[@]:1}" data.train="$top/text.bin" model.init="$m" model.ignore=my_key run.steps=3)
check "text is encoded by the folder's tokenizer" prints "text is encoded by $m/tokenizer.json" \
    "$sheaf" train "${tuned[@]}" run.dir="$d/t1"
check "a token file without data.tokenizer" "$sheaf" train "${binary[@]}" run.dir="$d/t2"
check "is the same stream" same "$d/t1" "$d/t2"
check "JSONL too" prints "lines.jsonl is encoded" "$sheaf" train "${binary[@]/text.bin/lines.jsonl}" run.dir="$d/t3"
check "bytes can be asked for" "$sheaf" train "${tuned[@]}" data.tokenizer=bytes run.dir="$d/t4"
check "which is another stream" differs "$d/t1" "$d/t4"
check "a folder as data.tokenizer" "$sheaf" train "${tuned[@]}" data.tokenizer="$m" run.dir="$d/t5"
check "is that tokenizer" same "$d/t1" "$d/t5"
check "bytes under a larger vocabulary are refused" refused "data.tokenizer=bytes to train on bytes" \
    train model.name=llama-tiny model.vocab_size=707 run.dir="$d/x"
mv "$m" "$m.moved"
check "the run has the tokenizer" prints "The " "$sheaf" generate "$d/t2" -p "The " -n 3
check "and a folder can be given" prints "The " "$sheaf" generate "$d/t4" -p "The " -n 3 --tokenizer "$m.moved"
check "export it" prints "1 of tokenizer" "$sheaf" reshape "$d/t2" "$d/t2-hf" --hf
check "the tokenizer" cmp "$m.moved/tokenizer.json" "$d/t2-hf/tokenizer.json"
check "the config.json, every key" cmp "$m.moved/config.json" "$d/t2-hf/config.json"
mv "$m.moved" "$m"
check "the folder as a run" "$sheaf" reshape "$m" "$d/t6" model.ignore=my_key mesh.tp=2
check "and back" "$sheaf" reshape "$d/t6" "$d/t6-hf" --hf --dtype bf16
check "the config.json, every key" cmp "$m/config.json" "$d/t6-hf/config.json"
check "the weights" cmp "$m/model.safetensors" "$d/t6-hf/model.safetensors"
check "with a changed key" "$sheaf" train "${tuned[@]}" model.rope_theta=5000 run.dir="$d/t7"
check "export it" "$sheaf" reshape "$d/t7" "$d/t7-hf" --hf --dtype f16
sed -e 's/"rope_theta": [^,]*/"rope_theta": 5000/' -e 's/bfloat16/float16/' "$m/config.json" >"$top/want"
check "the config.json has it, and the type" cmp "$top/want" "$d/t7-hf/config.json"
check "a missing folder" refused "is not a folder" train model.name=llama-tiny model.init="$top/nothing" run.dir="$d/x"
cp -r "$d/hf" "$top/other"
sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 0.0625/' "$top/other/config.json"
check "a different epsilon is refused" refused "rms_norm_eps" train model.name=llama-tiny model.init="$top/other" run.dir="$d/x"
check "unless the run file sets it" train model.name=llama-tiny model.rms_norm_eps=1e-5 model.init="$top/other" run.dir="$d/x"
check "an existing folder is not overwritten" refused "already exists" "$sheaf" reshape "$d/a" "$d/hf" --hf
check "keys of layouts are refused" refused "mesh.tp=2" "$sheaf" reshape "$d/a" "$d/y" --hf mesh.tp=2
check "an unknown type is refused" refused "f32, bf16 or f16" "$sheaf" reshape "$d/a" "$d/y" --hf --dtype int8
check "a flag without --hf is refused" refused "only with --hf" "$sheaf" reshape "$d/a" "$d/y" --dtype f16
sed -i 's/"rms_norm_eps": [^,]*/"rms_norm_eps": 0.0625, "attn_logit_softcapping": 50/' "$top/other/config.json"
check "an unsupported feature is refused" refused "attn_logit_softcapping" "$sheaf" reshape "$top/other" "$d/y"
check "it names the way out" grep -q "set model.ignore=attn_logit_softcapping" "$top/printed"
ignore=model.ignore=attn_logit_softcapping
check "it can be ignored: reshape" "$sheaf" reshape "$top/other" "$d/ignoring" $ignore
check "reshape --hf" "$sheaf" reshape "$top/other" "$d/ignoring-hf" --hf $ignore
check "generate" "$sheaf" generate "$top/other" -p "The " -n 3 --tokenizer bytes $ignore
check "train" train model.init="$top/other" run.dir="$d/ignored" $ignore
check "which resumes by its config.yaml" prints "nothing to do" "$sheaf" train "$d/ignored/config.yaml" run.dir="$d/ignored"
check "the run of reshape too" train model.name="$d/ignoring/hf" run.dir="$d/ignoring" $ignore
check "a checkpoint has none" refused "is a checkpoint" "$sheaf" generate "$d/ignored" -p "The " -n 3 $ignore
check "no files are left" test ! -e "$d/y" -a ! -e "$d/y.tmp" -a ! -e "$d/hf.tmp"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
