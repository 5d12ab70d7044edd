# Two commands matter: `make demo` shows the main job working, `make test` checks everything else. Both run as root on a Debian-like
# machine that has Rust 1.95, Go 1.26, git and make; the rest is fetched.
# Tests run in namespaces without a network, so everything is built before they start.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo conformance demo-down demo-programs tools-programs test test-unit test-e2e docs docs-test sim model mutations fuzz chaos bench bench-ccm bench-announcer figures release release-check image chart dashboard-png tools fmt lint house deny clean

, := ,
ARCH := $(shell uname -m)
TARGET := $(ARCH)-unknown-linux-gnu
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
# Static, because the image holds nothing else; dev/rustc.sh leaves out the paths of the building machine, so that two builds are alike.
# Relocations are packed; unwind tables, which a program that aborts never reads, are left out; functions with the same code are folded,
# which rustc's own linker can, and that one it uses on x86_64 only.
FOLD := $(if $(filter x86_64,$(ARCH)),-C link-arg=-Wl$(,)--icf=all)
RELEASE_FLAGS := -C target-feature=+crt-static -C force-unwind-tables=no -C link-arg=-Wl,-z,pack-relative-relocs $(FOLD)
# Not OUT: make would hand its own value on to the scripts that take OUT from the environment.
BUILT := $(or $(CARGO_TARGET_DIR),target)
BINARY := $(BUILT)/$(TARGET)/release/harvester-cloud-provider
# Tests are always built with one selection of packages: another one has other features of the dependencies, and compiles all of
# them again. What is to run is chosen by the names of the tests. Programs of the profiles release and tools are built alone.
BUILD := cargo build --locked --workspace --all-targets
# The demo's own programs need no optimisation, and are built sooner without. They are a release with other settings,
# not a profile of their own: macros and build scripts are then built once for both. Cargo names those by the profile's LTO, too, so that
# is put out by flags, which they do not get.
# CI has built everything by then, in profile dev.
DEMO_PROFILE ?= release
UNOPTIMISED := $(addprefix CARGO_PROFILE_RELEASE_,OPT_LEVEL=0 CODEGEN_UNITS=4 PANIC=unwind) \
  RUSTFLAGS='-C lto=off -C linker-plugin-lto=no'
DEMO_BUILD = $(if $(filter dev,$(DEMO_PROFILE)),$(BUILD),$(UNOPTIMISED) RUSTC_WRAPPER='$(CURDIR)/dev/rustc.sh' \
  cargo build --locked --release --target $(TARGET) -p harvester-sim -p testbed --bins)
DEMO = $(BUILT)/$(if $(filter dev,$(DEMO_PROFILE)),debug,$(TARGET)/release)/demo
# What is tested is what is shipped.
TESTS = HCP_TOOLS=$$(dev/tools.sh --print) HCP_BINARY=$(abspath $(BINARY)) dev/test.py

help: ## what there is
	@echo 'harvester-cloud-provider: cloud controller manager and address announcer for Kubernetes on Harvester'
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 26

demo: ## see the main job working on real components (KEEP=1 leaves it up), as root
	@dev/tools.sh --packages
	@# What is shipped comes last of Rust: it is linked by one processor alone, while the other one compiles Go. So Go gets half of what
	@# Rust gets: by the niceness of its session, too, since Linux shares processors out by sessions (autogroup).
	@# Where it was built before, it is only compiled and linked anew, because the commit is a part of what is shipped.
	@product='the demo, and what is shipped=720'; \
	[ ! -x $(BINARY) ] || product='the demo, and what is shipped, anew for this commit=200'; \
	dev/together.py --then 60 "$$product=$(MAKE) --no-print-directory demo-programs && $(MAKE) --no-print-directory release" \
	  'etcd, Kubernetes, Helm=640={ echo 3 >/proc/self/autogroup; } 2>/dev/null || true; nice -n 3 dev/tools.sh --demo'
	@HCP_TOOLS=$$(dev/tools.sh --demo) HCP_BINARY=$(BINARY) $(DEMO) run $(if $(KEEP),--keep)

