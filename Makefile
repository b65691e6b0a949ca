# make train   sets everything up and trains recipe `quickstart`
# make test    sets everything up and runs the tests
.PHONY: help setup setup-dev train translate translate-data test test-slow test-mutants test-newest drills-real check docs format \
  bench bench-gpu bench-gpu-tiny bench-cpu bench-ablate bench-nanogpt bench-quickstart bench-step bench-monitor \
  bench-loader bench-prepare bench-dedup bench-cause bench-planning \
  bench-equality bench-reshape bench-save bench-prefetch bench-recovery bench-simulation bench-board board-pictures figures lab lab-ends lab-prevention \
  qualify-drills slurm-drills launch-schemas drills-numbers drills-machines drill-resume drill-preempt drill-replicas drill-soak drills-move preflight clean

# The first Python on this machine that answers and is new enough.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)
BIN := .venv/bin

help:
	@echo "make train   set up and train recipe quickstart (RECIPE=NAME for another)"
	@echo "make test    set up and run the tests"
	@echo "make test-slow   the long ones: every switch compiled, every layout, real faults"
	@echo "make test-mutants   plant bugs one at a time; their tests must find them"
	@echo "make test-newest   a core of the tests with the newest torch that is allowed"
	@echo "make check   ruff, mypy, import-linter"
	@echo "make translate   a hybrid translator from message catalogues (LANGUAGES='de fr'; translate-data: only the text)"
	@echo "make docs    write docs/api.md from docstrings"
	@echo "make figures  lines and files by room, and the files that a start touches"
	@echo "make setup   only set up .venv"
	@echo "make bench-gpu   what one NVIDIA GPU makes of it (PEER=, MODDED=, PARTS=; bench-gpu-tiny: on a CPU)"
	@echo "make bench-cpu PEER=path/to/nanoGPT TEXT=path/to/input.txt   start-up, loader, monitors, the race, ablations"
	@echo "make bench-ablate    what each idea of speedrun-124m buys, on a GPU, in parts (ABLATE=another recipe)"
	@echo "make bench-loader    measure how fast batches are read"
	@echo "make bench-prepare PEER=path/to/python   text to tokens against nanoGPT's way (a Python with datasets, tiktoken)"
	@echo "make bench-dedup PEER=path/to/python   near-duplicates beside text-dedup, which that Python has"
	@echo "make bench-planning  hold the plan's arithmetic against published runs; write docs/planning.md's tables"
	@echo "make bench-quickstart   measure the newcomer's run"
	@echo "make bench-step RECIPE=NAME   measure a recipe's bare step on this device"
	@echo "make bench-monitor   measure what gauges cost"
	@echo "make bench-cause     inject causes, count how many are named right"
	@echo "make bench-equality  every layout of 2 and 4 processes against one process"
	@echo "make bench-reshape   stop, and resume under other layouts and numbers of processes"
	@echo "make bench-save      measure how long a save keeps training waiting"
	@echo "make bench-prefetch  show that gathering weights overlaps computing"
	@echo "make bench-recovery  time to detect and to recover, steps lost"
	@echo "make bench-simulation  published runs simulated, and what limits each size (a quarter of an hour)"
	@echo "make bench-board     the board on a run of a million steps: first picture, updates, memory"
	@echo "make board-pictures  the pictures of docs/board.md, from a run in trouble"
	@echo "make preflight RECIPE=NAME   what would fail later, said in two minutes"
	@echo "make drills-machines  break ranks, nodes and storage as in the incident book"
	@echo "make drills-move     kill a move between two clusters at each of its moments, an S3 server between them"
	@echo "make drills-real     real faults: full and read-only disks, an unread pipe, a deleted folder, a clock set back"
	@echo "make slurm-drills    launches on a real Slurm of three nodes, which it installs and ends again"
	@echo "make launch-schemas  launches against the schemas of JobSet, PyTorchJob and SkyPilot"
	@echo "make drill-resume    20 kills at random moments"
	@echo "make drill-preempt   100 notices at random moments"
	@echo "make drill-replicas  replicas killed one by one for five minutes (extra ft)"
	@echo "make drill-soak      random faults for ten minutes"
	@echo "make qualify-drills   each fault that longhaul qualify must find, and ten healthy batteries (ROWS=)"
	@echo "make drills-numbers  inject what happened to others, and see that the run ends well"
	@echo "make lab             judge the detectors on hundreds of small runs"
	@echo "make lab-ends        how runs end, with the policy and with nobody acting (QUICK=1: minutes)"
	@echo "make lab-prevention  which stabilisers would have prevented what"
	@echo "make bench-nanogpt PEER=path/to/nanoGPT TEXT=path/to/input.txt"

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "longhaul needs Python 3.11 or newer; none found on PATH (set PYTHON=/path/to/python)"; exit 2; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make a virtual environment: install its venv package (Debian: apt-get install python3-venv)"; exit 2; }
	$(PYTHON) -m venv .venv

