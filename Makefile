# Needs Go and make; everything else is built from pinned sources.
# Recipes are plain POSIX sh.

SHELL := /bin/sh
.DEFAULT_GOAL := help
# "generate" rewrites files that the other steps compile.
.NOTPARALLEL:

# A go.work above the clone would change what is built.
export GOWORK := off
# Sorting and tool messages are the same everywhere.
export LC_ALL := C

# -race: "auto" uses it where it works, "on" insists, "off" leaves it out.
RACE ?= auto
TIMEOUT ?= 20m
TESTFLAGS ?=
FUZZTIME ?= 10s
BENCHFLAGS ?=
MINUTES ?= 10
EACH ?= 40
TIMES ?= 10
CHAOSFLAGS ?=

STATICCHECK := .bin/staticcheck

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' Makefile

.PHONY: test
test: check ## Run check, then all tests with -race; .ci/run is what runs before a change lands
	@set -eu; \
	lost=; race=-race; \
	case '$(RACE)' in \
	on) ;; \
	off) race=; lost='RACE=off' ;; \
	auto) \
		if ! why=$$(go test -race -run '^$$' errors 2>&1); then \
			race=; lost=$$why; \
		fi ;; \
	*) echo "RACE is auto, on or off, not '$(RACE)'" >&2; exit 2 ;; \
	esac; \
	warn() { \
		[ -n "$$lost" ] || return 0; \
		{ \
			echo '********************************************************************'; \
			echo '*** WITHOUT -race: data races go unseen. It needs a C compiler.'; \
			echo "$$lost" | sed 's/^/*** /'; \
			echo '********************************************************************'; \
		} >&2; \
	}; \
	warn; \
	echo "== go test $$race -timeout $(TIMEOUT) $(TESTFLAGS) ./..."; \
	go test $$race -timeout $(TIMEOUT) $(TESTFLAGS) ./...; \
	warn

.PHONY: quick
quick: ## Only the tests, without -race
	go test -timeout $(TIMEOUT) $(TESTFLAGS) ./...

.PHONY: check
check: fmt vet lint build cross modules generated ## All but the tests

.PHONY: fmt
fmt: ## Fail when a file is not formatted
	@echo '== gofmt'
	@set -eu; \
	gofmt="$$(go env GOROOT)/bin/gofmt"; \
	files=$$("$$gofmt" -l .); \
	if [ -n "$$files" ]; then \
		echo 'Not formatted (gofmt -w does it):' >&2; \
		echo "$$files" >&2; \
		exit 1; \
	fi

.PHONY: vet
vet: ## go vet, and the checks of orchestration code on the examples
	@echo '== go vet'
	@go vet ./...
	@go -C internal/tools vet ./...
	@echo '== tenuto-vet'
	@go build -o .bin/tenuto-vet ./cmd/tenuto-vet
	@go vet -vettool=.bin/tenuto-vet ./examples/...

.PHONY: lint
lint: $(STATICCHECK) ## staticcheck, at the version internal/tools/go.mod pins
	@echo '== staticcheck'
	@$(STATICCHECK) ./...
	@cd internal/tools && ../../$(STATICCHECK) ./...

# Always built, which costs little once cached: a binary from an older Go
# cannot read what a newer one compiles.
.PHONY: $(STATICCHECK)
$(STATICCHECK):
	@go -C internal/tools build -o ../../$@ honnef.co/go/tools/cmd/staticcheck

.PHONY: build
build: ## Compile everything
	@echo '== go build'
	@go build ./...

# Type-checked from source: to compile everything for two more systems takes minutes
# on an empty build cache. The chaos tests need Unix.
.PHONY: cross
cross: ## Fail when Windows or macOS could not compile what an application imports
	@echo '== crosscheck'
	@go -C internal/tools build -o ../../.bin/crosscheck ./crosscheck
	@.bin/crosscheck -on windows/amd64,darwin/arm64 $$(go list ./... | grep -v /internal/chaos)

# To compile them takes minutes, for a whole server is among what they measure: see peers.
.PHONY: modules
modules: cross ## Fail when the module bench/peers could not be compiled
	@echo '== bench/peers'
	@cd bench/peers && ../../.bin/crosscheck -on "$$(go env GOOS)/$$(go env GOARCH)" ./...

