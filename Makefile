# gpumem. `make help` lists what there is; `make run` and `make test` need nothing before them.
# A machine needs cargo, a C compiler and make; for `dist` also python3.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := all

TARGET  ?= target
CARGO   ?= cargo
CC      ?= cc
PYTHON  ?= python3
STRIP   ?= strip
PREFIX  ?= /usr/local
DESTDIR ?=
# Which build `proof` and `install` use, and `run` where it is given; NO_BUILD=1: what is there, whatever its age.
PROFILE ?= release
NO_BUILD ?=
# What `make run` hands to gpumem-demo, `make proof` to proof, `make faults` to faulter, `make storm` to storm, `make damage` to damager, `make long-run` to long_run: ARGS="--seconds 20".
ARGS    ?=

override target := $(abspath $(TARGET))
export CARGO_TARGET_DIR := $(target)
# Set in the environment it would replace .cargo/config.toml's, which the shim cannot do without.
ifdef RUSTFLAGS
export RUSTFLAGS += -Cforce-frame-pointers=yes
endif

version := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
release := $(target)/release
built    = $(target)/$(PROFILE)
profile  = --profile $(if $(filter debug,$(PROFILE)),dev,$(PROFILE))
sims    := -p gpumem-sim-cuda -p gpumem-sim-cudart11 -p gpumem-sim-cudart12 -p gpumem-sim-cudart13 -p gpumem-sim-hip

##@ Build
all: build ## release builds of libgpumem.so and gpumem, in target/release
build:
	$(CARGO) build --release -p gpumem-shim -p gpumem-inspector
	@echo "built $(release)/libgpumem.so and $(release)/gpumem"
# What `gpumem selftest` runs, on HIP the first alone; all else does without.
selftest_programs := conformance differ
build-selftest: build ## the same, and what gpumem selftest runs: make build-selftest install
	$(CARGO) build --release -p gpumem-tests $(addprefix --bin ,$(selftest_programs))

# Also what looks for a GPU and runs programs, and the simulator for where there is none.
build-tests:
ifeq ($(NO_BUILD),)
	@$(CARGO) build $(profile) -p gpumem-shim -p gpumem-inspector -p gpumem-demo -p gpumem-tests $(sims)
endif

##@ Run
# In the profile of `make test`: packages are built once for both. Without TLS and users of `gpumem serve`, which would be a
# tenth of the wait. A release build has them: it may be installed.
run: PROFILE = debug
run: ## a server that leaks, and the line that does it: on the GPU if there is one, else on the simulator
ifeq ($(NO_BUILD),)
	@[ -x $(built)/gpumem-demo ] || echo "building gpumem, libgpumem.so and a simulated driver, for this demo and for tests: 2 minutes on two processors, once"
	@$(CARGO) build $(profile) $(if $(filter debug,$(PROFILE)),--no-default-features) -p gpumem-shim -p gpumem-inspector -p gpumem-demo -p gpumem-sim-cuda
endif
	@$(built)/gpumem-demo $(ARGS)
proof: build-tests ## every claim, native against preloaded: one JSON line each
	@$(built)/proof $(ARGS)
verdicts: build-tests ## verdicts of leaks on 1000 random programs with planted growth, each wrong one told
	@$(built)/proof --simulator --programs 1000 leaks.verdicts $(ARGS)

suspects: build-tests ## what leaks --suspect says of 1000 random programs and of 1000 others: lost blocks that rank low, and false alarms; PROGRAMS=20
	@SCAN_PROGRAMS=$(or $(PROGRAMS),1000) $(built)/proof --simulator scan.recall scan.false_alarms $(ARGS)

