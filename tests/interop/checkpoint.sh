#!/usr/bin/env bash
# checkpoint.sh BINARY -- other programs read our files, and we read theirs: the safetensors
# library, and the reader that docs/CHECKPOINT.md shows. SHEAF_TEST_PYTHON is a Python with
# safetensors and numpy (and xxhash, else hashes are not checked); default python3. Status 77: no
# such Python, so nothing was tested.
set -euo pipefail
python=${SHEAF_TEST_PYTHON:-python3}
skip() {
    printf 'SKIPPED: nothing was read by other programs: %s\n' "$*"
    exit 77
}
command -v "$python" >/dev/null || skip "there is no $python"
"$python" -c 'import numpy, safetensors' 2>/dev/null ||
    skip "$python has no numpy or no safetensors (pip install safetensors numpy xxhash); SHEAF_TEST_PYTHON names another"
exec "$python" "$(dirname "$0")/checkpoint.py" "$1"
