# SPDX-License-Identifier: GPL-2.0-or-later
#
# One line a target: the work is in tests/setup (packages and venv), tests/gate (the steps of
# `make check`), tests/lab (kernels and guests) and packaging/build-debs.

export DEBIAN_FRONTEND := noninteractive
export PYTHONPATH := $(CURDIR)/tests:$(CURDIR)/plugins
# Never the first python3 in PATH: that may be a pyenv shim of another version.
PYTHON := build/venv/bin/python
LAB := $(PYTHON) -m lab
BASE ?= 6.12
KERNEL ?= ours
# Extra arguments for pytest: make integration ARGS='-k map'.
ARGS ?=
# Guests at a time, where their time is not what is looked at: emulated, one keeps a core busy and
# a bit. With 0 pytest shows what tests print (ARGS=-s).
WORKERS ?= 2

TYPED := plugins/rxlane plugins/tuned tests/lab tests/unit tests/integration tests/bench \
	tests/packages tests/demo.py tests/demo_story.py tests/demo_text.py packaging/build-debs \
	packaging/build-rpms packaging/build-repo packaging/build-tool-debs \
	packaging/build-tool-rpms packaging/kernel/rxlane-kernel-patches tests/gate
# Preemption models, as KERNEL/FLAVOUR, beside those that `make check` runs: PREEMPT_DYNAMIC, which
# is NONE at boot on 6.12 and LAZY on 7.2.
VARIANTS := ours-6.12/none ours-6.12/rt stock-7.2/preempt stock-7.2/rt

# What depends on how the kernel was built.
KERNEL_TESTS := $(addprefix tests/integration/test_,lab.py devices.py napi_threads_kept.py \
	profile.py)
# The same of what only our series have, which are their selftests above all.
OUR_VARIANTS := ours-6.12/none ours-6.12/rt ours-7.2/preempt ours-7.2/rt
SERIES_TESTS := $(addprefix tests/integration/test_,rx_threads.py rx_threads_cpus.py irq_threaded.py \
	link_deleted.py)
# What needs RPM packages, or makes its own.
PACKAGE_TESTS := $(addprefix tests/integration/test_,rpm_life.py newcomer.py)
# What needs the debug kernel.
DEBUG_TESTS := $(addprefix tests/integration/test_,hung_limit.py stress.py irq_stress.py \
	rx_stress.py alloc_failures.py)

.DEFAULT_GOAL := help
.PHONY: help setup venv unit hosts settings lint debs rpms tool-debs tool-rpms repo kernel-tree kernel-refresh series integration check \
	check-series check-debug check-long check-variants check-packages demo bench bench-cost clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install what is missing: Debian packages (root) and build/venv
	@sh tests/setup packages
	@sh tests/setup venv

venv:
	@sh tests/setup venv

unit: venv ## unit tests: no root, a minute or two
	$(PYTHON) -m pytest -n auto tests/unit $(ARGS)

hosts: venv ## write the fixture hosts' derived files anew; read the difference
	$(PYTHON) -m unit.goldens

settings: venv ## write tuned-profiles/settings.md from the profiles
	$(PYTHON) -m unit.settings_table

lint: venv ## ruff and mypy --strict
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	@set -e; for part in $(TYPED); do \
		echo "mypy --strict $$part"; $(PYTHON) -m mypy --strict $$part; done

debs: ## build/debs/*.deb, checked by lintian
	@sh tests/setup only packaging/packages.txt
	packaging/build-debs

tool-debs: ## build/tool-debs/*.deb: ethtool and iproute2 with our patches (root)
	packaging/build-tool-debs

rpms: venv ## build/rpms/*.rpm, checked by rpmlint
	@sh tests/setup packages packaging/rpm/packages.txt
	packaging/build-rpms

tool-rpms: venv ## build/tool-rpms/*.rpm: ethtool and iproute2 with our patches
	@sh tests/setup packages packaging/rpm/packages.txt
	packaging/build-tool-rpms

repo: debs ## build/apt: the Debian packages as a signed apt repository
	packaging/build-repo

kernel-tree: setup ## git tree of a base with its series: build/kernel-$(BASE)
	$(LAB) tree $(BASE)

kernel-refresh: setup ## write the commits of build/kernel-$(BASE) back as patches
	$(LAB) refresh $(BASE)

series: setup ## both series apply with fuzz 0 and pass checkpatch
	$(LAB) series 6.12
	$(LAB) series 7.2

integration: setup ## guest tests with the packages (root)
	$(PYTHON) -m pytest -n $(WORKERS) tests/integration -m 'not long' \
		--durations 25 --durations-min 10 $(ARGS)

# Setup comes before the gate, which runs in the venv that it makes.
check: ## the gate: setup, lint, unit, series, debs, kernels, integration
	@start=$$(date +%s); \
	{ sh tests/setup packages && sh tests/setup venv; } || \
		{ echo "== gate: setup FAILED; gate exits with 10"; exit 10; }; \
	RXLANE_STRICT=1 $(PYTHON) tests/gate --setup-took $$(($$(date +%s) - start))

check-series: setup ## each patch of the series builds alone and boots (long)
	RXLANE_STRICT=1 $(LAB) series 6.12 --build --models
	RXLANE_STRICT=1 $(LAB) series 7.2 --build --models

check-debug: setup debs ## guest tests, stress and failing allocations on the debug kernel (long)
	RXLANE_STRICT=1 RXLANE_VARIANT=ours-6.12/debug $(PYTHON) -m pytest $(KERNEL_TESTS) $(ARGS)
	@set -e; for variant in ours-6.12/debug ours-7.2/debug; do echo "== $$variant"; \
		RXLANE_STRICT=1 RXLANE_VARIANT=$$variant $(PYTHON) -m pytest -m 'not long' \
		$(SERIES_TESTS) $(ARGS); done
	RXLANE_STRICT=1 $(PYTHON) -m pytest $(DEBUG_TESTS) $(ARGS)

check-long: setup debs ## stress, power cuts (long)
	RXLANE_STRICT=1 $(PYTHON) -m pytest tests/integration -m long \
		$(addprefix --ignore=,$(DEBUG_TESTS) $(PACKAGE_TESTS)) $(ARGS)

check-variants: setup debs ## the guest tests on every preemption model (long)
	@set -e; for variant in $(VARIANTS); do echo "== $$variant"; \
		RXLANE_STRICT=1 RXLANE_VARIANT=$$variant $(PYTHON) -m pytest $(KERNEL_TESTS) $(ARGS); done
	@set -e; for variant in $(OUR_VARIANTS); do echo "== $$variant"; \
		RXLANE_STRICT=1 RXLANE_VARIANT=$$variant $(PYTHON) -m pytest $(SERIES_TESTS) $(ARGS); done

check-packages: setup debs rpms tool-rpms ## RPMs against debs, both built twice; a newcomer's way (long)
	RXLANE_STRICT=1 $(PYTHON) -m pytest tests/packages $(ARGS)
	RXLANE_STRICT=1 $(PYTHON) -m pytest $(PACKAGE_TESTS) $(ARGS)

demo: setup debs ## the main job in a guest: KERNEL=ours (default) or debian
	$(PYTHON) tests/demo.py --kernel $(KERNEL)

bench: setup debs ## the figures of the seeds as ratios, with plots
	$(PYTHON) tests/bench/run.py $(ARGS)

bench-cost: setup ## what laying out 4096 queues costs, on this machine's kernel (root)
	$(PYTHON) tests/bench/cost.py $(ARGS)

clean: ## remove build/ (the cache of kernels and roots stays)
	[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name apt-key -exec rm -rf {} +
