# Two commands do everything on a fresh machine with Python >= 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Most tests wait for disks, processes and each other: more of them at once than there are processors.
N ?= 6
SEED ?= 1
# The hash of fixtures/gate/manifest.json, kept apart from it: whoever locks something anew says so here too.
GATE := 7f00b638119718993721cbc837dec7ba2c9667855d3ba0680bc417d096ed94f0
# Trust what the machine trusts: registries behind a company certificate work too.
export UV_SYSTEM_CERTS := 1
export UV_NATIVE_TLS := 1
.DEFAULT_GOAL := help
.PHONY: help demo test thorough check gate mutants explore format rules docs oracles record screenshot pages fuzz bench crash powercut tamper contend clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Onceward needs Python 3.11 or newer; $(PYTHON) is older. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@echo "Setting up $(VENV) (once; about half a minute) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing (on Debian: apt-get install python3-venv)"; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv 2>/dev/null || $(BIN)/python -m pip install uv

$(VENV)/user.stamp: $(BIN)/uv pyproject.toml
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/user.stamp
	@echo "Installing what the tests need (a real PostgreSQL included) ..."
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[postgres]' --group dev
	@touch $@

$(VENV)/bench.stamp: $(VENV)/dev.stamp
	@echo "Installing the peers to measure against ..."
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --group bench
	@$(PYTHON) -m venv $(VENV)/peers
	@$(BIN)/uv pip install --quiet --python $(VENV)/peers/bin/python --group peers
	@touch $@

demo: $(VENV)/user.stamp ## watch it at work: a build that costs money, killed with -9 half-way, and resumed
	@$(BIN)/python examples/demo.py

test: $(VENV)/dev.stamp ## run the tests on SQLite and on a real PostgreSQL
	@$(BIN)/python -m pytest -n $(N) --dist worksteal -q

thorough: $(VENV)/dev.stamp ## the rest of the tests: all that `make test` leaves out on PostgreSQL
	@ONCEWARD_PART=rest $(BIN)/python -m pytest -n $(N) --dist worksteal -q

check: $(VENV)/dev.stamp ## lint, types, import contracts and tidiness
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-cache > $(VENV)/imports.log 2>&1 || { cat $(VENV)/imports.log; exit 1; }
	@$(BIN)/python -m pytest -q tests/tidy tests/oracles
	@$(MAKE) --no-print-directory gate
	@echo "check: all good"

gate: $(VENV)/dev.stamp ## play the locked scripts through the engine: has anything become different?
	@$(BIN)/onceward gate run fixtures/gate/manifest.json --expect $(GATE)

mutants: $(VENV)/dev.stamp ## plant every known bug once: the gate must catch each, for its own reason
	@ONCEWARD_MUTANTS=1 ONCEWARD_PART=all $(BIN)/python -m pytest -q tests/replays/test_mutants.py -n $(N)

explore: $(VENV)/dev.stamp ## N=20000 SEED=1: random schedules of the engine against a model; a bad one is made small
	@$(BIN)/python tools/explore.py --count $(if $(filter command line,$(origin N)),$(N),20000) --seed $(SEED)

format: $(VENV)/dev.stamp ## put the code into its usual form
	@$(BIN)/ruff format --quiet . && $(BIN)/ruff check --quiet --fix .

rules: $(VENV)/dev.stamp ## list the contract's rules that no test names yet
	@$(BIN)/python tools/rules.py --missing

docs: $(VENV)/dev.stamp ## write docs/reference anew from the code
	@$(BIN)/python tools/reference.py

