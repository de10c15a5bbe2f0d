#!/usr/bin/env bash
# compare.sh -- runs compare.py with a Python that has the official tokenizers library:
# $SHEAF_TEST_PYTHON, or python3.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${SHEAF_TEST_PYTHON:-python3}
command -v "$python" >/dev/null || {
    printf 'SKIPPED: no ids were compared: there is no %s\n' "$python"
    exit 77
}
exec "$python" tests/tokenizer/compare.py "$@"
