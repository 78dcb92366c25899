# Needs Go and make. Tools are built from pinned sources. Recipes are POSIX sh.

SHELL := /bin/sh
.DEFAULT_GOAL := help
# "generate" rewrites files that other targets compile.
.NOTPARALLEL:

# Each module is checked and tested as its users get it. A go.work file must not change the build.
export GOWORK := off
# Sorting and tool messages must not depend on the locale.
export LC_ALL := C

# -race: auto uses it where it works, on fails where it does not, off omits it.
RACE ?= auto
TIMEOUT ?= 20m
TESTFLAGS ?=
# Where "make test" keeps the files of tests. Half of the time of many tests is fsync, so it is in
# memory if there is enough; "make exhaustive" and the chaos campaign use a disk.
TESTDIR ?= $(shell df -Pk /dev/shm 2>/dev/null | awk -v free="$$(awk '$$1 == "MemAvailable:" { print $$2 }' /proc/meminfo 2>/dev/null)" \
	'NR == 2 && $$4 > 8000000 && free > 14000000 { print "/dev/shm" }')
FUZZTIME ?= 10s
BENCHFLAGS ?=
MINUTES ?= 10
EACH ?= 40
TIMES ?= 25
CHAOSFLAGS ?=

# The modules, except bench/peers, which compiles for minutes (see the target peers), rulecheck and
# manifestcheck (see the targets rules and manifests), and s3server (see the target s3).
MODULES := . bench cluster/backup/s3 internal/browser internal/chaos internal/s3test internal/tools replay/vet

# Programs of other modules run at the root: paths in their flags are relative to it.
WORKSPACE := GOWORK='$(CURDIR)/go.work'

STATICCHECK := .bin/staticcheck

.PHONY: help
help: # List the main targets; comments beside the others describe them
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' Makefile

.PHONY: test
test: check ## Run check, then all tests with -race (.ci/run runs before a change lands)
	@set -eu; \
	lost=; race=-race; \
	case '$(RACE)' in \
	on) ;; \
	off) race=; lost='RACE=off' ;; \
	auto) \
		if ! why=$$(go test -race -run '^$$' errors 2>&1); then \
			race=; lost=$$why; \
		fi ;; \
	*) echo "RACE must be auto, on or off, not '$(RACE)'" >&2; exit 2 ;; \
	esac; \
	warn() { \
		[ -n "$$lost" ] || return 0; \
		{ \
			echo '********************************************************************'; \
			echo '*** WITHOUT -race: data races are not detected. Install a C compiler.'; \
			echo "$$lost" | sed 's/^/*** /'; \
			echo '********************************************************************'; \
		} >&2; \
	}; \
	warn; \
	if [ -n '$(TESTDIR)' ]; then \
		GOTMPDIR=$${TMPDIR:-/tmp}; TMPDIR=$$(mktemp -d '$(TESTDIR)/tenuto-test.XXXXXX'); export GOTMPDIR TMPDIR; \
		trap 'chmod -R u+w "$$TMPDIR"; rm -rf "$$TMPDIR"' EXIT; \
	fi; \
	failed=; \
	for module in $(MODULES); do \
		echo "== go -C $$module test $$race -timeout $(TIMEOUT) $(TESTFLAGS) ./..."; \
		go -C "$$module" test $$race -timeout $(TIMEOUT) $(TESTFLAGS) ./... || failed="$$failed $$module"; \
	done; \
	warn; \
	if [ -n "$$failed" ]; then \
		echo "Tests failed in:$$failed" >&2; \
		exit 1; \
	fi

# These tests do less with -race or by default, or skip themselves with -race because a dependency
# has a data race.
.PHONY: exhaustive
exhaustive: ## Run the tests of random programs and of crashes with all their cases, without -race
	TENUTO_EXHAUSTIVE=1 go test -count=1 -timeout $(TIMEOUT) $(TESTFLAGS) ./actors ./cluster/internal/schedules ./cluster/recovery ./journal/state ./replay/engine
	TENUTO_EXHAUSTIVE=1 go test -count=1 -timeout $(TIMEOUT) $(TESTFLAGS) -run '^(TestUpgrade_RollingUpgradeLosesNothing|TestIdentity_RecordedForOldDirectories|TestTruncation_FailedWrites|TestWipe_.*|TestFounding_InterruptedFoundingContinues)$$' ./cluster ./journal