# The torch that figures were measured with; any that pyproject.toml allows will do (TORCH=torch: the newest).
TORCH ?= torch==2.13.0
.venv/installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)" --editable .
	@touch $@

.venv/installed-dev: pyproject.toml | .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# lm-evaluation-harness brings as much as all others together; wandb is large too.
.venv/installed-slow: pyproject.toml | .venv/installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,eval,wandb]'
	@touch $@

setup: .venv/installed
setup-dev: .venv/installed-dev

RECIPE ?= quickstart
train: setup
	$(BIN)/longhaul train $(RECIPE)

LANGUAGES ?= de fr
.venv/installed-translate: pyproject.toml | .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[translate]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'eflomal>=2' \
	  || echo "eflomal was not built, which takes a C compiler: IBM model 2 aligns in its place"
	@touch $@

# Its text is of packages that pip and apt-get download.
translate: .venv/installed-translate
	$(BIN)/python -u -m examples.translate.make $(LANGUAGES)

translate-data: .venv/installed-translate
	$(BIN)/python -u -m examples.translate.make $(LANGUAGES) --data-only

# Three share a machine of two cores: a fifth of the time all that a test does is wait.
WORKERS ?= 3
# Compiled once, and not by each interpreter that the tests start, or that a benchmark times.
test test-slow bench-nanogpt bench-cpu bench-quickstart: export PYTHONDONTWRITEBYTECODE :=

test: setup-dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-slow: setup-dev .venv/installed-slow
	$(BIN)/python -m pytest -m slow -n 2 --dist loadfile

test-mutants: setup-dev
	$(BIN)/python tests/mutants/run.py

# An environment of its own (with a CUDA build of torch 6 GB), made anew when pyproject.toml changes.
NEWEST := .venv-newest
.venv-newest/installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "longhaul needs Python 3.11 or newer; none found on PATH (set PYTHON=/path/to/python)"; exit 2; }
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade torch --editable '.[dev]'
	@touch $@

# Without the tests that compile, which take longer than all others.
CORE ?= tests/core tests/config tests/model tests/optim tests/train tests/checkpoint tests/parallel tests/device \
  --ignore=tests/model/test_compile.py
WHOLE_RUN ?= tests/system/test_train.py
test-newest: .venv-newest/installed
	@$(NEWEST)/bin/python -c 'import torch; print("torch", torch.__version__)'
	$(NEWEST)/bin/python -m pytest -p no:cacheprovider $(CORE) $(WHOLE_RUN)

check: setup-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

TEXT ?= ../shared/corpora/tinyshakespeare.txt
PAIRS ?= 5
bench-nanogpt: setup
	@test -n "$(PEER)" || { echo "say where nanoGPT is: make bench-nanogpt PEER=path/to/nanoGPT"; exit 2; }
	$(BIN)/python -m benchmarks.vs_nanogpt --peer "$(PEER)" --text "$(TEXT)" --pairs $(PAIRS) $(RACE)

# The parts that are missing, each at most 8 minutes; AGAIN=--again measures all anew.
MODDED ?=
BENCH_GPU = $(BIN)/python -m benchmarks.gpu $(PARTS) $(AGAIN) \
  $(if $(PEER),--peer "$(PEER)") $(if $(MODDED),--modded "$(MODDED)")
bench-gpu: setup
	$(BENCH_GPU)

bench-gpu-tiny: setup
	$(BENCH_GPU) --tiny

bench-cpu: setup
	$(BIN)/python -m benchmarks.cpu $(if $(PEER),--peer "$(PEER)") \
	  $(if $(wildcard $(TEXT)),--text "$(TEXT)")

# One part of an ablation, in which no run is begun after 8 minutes; the same command goes on.
ABLATE ?= speedrun-124m
bench-ablate: setup
	$(BIN)/python -m benchmarks.ablate --recipe $(ABLATE) --minutes 8 $(AGAIN) \
	  $(if $(wildcard $(TEXT)),--text "$(TEXT)")

bench-loader: setup
	$(BIN)/python -m benchmarks.loader

bench-prepare: setup-dev
	$(BIN)/python -m benchmarks.prepare $(if $(PEER),--peer "$(PEER)")

