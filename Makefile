# Everything runs from .venv, which `make env` builds once from requirements/constraints-hashes.txt.
PYTHON ?= python3
PRESET ?= digits_demo
SITES ?=
ARGS ?=
WORKERS ?= 2
ONLY ?=
TESTS ?= tests/$(word 2,$(subst /, ,$(ONLY)))

BIN := .venv/bin
STAMP := .venv/.made

.DEFAULT_GOAL := help
.PHONY: help env demo deploy-demo run test test-most test-all test-part soak mutants lint format check bench results docs stop clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  variables: PRESET=$(PRESET) SITES= ARGS=\"key=value ...\" WORKERS=$(WORKERS) PYTHON=$(PYTHON)"

env: $(STAMP) ## make the environment in .venv (once; several minutes the first time)

# The pins, with their hashes, of which this is true. CUDA's packages are made for Linux on x86-64.
pins = awk '/^[a-z]/ { wanted = $(1) } wanted' requirements/constraints-hashes.txt
HERE := $(if $(filter Linux-x86_64,$(shell uname -s)-$(shell uname -m)),1,!/^(cuda-|nvidia-|triton==)/)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

# Every package by the hash of its file, pip itself first. The project is built by what is there then.
$(STAMP): pyproject.toml requirements/constraints-hashes.txt
	@echo "making .venv: PyTorch is large, this takes some minutes the first time"
	$(PYTHON) -m venv .venv
	@$(call pins,/^pip==/) > .venv/pip.txt
	@$(call pins,$(HERE)) > .venv/pins.txt
	$(INSTALL) --require-hashes -r .venv/pip.txt
	$(INSTALL) --require-hashes -r .venv/pins.txt
	$(INSTALL) --no-build-isolation -e .
	$(BIN)/python -m pip check
	@touch $@

demo: $(STAMP) ## the demo: six simulated clinics through Flower on Ray (no download)
	@$(BIN)/fedapp demo --flower

deploy-demo: $(STAMP) ## a server and three sites as real programs: TLS, a key per site (docs/DEPLOY.md)
	@$(BIN)/python -m fedapp.tools.deploy.compose_local

run: $(STAMP) ## run a preset: make run PRESET=fashion_mnist_small SITES=20 ARGS="seed=1"
	@$(BIN)/python -m fedapp.simulation.flower_local $(PRESET) $(if $(SITES),split.num_clients=$(SITES)) $(ARGS)

test: $(STAMP) ## the quick tests: those that tests/long.txt does not name
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not long"

test-most: $(STAMP) ## all tests but the slow ones, as CI runs them
	$(BIN)/python -m pytest -q -n $(WORKERS) --durations=0 --durations-min=2

test-all: $(STAMP) ## all tests, slow ones included; cut, it goes on; at the end the seconds of those over 5
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "" -p tests.going_on

test-part: $(STAMP) ## today's tenth of the slow tests; what fails is tried once more
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m slow --part 10 --durations=0 --durations-min=5 || \
	  { [ $$? -eq 1 ] && $(BIN)/python -m pytest -q -m slow --last-failed; }

soak: $(STAMP) ## a federation while its programs are killed: ARGS="--sites 12 --minutes 30"
	$(BIN)/python -m tests.faults.soak $(ARGS)

# mutmut works on a copy in build/mutants, where the same command goes on after it was cut.
# There `mutmut show NAME` shows a survivor.
MUTATED = build/mutants/$(subst /,.,$(ONLY))
COPIED := fedapp client_app server_app bench conf tests pyproject.toml
mutants: $(STAMP) ## small faults put into a module: does a test notice? ONLY=fedapp/privacy/noise.py TESTS=tests/privacy
	@test -f "$(ONLY)" || { echo "name a module, such as ONLY=fedapp/privacy/noise.py"; exit 2; }
	@$(BIN)/python -c "import mutmut" 2> /dev/null || $(INSTALL) --require-hashes -r requirements/mutants.txt
	@mkdir -p $(MUTATED)
	@git ls-files -zco --exclude-standard $(COPIED) | tar c --null --ignore-failed-read -T - | tar x -C $(MUTATED)
	@printf '%s\n' '[mutmut]' source_paths=fedapp only_mutate=$(ONLY) \
	  pytest_add_cli_args_test_selection=$(TESTS) 'also_copy=' $(COPIED:%='  %') > $(MUTATED)/setup.cfg
	@cd $(MUTATED) && export OMP_NUM_THREADS=1 && $(CURDIR)/$(BIN)/python -m mutmut run --max-children $(WORKERS)
	@cd $(MUTATED) && $(CURDIR)/$(BIN)/python -m mutmut results

lint: $(STAMP) ## style and types, as CI checks them; at the end what is nearest its budget
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/python -m tests.budgets --nearest 5

format: $(STAMP) ## rewrite the code in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint test-most ## what CI runs

bench: $(STAMP) ## all benchmarks, then docs/results/benchmarks.md; ARGS="--quick" or ARGS="scoring peers"
	$(BIN)/python -m bench $(ARGS)

results: $(STAMP) ## tune and compare all methods (hours), then docs/results/*/tables.md
	$(BIN)/python -m bench.study

docs: $(STAMP) ## the documentation site, in build/docs/index.html
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -b html docs build/docs

stop: $(STAMP) ## end what a killed run of this checkout left behind
	@$(BIN)/python -m fedapp.simulation.flower_local --stop

clean: ## remove caches and Flower's files; .venv and your runs stay
	rm -rf .flwr .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -not -path "./.venv/*" -prune -exec rm -rf {} +
