#!/usr/bin/env bash
# slow_damage.sh BINARY -- 150 damages instead of twelve, by another seed.
exec "$(dirname "$0")/damage.sh" "$1" 150 2
