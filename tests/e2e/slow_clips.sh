#!/usr/bin/env bash
# slow_clips.sh BINARY -- examples/stdit-tiny.yaml learns: the loss falls, and sampled clips show a
# disc of the right mass that stays in the frame and moves at the right speed.
. tests/support/e2e.sh

quiet() { "$@" >"$top/out" 2>"$top/err" || { cat "$top/out" "$top/err" && false; }; }
# Mass of each frame, steps of its center and the way from first to last: "mass M", "step D",
# "way D" for each of the 6 x 8 x 8 clips.
measure() {
    od -An -v -w4 -j128 -tf4 "$1" | awk '
        { v = $1 < 0 ? 0 : $1; i = (NR - 1) % 64; m += v; y += v * int(i / 8); x += v * (i % 8) }
        i == 63 {
            f = (NR / 64 - 1) % 6; y /= m; x /= m
            print "mass", m
            if (y < 0.5 || y > 6.5 || x < 0.5 || x > 6.5) print "outside"
            if (f == 0) { y0 = y; x0 = x } else print "step", sqrt((y - py) ^ 2 + (x - px) ^ 2)
            if (f == 5) print "way", sqrt((y - y0) ^ 2 + (x - x0) ^ 2) / 5
            py = y; px = x; m = y = x = 0
        }'
}
# The median of a measure, the smallest and the largest.
median() { measure "$2" | awk -v k="$1" '$1 == k {print $2}' | sort -g | awk '{a[NR] = $1} END {print a[int((NR + 1) / 2)]}'; }
least() { measure "$2" | awk -v k="$1" '$1 == k {print $2}' | sort -g | head -1; }
most() { measure "$2" | awk -v k="$1" '$1 == k {print $2}' | sort -g | tail -1; }
near() { awk -v a="$1" -v b="$2" -v by="$3" 'BEGIN {d = a / b - 1; if (d < 0) d = -d; if (d > by) print "  " a " is not " b; exit !(d <= by)}'; }
above() { awk -v a="$1" -v b="$2" 'BEGIN {if (!(a > b)) print "  " a " is not above " b; exit !(a > b)}'; }
loss_at() { grep "\"step\": *$1," "$top/run/metrics.jsonl" | grep -o "\"$2\": *[0-9.e+-]*" | grep -o '[0-9.e+-]*$'; }

ok "clips" quiet "$sheaf" data build --moving-shapes 4096 --frames 6 --size 8 -o "$top/shapes.npy"
ok "held-out clips" quiet "$sheaf" data build --moving-shapes 64 --frames 6 --size 8 --seed 2 -o "$top/held-out.npy"
ok "train" quiet "$sheaf" train examples/stdit-tiny.yaml data.train="$top/shapes.npy" data.valid="$top/held-out.npy" run.dir="$top/run"
ok "samples" quiet "$sheaf" generate "$top/run" --clips 16 --steps 40 -o "$top/samples.npy" --batch 16
ok "the loss falls to a sixth" above "$(loss_at 1 loss)" "$(awk -v a="$(loss_at 2000 valid_loss)" 'BEGIN {print 6 * a}')"
data=$top/held-out.npy samples=$top/samples.npy
ok "median mass" near "$(median mass "$samples")" "$(median mass "$data")" 0.1
ok "least mass" near "$(least mass "$samples")" "$(median mass "$data")" 0.35
ok "largest mass" near "$(most mass "$samples")" "$(median mass "$data")" 0.35
ok "discs stay in the frame" status 1 grep -q outside <(measure "$samples")
ok "median speed" near "$(median step "$samples")" "$(median step "$data")" 0.25
ok "way from first to last" near "$(median way "$samples")" "$(median way "$data")" 0.1
# The judge can fail: noise is no disc.
ok "noise" quiet "$sheaf" generate "$top/run" --clips 16 --steps 1 -o "$top/noise.npy" --seed 9
ok "noise is refused" status 1 near "$(median way "$top/noise.npy")" "$(median way "$data")" 0.1
counted
