#!/usr/bin/env bash
# compare.sh -- runs compare.py with a Python that has torch, transformers and tokenizers:
# $SHEAF_TEST_PYTHON, or python3.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${SHEAF_TEST_PYTHON:-python3}
command -v "$python" >/dev/null || {
    printf 'SKIPPED: no folder was compared: there is no %s\n' "$python"
    exit 77
}
exec "$python" tests/hf/compare.py "$@"
