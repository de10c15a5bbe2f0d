#!/usr/bin/env bash
# install.sh BINARY -- `cmake --install` gives a program that finds its plugins, also when moved.
. tests/support/e2e.sh
build=$(cd "$(dirname "$sheaf")" && pwd)
prefix=$top/prefix

ok "cmake --install" cmake --install "$build" --prefix "$prefix" >"$top/install.log" 2>&1
ok "bin/sheaf is installed" test -x "$prefix/bin/sheaf"
installed() { find "$prefix" -path "*/sheaf/$1" | grep -q .; }
for plugin in "$build"/sheaf-*.so; do ok "${plugin##*/} is installed" installed "${plugin##*/}"; done
ok "plugins are not in bin/" test -z "$(find "$prefix/bin" -name '*.so')"

mv "$prefix" "$top/moved"
ok "the installed program starts" "$top/moved/bin/sheaf" --version >"$top/version"
for module in cuda nccl; do
    [ -e "$build/sheaf-$module.so" ] || continue
    ok "sheaf-$module.so is found" test -z "$(grep -F "sheaf-$module.so is not there" "$top/version")"
done
if [ -e "$build/sheaf-mpi.so" ] && command -v mpirun >/dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    ok "sheaf-mpi.so is found" mpirun --oversubscribe -n 2 "$top/moved/bin/sheaf" train \
        examples/llama-tiny.yaml run.steps=1 run.dir="$top/run" >"$top/mpi.log" 2>&1
fi
counted