oracles: $(VENV)/dev.stamp ## record the expected views, pages, bundles and rows anew (SCENE=1: and the workspace they are of)
	@rm -rf /tmp/onceward-oracles && cp -r . /tmp/onceward-oracles
	@cd /tmp/onceward-oracles && PYTHONPATH=src ONCEWARD_ORACLES=$(if $(SCENE),scene,views) $(CURDIR)/$(BIN)/python -m pytest -q tests/oracles
	@cp /tmp/onceward-oracles/fixtures/oracles/* fixtures/oracles/ && rm -rf /tmp/onceward-oracles

record: $(VENV)/user.stamp ## record the demo anew as docs/demo.svg (needs tmux)
	@$(BIN)/python tools/record.py

screenshot: $(VENV)/dev.stamp ## take docs/dashboard.png anew (needs Chromium)
	@$(BIN)/python tools/screenshot.py

pages: $(VENV)/dev.stamp ## every page, light and dark, wide and narrow, into test-output/pages, to be looked at
	@ONCEWARD_PAGES=1 ONCEWARD_PART=all $(BIN)/python -m pytest -q tests/server/test_pages.py -n $(N)

fuzz: $(VENV)/dev.stamp ## the API held against its description for longer, on both stores
	@ONCEWARD_FUZZ=$${EXAMPLES:-100} ONCEWARD_PART=all $(BIN)/python -m pytest -q tests/server/test_openapi.py -n $(N) --timeout 3600

bench: $(VENV)/bench.stamp ## measure ratios against the raw limit and the peers
	@$(BIN)/python benchmarks/run.py
	@$(BIN)/python benchmarks/locks.py
	@$(BIN)/python benchmarks/processes.py
	@$(BIN)/python benchmarks/children.py
	@$(BIN)/python benchmarks/builds.py
	@$(BIN)/python benchmarks/evidence.py
	@$(BIN)/python benchmarks/changes.py
	@$(BIN)/python benchmarks/serving.py

crash: $(VENV)/dev.stamp ## the long crash campaign: ROUNDS=2000 SEED=1
	@ONCEWARD_PART=all ONCEWARD_CRASH_ROUNDS=$${ROUNDS:-2000} ONCEWARD_PROCESS_ROUNDS=20 ONCEWARD_CANCEL_ROUNDS=1000 ONCEWARD_SEED=$${SEED:-1} \
	  ONCEWARD_BUILD_MOMENTS=$${MOMENTS:-200} ONCEWARD_BUILD_TARGETS=13 ONCEWARD_SAGA_DEATHS=0 ONCEWARD_CHANGE_DEATHS=0 ONCEWARD_CHANGE_FILES=200 ONCEWARD_HTTP_REQUESTS=1000 \
	  $(BIN)/python -m pytest -q tests/crashes tests/server/test_killed.py tests/dispatch/test_children.py -n $(N)

powercut: $(VENV)/dev.stamp ## cut the power of a real ext4: ROUNDS=300 SEED=1 SLICE=1/1 (root); counts go to test-output/powercut.ndjson
	@mkdir -p test-output
	@ONCEWARD_PART=all ONCEWARD_POWER_CUTS=$${ROUNDS:-300} ONCEWARD_SEED=$${SEED:-1} ONCEWARD_SLICE=$${SLICE:-1/1} ONCEWARD_RESULTS=$(CURDIR)/test-output/powercut.ndjson \
	  $(BIN)/python -m pytest -q tests/crashes/test_power_cut.py

tamper: $(VENV)/dev.stamp ## the long tamper campaign: every byte of a scene and of its bundle, on both stores
	@ONCEWARD_PART=all ONCEWARD_TAMPER=1 ONCEWARD_SEED=$${SEED:-1} $(BIN)/python -m pytest -q tests/evidence -n $(N) --timeout 3600

contend: $(VENV)/dev.stamp ## the long contention campaign of the target lock
	@ONCEWARD_PART=all ONCEWARD_CONTENTION="$${PROCESSES:-16} $${TARGETS:-50} $${WANTED:-100000}" ONCEWARD_SEED=$${SEED:-1} \
	  $(BIN)/python -m pytest -q -s tests/locks/test_contention.py

clean: ## remove the virtual environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis .coverage dist
