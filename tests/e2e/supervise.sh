#!/usr/bin/env bash
# supervise.sh BINARY -- workers that fail again and again: on fewer and fewer ranks, with growing
# pauses, and with a file that is away for a while. Works in a temporary folder.
. tests/support/e2e.sh

train() { # folder, argument...
    local dir=$1
    shift
    "$sheaf" train model.name=llama-tiny model.num_hidden_layers=1 data.train="$top/text" data.seq_len=16 batch.global=4 \
        batch.micro=1 run.threads=1 run.steps=30 run.dir="$top/$dir" "$@" >"$top/$dir.out" 2>"$top/$dir.err"
}
# Training diverges: every worker fails in its first steps.
diverge() { train "$@" run.device=ref optim.kind=sgd optim.lr=1000 optim.clip=0 optim.schedule=constant; }
says() { grep -qF -- "$2" "$top/$1" || { echo "  not in $1: $2" && cat "$top/$1" && false; }; }
ranks_of() { sed 's/.*"ranks": \([0-9]*\).*/\1/' "$top/$1/restarts.jsonl" | tr '\n' ' '; }
pauses_of() { sed -n 's/^sheaf: restart .* in \([0-9.]*\) s.*/\1/p' "$top/$1.err" | tr '\n' ' '; }

for i in $(seq 1 60); do echo "line $i: the quick brown fox jumps over $((i * i)) lazy dogs"; done >"$top/text"

ok "dp_replicate x dp_shard on fewer and fewer ranks" status 1 diverge h mesh.dp_replicate=2 mesh.dp_shard=2 \
    --supervise 3 --fewer
ok "one replica, then one rank" test "$(ranks_of h)" = "2 1 1 "
ok "no worker is refused" test "$(grep -c 'given again' "$top/h.err")" = 0
ok "pauses grow" test "$(pauses_of h)" = "0.1 0.2 0.4 "
ok "N restarts are the limit" says h.err "no more restarts: the limit of --supervise is reached"

ok "check_every with no copies left" status 1 diverge i mesh.dp=3 run.check_every=1 --supervise 2 --fewer
ok "every worker runs" test "$(ranks_of i)" = "2 1 "
ok "two ranks compare, one does not" test "$(grep -c 'run.check_every=0 from here on' "$top/i.err")" = 1
ok "which is reported" says i.err "on 1 rank; no two ranks hold the same weights: run.check_every=0 from here on"
ok "with tp there are copies at dp=1" status 1 diverge j mesh.dp=2 mesh.tp=2 run.check_every=1 --supervise 1 --fewer
ok "and they are compared" test "$(grep -c 'run.check_every=0' "$top/j.err")" = 0
ok "check_every without copies is refused at the start" status 2 train k run.check_every=1 --supervise 2 --fewer

mv "$top/text" "$top/away"
come_back() {
    for _ in $(seq 400); do grep -qs "restart 4 of 40" "$top/f.err" && break || sleep 0.05; done
    mv "$top/away" "$top/text"
}
come_back &
ok "a file that is away for a while" status 0 train f --supervise 40
ok "more than two restarts wait for it" says f.err "restart 4 of 40 in 0.8 s"

counted
