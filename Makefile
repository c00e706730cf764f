# make run    the embedded study: results/report.html
# make test   all tests that need no cluster
# make check  formatting, linting, types
# CONFIG=config/mine.yaml make run   another study
PYTHON ?= python3
CORES ?= all
BIN := .venv/bin
CONFIG ?=
GPUS := $(shell nvidia-smi -L 2>/dev/null | wc -l)

# Files are compared by content, however large, so that touching one reruns nothing. Training loops slow down where the
# C library gives large buffers back at every step; these two settings keep them.
SNAKEMAKE := MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 $(BIN)/snakemake --cores $(CORES) --keep-going \
	--rerun-incomplete --show-failed-logs --max-checksum-file-size 1000000000 --benchmark-extended \
	$(if $(filter-out 0,$(GPUS)),--resources gpu=$(GPUS)) $(if $(CONFIG),--configfile $(CONFIG))

.PHONY: run test check lock

run: .venv/installed
	$(SNAKEMAKE) --logger rich

test: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup tests

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile rules
	$(BIN)/mypy

.venv/installed: requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lamina needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
