# `make help` lists the targets. Everything runs from a clean clone.
VENV ?= .venv
PY := $(VENV)/bin/python
MODEL ?=
DEVICE ?= cpu
PORT ?= 8000
ARGS ?=
DETACH ?=
PYTHON ?= python3
GPU_PYTHON ?= python3
N ?= 20000
JOBS ?= 2
MILLRACE = $(PY) -m millrace.cli
NEW_ENOUGH = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'
# By a path in sys.path: a finder asked after it would find a folder named millrace, as of a clone, first.
EDITABLE = --config-settings editable_mode=compat
# Tests of one file share what it sets up, and so a process.
SIDE_BY_SIDE = $(PY) -m pytest --numprocesses $(JOBS) --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup up down logs test test-model test-kernels test-gpu bench-gpu test-sanitizers test-clients test-lives fuzz lint fmt protos protos-check lint-deploy compose-test demo-model bench golden docs-settings size clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# An environment names its folder in its scripts: where the checkout was moved, its own is made anew.
MOVED := $(shell test $(VENV) != .venv || test ! -s .venv/.stamp-run || test "$$(cat .venv/.stamp-run)" = "$(CURDIR)" || echo moved)
.PHONY: $(if $(MOVED),$(VENV)/.stamp-run)

$(VENV)/.stamp-run: pyproject.toml constraints.txt
	@test -z "$(MOVED)" || rm -rf .venv
	@test -x $(PY) || $(NEW_ENOUGH) || { echo "Millrace needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) …"
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt $(EDITABLE) -e '.[all]'
	@echo '$(CURDIR)' > $@

$(VENV)/.stamp: $(VENV)/.stamp-run
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt $(EDITABLE) -e '.[dev]'
	@touch $@

setup: $(VENV)/.stamp ## make the virtual environment in .venv, with the development tools

up: $(VENV)/.stamp-run ## start the stack on this machine: MODEL=dir DEVICE=cpu|cuda PORT=8000 DETACH=1 ARGS="…"
	@$(MILLRACE) up --port $(PORT) --device $(DEVICE) $(if $(MODEL),--model "$(MODEL)") $(if $(DETACH),--detach) $(ARGS)

down: ## stop what `make up DETACH=1` started
	@test ! -x $(PY) || $(MILLRACE) down

logs: $(VENV)/.stamp-run ## follow the logs of the stack
	@$(MILLRACE) logs -f

test: $(VENV)/.stamp ## run the whole CPU suite in JOBS=2 processes (under five minutes on two cores)
	$(SIDE_BY_SIDE) $(ARGS)

test-sanitizers: $(VENV)/.stamp ## run the CPU kernels under the address and undefined-behaviour sanitizers
	$(PY) -m pytest --slow tests/worker/kernels/test_sanitized.py

test-model: $(VENV)/.stamp ## run parity and multi-session tests on your own folder: MODEL=dir
	@test -n "$(MODEL)" || { echo "usage: make test-model MODEL=dir"; exit 2; }
	$(PY) -m pytest -m model tests --model "$(MODEL)" $(ARGS)

test-clients: $(VENV)/.stamp-run ## run stock clients (openai, anthropic, litellm, langchain, instructor, ai SDK) against a live stack: MODEL=dir
	PY=$(abspath $(PY)) tests/clients/run.sh $(if $(MODEL),"$(MODEL)")

test-lives: $(VENV)/.stamp ## random lives by the thousand, on every KV layout (about ten minutes)
	$(PY) -m pytest --slow tests/engine_core/scheduling -k thousands $(ARGS)

fuzz: $(VENV)/.stamp ## throw N=20000 malformed and hostile requests at a live stack, then made-up ones of every operation
	$(PY) -m tests.fuzz --requests $(N)
	$(PY) -m tests.fuzz.cancels
	$(PY) -m pytest --slow tests/api_gateway/test_openapi.py

test-kernels: $(VENV)/.stamp ## prove the CUDA kernels without a GPU: oracle, compiler budget, sanitizers, planted faults
	@$(PY) -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[kernels]'
	$(SIDE_BY_SIDE) --kernels tests/cuda $(ARGS)

test-gpu: ## run every kernel test and compute-sanitizer on this machine's GPU, write bench/results: GPU_PYTHON with NumPy, CuPy and pytest is enough
	$(GPU_PYTHON) -m tests.cuda.on_gpu $(ARGS)

bench-gpu: ## time every shape on this machine's GPU beside its floors and beside transformers, write bench/results
	$(GPU_PYTHON) -m bench.gpu_report $(ARGS)

compose-test: $(VENV)/.stamp-run ## build, up, chat, scale, scrape and tear down docker-compose.yml on a real engine
	PY=$(PY) tests/compose/run.sh

lint: $(VENV)/.stamp protos-check lint-deploy ## ruff, mypy --strict, generated protos up to date, files of deploy/
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

lint-deploy: $(VENV)/.stamp
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
	$(VENV)/bin/hadolint deploy/Dockerfile
	@if docker compose version >/dev/null 2>&1; then docker compose --profile '*' config -q; \
	else echo "!! NOT CHECKED by docker compose config: no docker compose here (make compose-test brings one)"; fi
	@if command -v promtool >/dev/null; then cd deploy/prometheus && promtool check config prometheus.yml \
	  && promtool test rules rules_test.yml; \
	else echo "!! NOT CHECKED by promtool: not installed here (make compose-test brings one)"; fi

fmt: $(VENV)/.stamp ## format the code
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

# Generated with an old toolchain on purpose: its output runs on every newer runtime.
$(VENV)-protos/.stamp:
	@$(PYTHON) -m venv $(VENV)-protos
	@$(VENV)-protos/bin/python -m pip install -q --disable-pip-version-check 'grpcio-tools==1.71.2' 'protobuf==5.29.5' 'setuptools<80'
	@touch $@

PROTOC = $(VENV)-protos/bin/python -m grpc_tools.protoc -I.
protos: $(VENV)-protos/.stamp ## regenerate protos/*_pb2* from protos/*.proto
	$(PROTOC) --python_out=. --pyi_out=. protos/*.proto
	$(PROTOC) --grpc_python_out=. protos/tokenizer.proto protos/engine.proto

protos-check: $(VENV)-protos/.stamp ## fail when the committed generated code differs
	@rm -rf build/protos && mkdir -p build/protos
	@$(PROTOC) --python_out=build/protos --pyi_out=build/protos protos/*.proto
	@$(PROTOC) --grpc_python_out=build/protos protos/tokenizer.proto protos/engine.proto
	@for f in build/protos/protos/*; do cmp $$f protos/$$(basename $$f) || { echo "run: make protos"; exit 1; }; done

demo-model: $(VENV)/.stamp ## train the embedded demo model again (needs torch, about two hours on two cores)
	$(PY) -m pip install -q -c constraints.txt -e '.[train]'
	$(PY) -m tools.train_demo_model --out millrace/demo_model

golden: $(VENV)/.stamp ## rewrite the scheduler's golden stories; read the diff before you commit it
	$(PY) -m pytest tests/engine_core/scheduling/test_stories.py --golden-rewrite

bench: $(VENV)/.stamp ## print what a token costs in each tier, against one threaded process
	$(PY) -m bench.tier_budget $(ARGS)

docs-settings: $(VENV)/.stamp ## rewrite the settings table of the README from the settings structs
	$(PY) -m tools.settings_table

size: ## lines of Python that run in production
	@git ls-files 'common/*.py' 'api_gateway/*.py' 'tokenizer_service/*.py' 'engine_core/*.py' 'worker/*.py' 'millrace/*.py' 'protos/*.py' | grep -v _pb2 | xargs cat | wc -l

clean: down ## stop the stack, remove the virtual environments, caches, logs and what was built
	rm -rf $(VENV) $(VENV)-protos build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .millrace dist worker/kernels/packaged.* worker/kernels/tmp*
