# The two commands that matter: `make demo` and `make test`. Both do all the set-up themselves.

SHELL := /bin/bash
CARGO ?= cargo
TYMPAN := target/release/tympan

.PHONY: help build ui demo test lint bench fuzz torture setup clean

help:
	@echo "make demo     build, then run author, publish and dispatcher with the sample site"
	@echo "make test     everything that must pass"
	@echo "make build    leaves the program at $(TYMPAN)"
	@echo "make lint     format, lints and dependency rules"
	@echo "make bench    figures beside their peers (ROWS=S1,D1 QUICK=1)"
	@echo "make fuzz     each fuzz target for FUZZ_SECONDS (default 60)"
	@echo "make torture  the long fault runs, hours of them (ROOM=store KILLS=1000 SAVES=10000 FUZZ_SECONDS=1800)"

setup:
	@scripts/setup.sh build

build: setup ui
	$(CARGO) build --release

# Without Node the program carries a notice page in place of the interface.
ui:
	@if command -v npm >/dev/null; then cd ui && npm ci --no-audit --no-fund --silent && npm run --silent build; \
	else echo "no npm: the program will carry a notice page in place of the interface"; fi

demo: build
	$(TYMPAN) demo

test:
	@scripts/setup.sh test
	@scripts/test.sh

lint:
	@scripts/lint.sh

bench: build
	@scripts/setup.sh bench
	$(CARGO) run --release --manifest-path bench/Cargo.toml -- $(ARGS)

fuzz:
	fuzz/run.sh

torture:
	@scripts/setup.sh test
	@scripts/torture.sh $(ROOM)

clean:
	$(CARGO) clean
	rm -rf ui/dist ui/node_modules