.PHONY: quick
quick: ## Run the tests of the root module with -short and without -race
	go test -short -timeout $(TIMEOUT) $(TESTFLAGS) ./...

.PHONY: check
check: fmt vet lint build cross modules rules manifests generated ## Run everything in test but the tests

.PHONY: fmt
fmt: # Fail if a file is not formatted
	@echo '== gofmt'
	@set -eu; \
	gofmt="$$(go env GOROOT)/bin/gofmt"; \
	files=$$("$$gofmt" -l .); \
	if [ -n "$$files" ]; then \
		echo 'Not formatted (run gofmt -w):' >&2; \
		echo "$$files" >&2; \
		exit 1; \
	fi

.PHONY: vet
vet: # Run go vet, and tenuto-vet on the examples
	@echo '== go vet'
	@set -e; for module in $(MODULES); do go -C "$$module" vet ./...; done
	@echo '== tenuto-vet'
	@go -C replay/vet build -o '$(CURDIR)/.bin/tenuto-vet' ./cmd/tenuto-vet
	@go vet -vettool=.bin/tenuto-vet ./examples/...

.PHONY: lint
lint: $(STATICCHECK) # Run staticcheck at the version in internal/tools/go.mod
	@echo '== staticcheck'
	@set -e; for module in $(MODULES); do (cd "$$module" && '$(CURDIR)/$(STATICCHECK)' ./...); done

# Phony, and cheap when cached: a binary built by an older Go cannot read what a
# newer one compiles.
.PHONY: $(STATICCHECK)
$(STATICCHECK):
	@go -C internal/tools build -o ../../$@ honnef.co/go/tools/cmd/staticcheck

.PHONY: build
build: # Compile all packages
	@echo '== go build'
	@set -e; for module in $(MODULES); do go -C "$$module" build ./...; done

# Type-checked only: compiling for two more systems takes minutes with an empty
# build cache. The chaos tests need Unix.
.PHONY: cross
cross: # Type-check for Windows and macOS
	@echo '== crosscheck'
	@go -C internal/tools build -o ../../.bin/crosscheck ./crosscheck
	@$(WORKSPACE) .bin/crosscheck -on windows/amd64,darwin/arm64 ./... ./bench/... ./cluster/backup/s3/... ./replay/vet/...

# Type-checked only: bench/peers includes a whole server, which takes minutes to
# compile (see the target peers).
.PHONY: modules
modules: cross # Type-check the module bench/peers
	@echo '== bench/peers'
	@cd bench/peers && ../../.bin/crosscheck -on "$$(go env GOOS)/$$(go env GOARCH)" ./...

.PHONY: rules
rules: # Parse the alerting rules and the Grafana dashboard as Prometheus does
	@echo '== rulecheck'
	@go -C internal/tools/rulecheck vet .
	@go -C internal/tools/rulecheck run . '$(CURDIR)/cluster/docs/alerts.yaml' '$(CURDIR)/cluster/docs/grafana.json'

.PHONY: manifests
manifests: # Check the manifests of examples/kubernetes with Kubernetes' types and schemas, and that they fit together
	@echo '== manifestcheck'
	@go -C internal/tools/manifestcheck vet ./...
	@go -C internal/tools/manifestcheck test ./...
	@mkdir -p .bin
	@go run ./examples/kubernetes -h 2>.bin/kubernetes-flags
	@go -C internal/tools/manifestcheck run . '$(CURDIR)/examples/kubernetes/tenuto.yaml' '$(CURDIR)/.bin/kubernetes-flags'

.PHONY: schemas
schemas: # Take schema.json of manifestcheck from the module k8s.io/kubernetes, of the release in its go.mod
	go -C internal/tools/manifestcheck run ./reduce schema.json

