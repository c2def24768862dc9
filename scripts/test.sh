#!/bin/sh
# Every test: the Python ones (unit, protocol, faults, conformance), then the Go ones. Arguments go to pytest.
set -u
cd "$(dirname "$0")/.."
failed=0
.venv/bin/python -m pytest "$@" || failed=1
if [ -f go/go.mod ]; then
    scripts/go.sh test ./... || failed=1
fi
exit "$failed"