bench-dedup: setup-dev
	$(BIN)/python -m benchmarks.dedup $(if $(PEER),--peer "$(PEER)")

bench-step: setup
	$(BIN)/python -m benchmarks.step "$(RECIPE)"

bench-quickstart: setup
	$(BIN)/python -m benchmarks.quickstart

bench-planning: setup
	$(BIN)/python -m benchmarks.planning

bench-monitor: setup
	$(BIN)/python -m benchmarks.monitor_cost

bench-cause: setup
	$(BIN)/python -m benchmarks.cause_matrix

# The acceptance drills. ROWS: some of them; DRILL: options, such as --blind or --keep DIR.
DRILLS := PYTHONPATH=tests $(BIN)/python -m drills
drills-numbers: setup
	$(DRILLS) numbers $(ROWS) $(DRILL)
	$(if $(ROWS),,$(DRILLS) recovery)

drills-machines: setup
	$(DRILLS) machines $(ROWS) $(DRILL)

# Each fault is injected into a real battery; namespaces and a tmpfs need root, and are left out without.
qualify-drills: setup
	$(DRILLS) qualify $(ROWS) $(DRILL)

drill-resume: setup
	$(DRILLS) resume $(DRILL)

drill-preempt: setup
	$(DRILLS) preempt --signals 100 --seed 0 $(DRILL)

# Of a tiny recipe, or of the one that DRILL names.
drill-replicas: setup
	$(DRILLS) replicas $(DRILL)

drills-move: setup-dev
	$(BIN)/python -m pytest tests/system/test_move.py -s -m ''

drills-real: setup-dev
	$(BIN)/python -m pytest -v -m '' tests/drills/test_real_*.py

# Debian's packages; where this is not root, or has no apt-get, the drills skip and say why.
slurm-drills: setup-dev
	@command -v slurmctld >/dev/null && command -v slurmd >/dev/null && command -v munged >/dev/null \
	  || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq \
	    && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge; } \
	  || echo "Slurm is not installed, and cannot be: not root, no apt-get, or it failed"
	$(BIN)/python -m pytest -v -rs -m '' --timeout 400 tests/drills/test_slurm.py

# An environment of its own: SkyPilot and the clients of Kubeflow bring a hundred packages.
SCHEMAS := .venv-launch
$(SCHEMAS)/installed: | .venv/bin/python
	$(BIN)/python -m venv $(SCHEMAS)
	$(SCHEMAS)/bin/python -m pip install --quiet --disable-pip-version-check \
	  skypilot kubeflow-training kubeflow-trainer-api
	@touch $@

launch-schemas: setup-dev $(SCHEMAS)/installed
	$(BIN)/python -m pytest -v -rs -m '' tests/system/test_launch_schemas.py

drill-soak: setup
	$(BIN)/longhaul drill drill --small --nproc 2 --soak 10m --mtbf 20s --seed 7

preflight: setup
	$(BIN)/longhaul preflight $(RECIPE)

bench-equality: setup
	$(BIN)/python -m benchmarks.equality

bench-reshape: setup
	$(BIN)/python -m benchmarks.reshape

bench-save: setup
	$(BIN)/python -m benchmarks.save_stall

bench-prefetch: setup
	$(BIN)/python -m benchmarks.prefetch

docs: setup
	$(BIN)/python docs/make_api.py

figures: setup
	$(BIN)/python -m benchmarks.figures

bench-board: setup-dev
	$(BIN)/python -m benchmarks.board_scale

board-pictures: setup-dev
	$(BIN)/python -m benchmarks.board_pictures

bench-recovery: setup
	$(BIN)/python -m benchmarks.recovery

bench-simulation: setup-dev
	$(BIN)/python -m benchmarks.simulation

# The lab trains 610 small runs, an hour; once trained they are kept in prepared/.
lab: setup-dev
	$(BIN)/python -m benchmarks.divergence_lab --processes 2

# 250 small runs, half an hour on two idle cores; once trained they are kept in prepared/.
# QUICK=1 trains a case of each way to go wrong, some minutes.
lab-ends: setup-dev
	$(BIN)/python -m benchmarks.divergence_lab.ends --processes 2 --cases $(if $(QUICK),--quick)

# 2,068 small runs, an hour and a half; once trained they are kept in prepared/.
lab-prevention: setup-dev
	$(BIN)/python -m benchmarks.divergence_lab.prevention

bench: bench-quickstart
	@test -z "$(PEER)" || $(MAKE) bench-nanogpt

clean:
	rm -rf .venv .venv-newest .venv-launch .pytest_cache .mypy_cache .ruff_cache .hypothesis
