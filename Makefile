# make demo    set up .venv, then run the main example
# make test    set up .venv with the test tools, then run every check (python -m tests)
# make clean   remove what these made

PYTHON ?= python3
VENV ?= .venv
# Extra arguments of `python -m tests`, for example TEST_ARGS="--profile full".
TEST_ARGS ?=

# The Metal backend comes with mlx itself; on Linux the plain wheel has no backend at all.
ifeq ($(shell uname -s),Darwin)
DEMO_EXTRAS := [bench]
TEST_EXTRAS := [test,bench]
else
DEMO_EXTRAS := [cpu,bench]
TEST_EXTRAS := [cpu,test,bench]
endif

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test packages clean

demo: $(VENV)/.installed-demo
	$(BIN)/python examples/transpose8.py
	$(BIN)/python examples/rmsnorm_in_a_model.py

test: packages $(VENV)/.installed-test
	$(BIN)/python -m tests $(TEST_ARGS)

# Debian's, where this user may install them.
packages:
	@.ci/packages

# Stamps, not bin/python: a venv whose creation failed half-way is made again.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("Python >= 3.10 is needed, $(PYTHON) is " + sys.version.split()[0] + ": set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed-demo: $(VENV)/.created pyproject.toml hatch_build.py
	$(PIP) -e ".$(DEMO_EXTRAS)"
	@touch $@

# What the tests need includes what the demo needs.
$(VENV)/.installed-test: $(VENV)/.created pyproject.toml hatch_build.py
	$(PIP) -e ".$(TEST_EXTRAS)"
	@touch $(VENV)/.installed-demo $@

clean:
	rm -rf .venv .editable build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis *.mlxfn *.png
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