##@ Check
# Many tests wait for most of their time: three run at once for two processors.
tests_at_once = $(shell echo $$(( ($$(getconf _NPROCESSORS_ONLN) * 3 + 1) / 2 )))
# What tests lack here: tests/src/skipped.rs.
skipped := $(target)/skipped
test: ## all tests, without a GPU; REQUIRE=1: a test that lacks a tool fails
	$(CARGO) build --workspace
	@rm -f $(skipped); export SKIPPED=$(skipped); \
	if $(CARGO) nextest --version >/dev/null 2>&1; then set -x; $(CARGO) nextest run --workspace --no-fail-fast --test-threads $(tests_at_once); \
	else set -x; $(CARGO) test --workspace --no-fail-fast; fi; status=$$?; { set +x; } 2>/dev/null; \
	[ ! -s $(skipped) ] || { echo "skipped, how often, and what brings it (REQUIRE=1 makes each a failure):"; cut -f 1 $(skipped) | sort | uniq -c; }; \
	exit $$status

faults: build-tests ## random faults, natively and preloaded, on the simulator: ARGS="--runs 10000 --seed 1"
	@$(built)/faulter $(ARGS)

storm: build-tests ## a program that verifies its data while terminals change everything, on the simulator: ARGS="--runs 10000 --seed 1"
	@$(built)/storm $(ARGS)

group-limit: build-tests ## members of a limit group killed at random, on the simulator: ARGS="--kills 10000 --seed 1"
	@$(built)/group_limit $(ARGS)

long-run: build-tests ## each kind of traffic for long, natively and preloaded: ARGS="--calls 100000000 pool threads"
	@$(built)/long_run $(ARGS)

readers_folder := $(target)/readers
readers: build-tests ## profiles of gpumem serve, fetched and pushed, read by packages of npm and PyPI that know their formats
	@command -v npm >/dev/null || { echo "readers: npm is not installed" >&2; exit 2; }
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --upgrade --target $(readers_folder)/python opentelemetry-proto==1.45.2
	@npm install --silent --no-audit --no-fund --prefix $(readers_folder) pprof-format@2.3.2
	@$(PYTHON) tests/readers.py $(built) $(readers_folder)

instructions: build ## what calls cost in instructions and cache misses, counted: ARGS="older.so target/release/libgpumem.so"
	@tests/instructions.sh $(ARGS)

lines: ## how much Rust a build contains, by room: without comments, blank lines and tests; REVISION=an older commit
	@$(PYTHON) tests/lines.py $(REVISION)

damage: build-tests ## damaged ledgers, recordings, programs, many files: every answer of gpumem in bounds: ARGS="--cases 100000 --seed 1"
	@$(built)/damager $(ARGS)

# RELEASES="INCLUDE:LIBRARY...", as shim/abi/hip_headers.py says. Headers and libraries of ROCm need not be installed.
hip-check: ## real releases of ROCm against what the tables say of them: RELEASES="INCLUDE:LIBAMDHIP64.SO..."
	@$(PYTHON) shim/abi/hip_headers.py --check $(RELEASES)

test-aarch64: ## the tests on aarch64 under qemu: ROOT=a folder for a Debian of their own; ARGS="-E 'binary(hip)'"; as root
	@tests/aarch64.sh $(ROOT) $(ARGS)

miri_target = aarch64-unknown-linux-gnu
# A model runs once for each seed, in one order of threads; loom has all orders (`make test`). Left out: tests that change each
# byte of a file, which take hours there, and those that need openat, which Miri has not.
miri_skips = read::tests:: holes_are_counted verdict::tests::
miri: ## lock-free code and the reader of ledgers under Miri, for aarch64 and its weak memory; needs a nightly Rust: SEEDS=0..64
	@$(CARGO) +nightly miri --version >/dev/null 2>&1 || \
	    { echo "miri: not installed: rustup component add miri rust-src --toolchain nightly"; exit 1; }
	MIRIFLAGS=-Zmiri-many-seeds=$(or $(SEEDS),0..8) $(CARGO) +nightly miri test --target $(miri_target) -p gpumem-models
	MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test --target $(miri_target) -p gpumem-wire --lib -- $(miri_skips:%=--skip %)

