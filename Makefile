# Everything a developer or a user of the source tree types. `make help` lists it.
SHELL := /bin/bash
.DEFAULT_GOAL := help
GO ?= go
BIN := bin
PREFIX ?= /usr/local
# Static binaries; only the race detector needs cgo.
export CGO_ENABLED ?= 0
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
REVISION := $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -s -w -X github.com/kitbox-dev/kitbox/internal/app.Version=$(VERSION) -X github.com/kitbox-dev/kitbox/internal/app.Revision=$(REVISION) -X main.version=$(VERSION) -X main.revision=$(REVISION) \
	-X github.com/kitbox-dev/kitbox/tck.Version=$(VERSION) -X github.com/kitbox-dev/kitbox/tck.Revision=$(REVISION)
COMMANDS := kitbox kit-engine kit-guest kit-builder kit-tck
SOURCES := $(shell find . -name '*.go' -not -name '*_test.go' -not -path './bin/*') go.mod go.sum
# Files that are compiled into a program without being Go.
EMBEDDED := $(shell find capability schema spec tck internal -name '*.json' -o -name '*.tsv' 2>/dev/null)

.PHONY: help deps quickstart build check test race fuzz bench tck update frontend-image install clean

help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## Install what is missing (says what, asks before sudo)
	@scripts/deps

quickstart: ## Build everything, make a base image, build and run the example Kits
	@scripts/deps --for quickstart
	@$(MAKE) --no-print-directory build
	@scripts/quickstart

build: $(BIN)/.built ## Build the programs into bin/
	@:

$(BIN)/.built: $(SOURCES) $(EMBEDDED)
	@mkdir -p $(BIN)
	$(GO) build -ldflags '$(LDFLAGS)' -o $(BIN)/ $(addprefix ./cmd/,$(COMMANDS))
	@touch $@

check: ## gofmt, go vet, the import law, and golangci-lint
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(GO) vet ./...
	$(GO) test ./internal/archtest
	@scripts/lint

test: build ## Run every test that this machine can run
	@scripts/deps --for test
	@scripts/tools
	KITBOX_LIBEXEC=$(CURDIR)/$(BIN) $(GO) test -timeout 20m ./...

race: build ## The same under the race detector
	@scripts/deps --for test
	@scripts/tools
# Otherwise every program that the tests start waits a second before it ends.
	GORACE="atexit_sleep_ms=20 $(GORACE)" CGO_ENABLED=1 KITBOX_LIBEXEC=$(CURDIR)/$(BIN) $(GO) test -race -timeout 40m ./...

FUZZTIME ?= 10s
fuzz: ## Run every fuzz test for FUZZTIME (default 10s) each
	@scripts/fuzz $(FUZZTIME)

bench: build ## Run the benchmarks against their peers and write bench/README.md
	@scripts/deps --for bench
	@scripts/tools
	$(GO) build -o $(BIN)/bench ./bench
	$(BIN)/bench -programs $(BIN) -write bench/README.md $(BENCHFLAGS)

tck: build ## Judge the grammar by every vector file in VECTORS
	$(BIN)/kit-tck vectors $(or $(VECTORS),tck/vectors/testdata/*.json)

update: ## Regenerate what is generated, and rewrite expected test output
	$(GO) generate ./...
	$(GO) test ./internal/cli/kitcmd ./spec/format -update

FRONTEND_PLATFORMS ?= linux/amd64 linux/arm64
FRONTEND_DIR ?= $(BIN)/frontend
frontend-image: ## Make the image of "# syntax=" lines in bin/frontend/images; PUSH=ref pushes it
	@programs=; for p in $(FRONTEND_PLATFORMS); do out=$(FRONTEND_DIR)/$${p//\//-}/kit-frontend; \
		GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) build -trimpath -buildvcs=false -ldflags '$(LDFLAGS) -buildid=' -o $$out ./cmd/kit-frontend || exit; \
		programs="$$programs $$p=$$out"; done; \
	$(GO) run ./internal/frontend/bundle --dir $(FRONTEND_DIR) --version '$(VERSION)' --revision '$(REVISION)' $(if $(PUSH),--push '$(PUSH)') $$programs

install: build ## Install the programs under PREFIX (default /usr/local)
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/libexec/kitbox
	install -m 0755 $(BIN)/kitbox $(BIN)/kit-tck $(BIN)/kit-builder $(DESTDIR)$(PREFIX)/bin/
	install -m 0755 $(BIN)/kit-engine $(BIN)/kit-guest $(DESTDIR)$(PREFIX)/libexec/kitbox/

clean: ## Remove what was built
	rm -rf $(BIN)
