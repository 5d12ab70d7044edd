# Two commands matter: `make demo` shows the main job working, `make test` checks everything else. Both get what they miss.
# Tests run in namespaces without a network, so everything is built before they start.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo conformance demo-down test test-unit test-e2e docs-test sim fuzz chaos bench bench-ccm bench-announcer release release-check image chart dashboard-png tools fmt lint deny clean

, := ,
ARCH := $(shell uname -m)
TARGET := $(ARCH)-unknown-linux-gnu
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
# Static, because the image holds nothing else; dev/rustc.sh leaves out the paths of the building machine, so that two builds are alike.
# Relocations are packed; unwind tables, which a program that aborts never reads, are left out; functions with the same code are folded,
# which rustc's own linker can, and that one it uses on x86_64 only.
FOLD := $(if $(filter x86_64,$(ARCH)),-C link-arg=-Wl$(,)--icf=all)
RELEASE_FLAGS := -C target-feature=+crt-static -C force-unwind-tables=no -C link-arg=-Wl,-z,pack-relative-relocs $(FOLD)
OUT := $(or $(CARGO_TARGET_DIR),target)
BINARY := $(OUT)/$(TARGET)/release/harvester-cloud-provider
# Everything is always built with one selection of packages: another one has other features of the dependencies, and compiles all of
# them again. What is to run is chosen by the names of the tests.
BUILD := cargo build --workspace --all-targets
E2E := $(basename $(notdir $(wildcard tests/tests/*.rs) $(patsubst %/,%,$(dir $(wildcard tests/tests/*/main.rs)))))

help: ## what there is
	@echo 'harvester-cloud-provider: cloud controller manager and address announcer for Kubernetes on Harvester'
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 26

demo: release ## see the main job working on real components (KEEP=1 leaves it up), as root
	@tools=$$(dev/tools.sh) && cargo build --profile tools -p harvester-sim -p testbed --bins && \
	  HCP_TOOLS=$$tools HCP_BINARY=$(BINARY) $(OUT)/tools/demo run $(if $(KEEP),--keep)

conformance: release ## Kubernetes' own end-to-end tests about load balancers, on the demo's bed, as root (ARGS='--only rolling', '--quick 60', '--list')
	@tools=$$(dev/tools.sh --conformance) && cargo build --profile tools -p harvester-sim -p testbed --bins && \
	  HCP_TOOLS=$$tools HCP_BINARY=$(BINARY) $(OUT)/tools/demo conformance $(ARGS)

demo-down: ## remove what `make demo KEEP=1` or a crashed demo left
	@test -x $(OUT)/tools/demo || cargo build --profile tools -p harvester-sim -p testbed --bins
	@$(OUT)/tools/demo down

test: test-unit test-e2e ## every test, as root

test-unit: ## unit, property and real-kernel tests beside the code
	@tools=$$(dev/tools.sh) && $(BUILD) && \
	  HCP_TOOLS=$$tools HCP_REQUIRE_ROOT=1 dev/private.sh cargo test --workspace --exclude e2e --no-fail-fast

test-e2e: ## capabilities against a real control plane, in namespaces (E2E_JOBS=2 at a time)
	@tools=$$(dev/tools.sh) && $(BUILD) && \
	  HCP_TOOLS=$$tools HCP_REQUIRE_ROOT=1 dev/e2e.sh $(E2E)

docs-test: ## links, commands and manifests of the documents
	@$(BUILD) -q && cargo test -q --workspace --test docs

bench: release ## measure time, requests, memory and fail-over as root (ARGS='--quick', '--only PART', '--help'); docs/performance.md
	@tools=$$(dev/tools.sh) && cargo build --profile tools -p harvester-sim -p e2e --bins && \
	  HCP_TOOLS=$$tools HCP_BINARY=$(BINARY) dev/private.sh $(OUT)/tools/bench $(ARGS)

