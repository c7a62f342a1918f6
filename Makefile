# `make demo` and `make test` set up everything they need in .venv.
#
#   make test ARGS="-k fork"        more arguments for pytest
#   make PYTHON=/path/to/python     the Python that .venv is made with

PYTHON ?=
ARGS ?=

CANDIDATES := $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3.13 python3)
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
INSTALLING := $(VENV)/.installing

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint clean

demo: $(INSTALLED)
	@$(VENV)/bin/branchrt demo $(ARGS)

# -P: the folders kernels/, wrappers/ and envs/ are not to be importable by their bare names.
test: $(INSTALLED)
	$(RUN) -P -m pytest --durations=10 $(ARGS)

# mypy reads the built tree, where the packages lie as they are imported.
lint: $(INSTALLED)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	rm -rf build
	$(RUN) -m pip install -q --no-deps --no-build-isolation --no-compile --target build/typecheck .
	$(RUN) -P -m mypy

clean:
	rm -rf $(VENV) build dist *.egg-info .coverage htmlcov
	rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp holds the path of the tree: a copied or moved one installs itself again.
ifneq ($(shell cat $(INSTALLED) 2>/dev/null),$(CURDIR))
.PHONY: $(INSTALLED)
endif

# A set-up that was cut short left INSTALLING behind, and its .venv is made anew.
$(INSTALLED): pyproject.toml constraints.txt
	@set -e; \
	if [ -e $(INSTALLING) ] || ! $(RUN) -m pip --version >/dev/null 2>&1; then \
	  python=; \
	  for candidate in $(CANDIDATES); do \
	    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	        >/dev/null 2>&1; then python=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "No Python >= 3.11 with venv and ensurepip runs here; tried:" $(CANDIDATES). >&2; \
	    echo "Install one (on Debian: python3 and python3-venv)," \
	      "or name one: make PYTHON=/path/to/python" >&2; \
	    exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$("$$python" --version)"; \
	  rm -rf $(VENV); mkdir $(VENV); touch $(INSTALLING); \
	  "$$python" -m venv $(VENV); \
	fi; \
	echo "Installing the versions of constraints.txt into $(VENV) (a minute or more)"; \
	echo "$(CURDIR)" > $(INSTALLING); \
	$(RUN) -m pip install -q --no-input -c constraints.txt -e ".[dev]"; \
	mv $(INSTALLING) $(INSTALLED)
