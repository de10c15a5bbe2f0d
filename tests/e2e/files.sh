#!/usr/bin/env bash
# files.sh BINARY -- files of the user are neither overwritten nor lost: run files, traces,
# drawings, links, data. Works in a temporary folder.
. tests/support/e2e.sh

says() { grep -qF -- "$2" "$top/$1" || { echo "  not in $1: $2" && head -n 20 "$top/$1" && false; }; }
run() { # name of the output, arguments of sheaf...
    local out=$1
    shift
    "$sheaf" "$@" >"$top/$out.out" 2>"$top/$out.err"
}
same() { [ "$(cat "$top/$1")" = "$2" ]; } # file, contents

for i in $(seq 1 200); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"
yaml() { # run.dir
    printf 'model:\n  name: llama-tiny\n  num_hidden_layers: 1\ndata:\n  train: %s\n  seq_len: 16\nbatch:\n  global: 2\nrun:\n  steps: 2\n  threads: 1\n  dir: %s\n' "$top/text" "$top/$1"
}
yaml a >"$top/run.yaml"

# ---- existing files ----
mkdir "$top/exp"
yaml exp >"$top/exp/config.yaml"
cp "$top/exp/config.yaml" "$top/kept.yaml"
ok "a run file in the run folder is refused" status 2 run exp train "$top/exp/config.yaml"
ok "the error names it and the way out" says exp.err "$top/exp/config.yaml: exists already, and no run has written it; the run would overwrite it: move it out of the folder or choose another run.dir"
ok "it is unchanged" cmp "$top/exp/config.yaml" "$top/kept.yaml"
ok "nothing is next to it" test "$(ls "$top/exp")" = config.yaml
ok "so with run.fresh" status 2 run exp train "$top/exp/config.yaml" run.fresh=true
ok "it is still unchanged" cmp "$top/exp/config.yaml" "$top/kept.yaml"
ok "a run" status 0 run a train "$top/run.yaml"
ok "the config.yaml of a run repeats it" status 0 run again train "$top/a/config.yaml" run.steps=3
ok "and is written again" grep -q 'steps: 3' "$top/a/config.yaml"

echo mine >"$top/mine"
for flag in --svg --schedule; do
    ok "explain $flag refuses a file" status 2 run flag explain "$top/run.yaml" $flag "$top/mine"
    ok "the error names it" says flag.err "$flag $top/mine: exists already; remove it or choose another name"
    ok "it is unchanged" same mine mine
done
ok "a link is followed" ln -s mine "$top/link"
ok "train --trace refuses it" status 2 run trace train "$top/run.yaml" run.dir="$top/traced" --trace "$top/link"
ok "the error names it" says trace.err "--trace $top/link: exists already; remove it or choose another name"
ok "it is unchanged" same mine mine
ok "no step was trained" test ! -e "$top/traced"
ok "a device is no such file" status 0 run flag explain "$top/run.yaml" --svg /dev/null
: >"$top/empty"
ok "an empty file has nothing to lose" status 0 run flag explain "$top/run.yaml" --svg "$top/empty"
ok "a new trace" status 0 run trace train "$top/run.yaml" run.dir="$top/traced" --trace "$top/new.json"
ok "is written" test -s "$top/new.json"

# ---- run.fresh and links ----
ok "a fresh run" status 0 run fresh train "$top/run.yaml" run.dir="$top/fresh" run.fresh=true
ok "its config.yaml does not start over" grep -q 'fresh: false' "$top/fresh/config.yaml"
ok "nor does its manifest" sh -c "! grep -q 'fresh: true' '$top/fresh/checkpoints/step-00000002/manifest.json'"
ok "run again" status 0 run fresh train "$top/fresh/config.yaml" run.steps=3
ok "it resumes" says fresh.out "continues at step 3"
ok "the first folder is the only one" test ! -e "$top/fresh.1"

mkdir -p "$top/disk/b"
ln -s disk/b "$top/b"
ok "a run in a linked folder" status 0 run b train "$top/run.yaml" run.dir="$top/b"
ok "a fresh one" status 0 run b train "$top/run.yaml" run.dir="$top/b/" run.fresh=true
ok "the link stays" test -L "$top/b"
ok "the new run is on the disk of the old one" test -s "$top/disk/b/metrics.jsonl"
ok "the old run is next to it" test -s "$top/disk/b.1/metrics.jsonl"
ok "and its new name is said" says b.out "the earlier run in $top/b was renamed to $top/disk/b.1"

