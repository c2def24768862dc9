#!/bin/sh
# Every test: unit, protocol, faults, conformance, and the Go ones (tests/go runs them against a real database).
# Arguments go to pytest. Most of the time is spent waiting, so a few processes share the files among them.
set -eu
cd "$(dirname "$0")/.."
exec .venv/bin/python -m pytest -n "${TASKGATE_TEST_PROCESSES:-3}" --dist loadfile "$@"
