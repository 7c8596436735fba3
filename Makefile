# Everything a fresh machine needs is Python (3.10 or newer) with pip, and g++.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := build/demo
ZOO := build/zoo

.PHONY: setup test test-all smoke demo lint fuzz zoo wheel docs ray notebook versions clean

setup: $(READY)

# Where the venv module has no pip of its own to install, the machine's pip fills the environment.
$(READY): pyproject.toml requirements-dev.txt
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --without-pip --clear $(VENV) \
		&& $(PYTHON) -m pip --python $(BIN)/python install pip; }
	$(BIN)/python -m pip install -r requirements-dev.txt
	$(BIN)/python -m pip install -c requirements-dev.txt -e '.[dev]'
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

# What takes long (whole models of the zoo and of the laws on the host) is left to test-all.
test: lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-all: lint
	$(BIN)/python -m pytest -n 2

smoke: setup
	$(BIN)/python -m pytest -q -m smoke

demo: setup
	@mkdir -p $(DEMO)
	@for model in examples/*.py; do \
		echo "== $$model"; \
		$(BIN)/fusewright optimize $$model --target host -o $(DEMO)/$$(basename $$model .py)_new.py \
			--json $(DEMO)/$$(basename $$model .py).json || exit $$?; \
	done
	@echo "The optimised models are in $(DEMO)/:" && ls $(DEMO)

# Random chains of fused operators, each against PyTorch; a failure prints a stand-alone reproduction.
SEEDS ?= 500
fuzz: setup
	$(BIN)/python tests/fuzz/fuzz.py --seeds $(SEEDS)

# Every model in zoo/ at its small size on the host; goes on where an interrupted run stopped.
zoo: export FUSEWRIGHT_ZOO := small
zoo: setup
	@mkdir -p $(ZOO)
	$(BIN)/fusewright suite zoo --target host --jobs 2 --resume --json $(ZOO)/suite.json

# The wheel, in dist/. Its test installs it in an environment of its own and runs the tutorial's commands there.
wheel: setup
	rm -rf build/lib build/bdist.*
	$(BIN)/python -m pip wheel . --no-deps -w dist
	$(BIN)/python -m pytest -q tests/package

# The documentation, in build/site; a link that leads nowhere is an error.
docs: setup
	$(BIN)/python -m pip install -q -c requirements-dev.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict
	@echo "The documentation is in build/site/index.html."

# A suite on a Ray cluster of this machine.
ray: setup
	$(BIN)/python -m pip install -q -c requirements-dev.txt -e '.[ray]'
	$(BIN)/python -m pytest -q tests/zoo/test_many.py

# docs/tutorial.ipynb, run from its first cell to its last.
notebook: setup
	$(BIN)/python -m pip install -q -c requirements-dev.txt -e '.[notebook]'
	$(BIN)/python -m pytest -q tests/docs/test_notebook.py

# Emitted files under older versions of PyTorch, each in an environment of its own (5 GB, unless pip finds wheels without CUDA).
# These are the oldest that files are meant for, and two between it and ours.
TORCHES ?= 2.0.1 2.4.1 2.8.0
VERSIONS := build/versions
versions: export FUSEWRIGHT_TORCHES = $(subst $(EMPTY) ,:,$(TORCHES:%=$(CURDIR)/$(VERSIONS)/%/bin/python))
versions: setup $(TORCHES:%=$(VERSIONS)/%/.ready)
	$(BIN)/python -m pytest -q tests/versions

$(VERSIONS)/%/.ready:
	@mkdir -p $(VERSIONS)
	$(PYTHON) -m venv --without-pip --clear $(VERSIONS)/$*
	$(BIN)/python -m pip --python $(VERSIONS)/$*/bin/python install torch==$* 'numpy<2' 'setuptools<70'
	touch $@

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