demo-programs:
	@$(DEMO_BUILD)

conformance: release ## Kubernetes' own end-to-end tests about load balancers, on the demo's bed, as root (ARGS='--only rolling', '--quick 60', '--list')
	@tools=$$(dev/tools.sh --conformance) && $(MAKE) --no-print-directory demo-programs && \
	  mkdir -p $(BUILT)/conformance && dev/machine.py origin >$(BUILT)/conformance/origin.json && \
	  HCP_TOOLS=$$tools HCP_BINARY=$(BINARY) $(DEMO) conformance --commit "$$(dev/machine.py build)" --output $(BUILT)/conformance $(ARGS)
	@# A run of all of them is kept as a whole, too.
	@$(if $(ARGS),,case $$(dev/machine.py build) in *-dirty|unknown) echo 'conformance: this run is not kept: the tree has uncommitted changes';; \
	  *) dev/figures.py suite;; esac)

demo-down: ## remove what `make demo KEEP=1` or a crashed demo left
	@test -x $(DEMO) || $(MAKE) --no-print-directory demo-programs
	@$(DEMO) down

test: tools release ## every test, as root; those of the whole product drive the binary that is shipped
	@$(TESTS)

test-unit: tools ## unit, property and real-kernel tests beside the code
	@$(TESTS) --unit

test-e2e: tools release ## capabilities against a real control plane, in namespaces (E2E_JOBS=2 at a time)
	@$(TESTS) --e2e

docs: ## the site of the documents, in target/book, with mdBook; follows each link in it
	@dev/book.sh

docs-test: docs ## links, commands and manifests of the documents
	@$(BUILD) -q && cargo test -q --locked --workspace --test docs

# What benchmarks and figures run beside the product. One selection for all of them, for the reason at BUILD.
tools-programs:
	@cargo build --locked --profile tools -p harvester-sim -p e2e -p announcer-sim -p testbed --bins

bench: release tools-programs ## measure time, requests, memory and fail-over as root (ARGS='--quick', '--only PART', '--help'); docs/performance.md
	@tools=$$(dev/tools.sh) && \
	  HCP_TOOLS=$$tools HCP_BINARY=$(BINARY) dev/private.sh $(BUILT)/tools/bench $(ARGS)

bench-ccm: ## measure the cloud controller alone against its bounds as root (ARGS='--quick', '--only ccm-real'); docs/performance.md
	@$(MAKE) --no-print-directory bench ARGS='--ccm --report $(BUILT)/bench/ccm.json $(ARGS)'

chaos: release ## break what can break around the cloud controller for CHAOS_SECONDS (600), as root; CHAOS_SEED repeats a run
	@tools=$$(dev/tools.sh) && $(BUILD) && \
	  HCP_TOOLS=$$tools HCP_BINARY=$(BINARY) dev/private.sh $(BUILT)/debug/chaos

bench-announcer: release tools-programs ## measure fail-over in node mode and the cost of 200 addresses as root (ARGS='--only power-loss', '--soak 30', '--help')
	@tools=$$(dev/tools.sh) && \
	  HCP_TOOLS=$$tools HCP_BINARY=$(BINARY) dev/private.sh $(BUILT)/tools/bench-announcer $(ARGS)

figures: release tools-programs ## every figure of docs/performance.md and README on an idle machine, as root (ARGS='--quick --minutes 40', '--list', '--only STEP')
	@tools=$$(dev/tools.sh) && \
	  HCP_TOOLS=$$tools HCP_BINARY=$(abspath $(BINARY)) dev/figures.py measure $(ARGS)

SEEDS ?= 10000
FROM ?= 0
sim: ## simulate announcers under faults (SEEDS=100000 FROM=30000000 JOBS=1 MODE='global service node'); prints a shrunk trace of what fails
	@cargo build --locked --profile tools -p announcer-sim --bin sim && \
	  for mode in $(or $(MODE),global service node); do \
	    $(BUILT)/tools/sim --mode $$mode --from $(FROM) --seeds $(SEEDS) $(if $(JOBS),--jobs $(JOBS)) $(ARGS) || exit 1; \
	  done