.PHONY: peers
peers: # Run go vet and go build on bench/peers (minutes the first time)
	CGO_ENABLED=0 go -C bench/peers vet ./...
	CGO_ENABLED=0 go -C bench/peers build -o /dev/null .

.PHONY: generate
generate: ## Regenerate proto/*/*.pb.go from the schemas
	@echo '== protogen'
	@go -C internal/tools run ./protogen

# Compares generated files only. Without git (an unpacked archive) the baseline is
# what was there before generating.
.PHONY: generated
generated: # Fail if generated code and schemas differ
	@set -eu; \
	stale() { \
		echo >&2; \
		echo 'The generated code under proto/ did not match the schemas, or is not tracked' >&2; \
		echo 'by git. It is regenerated now: review it, run "git add proto", and run' >&2; \
		echo 'this again.' >&2; \
		exit 1; \
	}; \
	before=$$(cksum proto/*/*.pb.go) || true; \
	$(MAKE) --no-print-directory generate; \
	if git ls-files --error-unmatch proto/journalpb/journal.proto >/dev/null 2>&1; then \
		git --no-pager diff --no-ext-diff --exit-code -- 'proto/*.pb.go' || stale; \
		unknown=$$(git ls-files --others -- 'proto/*.pb.go'); \
		if [ -n "$$unknown" ]; then \
			echo "Not tracked by git:" >&2; \
			echo "$$unknown" >&2; \
			stale; \
		fi; \
	else \
		[ "$$before" = "$$(cksum proto/*/*.pb.go)" ] || stale; \
	fi

VENDORED := cluster/dashboard/internal/web/assets/lib internal/browser/axe

# The tests of the packages compare the files with the checksums; so does this.
.PHONY: vendor
vendor: # Fetch the scripts of npm packages again, as their SOURCES say (needs npm)
	@set -eu; \
	at=$$(mktemp -d); \
	trap 'rm -rf "$$at"' EXIT; \
	for library in $(VENDORED); do \
		grep -v '^#' "$$library/SOURCES" | while read -r file package path sum; do \
			archive=$$(npm pack --silent --pack-destination "$$at" "$$package"); \
			tar -xzf "$$at/$$archive" -C "$$at"; \
			got=$$(sha256sum <"$$at/package/$$path"); \
			if [ "$${got%% *}" != "$$sum" ]; then \
				echo "$$path of $$package has another checksum than SOURCES says: $${got%% *}" >&2; \
				exit 1; \
			fi; \
			cp "$$at/package/$$path" "$$library/$$file"; \
			rm -rf "$$at/package"; \
		done || exit 1; \
	done

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (10s)
	@set -eu; \
	for module in $(MODULES); do \
		listed=$$(go -C "$$module" test -list '^Fuzz' ./...); \
		echo "$$listed" | awk ' \
			/^Fuzz[^ ]*$$/ { names[++n] = $$1 } \
			$$1 == "ok" { for (i = 1; i <= n; i++) print $$2, names[i]; n = 0 }' | \
		while read -r package name; do \
			echo "== $$name in $$package for $(FUZZTIME)"; \
			go -C "$$module" test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null || exit 1; \
		done; \
	done

.PHONY: bench
bench: ## Run benchmarks on one node, with BENCHFLAGS (see bench/README.md)
	$(WORKSPACE) go run ./bench $(BENCHFLAGS)

.PHONY: bench-journal
bench-journal: # Run benchmarks of the journal alone, beside the Raft library's
	go test -run '^$$' -bench '^BenchmarkJournal$$' -benchtime 1x ./journal

.PHONY: faults
faults: # Run all repetitions of the journal's fault tests (full disk: needs root)
	TENUTO_FAULTS=all go test -count 1 -timeout $(TIMEOUT) ./journal/...

.PHONY: powercut
powercut: # Simulate 25 power cuts of the journal's disk (needs root)
	TENUTO_POWERCUTS=25 go test -count 1 -timeout 20m -run PowerCut -v ./journal

