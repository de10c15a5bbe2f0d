#!/usr/bin/env bash
# cudnn_frontend.sh -- the build finds the headers of nvidia-cudnn-frontend in both folders where
# pip puts them, in a virtual environment without cuDNN.
set -eu
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
python3 -m venv --without-pip "$top/venv" 2>/dev/null || { echo "skipped: no python3 with venv" && exit 77; }
PATH=$top/venv/bin:$PATH
packages=$(python3 -c "import sysconfig; print(sysconfig.get_path('purelib'))")
for folder in "$top/venv/include" "$packages/include"; do
    mkdir -p "$folder"
    touch "$folder/cudnn_frontend.h"
    found=$(cmake -P cmake/cudnn_frontend.cmake 2>&1)
    rm "$folder/cudnn_frontend.h"
    [ "$found" = "-- $folder" ] || { echo "in $folder: found '$found'" && exit 1; }
done
echo "both folders are found"
