# `make run` trains the quickstart, `make test` proves the project, `make prove` whatever takes longer than that.
PYTHON ?= python3
# Tests also wait for processes: three at a time are faster than two, also on two cores.
JOBS ?= 3
VENV := .venv
# Other programs, whose files tests read; never in $(VENV).
WRITERS := .writers
# A process that crashes ends the run: in its place others would do the same test, and crash, eight times more.
APART := --dist loadfile --max-worker-restart 0
# Tests start hundreds of processes, each of which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE
# Few files, one of which takes longer than the others together; nothing in them waits.
SIMULATED = NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest -n $(PROVE_JOBS) --dist worksteal --max-worker-restart 0 \
	tests/simulated
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# uv installs in a third of pip's time. It has to be given pip's settings: indexes, and folders of wheels. If it fails
# (a proxy with a certificate that it does not know, say), pip does it.
, := ,
PIP_SETTING = $$($(BIN)/python -m pip config list | sed -nE "s/^(:env:|global|install)\.$(1)='(.*)'/\2/p" \
	| sed 's/\\n/ /g' | tr ' ' '\n' | sort -u | paste -sd '$(2)')
UV := UV_INDEX_STRATEGY=unsafe-best-match UV_DEFAULT_INDEX="$(call PIP_SETTING,index-url, )" \
	UV_EXTRA_INDEX_URL="$(call PIP_SETTING,extra-index-url, )" UV_FIND_LINKS="$(call PIP_SETTING,find-links,$(,))" \
	$(BIN)/uv
INSTALL = ($(UV) pip install --quiet --python $(BIN)/python -c constraints.txt $(1) || $(PIP) $(1))

.PHONY: run test test-browser test-writers prove prove-all test-gpu bench-gpu check wheel lock clean

run: $(VENV)/core
	$(BIN)/python -m pipeline.run workflows/quickstart.py

test: $(VENV)/test
	$(BIN)/python -m pytest -n $(JOBS) $(APART)
	$(SIMULATED)

# What is deeper than `make test`: more forms of each promise, more examples, whole processes, benchmarks in their quick
# form. What a proof needs of the machine is said where it is skipped: a C compiler, namespaces (unshare), a file
# system with O_DIRECT. PROVE=--no-skips fails then. Some proofs measure time: no more processes than cores.
PROVE ?=
PROVE_JOBS ?= 2
# `make prove` runs one in four forms of a test and a quarter of the examples, `make prove-all` all of them. The files
# that take longest have few tests: they begin first, in the order of conftest.py, and not last.
DEEPER = -m "prove or deep" --timeout 1200 $(PROVE)
PROOFS = $(BIN)/python -m pytest -n $(PROVE_JOBS) $(APART) --no-loadscope-reorder $(DEEPER)
# Runs that equal the plain trainer, and tests of every kernel, are repeated with checks of bounds. What is left out takes
# long: PTX, processes whose system calls fail, and other schedules and types of the same kernels.
CHECKED := not test_ptx and not refuses and not faulty and not one_by_one and not in_float \
	and not any_run and not dask and not policy and not known
CHECK_BOUNDS = PIPELINE_CHECK_BOUNDS=1 $(BIN)/python -m pytest -n $(PROVE_JOBS) $(APART) -k "$(CHECKED)" \
	tests/kernels tests/test_equivalence.py tests/test_batch_sizes.py
prove: $(VENV)/test $(WRITERS)/done
	$(PROOFS)
	$(SIMULATED) $(DEEPER)
	$(CHECK_BOUNDS)

prove-all: $(VENV)/test $(WRITERS)/done
	$(PROOFS) --all-forms
	$(SIMULATED) $(DEEPER) --all-forms
	$(CHECK_BOUNDS)

# Reports of runs in Debian's chromium, through its DevTools port: nothing is downloaded.
# SHOTS=folder leaves pictures; PROVE=--no-skips fails where there is no chromium.
test-browser: $(VENV)/test
	$(BIN)/python -m pytest -m browser tests/browser $(PROVE)

# Files that other programs write. Where these cannot be installed, the tests are skipped.
$(WRITERS)/done: tests/writers/packages.txt $(VENV)/test
	-$(PYTHON) -m venv --without-pip $(WRITERS) && $(UV) pip install --quiet --python $(WRITERS)/bin/python -r $< && touch $@

test-writers: $(WRITERS)/done
	$(BIN)/python -m pytest -n $(PROVE_JOBS) -m prove tests/writers --all-forms $(PROVE)

# On a machine with a GPU, with the packages of environment.yml: whatever python3 is there.
test-gpu:
	$(PYTHON) -m benchmarks.gpu --parts tests workers memcheck racecheck

bench-gpu:
	$(PYTHON) -m benchmarks.gpu

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# torch goes first, by itself: what depends on it then finds it there.
$(VENV)/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) uv
	@$(call INSTALL,torch)
	@$(call INSTALL,-e .)
	touch $@

$(VENV)/test: $(VENV)/core
	@$(call INSTALL,-e '.[test]')
	touch $@

$(VENV)/dev: $(VENV)/test
	@$(call INSTALL,-e '.[dev]')
	touch $@

# The distribution ctr-pipeline, in dist/.
wheel: $(VENV)/core
	@$(UV) build --quiet --wheel --out-dir dist

# Versions of constraints.txt again: those that it has are kept if they still fit; UPGRADE=--upgrade takes newer ones.
lock: $(VENV)/core
	@$(UV) pip compile pyproject.toml --extra dev --python-version 3.11 \
		--python-platform x86_64-manylinux_2_28 --no-annotate --quiet $(UPGRADE) \
		--custom-compile-command 'make lock' -o constraints.txt

clean:
	rm -rf $(VENV)
