# `make run` tests what the two papers say, `make test` runs all its tests; both set everything up first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
KERNELS := .venv/.kernels

.PHONY: run test lint quick bench bench-gpu docs readme clean

run: $(READY)
	@mkdir -p out
	@$(BIN)/pushforward verify --html out/verify.html --json out/verify.json
	@echo "Open $(CURDIR)/out/verify.html in a browser. A tour of the library: $(BIN)/pushforward tour"

test: lint $(KERNELS)
	@echo "[2/3] tests, with run-time shape checks"
	@$(BIN)/python -m pytest -n 2 -m "not unhooked"
	@echo "[3/3] tests of what users see: messages, compilation, imports, README, examples"
	@$(BIN)/python -m pytest -n 2 -m unhooked -o addopts="-q --strict-markers" tests

quick: $(READY)
	@$(BIN)/python -m pytest -n 2 -m "not slow and not unhooked"

lint: $(READY)
	@echo "[1/3] lint and types"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(READY)
	@$(BIN)/python benchmarks/kernels.py
	@$(BIN)/python benchmarks/run.py

# Where PyTorch for CUDA and Triton are: `make bench-gpu PYTHON=python3`, without an environment.
bench-gpu:
	@PYTHONPATH=src $(PYTHON) benchmarks/kernels.py --device cuda

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open site/index.html"

readme: $(READY)
	@$(BIN)/python benchmarks/statements.py --readme
	@echo "README.md has the table of benchmarks/statements.json"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "Python 3.11 or newer is needed, this is %d.%d: try make PYTHON=python3.11" % v[:2])'
	@echo "Setting up .venv (once, a few minutes) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 --constraint constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --constraint constraints.txt
	@touch $(READY)
	@echo "Done."

$(KERNELS): $(READY)
	@echo "Setting up Triton, whose interpreter runs the kernels for GPUs (285 MB, once) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[kernels]' --constraint constraints.txt
	@touch $(KERNELS)

clean:
	rm -rf .venv site out .pytest_cache .mypy_cache .ruff_cache .hypothesis
