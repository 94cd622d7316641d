# grpo-stack. `make` alone lists the targets; settings are variables: make up MODEL=Qwen/Qwen2.5-7B SPLIT=2:6
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory

# The Python that makes the environments: 3.10 or newer.
PYTHON ?= python3
# The Pythons that the helper also supports, beside the one above; test-fast takes those that this host has.
OTHER_PYTHONS ?= 3.10 3.12 3.13
# More flags for `grpo-stack up`, `render`, `logs`, `status` or `down`.
ARGS ?=
MODEL ?=
SPLIT ?=

VENV := .venv
DEV := .venv-dev
SETTINGS = settings="$$(PYTHON="$(PYTHON)" docker/setup/settings.sh)" && eval "$$settings"
# Paths are absolute, so that an environment's tools are found from whatever folder a recipe changes to. Recipes read these
# from their environment: pasted into a shell's line, a quote or a dollar in one would be the shell's own.
export STACK := $(CURDIR)/$(VENV)/bin/grpo-stack
export BIN := $(CURDIR)/$(DEV)/bin
export BENCH := $(CURDIR)/.cache/bench-gpu
export MODEL SPLIT
SCRIPTS = .ci/run $(wildcard docker/*.sh docker/setup/*.sh requirements/*.sh bench/*.sh)
DESCRIPTION = $(if $(MODEL),--model "$$MODEL") $(if $(SPLIT),--split "$$SPLIT")

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

.PHONY: venv venv-dev
venv: ## make .venv, the helper's environment
	@requirements/venv.sh $(VENV) requirements/helper.txt "$(PYTHON)"

venv-dev: ## make .venv-dev, with the tools for tests and checks
	@requirements/venv.sh $(DEV) requirements/dev.txt "$(PYTHON)"

.PHONY: up
up: venv ## train: MODEL=… SPLIT=server:trainer ARGS='…'; without a GPU and without MODEL, the demo on the CPU
	@"$$STACK" up --check description $(DESCRIPTION) $(ARGS)
	@$(SETTINGS) && exec "$$STACK" up $(DESCRIPTION) $(ARGS)

.PHONY: render
render: venv ## print the Compose file of MODEL=… SPLIT=… ARGS='…'
	@"$$STACK" render $(DESCRIPTION) $(ARGS)

.PHONY: down logs status
down: venv ## stop this project's containers and remove them; caches and outputs stay
	@"$$STACK" down $(ARGS)

logs: venv ## show what the services say: ARGS='--follow trainer'
	@"$$STACK" logs $(ARGS)

status: venv ## show this project's containers
	@"$$STACK" status $(ARGS)

.PHONY: build build-test
build: ## build both images: ACCELERATOR=cuda or cpu (default: what this host has)
	@$(SETTINGS) && docker/setup/build.sh trainer vllm-server

build-test: ## build the CPU images and the one that tests/image runs in
	@export ACCELERATOR=cpu; $(SETTINGS) && docker/setup/build.sh trainer vllm-server test

.PHONY: test test-fast test-image test-real
test: ## everything: checks, quick tests, tests in the image, real containers
	@$(MAKE) lint typecheck test-fast
	@$(MAKE) build-test
	@$(MAKE) test-image test-real

test-fast: venv-dev ## the tests that need no Docker, on every supported Python of this host
	@"$$BIN/python" -m pytest --numprocesses auto -m "not docker" --ignore tests/image --ignore tests/real
	@UV="$$BIN/uv" requirements/other_pythons.sh $(OTHER_PYTHONS) -- -q -p no:cacheprovider --numprocesses auto \
		-m "not docker" --ignore tests/image --ignore tests/real $(patsubst %,--ignore tests/test_%.py,docker_files makefile setup_scripts)

test-image: ## the tests that need vLLM and TRL, inside the image `test`
	@export ACCELERATOR=cpu; $(SETTINGS) && docker/setup/test-image.sh tests/image

test-real: venv-dev ## the tests with real containers, but those of `soak`
	@export ACCELERATOR=cpu; $(SETTINGS) && "$$BIN/python" -m pytest -m "docker and not soak" --ignore tests/image

.PHONY: soak
soak: venv-dev ## an hour of faults in real containers: SOAK_MINUTES=20 for the random ones, SOAK_SEED=…
	@export ACCELERATOR=cpu SOAK_MINUTES="$(SOAK_MINUTES)" SOAK_SEED="$(SOAK_SEED)"; $(SETTINGS) && \
		"$$BIN/python" -m pytest -s -m soak tests/real

.PHONY: lint format typecheck
lint: venv-dev ## ruff, hadolint and shellcheck
	@"$$BIN/ruff" check . && "$$BIN/ruff" format --check --quiet .
	@"$$BIN/hadolint" docker/Dockerfile
	@PATH="$$BIN:$$PATH" shellcheck --external-sources --source-path=SCRIPTDIR $(SCRIPTS)

format: venv-dev ## let ruff format and sort
	@"$$BIN/ruff" check --fix --quiet . && "$$BIN/ruff" format .

typecheck: venv-dev ## mypy, strict
	@"$$BIN/mypy"

.PHONY: golden
golden: venv-dev ## render compose/ anew from its descriptions
	@"$$BIN/python" -m pytest -q --update-golden tests/test_render_compose.py

.PHONY: lock
lock: venv-dev ## compile every lock file: UPGRADE=1 takes newer releases
	@wheels="$$(ACCELERATOR=cpu PYTHON="$(PYTHON)" docker/setup/wheels.sh)" && \
		WHEELS_DIR="$$wheels" UV="$$BIN/uv" UPGRADE="$(UPGRADE)" requirements/lock.sh

.PHONY: bench
bench: venv-dev ## measure the figures in docs/, on this machine: images, and the CPU demo
	@export ACCELERATOR=cpu; $(SETTINGS) && bench/image_report.sh
	@$(MAKE) bench-cpu

.PHONY: bench-cpu
bench-cpu: venv ## time the CPU demo: LABEL=first on a machine that has nothing yet (default: second)
	@$(PYTHON) bench/cpu_figures.py --label "$(or $(LABEL),second)"

.PHONY: bench-gpu
bench-gpu: ## measure on this host's first GPU: PYTHON=one that holds vLLM and TRL; takes about an hour
	@$(PYTHON) bench/gpu_models.py "$$BENCH/models" docs/gpu --noise
	@$(PYTHON) bench/gpu_stack.py "$$BENCH/models" "$$BENCH/runs" docs/gpu
	@$(PYTHON) bench/gpu_faults.py "$$BENCH/models" "$$BENCH/runs" docs/gpu half
	@$(PYTHON) bench/gpu_figures.py "$$BENCH/models" "$$BENCH/runs" docs/gpu half
	@$(PYTHON) bench/gpu_figures.py "$$BENCH/models" "$$BENCH/runs" docs/gpu seven
	@$(PYTHON) bench/push_sweep.py "$$BENCH/models/seven" "$$BENCH/runs" docs/gpu
	@$(PYTHON) bench/gpu_costs.py "$$BENCH/models" "$$BENCH/runs" docs/gpu
	@$(PYTHON) bench/gpu_refusals.py "$$BENCH/models" docs/gpu
	@$(PYTHON) bench/gpu_page.py

.PHONY: bench-paths
bench-paths: ## measure the ways between this host's first two GPUs; PYTHON as for bench-gpu
	@$(PYTHON) bench/gpu_models.py "$$BENCH/models"
	@$(PYTHON) bench/gpu_paths.py "$$BENCH/models/seven" "$$BENCH/runs" docs/gpu
	@$(PYTHON) bench/gpu_page.py

.PHONY: clean distclean
clean: ## remove this project's containers, networks, volumes (caches!) and built files; outputs and images stay
	@docker/setup/clean.sh

distclean: ## clean, and this project's images and environments too
	@docker/setup/clean.sh images
	@rm -rf $(VENV) $(DEV) .cache && echo "removed $(VENV), $(DEV), .cache"
