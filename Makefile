# make demo   starts a cluster and runs an example on it
# make quick  types, unit tests, and the properties of the scheduler core, in a minute
# make test   runs the tests; make check adds the emulated clouds, the browser, and the code blocks in the documentation
# make lint   checks format, style, types, import rules, the project's own rules (tests/lint), and the ratchets
# make check  lint, documentation, and tests: what CI runs
# make docs   builds the documentation site in build/site; fails on a broken link or reference
# make soak   runs SEEDS (10000) simulated worlds, and other long tests; `python -m tests.simulation.soak -h` has more
# make fuzz   feeds random bytes to every parser of untrusted bytes, for FUZZ_SECONDS (an hour); keeps inputs that reach new code
# make chaos  kills processes, breaks connections, and fills disks in a busy cluster, for CHAOS_SECONDS (1800)
# make endure  runs a busy cluster for SOAK_SECONDS (an hour); fails if a process's memory grows
# make mutants  changes single expressions in the pure cores, and prints the share that tests detect
# make clean  removes the files that the other targets create

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
SOURCES := scaler tests examples benchmarks docs/site

# Unmodified libraries that use the client. Two of them contain the same package, so each is installed in its own
# directory. The dev extra contains their other dependencies.
LIBRARIES := parfun==7.2.2 opengris-parfun==7.4.0 pargraph==0.9.6

# Number of tests that run at once. tests/run.py retries failed ones.
JOBS ?= 4
# Adds a path to site-packages. By default, setuptools installs an import hook, which every process would load.
EDITABLE = --config-settings editable_mode=compat --editable
TESTS = $(BIN)/python tests/run.py --jobs $(JOBS)

.PHONY: demo quick test lint types types-of-tests rules check docs soak fuzz chaos endure mutants clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	@$(BIN)/python examples/run_demo.py

test: $(VENV)/.installed-dev
	$(TESTS)

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/site/pages.py
	$(BIN)/zensical build --strict --config-file mkdocs.yml

lint: types types-of-tests rules

types: $(VENV)/.installed-dev
	$(BIN)/mypy

types-of-tests: $(VENV)/.installed-dev
	$(BIN)/mypy --explicit-package-bases --cache-dir .mypy_cache/tests tests benchmarks

rules: $(VENV)/.installed-dev
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/lint
	$(BIN)/python tests/lint/ratchets.py

quick: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 -m "not full" tests/unit tests/properties/test_scheduler_core.py

check: $(VENV)/.installed-dev
	$(MAKE) --jobs 2 --output-sync=target lint docs
	$(TESTS) --full
	$(BIN)/python tests/lint/ratchets.py

SEEDS ?= 10000
soak: $(VENV)/.installed-dev
	$(BIN)/python -m tests.simulation.soak --seeds $(SEEDS)
	$(BIN)/python -m pytest -m long --soak
	$(BIN)/python -m pytest --soak -o timeout=3600 tests/properties tests/simulation

# Guided by coverage if atheris can be installed.
FUZZ_SECONDS ?= 3600
FUZZ_TARGETS ?=
fuzz: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3' || true
	$(BIN)/python -m tests.fuzz.run $(FUZZ_SECONDS) $(FUZZ_TARGETS)

CHAOS_SECONDS ?= 1800
CHAOS_SEED ?= 1
chaos: $(VENV)/.installed-dev
	$(BIN)/python -m tests.chaos.conductor --seconds $(CHAOS_SECONDS) --seed $(CHAOS_SEED)

SOAK_SECONDS ?= 3600
endure: $(VENV)/.installed-dev
	$(BIN)/python -m tests.chaos.soak --seconds $(SOAK_SECONDS)

mutants: $(VENV)/.installed-dev
	$(BIN)/python tests/mutants.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

# Some systems have pip, but not ensurepip, which venv needs to install pip.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $@ install --quiet --disable-pip-version-check pip; }

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml scaler/_version.py Makefile | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) '.[dev]'
	rm -rf $(VENV)/libraries
	for library in $(LIBRARIES); do \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	        --target $(VENV)/libraries/$${library%%==*} $$library || exit 1; \
	done
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(EDITABLE) '.[orb]' || \
	    echo "orb-py could not be installed, so the worker manager orb_aws_ec2 is not tested" >&2
	@touch $@ $(VENV)/.installed