bench-ccm: ## measure the cloud controller alone against its bounds as root (ARGS='--quick', '--only ccm-real'); docs/performance.md
	@$(MAKE) --no-print-directory bench ARGS='--ccm --report $(OUT)/bench/ccm.json $(ARGS)'

chaos: ## break what can break around the cloud controller for CHAOS_SECONDS (600), as root; CHAOS_SEED repeats a run
	@tools=$$(dev/tools.sh) && $(BUILD) && \
	  HCP_TOOLS=$$tools dev/private.sh $(OUT)/debug/chaos

bench-announcer: release ## measure fail-over in node mode and the cost of 200 addresses as root (ARGS='--only power-loss', '--soak 30', '--help')
	@tools=$$(dev/tools.sh) && cargo build --profile tools -p harvester-sim -p e2e --bins && \
	  HCP_TOOLS=$$tools HCP_BINARY=$(BINARY) dev/private.sh $(OUT)/tools/bench-announcer $(ARGS)

SEEDS ?= 10000
sim: ## simulate announcers under faults (SEEDS=100000, MODE='global service node'); prints a shrunk trace of what fails
	@cargo build --profile tools -p announcer-sim --bin sim && \
	  for mode in $(or $(MODE),global service node); do $(OUT)/tools/sim --mode $$mode --seeds $(SEEDS) || exit 1; done

release: ## the static binary that is shipped
	@RUSTC_WRAPPER='$(CURDIR)/dev/rustc.sh' RUSTFLAGS='$(RELEASE_FLAGS)' HCP_COMMIT=$(COMMIT) cargo build --release --target $(TARGET) -p harvester-cloud-provider
	@ls -l $(BINARY) | awk '{printf "%s: %.1f MB\n", $$NF, $$5 / 1e6}'
	@echo "sha256 $$(sha256sum <$(BINARY) | cut -c-64)"

release-check: ## builds binary, image and chart of this commit in two other directories and compares them (minutes)
	@dev/release-check.sh

image: release ## the image, as a docker-archive in target/, with the list of what it is made of
	@dev/tools.sh --packages && REVISION=$(COMMIT) dev/image.sh $(BINARY)

chart: ## the chart's archives and indexes in target/charts, for Helm and for Rancher's catalogue (LINE=109.1.0)
	@tools=$$(dev/tools.sh) && HELM=$$tools/helm3 dev/chart.sh

dashboard-png: ## docs/pictures/dashboard.png: the chart's dashboard over three minutes of a cluster that lives and suffers, as root
	@command -v rsvg-convert pngquant >/dev/null || apt-get install -q -y --no-install-recommends librsvg2-bin pngquant fonts-liberation
	@tools=$$(dev/tools.sh) && $(BUILD) && \
	  HCP_TOOLS=$$tools dev/private.sh $(OUT)/debug/dashboard --output $(OUT)/dashboard/data.json
	@dev/dashboard.py $(OUT)/dashboard/data.json $(OUT)/dashboard/dashboard.svg
	@rsvg-convert $(OUT)/dashboard/dashboard.svg | pngquant --strip 64 - >docs/pictures/dashboard.png
	@ls -l docs/pictures/dashboard.png | awk '{print $$NF ": " $$5 " bytes"}'

fuzz: ## feed hostile frames to everything that reads from the wire, a minute each (ARGS="--seconds 600 --seed 7 --target ndp")
	@cargo build --profile tools -p fuzz && \
	  $(OUT)/tools/fuzz $(ARGS)

tools: ## get etcd, Kubernetes and Debian packages for demo and tests
	@dev/tools.sh

fmt: ## format the code
	@cargo fmt --all

lint: ## formatting and clippy, warnings denied
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets -- -D warnings

deny: ## licences, versions and sources of the dependencies (DENY_ADVISORIES=1: known vulnerabilities, too)
	@dev/deny.sh

clean: ## remove what was built here (the cache of programs outside the tree stays)
	@cargo clean
