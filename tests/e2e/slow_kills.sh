#!/usr/bin/env bash
# slow_kills.sh BINARY -- two hundred kills instead of twenty.
SEED=${SEED:-2} exec "$(dirname "$0")/kills.sh" "$1" 200