model: ## every order of the steps of ownership, for two and three nodes and several faults (minutes); docs/announcer.md
	@cargo test --locked --profile tools -p announcer-core --lib ownership::node::model -- --include-ignored --nocapture

release: ## the static binary that is shipped
	@RUSTC_WRAPPER='$(CURDIR)/dev/rustc.sh' RUSTFLAGS='$(RELEASE_FLAGS)' HCP_COMMIT=$(COMMIT) cargo build --locked --release --target $(TARGET) -p harvester-cloud-provider
	@ls -l $(BINARY) | awk '{printf "%s: %.1f MB\n", $$NF, $$5 / 1e6}'
	@echo "sha256 $$(sha256sum <$(BINARY) | cut -c-64)"

release-check: ## builds binary, image and chart of this commit in two other directories and compares them (minutes)
	@dev/release-check.sh

image: release ## the image, as a docker-archive in target/, with checksums, the list of its parts, and how it was made (SLSA provenance)
	@dev/tools.sh --packages && REVISION=$(COMMIT) RELEASE_FLAGS='$(RELEASE_FLAGS)' dev/image.sh $(BINARY)

chart: ## the chart's archives and indexes in target/charts, for Helm and for Rancher's catalogue (LINE=109.1.0)
	@# A workstation with a Helm of its own needs nothing built for this.
	@HELM=$${HELM:-$$(tools=$$(dev/tools.sh --print 2>/dev/null) && echo $$tools/helm3 || command -v helm || echo $$(dev/tools.sh)/helm3)} dev/chart.sh

dashboard-png: ## docs/pictures/dashboard.png: the chart's dashboard over three minutes of a cluster that lives and suffers, as root
	@command -v rsvg-convert pngquant >/dev/null || apt-get install -q -y --no-install-recommends librsvg2-bin pngquant fonts-liberation
	@tools=$$(dev/tools.sh) && $(BUILD) && \
	  HCP_TOOLS=$$tools dev/private.sh $(BUILT)/debug/dashboard --output $(BUILT)/dashboard/data.json
	@dev/dashboard.py $(BUILT)/dashboard/data.json $(BUILT)/dashboard/dashboard.svg
	@rsvg-convert $(BUILT)/dashboard/dashboard.svg | pngquant --strip 64 - >docs/pictures/dashboard.png
	@ls -l docs/pictures/dashboard.png | awk '{print $$NF ": " $$5 " bytes"}'

mutations: tools ## take out what rows of docs/compatibility.md promise, and see their tests fail, as root (ARGS='--only W-45,H12', '--limit-seconds 600', '--rest', 'keeper.rs'; about 15 minutes after make test)
	@HCP_TOOLS=$$(dev/tools.sh --print) dev/mutations.py $(ARGS)

fuzz: ## feed hostile frames to everything that reads from the wire, a minute each (ARGS="--seconds 600 --seed 7 --target ndp")
	@cargo build --locked --profile tools -p fuzz && \
	  $(BUILT)/tools/fuzz $(ARGS)

tools: ## get etcd, Kubernetes and Debian packages for demo and tests (HCP_CONFORMANCE=1: what Kubernetes' own tests need, too)
	@dev/tools.sh $(if $(filter 1,$(HCP_CONFORMANCE)),--conformance) >/dev/null

fmt: ## format the code
	@cargo fmt --all

lint: house ## formatting, clippy with warnings denied, and the limits of make house
	@cargo fmt --all --check
	@cargo clippy --locked --workspace --all-targets -- -D warnings

house: ## lines, files, functions, fields and circles of the code, against the limits of docs/architecture.md (ARGS=--json, --lines)
	@dev/house.py $(ARGS)

deny: ## licences, versions and sources of the dependencies, none taken back by its authors, and known vulnerabilities where their list is reachable
	@dev/deny.sh
	@dev/yanked.py

clean: ## remove what was built here (the cache of programs outside the tree stays)
	@cargo clean
