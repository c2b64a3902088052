# The two commands that matter: `make demo` and `make test`. Both do all the set-up themselves.

SHELL := /bin/bash
CARGO ?= cargo
TYMPAN := target/release/tympan
LAB := target/release/tympan-lab

# The interface is built again only when one of these is newer than what was built: each build of it makes the program
# that carries it compile again.
UI_SOURCES := $(shell find ui -type f -not -path 'ui/node_modules/*' -not -path 'ui/dist/*' -not -path 'ui/tests/*')

.PHONY: help build ui demo test lint bench fuzz torture package setup setup-demo clean

help:
	@echo "make demo     build, then run author, publish and dispatcher with the sample site"
	@echo "make test     everything that must pass"
	@echo "make build    the fast programs: leaves them at $(TYMPAN) and $(LAB), their debug information beside them"
	@echo "make package  a Debian package, a tarball and an image of them, in target/package (PROGRAM_DIR=DIR: built already)"
	@echo "make lint     format, lints and dependency rules"
	@echo "make bench    figures beside their peers (ROWS=S1,D1 QUICK=1)"
	@echo "make fuzz     each fuzz target for FUZZ_SECONDS (default 60)"
	@echo "make torture  the long fault runs, hours of them (ROOM=store KILLS=1000 SAVES=10000 FUZZ_SECONDS=1800)"

setup:
	@scripts/setup.sh build

setup-demo:
	@scripts/setup.sh demo

build: setup ui
	$(CARGO) build --release
	@scripts/split_debug.sh $(TYMPAN)
	@scripts/split_debug.sh $(LAB)

# Without Node, or with one that is too old, the program carries a notice page in place of the interface; the set-up says so.
ui:
	@if scripts/node_version.sh >/dev/null; then $(MAKE) --no-print-directory ui/dist/index.html; fi

ui/node_modules/.package-lock.json: ui/package-lock.json
	@scripts/ui_packages.sh

ui/dist/index.html: ui/node_modules/.package-lock.json $(UI_SOURCES)
	@cd ui && npm run --silent build && touch dist/index.html

demo: setup-demo ui
	@scripts/demo.sh

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

# `PROGRAM_DIR` has programs that are built already.
package: $(if $(PROGRAM_DIR),,build)
	@scripts/setup.sh package
	@scripts/package.sh $(PARTS)

clean:
	$(CARGO) clean
	rm -rf ui/dist ui/node_modules
