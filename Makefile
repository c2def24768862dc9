# Thin: each line calls the real tool. GNU make 3.81 is enough.
#   make up            everything on this machine: make up ARGS="--port 9000 --workers 2"
#   make test          all tests, Python and Go
#   make PYTHON=/path/to/python3.13 up     with a Python of your choice
PYTHON ?=
ARGS ?=
export PYTHON

.PHONY: up test lint bench setup

up:
	@scripts/setup.sh run
	@exec .venv/bin/taskgate up $(ARGS)

test: setup
	@scripts/test.sh $(ARGS)

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	scripts/go.sh vet ./...
	@files=$$(scripts/go.sh run cmd/gofmt -l .) || exit 1; [ -z "$$files" ] || \
		{ echo "gofmt would change these files of go/ (scripts/go.sh run cmd/gofmt -w . does it):"; echo "$$files"; exit 1; }

bench: setup
	@.venv/bin/python -m bench $(ARGS)

setup:
	@scripts/setup.sh dev
