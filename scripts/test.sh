#!/bin/sh
# Every test: unit, protocol, faults, conformance, and the Go ones (tests/go runs them against a real database).
# Arguments go to pytest.
set -eu
cd "$(dirname "$0")/.."
exec .venv/bin/python -m pytest "$@"
