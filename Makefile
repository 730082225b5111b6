# `make run` and `make test` need Python 3.11 or newer, make and a package index; everything else they install into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tiny tensors gain nothing from threads, and with one the numbers repeat to the last digit.
ONE := OMP_NUM_THREADS=1
# Modules are compiled as they are imported: most never are.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

.PHONY: run test results catalogue docs clean

run: $(VENV)/installed  ## train the default recipe on the embedded digits, evaluate it, print a table
	$(ONE) $(BIN)/atcl train

test: $(VENV)/installed-test  ## all checks: format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto --dist worksteal

results: $(VENV)/installed  ## run what the tables of digits lack in results/, remake all tables of the pages
	$(ONE) $(BIN)/atcl reproduce digits --write README.md
	$(ONE) $(BIN)/atcl reproduce selection --write docs/selection.md
	$(ONE) $(BIN)/atcl reproduce table1 --no-fill --write docs/results.md
	$(ONE) $(BIN)/atcl reproduce table1 --no-fill --write docs/methods.md
	$(ONE) $(BIN)/atcl reproduce digits --no-fill --write docs/index.md
	$(ONE) $(BIN)/atcl reproduce claims --write docs/reproduction.md
	$(ONE) $(BIN)/atcl reproduce times --write docs/performance.md

catalogue: $(VENV)/installed  ## write the names that the command line reads without importing PyTorch
	$(BIN)/python -m atcl.cli.catalogue

docs: $(VENV)/installed-docs  ## build the documentation into site/, without a network; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

clean:  ## remove the environment and caches, never runs or results
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "installing into $(VENV); this takes a minute or two"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable .
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(INSTALL) --editable '.[docs]'
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(INSTALL) --editable '.[test]'
	touch $@
