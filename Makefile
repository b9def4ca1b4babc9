# Every target sets up what it needs. `make help` lists them.
BUILT := $(or $(CARGO_TARGET_DIR),target)/x86_64-unknown-linux-gnu
BIN := $(BUILT)/release
# Always together: cargo compiles a dependency anew for each set of packages that wants other features of it.
PACKAGES := --package cli --package vmm --package agent --package bench

# What tests run; with the same words as the tests themselves, so that nothing is compiled twice.
BUILD := cargo build --workspace --bins --examples

# Where the Python SDK is tested.
VENV := $(or $(CARGO_TARGET_DIR),target)/venv

.PHONY: help build demo test unit sdk vms vmtest long recipes lint fuzz bench install clean setup
.DEFAULT_GOAL := help

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install the Debian packages that are missing
	@cargo xtask setup

build: setup ## Build forkd, forkd-vmm, forkd-agent and what measures them
	@cargo build --release $(PACKAGES)

demo: build ## `forkd quickstart`: warm up a microVM with Python and numpy, fork it N=10 times, let each calculate
	@N=$(N) $(BIN)/bench demo

test: setup ## Unit tests, tests of the SDK, and VM tests in real VMs
	@$(BUILD)
	@$(MAKE) --no-print-directory --jobs unit sdk vms

# Beside the VM tests, which leave half a core idle; and not in their way.
unit: setup
	@said=$$(nice -n 10 cargo test --quiet --workspace --all-targets 2>&1); code=$$?; printf '%s\n' "$$said"; exit $$code

sdk: $(VENV)/ready ## Check and test the Python SDK, as far as that needs no VM
	@$(VENV)/bin/ruff check --quiet --config sdk/python/pyproject.toml sdk/python tests/clients tests/recipes recipes
	@$(VENV)/bin/ruff format --quiet --check --config sdk/python/pyproject.toml sdk/python tests/clients tests/recipes recipes
	@cd sdk/python && $(abspath $(VENV))/bin/mypy src tests examples && $(abspath $(VENV))/bin/pytest

$(VENV)/ready: sdk/python/pyproject.toml | setup
	@python3 -m venv $(VENV) && $(VENV)/bin/pip install --quiet --editable 'sdk/python[test]' && touch $@

# For `test` alone, which has built everything.
vms:
	@$(BUILT)/debug/e2e prepare
	@$(BUILT)/debug/e2e

vmtest: setup
	@$(BUILD) --quiet
	@$(BUILT)/debug/e2e

long: setup ## Tests that take long: published clients, made-up requests, images, a recipe, a thousand sandboxes, crashes
	@$(BUILD) --quiet
	@$(BUILT)/debug/e2e long

recipes: setup ## Build every recipe, fork it, prove its warmth and run its example
	@$(BUILD) --quiet
	@$(BUILT)/debug/e2e recipes

lint: ## Format, clippy, dependency direction, shape of the sources
	@cargo fmt --all --check
	@cargo clippy --quiet --workspace --all-targets -- -D warnings
	@cargo xtask deps
	@cargo xtask shape

bench: build ## A spawn and a branch beside their floors, a chain, prefaults, networks, neighbours, the daemon, a Linux branched and fanned out, the recipes, a cold boot: each as JSON
	@$(BIN)/bench spawn
	@$(BIN)/bench branch
	@$(BIN)/bench chain
	@$(BIN)/bench prefault
	@cargo build --quiet --release --package daemon --example scripted-vmm-of-daemon
	@$(BIN)/bench api
	@$(BIN)/bench net
	@$(BIN)/bench neighbours
	@$(BIN)/bench branch --linux
	@$(BIN)/bench fanout
	@$(BIN)/bench recipes
	@$(BIN)/bench boot

fuzz: ## Fuzz every target for a minute (needs nightly and cargo-fuzz)
	@cd fuzz && for target in $$(cargo +nightly fuzz list); do cargo +nightly fuzz run $$target -- -max_total_time=60 || exit 1; done

# Not built here: who may write to /usr/local need not have a toolchain.
install: ## Install what `make build` built to /usr/local/bin, and manual pages
	@test -x $(BIN)/forkd || { echo "there is nothing to install yet; run: make build" >&2; exit 1; }
	@install -m 755 $(BIN)/forkd $(BIN)/forkd-vmm $(BIN)/forkd-agent /usr/local/bin/
	@ln -sf forkd /usr/local/bin/forkd-controller
	@/usr/local/bin/forkd man /usr/local/share/man/man1

clean: ## Remove what was built here; images and kernels stay in the cache
	@cargo clean
