#!/usr/bin/env bash
# slow_ranks_random.sh BINARY -- 200 layouts instead of ten, by another seed.
exec "$(dirname "$0")/ranks_random.sh" "$1" 200 2
