# The whole project by one word each. `make reproduce` is the main one: environment, ten chapters, book.
#
#   make reproduce                          in .venv, made where it is missing or stale
#   make reproduce PYTHON=python3 SYSTEM=1  with that interpreter's own packages; nothing is installed
#   make reproduce PROFILE=smoke            another profile than the one that fits this machine
#   make test PYTEST_FLAGS='-x -k record'

PYTHON ?= python3
PROFILE ?= auto
EXTRAS := notebooks,book,dev

# Test files side by side, one for each core; one thread each, or the threads of all of them would fight for the cores.
SIDE_BY_SIDE ?= -n logical --dist loadfile
TEST_THREADS := OMP_NUM_THREADS=1

ifdef SYSTEM
RUN := PYTHONPATH="$(CURDIR)/src$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON)
ENVIRONMENT :=
else
RUN := .venv/bin/python
# Where nobody names a Python, the one that .venv was made with goes on.
CHOSEN := $(if $(filter file,$(origin PYTHON)),$(or $(wildcard .venv/bin/python),$(PYTHON)),$(PYTHON))
hash = $(shell { $(1); } 2>&1 | cksum | cut -d' ' -f1)
# A virtual environment is good for one Python in one place, and is made from nothing when either changes ...
PLACE := .venv/place-$(call hash,pwd; $(CHOSEN) --version)
# ... and its packages for one state of these files; they are installed again when one of them changes.
ENVIRONMENT := .venv/installed-$(call hash,echo $(PLACE) "$(EXTRAS)"; cat pyproject.toml constraints.txt)
endif

.PHONY: help env test reproduce quick book colab check clean

help:
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /make \1	/' | expand -t 18

env: $(ENVIRONMENT) ## make .venv, or refresh one that is stale
ifdef SYSTEM
	@$(RUN) -c "import sys; print('using', sys.executable, 'as it is')"
endif

.venv/installed-%:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "make: $(PYTHON) is not Python 3.11 or newer: name one, as in make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	@echo "making .venv (a new one takes about two minutes)"
	@test -e $(PLACE) || { $(PYTHON) -m venv --clear .venv && touch $(PLACE); }
	@rm -f .venv/installed-*
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

test: $(ENVIRONMENT) ## run the tests
	$(TEST_THREADS) $(RUN) -m pytest $(SIDE_BY_SIDE) $(PYTEST_FLAGS)

reproduce: $(ENVIRONMENT) ## execute the ten chapters and build the book from them
	$(RUN) -m speedlab reproduce --profile $(PROFILE) $(REPRODUCE_FLAGS)
	$(RUN) -m speedlab book

quick: $(ENVIRONMENT) ## measure a toy ladder as text, in under a minute
	$(RUN) -m speedlab ladder --profile smoke --rungs baseline,causal_mask,fused_adamw,native_layers,flash_attention,merged_qkv

book: $(ENVIRONMENT) ## build the book from the newest complete run
	$(RUN) -m speedlab book

colab: $(ENVIRONMENT) ## convert the chapters for Colab
	$(RUN) -m speedlab.publishing.colab

check: $(ENVIRONMENT) ## look over the style of the code
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

clean: ## remove what was built; runs and .venv stay
	rm -rf book/_build book/_generated book/chapters book/labs .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -exec rm -rf {} +