step=checkpoints/step-00000002
mv "$top/b/$step" "$top/disk/step"
ln -s ../../step "$top/b/$step"
ok "a linked checkpoint" status 0 run b train "$top/run.yaml" run.dir="$top/b" run.steps=3
ok "is found" says b.out "continues at step 3 from $top/b/$step"
ok "eval finds it too" status 0 run eval eval "$top/b" --text "$top/text"
ok "more steps" status 0 run b train "$top/run.yaml" run.dir="$top/b" run.steps=5 run.save_every=1
ok "remove its link" test ! -L "$top/b/$step"
ok "and no file behind it" test -s "$top/disk/step/manifest.json"

# ---- data files ----
cp "$top/text" "$top/a,b.txt"
ok "a comma in a name" status 0 run comma train "$top/run.yaml" run.dir="$top/comma" data.train="$top/a\\,b.txt"
ok "the run again, from its config.yaml" status 0 run comma train "$top/comma/config.yaml" run.steps=3
ok "it resumes" says comma.out "continues at step 3"
head -c 1000000 /dev/zero | tr '\0' x >"$top/long"
run cut train "$top/run.yaml" run.dir="$top/cut" run.steps=1000000 data.train="$top/long" &
for _ in $(seq 200); do [ -s "$top/cut/metrics.jsonl" ] || sleep 0.05; done
truncate -s 4096 "$top/long"
ok "a data file that is truncated ends a run" status 1 wait $!
ok "with its name" says cut.err "$top/long: was truncated while it was read"

# ---- a run that cannot be saved does not start ----
bad=$top/$(printf 'no\xffutf8')
ok "a path that is not UTF-8" status 2 run utf8 train "$top/run.yaml" run.dir="$bad"
ok "is refused with the byte" says utf8.err "run.dir: byte 0xFF is not UTF-8"
ok "no folder is made" test ! -e "$bad"
limited() { # bytes of addresses: trains to the end, or fails before the first step
    rm -rf "$top/limited"
    (ulimit -v $(($1 / 1024)) && run limited train "$top/run.yaml" run.dir="$top/limited") && return 0
    says limited.err "ulimit -v" && ! grep '^step' "$top/limited.out"
}
if (ulimit -v $((112 << 20)) && "$sheaf" --version) >/dev/null 2>&1; then # not under a sanitizer
    for gib in $(seq 64 8 112); do
        ok "$gib GiB of addresses" limited $((gib << 30))
    done
    ok "the most is enough" test -s "$top/limited/$step/manifest.json"
fi

# ---- outputs that do not fit ----

# Files of at most 1 KiB, as on a full disk; SIGXFSZ is ignored, so that writes fail.
small() { # name of the messages, arguments of sheaf...
    (trap '' XFSZ && ulimit -f 1 && "$sheaf" "${@:2}" >/dev/null 2>"$top/$1.err")
}
machine=share/clusters/h100-sxm.yaml
ok "a trace that does not fit" status 1 small cut.simulate simulate "$top/run.yaml" --cluster $machine --trace "$top/cut.json"
ok "is an error" says cut.simulate.err "--trace $top/cut.json: cannot be written: File too large"
ok "and leaves nothing" test ! -e "$top/cut.json"
ok "a drawing that does not fit" status 1 small cut.explain explain "$top/run.yaml" --svg "$top/cut.svg"
ok "is an error, too" says cut.explain.err "--svg $top/cut.svg: cannot be written: File too large"
ok "and leaves as little" test ! -e "$top/cut.svg"
ok "the drawing of a plan" status 1 small cut.plan plan "$top/run.yaml" --cluster $machine --gpus 2 --svg "$top/frontier.svg"
ok "is one" says cut.plan.err "--svg $top/frontier.svg: cannot be written: File too large"
ok "and leaves none" test ! -e "$top/frontier.svg"

"$sheaf" profile --quick -o "$top/machine.yaml" >/dev/null 2>"$top/profile.err" &
pid=$!
for _ in $(seq 300); do grep -q measuring "$top/profile.err" && break || sleep 0.1; done
kill -TERM $pid
ended() { wait $pid; }
ok "a profile that is ended" status 143 ended
ok "leaves no file" test ! -e "$top/machine.yaml"

counted
