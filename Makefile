# Every target sets up what it needs on a machine that has Python 3.11+ and pip, and is quick the second time.

PYTHON ?= python3
VENV ?= .venv
LOCK ?= requirements.lock
# What `make lock` pins; the other bound is the lowest torch that pyproject.toml allows.
TORCH ?= 2.14.1
TORCHVISION ?= 0.29.1
LOWEST_TORCH ?= 2.11.0
# How many tests run at once. Many wait for processes of their own; more than two make those with time limits fail.
WORKERS ?= 2
# The GPU tests: `cpu` rehearses them. With WHEELS=build/wheels they run in PYTHON, which must have torch, without .venv.
DEVICE ?= cuda
GPU_REPORT ?= build/gpu.json
WHEELS ?=
# Tests start hundreds of processes. Without bytecode on disk, each of them would compile this project again.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RESOLVE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links --generate-hashes
PYTEST = $(BIN)/pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder
WITH_DEV = --upgrade --group pyproject.toml:dev pyproject.toml -
BUILD_REQUIRES = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")

.DEFAULT_GOAL := help
.PHONY: help setup demo test-fast test test-versions test-gpu wheels-gpu bench check lint types lock audit sbom clean

help:  ## Show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

setup: $(INSTALLED)  ## Install everything into .venv (the other targets do it by themselves)

demo: $(INSTALLED)  ## Train a recommender on UCI Adult with one parameter server and two trainers
	@PATH="$(abspath $(BIN)):$$PATH" examples/demo.sh

# The fast tests wait for a fifth of the time, and few have time limits.
test-fast: WORKERS = 3
test-fast: $(INSTALLED)  ## Run the tests that take seconds
	$(PYTEST) -m "not slow"

test: $(INSTALLED)  ## Run every test that this machine can run
	$(PYTEST) -m "not idle"
	$(BIN)/pytest -m idle

test-versions:  ## Run the fast tests, the numerics and the process groups with the lowest torch that is supported
	$(MAKE) VENV=.venv-lowest LOCK=requirements-lowest.lock setup
	$(MAKE) VENV=.venv-lowest LOCK=requirements-lowest.lock test-fast
	.venv-lowest/bin/pytest tests/numerics tests/runtime

test-gpu: $(if $(WHEELS),,$(INSTALLED))  ## Run what needs an NVIDIA GPU, and write figures to build/gpu.json (DEVICE=cpu rehearses it)
	$(if $(WHEELS),$(PYTHON),$(BIN)/python) -m tests.gpu --device $(DEVICE) --report $(GPU_REPORT) \
		$(addprefix --wheels=,$(WHEELS))

wheels-gpu: $(INSTALLED)  ## Download what test-gpu needs in addition to torch, for a machine without network, to build/wheels
	$(BIN)/python -m tests.gpu.wheels build/wheels

bench: $(INSTALLED)  ## Compare the speed of every workload with one process and with peers (BENCH=rnn_lm for one, BENCH=overheads for the costs of the service), report in build/bench
	@mkdir -p build
	sed -E '/^ +--hash/d; s/ \\$$//' $(LOCK) > build/constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint build/constraints.txt cloudpickle matplotlib pandas
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps "stable-baselines3>=2.6"  # Its bound on Gymnasium is older than ours
	$(BIN)/python -m benchmarks $(BENCH) --out build/bench

check: $(INSTALLED)  ## Check format, lint, types and the direction of imports
	@$(MAKE) --no-print-directory --jobs 2 --output-sync lint types

lint: $(INSTALLED)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports

types: $(INSTALLED)
	$(BIN)/pyright

lock: $(INSTALLED)  ## Resolve the locks again: requirements.lock, its parts for the images and for building the wheel, and the lowest versions
	$(BIN)/pip install --quiet uv
	printf "torch==$(TORCH)\ntorchvision==$(TORCHVISION)\n" | $(RESOLVE) $(WITH_DEV) --output-file requirements.lock
	$(RESOLVE) --extra otel --extra mlflow --extra tensorboard --constraint requirements.lock pyproject.toml \
		--output-file requirements-runtime.lock
	$(BIN)/python -c '$(BUILD_REQUIRES)' | $(RESOLVE) --constraint requirements.lock --output-file requirements-build.lock -
	echo "torch==$(LOWEST_TORCH)" | $(RESOLVE) $(WITH_DEV) --output-file requirements-lowest.lock

audit: $(INSTALLED)  ## Look the locked versions up in the advisory database (needs the internet)
	$(BIN)/pip install --quiet pip-audit
	$(BIN)/pip-audit --disable-pip --require-hashes --requirement requirements-runtime.lock

sbom: $(INSTALLED)  ## Write build/sbom.json: the Python packages of the images, in CycloneDX's format
	$(BIN)/pip install --quiet cyclonedx-bom==7.5.0
	mkdir -p build
	$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-file build/sbom.json requirements-runtime.lock

clean:  ## Remove everything that the other targets made
	rm -rf .venv .venv-lowest .venv-checkov .rolecall build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): $(LOCK) pyproject.toml hatch_build.py $(wildcard services/rolecall/kit/native/*.[ch])
	@command -v $(PYTHON) >/dev/null || { echo >&2 "$(PYTHON) is not there: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo >&2 "Rolecall needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version); name a newer one: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo >&2 "$(PYTHON) can't make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "installing PyTorch and the other packages into $(VENV): about 6 GB, which takes minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement $(LOCK)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