.PHONY: peers
peers: ## go vet and go build of bench/peers, which takes minutes the first time
	CGO_ENABLED=0 go -C bench/peers vet ./...
	CGO_ENABLED=0 go -C bench/peers build -o /dev/null .

.PHONY: generate
generate: ## Write proto/*/*.pb.go anew from the schemas
	@echo '== protogen'
	@go -C internal/tools run ./protogen

# Only generated files are compared: the code written by hand beside them may
# change freely. Without git (an unpacked archive) there is nothing recorded to
# compare with, so what lay there before generating stands in for it.
.PHONY: generated
generated: ## Fail when the generated code is not that of the schemas
	@set -eu; \
	stale() { \
		echo >&2; \
		echo 'The generated code under proto/ was not what the schemas give, or git does' >&2; \
		echo 'not know of it yet. It is generated anew now: look at it, then' >&2; \
		echo '"git add proto" and run this again.' >&2; \
		exit 1; \
	}; \
	before=$$(cksum proto/*/*.pb.go) || true; \
	$(MAKE) --no-print-directory generate; \
	if git ls-files --error-unmatch proto/journalpb/journal.proto >/dev/null 2>&1; then \
		git --no-pager diff --no-ext-diff --exit-code -- 'proto/*.pb.go' || stale; \
		unknown=$$(git ls-files --others -- 'proto/*.pb.go'); \
		if [ -n "$$unknown" ]; then \
			echo "Unknown to git:" >&2; \
			echo "$$unknown" >&2; \
			stale; \
		fi; \
	else \
		[ "$$before" = "$$(cksum proto/*/*.pb.go)" ] || stale; \
	fi

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s)
	@set -eu; \
	listed=$$(go test -list '^Fuzz' ./...); \
	targets=$$(echo "$$listed" | awk ' \
		/^Fuzz[^ ]*$$/ { names[++n] = $$1 } \
		$$1 == "ok" { for (i = 1; i <= n; i++) print $$2, names[i]; n = 0 }'); \
	if [ -z "$$targets" ]; then \
		echo '== no fuzz targets'; \
		exit 0; \
	fi; \
	echo "$$targets" | { \
		while read -r package name; do \
			echo "== $$name in $$package for $(FUZZTIME)"; \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null || exit 1; \
		done; \
	}

.PHONY: bench
bench: ## Measure on one node, with BENCHFLAGS; see bench/README.md
	go run ./bench $(BENCHFLAGS)

.PHONY: bench-journal
bench-journal: ## Measure the journal alone, on each store of its log
	go test -run '^$$' -bench '^BenchmarkJournal$$' -benchtime 1x ./journal

.PHONY: faults
faults: ## Damage, crash, fill and kill the journal as often as its tests can
	TENUTO_FAULTS=all go test -count 1 -timeout $(TIMEOUT) ./journal/...

.PHONY: powercut
powercut: ## Cut the power of the journal's disk 25 times; needs root
	TENUTO_POWERCUTS=25 go test -count 1 -timeout 20m -run PowerCut -v ./journal

.PHONY: groups
groups: ## All tests of the cluster with four Raft groups, and -race
	TENUTO_TEST_GROUPS=4 go test -race -count 1 -timeout $(TIMEOUT) $(TESTFLAGS) ./cluster

.PHONY: chaos
chaos: ## Faults on three processes for MINUTES (10), with CHAOSFLAGS; as root in namespaces
	go run ./internal/chaos -minutes $(MINUTES) $(CHAOSFLAGS)

.PHONY: campaign
campaign: ## Every fault TIMES (10) times, on clusters of three shapes; as root in namespaces
	go run ./internal/chaos -each $(TIMES) $(CHAOSFLAGS)

.PHONY: failover
failover: ## Take the leader away in five ways, EACH (40) times; needs root
	go run ./internal/chaos -each $(EACH) -nodes 3 -groups 1 -quiet 0 -snapshots=false $(CHAOSFLAGS) \
		-faults kill-leader,pause-leader,cut-leader,drain-leader,frozen-disk

.PHONY: overload
overload: ## Load three processes with 80% for MINUTES (10), and with 200%
	go run ./internal/chaos -overload -minutes $(MINUTES)

.PHONY: mutants
mutants: ## Break a rule at a time; each must be caught
	go run ./internal/chaos/mutants

.PHONY: clean
clean: ## Remove what building and testing leave behind
	rm -rf .bin
	rm -f ./*.test ./*.prof
