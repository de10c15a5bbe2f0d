#!/usr/bin/env bash
# reshape.sh BINARY -- a run resumed from a reshaped checkpoint has the same bits as the source
# resumed under that layout; bad requests are refused and leave no files.
set -u
sheaf=$1
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
export XDG_CACHE_HOME=$top/cache
cp LICENSE "$top/text"
common=(model.name=llama-tiny model.num_hidden_layers=2 data.train="$top/text" data.seq_len=32 batch.global=6 run.threads=1
    run.save_every=2 numerics.block=64)
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
losses() { sed 's/.*"step": \([0-9]*\),.*"loss": \([^,]*\),.*/\1 \2/' "$1/metrics.jsonl" | awk '$1 > 4'; }
same_end() { diff <(losses "$1") <(losses "$2") && [ "$(losses "$1" | wc -l)" = 2 ]; }

"$sheaf" train "${common[@]}" run.dir="$top/a" run.steps=4 run.ranks=3 mesh.dp=3 parallel.zero=1 >/dev/null || exit 1
cp -r "$top/a" "$top/direct"
check "the source resumes under the layout" "$sheaf" train "${common[@]}" run.dir="$top/direct" run.steps=6 mesh.pp=2 mesh.tp=2
check "reshape" "$sheaf" reshape "$top/a" "$top/b" mesh.dp=1 mesh.pp=2 mesh.tp=2
check "one file per rank" test -f "$top/b/checkpoints/step-00000004/rank-00003.safetensors"
check "the target resumes" "$sheaf" train "$top/b/config.yaml" run.steps=6
check "both have the same losses" same_end "$top/direct" "$top/b"
check "reshape of a step folder, with the smallest buffer" "$sheaf" reshape "$top/a/checkpoints/step-00000002" "$top/c" run.ranks=2 --buffer 8
check "an existing folder is not overwritten" refused "exists already" "$sheaf" reshape "$top/a" "$top/b" mesh.tp=2
check "training keys are refused" refused "changes what is trained" "$sheaf" reshape "$top/a" "$top/d" optim.lr=1
check "an impossible mesh is refused" refused "run.ranks=5" "$sheaf" reshape "$top/a" "$top/d" run.ranks=5 mesh.tp=2
check "a folder without checkpoint is refused" refused "neither a checkpoint" "$sheaf" reshape "$top" "$top/d"
# Context parallelism: state sharded over cp, to other meshes and back.
"$sheaf" train "${common[@]}" run.dir="$top/cp" run.steps=4 mesh.cp=2 mesh.dp=2 parallel.zero=3 >/dev/null || exit 1
cp -r "$top/cp" "$top/cpdirect"
check "a cp run resumes under another layout" "$sheaf" train "${common[@]}" run.dir="$top/cpdirect" run.steps=6 mesh.tp=2
check "reshape from cp" "$sheaf" reshape "$top/cp" "$top/cptp" mesh.dp=1 mesh.cp=1 mesh.tp=2 parallel.zero=0
check "the target resumes" "$sheaf" train "$top/cptp/config.yaml" run.steps=6
check "both have the same losses" same_end "$top/cpdirect" "$top/cptp"
cp -r "$top/a" "$top/acp"
check "a dp run resumes on cp" "$sheaf" train "${common[@]}" run.dir="$top/acp" run.steps=6 mesh.cp=3 parallel.zero=1
"$sheaf" train "${common[@]}" run.dir="$top/uy" run.steps=2 mesh.cp=4 parallel.context=ulysses >/dev/null || exit 1
check "Ulysses to fewer ranks" "$sheaf" reshape "$top/uy" "$top/uy2" mesh.cp=2
check "the target resumes by Ulysses" "$sheaf" train "$top/uy2/config.yaml" run.steps=4
check "an argument changes the way of a stored run" grep -q "context    gather" <("$sheaf" explain "$top/uy/config.yaml" parallel.context=gather)
check "without cp the way must go too" refused "set mesh.cp=2 or more, or parallel.context=auto" "$sheaf" reshape "$top/uy" "$top/uy1" mesh.cp=1
check "to one rank" "$sheaf" reshape "$top/uy" "$top/uy1" mesh.cp=1 parallel.context=auto
check "reshape to cp" "$sheaf" reshape "$top/a" "$top/tocp" mesh.dp=1 mesh.cp=3
check "the target resumes on cp" "$sheaf" train "$top/tocp/config.yaml" run.steps=6
check "both have the same losses" same_end "$top/acp" "$top/tocp"
# Streamed weights: rows of matrices sharded over cp, to whole ones and back.
"$sheaf" train "${common[@]}" run.dir="$top/ws" run.steps=4 mesh.cp=2 mesh.dp=2 parallel.zero=1 parallel.weights=stream >/dev/null || exit 1
cp -r "$top/ws" "$top/wsdirect"
check "a run of streamed weights resumes under another layout" "$sheaf" train "${common[@]}" run.dir="$top/wsdirect" run.steps=6 mesh.tp=2
check "reshape from streamed weights" "$sheaf" reshape "$top/ws" "$top/wstp" mesh.dp=1 mesh.cp=1 mesh.tp=2 parallel.zero=0 parallel.weights=whole
check "the target resumes" "$sheaf" train "$top/wstp/config.yaml" run.steps=6
check "both have the same losses" same_end "$top/wsdirect" "$top/wstp"
cp -r "$top/a" "$top/aws"
check "a dp run resumes with streamed weights" "$sheaf" train "${common[@]}" run.dir="$top/aws" run.steps=6 mesh.cp=3 parallel.weights=stream
check "reshape to streamed weights" "$sheaf" reshape "$top/a" "$top/tows" mesh.dp=1 mesh.cp=3 parallel.weights=stream parallel.zero=0
check "the target resumes" "$sheaf" train "$top/tows/config.yaml" run.steps=6
check "both have the same losses" same_end "$top/aws" "$top/tows"
line=$(grep -n "weights: stream" "$top/ws/config.yaml" | cut -d: -f1)
check "without cp weights must be whole" refused "configuration saved in $top/ws/checkpoints/step-[0-9]*:$line: parallel.weights=stream: has no effect at mesh.cp=1" "$sheaf" reshape "$top/ws" "$top/ws1" mesh.cp=1
# Layouts of single weights along tp: from and to those of Megatron, by train and by reshape.
mixed='parallel.tp_weights=*.k_proj.*=whole,mlp.gate_proj.*=inputs,mlp.down_proj.*=outputs,lm_head.*=inputs'
cp -r "$top/a" "$top/atp"
check "a dp run resumes with its own layouts along tp" "$sheaf" train "${common[@]}" run.dir="$top/atp" run.steps=6 mesh.tp=2 "$mixed"
check "reshape to them" "$sheaf" reshape "$top/a" "$top/totp" mesh.dp=1 mesh.tp=2 parallel.zero=0 "$mixed"
check "the target resumes" "$sheaf" train "$top/totp/config.yaml" run.steps=6
check "both have the same losses" same_end "$top/atp" "$top/totp"
check "from them to those of a search" "$sheaf" reshape "$top/atp" "$top/found" mesh.tp=2 parallel.tp_weights=search parallel.sequence=true
check "and to Megatron's" "$sheaf" reshape "$top/found" "$top/tpback" parallel.tp_weights=megatron
check "which resumes" "$sheaf" train "$top/tpback/config.yaml" run.steps=8
check "export from them" "$sheaf" reshape "$top/atp" "$top/tphf" --hf
check "is that of the reshaped ones" "$sheaf" reshape "$top/tpback/checkpoints/step-00000006" "$top/backhf" --hf
check "byte for byte" cmp "$top/tphf/model.safetensors" "$top/backhf/model.safetensors"
check "they are listed" grep -q "layer: self_attn.k_proj.weight whole, mlp.gate_proj.weight inputs" <("$sheaf" explain "$top/totp/config.yaml")
check "the search is explained" grep -q "found by search at default rates" <("$sheaf" explain "$top/found/config.yaml")
check "text is generated" "$sheaf" generate "$top/atp" -p a -n 4
check "without tp they have no effect" refused "parallel.tp_weights=search: has no effect at mesh.tp=1" "$sheaf" explain "${common[@]}" parallel.tp_weights=search
check "words stand alone" refused "search stands alone" "$sheaf" explain "${common[@]}" mesh.tp=2 parallel.tp_weights=search,megatron
check "a layout must exist" refused "outputs, inputs or whole" "$sheaf" explain "${common[@]}" mesh.tp=2 "parallel.tp_weights=mlp.*=rows"
check "a weight must exist" refused "matches no weight whose layout" "$sheaf" explain "${common[@]}" mesh.tp=2 "parallel.tp_weights=mpl.*=whole"
check "a price is for a search" refused "parallel.state_price=2: has no effect" "$sheaf" explain "${common[@]}" mesh.tp=2 parallel.state_price=2
printf x | dd of="$top/a/checkpoints/step-00000004/rank-00001.safetensors" bs=1 seek=200000 conv=notrunc 2>/dev/null
damaged() { ! "$sheaf" reshape "$top/a" "$top/d" mesh.tp=3 mesh.dp=1 2>"$top/printed" && grep -q "rank-00001" "$top/printed"; }
check "a damaged byte is named" damaged
check "no files are left" test ! -e "$top/d" -a ! -e "$top/d.tmp"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