.PHONY: partitions
partitions: ## Run the tests of cluster with four partitions and -race
	TENUTO_TEST_PARTITIONS=4 go test -race -count 1 -timeout $(TIMEOUT) $(TESTFLAGS) ./cluster

# Tests in a browser take minutes, so that they are not part of test.
.PHONY: browser
browser: ## Test the dashboard's pages in Chromium (Debian: apt-get install chromium)
	TENUTO_BROWSER=1 go -C internal/browser test -count 1 -timeout 15m $(TESTFLAGS) .

.PHONY: screenshots
screenshots: # Write pictures of the dashboard's pages, light and dark, to .bin/screenshots
	TENUTO_BROWSER=1 TENUTO_SCREENSHOTS='$(CURDIR)/.bin/screenshots' \
		go -C internal/browser test -count 1 -timeout 6m -run '^TestScreenshots' .

.PHONY: bulk
bulk: # Cancel 100,000 instances while leaders are killed (minutes)
	TENUTO_BULK=100000 go test -count 1 -timeout 1h -run '^TestCancel_LeaderKilledThreeTimes$$' -v ./cluster/bulk

# A server with the interface of S3, from pinned sources.
.PHONY: s3
s3: # Test the S3 sink, and a plan with it, against a server (builds it: minutes the first time)
	CGO_ENABLED=0 go -C internal/tools/s3server build -o '$(CURDIR)/.bin/s3server' github.com/versity/versitygw/cmd/versitygw
	TENUTO_S3_SERVER='$(CURDIR)/.bin/s3server' go -C cluster/backup/s3 test -count 1 -timeout 5m $(TESTFLAGS) .
	TENUTO_S3_SERVER='$(CURDIR)/.bin/s3server' go -C internal/s3test test -count 1 -timeout 10m $(TESTFLAGS) .

.PHONY: upgrades
upgrades: ## Upgrade a cluster of processes from an earlier commit and back, in every order (minutes)
	TENUTO_UPGRADES=1 go test -count 1 -timeout 30m -v $(TESTFLAGS) ./internal/upgrades

.PHONY: release-data
release-data: # Record the test data of a release: NAME=v1.2.3 (before it is tagged)
	@test -n '$(NAME)' || { echo 'NAME of the release is missing' >&2; exit 2; }
	TENUTO_RELEASE='$(NAME)' go test -count 1 -run '^TestReleases_Record$$' ./internal/upgrades

.PHONY: chaos
chaos: # Inject faults into three processes for MINUTES (10), with CHAOSFLAGS (root: in namespaces)
	$(WORKSPACE) go run ./internal/chaos -minutes $(MINUTES) $(CHAOSFLAGS)

# 25 times each of 40 kinds are 1,000 faults. The report ends with the kinds that were injected less
# often than that.
.PHONY: campaign
campaign: ## Inject every fault TIMES (25) times, in three cluster shapes (root: in namespaces; hours)
	$(WORKSPACE) go run ./internal/chaos -each $(TIMES) $(CHAOSFLAGS)

.PHONY: failover
failover: # Measure failover: five kinds of leader loss, EACH (40) times (needs root)
	$(WORKSPACE) go run ./internal/chaos -each $(EACH) -nodes 3 -partitions 1 -fault-free 0 -snapshots=false $(CHAOSFLAGS) \
		-faults kill-leader,pause-leader,cut-leader,drain-leader,frozen-disk

.PHONY: forty
forty: # Run 5 nodes and 35 workers as processes, and kill three voters and five workers (minutes)
	go -C bench run ./forty

.PHONY: overload
overload: # Load three processes at 80% of capacity for MINUTES (10), then at 200%
	$(WORKSPACE) go run ./internal/chaos -overload -minutes $(MINUTES)

.PHONY: mutants
mutants: ## Break one rule at a time; a test must fail each time
	$(WORKSPACE) go run ./internal/chaos/mutants

.PHONY: clean
clean: ## Remove build and test output
	rm -rf .bin
	rm -f ./*.test ./*.prof
