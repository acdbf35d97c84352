# Talweg. `make demo` and `make test` need a machine with Rust, git, make and apt,
# and install the rest themselves.

# Outside the clone, so that it stays warm over clones; nothing depends on it.
export CARGO_TARGET_DIR ?= $(HOME)/.cache/talweg/target
# RocksDB from Debian's package, on any architecture (see .cargo/config.toml).
export ROCKSDB_LIB_DIR ?= $(shell gcc -print-multiarch 2>/dev/null | sed 's,^,/usr/lib/,')

BIN := $(CARGO_TARGET_DIR)/debug
CARGO := cargo --locked

.PHONY: help setup build demo check test bench soak cluster cluster-down fmt

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

setup: ## Install the system packages that the build needs
	@deploy/setup build

build: setup ## Build everything once
	@echo "== building (first time: some minutes; the cache is $(CARGO_TARGET_DIR))"
	@$(CARGO) build --workspace --bins --examples

demo: setup ## The main job on real events: 336,776 flights in, out, and proved whole
	@echo "== building what the demo needs (first time: some minutes; the cache is $(CARGO_TARGET_DIR))"
	@$(CARGO) build --workspace --bin talweg --bin flights-demo
	@$(BIN)/flights-demo --talweg $(BIN)/talweg --flights integration/data/flights.csv.gz

check: setup ## Format and lints, warnings are errors
	@cargo fmt --all --check
	@$(CARGO) clippy --workspace --all-targets -- -D warnings

test: setup ## All tests, within 15 minutes warm
	@deploy/setup test
	@$(CARGO) build --workspace --bins --examples
	@$(CARGO) test --workspace --no-fail-fast
	@$(CARGO) test -p talweg-sim --features planted-faults --test planted
	@$(CARGO) test -p talweg-log --features planted-faults --test log planted
	@$(CARGO) test -p talweg-controller --features planted-faults --lib planted
	@$(CARGO) test -p talweg-gateway --features planted-faults --lib planted_mistake

bench: setup ## The figures of docs/performance.md
	@deploy/bench/run

soak: build ## The long tests
	@deploy/soak/run

cluster: build ## A cluster of real processes on this machine, in ./talweg-cluster
	@deploy/setup test
	@deploy/local/cluster up

cluster-down: ## Stop it
	@deploy/local/cluster down

fmt: ## Format
	@cargo fmt --all