shell_scripts = $(shell git ls-files -- '*.sh' .ci/run 2>/dev/null || find . -name '*.sh' -not -path './target/*')
python_files = $(wildcard tests/*.py tests/gpu/*.py tests/gpu/*/*.py tests/gpu/programs/py/*.py tests/python/*.py deploy/packages/*.py deploy/packages/python/gpumem/*.py)
lint: lint-quick ## formatting, clippy, PTX against its source, syntax of scripts
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy -p gpumem-inspector --no-default-features -- -D warnings
lint-quick:
	$(CARGO) fmt --all --check
	kernels/check-ptx.sh
	@for f in $(shell_scripts); do case $$(head -1 $$f) in *bash*) bash -n $$f ;; *) sh -n $$f ;; esac || exit 1; done
	@if command -v $(PYTHON) >/dev/null; then \
	    $(PYTHON) -c 'import ast, sys; [ast.parse(open(f).read(), f) for f in sys.argv[1:]]' $(python_files); \
	else echo "lint: no $(PYTHON): syntax of *.py is not checked"; fi
	@echo "lint: formatting, PTX and scripts are fine"
fmt: ## format the workspace
	$(CARGO) fmt --all

##@ On a GPU, and times
test-gpu: build ## programs of all kinds on an NVIDIA GPU; STAGES="programs cost" runs some
	$(CARGO) build --release -p gpumem-tests --bin pooler
	tests/gpu/run.sh $(STAGES)
bench-gpu: build ## what the preload costs, what graph cache and pool save, on an NVIDIA GPU; STAGES="churn pool" runs some
	$(CARGO) build --release -p gpumem-tests --bin poolbench
	tests/gpu/run.sh $(or $(STAGES),bench)
bench: build ## what the preload and the inspector cost, against a driver that does nothing; the start of a short program on the simulator
	@mkdir -p $(target)/bench/null
	$(CC) -O2 -fPIC -shared -Wl,-soname,libcuda.so.1 tests/gpu/programs/nullcuda.c -o $(target)/bench/null/libcuda.so.1
	$(CC) -std=gnu11 -O2 -fno-omit-frame-pointer tests/gpu/programs/cost.c -o $(target)/bench/cost -ldl
	$(CC) -std=gnu11 -O2 -fomit-frame-pointer tests/gpu/programs/cost.c -o $(target)/bench/cost_nofp -ldl
	$(CC) -std=gnu11 -O2 -fno-omit-frame-pointer tests/gpu/programs/pool.c -o $(target)/bench/pool_driver -ldl -lm -pthread
	@export HAVE_GPU=0 PYTHONDONTWRITEBYTECODE=1 GPUMEM_SO=$(release)/libgpumem.so GPUMEM_CLI=$(release)/gpumem \
	    BUILD=$(target)/bench WORK=$(target)/bench/work OUT=$(target)/bench && \
	    : >$$OUT/results.jsonl && failed=0 && \
	    for stage in cost "pool null" inspector; do $(PYTHON) tests/gpu/stage.py $$stage || failed=1; done; \
	    $(PYTHON) tests/gpu/tools/done.py --costs $$OUT/results.jsonl; exit $$failed
	$(CARGO) build --release -p gpumem-sim-cuda
	tests/sim/stage.sh $(release) $(target)/bench/sim
	LD_LIBRARY_PATH=$(target)/bench/sim $(PYTHON) tests/gpu/tools/start.py --turns 201 $(release)/libgpumem.so
gpu-kit: build-tests ## what a GPU machine without Rust needs, in gpu-kit/: there KIT=gpu-kit tests/gpu/run.sh
	@rm -rf gpu-kit && mkdir gpu-kit
	@for f in libgpumem.so gpumem conformance differ pooler poolbench proof gpumem-demo; do \
	    strip --strip-debug -o gpu-kit/$$f $(built)/$$f && chmod 755 gpu-kit/$$f || exit 1; done
	@echo "gpu-kit/ is ready: KIT=gpu-kit tests/gpu/run.sh, gpu-kit/gpumem selftest, gpu-kit/proof, gpu-kit/gpumem-demo"

##@ Install
# What people copy to their machines and change: metrics, alerts, services.
deployed := $(filter-out deploy/packages/%,$(wildcard deploy/*/*))
# The same tree that `make install` puts under PREFIX, in $(1).
define put_files
	install -d $(1)/lib $(1)/bin $(1)/include $(1)/share/man/man1 $(1)/share/bash-completion/completions \
	    $(1)/share/zsh/site-functions $(1)/share/fish/vendor_completions.d $(1)/share/doc/gpumem/docs/decisions $(1)/share/doc/gpumem/docs/guides
	install -m 644 $(2)/libgpumem.so $(1)/lib/libgpumem.so
	install -m 755 $(2)/gpumem $(1)/bin/gpumem
	for f in $(selftest_programs); do \
	    [ -f $(2)/$$f ] || continue; \
	    install -d $(1)/libexec/gpumem && install -m 755 $(2)/$$f $(1)/libexec/gpumem/gpumem-$$f || exit 1; done
	install -m 644 shim/include/gpumem.h $(1)/include/gpumem.h
	install -m 644 LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md SECURITY.md $(1)/share/doc/gpumem/
	install -m 644 docs/*.md $(1)/share/doc/gpumem/docs/
	install -m 644 docs/decisions/*.md $(1)/share/doc/gpumem/docs/decisions/
	install -m 644 docs/guides/*.md $(1)/share/doc/gpumem/docs/guides/
	for f in $(deployed); do install -D -m 644 $$f $(1)/share/doc/gpumem/$$f || exit 1; done
	$(3) man --out $(1)/share/man/man1
	$(3) completions bash >$(1)/share/bash-completion/completions/gpumem
	$(3) completions zsh >$(1)/share/zsh/site-functions/_gpumem
	$(3) completions fish >$(1)/share/fish/vendor_completions.d/gpumem.fish
endef
root = $(DESTDIR)$(PREFIX)
install: ## into PREFIX (/usr/local), under DESTDIR if set
	@[ -f $(built)/libgpumem.so ] && [ -f $(built)/gpumem ] || $(MAKE) build
	@newer=$$(find shim kernels inspector Cargo.toml -newer $(built)/libgpumem.so \( -name '*.[rt]*' -o -name '*.ptx' \) | head -1); \
	if [ -n "$$newer" ] && [ -z "$(NO_BUILD)" ]; then \
	    if [ "$$(id -u)" = 0 ] && [ -n "$$SUDO_USER" ]; then \
	        echo "install: $$newer is newer than what is built: run make first, without sudo" >&2; exit 1; fi; \
	    $(MAKE) build && touch $(built)/libgpumem.so; fi
	@$(call put_files,$(root),$(built),$(built)/gpumem)
# As in the packages. What a report of a bug needs, the place of a panic, is not among what goes.
	@for f in $(root)/bin/gpumem $(root)/lib/libgpumem.so $(root)/libexec/gpumem/*; do [ ! -f $$f ] || $(STRIP) $$f || exit 1; done
	@echo "installed: $(root)/bin/gpumem, $(root)/lib/libgpumem.so"
	@case ":$$PATH:" in *:$(root)/bin:*) ;; *) echo "$(root)/bin is not in PATH: call gpumem by its whole name, or add it" ;; esac
uninstall: ## removes what install put there
	rm -f $(root)/lib/libgpumem.so $(root)/bin/gpumem $(root)/include/gpumem.h $(root)/share/man/man1/gpumem.1 \
	    $(root)/share/man/man1/gpumem-*.1 $(root)/share/bash-completion/completions/gpumem \
	    $(root)/share/zsh/site-functions/_gpumem $(root)/share/fish/vendor_completions.d/gpumem.fish
	rm -rf $(root)/share/doc/gpumem $(root)/libexec/gpumem

include deploy/packages/packages.mk

##@ Other
clean: ## everything that was built
	$(CARGO) clean
	rm -rf dist gpu-kit
help: ## this list
	@awk -F ':.*## ' '/^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: all build build-selftest build-tests run proof verdicts suspects readers test faults storm instructions hip-check test-aarch64 miri lint lint-quick fmt test-gpu bench bench-gpu gpu-kit install uninstall clean help
