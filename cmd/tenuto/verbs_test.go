package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/sample"
)

// TestVerbs runs every command against a cluster of three nodes.
func TestVerbs(t *testing.T) {
	l := newLab(t)
	for _, part := range []struct {
		name string
		run  func(l *lab)
	}{
		{"start and call", testCalls},
		{"show", testShow},
		{"history", testHistory},
		{"proofs", testProofs},
		{"control", testControl},
		{"operations", testOperations},
		{"tokens of attempts", testAttemptTokens},
		{"activities", testActivities},
		{"audit", testAudit},
		{"again", testAgain},
		{"bulk jobs", testBulk},
		{"schedules", testSchedules},
		{"cluster", testCluster},
		{"backups", testBackups},
		{"tool", testTool},
		{"stalled, and a lost leader", testLostLeader},
	} {
		t.Run(part.name, func(t *testing.T) {
			l.t = t
			part.run(l)
		})
		l.t = t
	}
	if t.Failed() {
		return
	}
	for _, c := range allCommands() {
		if !l.used[c.name] && c.name != "dev" && c.name != "ui" { // they have tests of their own
			t.Errorf("no test has run %q with success", c.name)
		}
	}
}

func testCalls(l *lab) {
	if got := l.ok("start", "greet", "hello-1", `"Ada"`, "-wait", "-summary", "a greeting", "-tag", "shop=north"); got != "\"hello Ada\"\n" {
		l.t.Errorf("start -wait writes %q", got)
	}
	if got := l.ok("start", "order", "order-1", `{"item":"book","amount":1200}`, "-tag", "shop=south"); got != "order-1\n" {
		l.t.Errorf("start writes %q", got)
	}
	l.tenuto("start", "order", "order-1", `{}`).expect(l.t, statusRejected, "exists")
	l.tenuto("start", "order", "order-1", `{}`, "-dry-run").expect(l.t, statusRejected, "exists", "order, running")
	l.tenuto("start", "order", "order-1", "null", "-attach", "-json").expect(l.t, statusOK, `{"id":"order-1","attached":true}`)
	l.tenuto("start", "order", "order-9", "-dry-run").expect(l.t, statusOK, "would start order as order-9\n")
	l.tenuto("get", "order-9").expect(l.t, statusNotFound, "order-9")
	l.tenuto("start", "nothing", "x").expect(l.t, statusRejected, "nothing")
	l.tenutoWith(`{"item":"pen","amount":0}`, "start", "order", "order-0", "-", "-wait").expect(l.t, statusRejected, "order-0 has failed", "the amount is 0")
	l.tenuto("start", "order", "order-2", `{"item":"book",}`).expect(l.t, statusUsage, "input is not JSON: line 1, column 16")
	l.tenuto("start", "greet", "hello-2", "Ada").expect(l.t, statusUsage, `a text needs quotes: '"text"'`)
	l.tenuto("start", "greet", "hello-1", `"Bo"`, "-reuse", "ended", "-wait").expect(l.t, statusOK, `"hello Bo"`)
	l.tenuto("start", "greet", "hello-1", "-reuse", "often").expect(l.t, statusUsage, "ended, failed, terminate")

	l.Eventually("the order waits", func() bool { return strings.Contains(l.tenuto("query", "order-1", "progress").out, "waiting") })
	if got := l.ok("query", "order-1", "progress"); got != `{"step":"waiting for approval","amount":1200}`+"\n" {
		l.t.Errorf("query writes %q", got)
	}
	l.golden("query-yaml", "query", "order-1", "progress", "null", "-o", "yaml")
	l.tenuto("query", "order-1", "weather").expect(l.t, statusRejected, "weather")
	file := filepath.Join(l.t.TempDir(), "amount.json")
	if err := os.WriteFile(file, []byte("900\n"), 0o666); err != nil {
		l.t.Fatal(err)
	}
	l.tenuto("update", "order-1", "change-amount", "@"+file, "-dry-run").expect(l.t, statusOK, "would update order-1, change-amount (running)\n")
	l.tenuto("update", "order-1", "change-amount", "@"+file, "-request-id", "a").expect(l.t, statusOK, "1200\n")
	l.tenuto("update", "order-1", "change-amount", "@"+file, "-request-id", "a").expect(l.t, statusOK, "1200\n") // the same
	l.tenuto("update", "order-1", "change-amount", "-5").expect(l.t, statusUsage)                                // a flag
	l.tenuto("update", "order-1", "change-amount", "--", "-5").expect(l.t, statusRejected, "more than 0")
	l.tenuto("send", "order-1", "approved", "true", "-dry-run").expect(l.t, statusOK, "would send order-1 (running)\n")
	l.tenutoWith("order-1\nnobody\n", "send", "-", "approved", "true", "-json").
		expect(l.t, statusNotFound, `{"id":"order-1","action":"send","done":true}`, `{"id":"nobody","action":"send","done":false,"error":`, `"status":6}`, "1 of 2 not done")
	l.tenuto("wait", "order-1").expect(l.t, statusOK, "order-1  completed")
	l.tenuto("send", "order-1", "approved", "true", "-dry-run").expect(l.t, statusRejected, "ended", "completed")
	l.tenuto("wait", "order-1", "order-0", "-o", "json").expect(l.t, statusRejected, `"output":{"item":"book","amount":900,"payment":"payment-order-1"}`, "the amount is 0")
	l.ok("start", "never", "never-1", `""`)
	l.tenuto("wait", "never-1", "-for", "10ms").expect(l.t, statusUnavailable, "never-1 has not ended within 10ms")
}

func testShow(l *lab) {
	l.ok("start", "patient", "bank-1", "1000")
	l.Eventually("the activity backs off", func() bool { return strings.Contains(l.ok("pending", "bank-1"), "backing-off") })
	l.golden("list", "list", "-utc")
	l.golden("list-wide", "list", "-o", "wide", "-utc", "-query", "name=order")
	if got := l.ok("list", "-o", "ids", "-name", "order", "-order", "-created"); got != "order-0\norder-1\n" {
		l.t.Errorf("list -o ids writes %q", got)
	}
	l.golden("list-yaml", "list", "-o", "yaml", "-query", "id=order-1*")
	l.golden("count", "count", "-by", "state,name")
	l.golden("get", "get", "order-1", "-utc")
	l.golden("get-pending", "get", "never-1", "-pending", "-utc")
	l.tenuto("get", "order-1", "nobody", "never-1", "-o", "json").expect(l.t, statusRejected+5, `{"id":"order-1",`, `{"id":"never-1",`, "1 of 3 not done")
	l.golden("pending", "pending", "never-1", "-utc")
	l.golden("pending-wide", "pending", "bank-1", "-o", "wide")
	l.tenuto("stack", "never-1").expect(l.t, statusOK, "EventHandle.Wait at tenuto/lab_test.go:", "ExternalSubscribed, word")
	l.tenuto("stack", "never-1", "-o", "yaml").expect(l.t, statusOK, "call: EventHandle.Wait\n", "eventId: 2\n")

	// What an instance holds cannot control the terminal.
	l.ok("start", "noisy", "noisy-1", `"\u001b[2Jgone\u202e"`, "-wait", "-summary", "a\u202eb")
	for _, line := range [][]string{{"get", "noisy-1"}, {"history", "noisy-1"}, {"list", "-query", "name=noisy"}} {
		if out := l.ok(line...); strings.ContainsAny(out, "\x1b\u202e") {
			l.t.Errorf("%q writes control characters: %q", line, out)
		}
	}
}

func testHistory(l *lab) {
	l.golden("history", "history", "order-1", "-utc")
	l.golden("history-json", "history", "order-1", "-o", "json")
	if out := l.ok("history", "hello-1", "-color", "always"); !strings.Contains(out, green+"mActivityCompleted\x1b[0m") {
		l.t.Errorf("no colors: %q", out)
	}
	onTerminal := func(s *streams) { s.terminal = true }
	if o := l.run(l.t.Context(), nil, onTerminal, "history", "hello-1"); !strings.Contains(o.out, "\x1b[") {
		l.t.Errorf("no colors on a terminal: %q", o.out)
	}
	l.env["NO_COLOR"] = "1"
	if o := l.run(l.t.Context(), nil, onTerminal, "history", "hello-1"); strings.Contains(o.out, "\x1b[") {
		l.t.Errorf("colors in spite of NO_COLOR: %q", o.out)
	}
	delete(l.env, "NO_COLOR")
	if out := l.ok("history", "hello-1", "-execution", "1"); !strings.Contains(out, `"Ada"`) {
		l.t.Errorf("the first execution: %q", out)
	}
	file := filepath.Join(l.t.TempDir(), "order.json")
	l.ok("history", "export", "-o", file, "order-1")
	l.tenuto("history", "check", file).expect(l.t, statusOK, "ok: order-1/1, events: 13, last: OrchestrationCompleted")

	// Following ends with the run.
	l.ok("start", "never", "never-2", `""`)
	table := l.begin("history", "never-2", "-follow")
	documents := l.begin("history", "never-2", "-follow", "-o", "json")
	from := l.begin("watch", "never-2", "-from", "1/2", "-o", "json")
	for _, r := range []*running{table, documents, from} {
		r.await("ExternalSubscribed")
	}
	l.ok("send", "never-2", "word", `"go"`)
	for r, lines := range map[*running]int{table: 5, documents: 4, from: 3} {
		o := r.end()
		o.expect(l.t, statusOK, "OrchestrationCompleted")
		if got := strings.Count(o.out, "\n"); got != lines {
			l.t.Errorf("%d lines; want %d:\n%s", got, lines, o.out)
		}
	}
	if out := table.out.String(); !strings.Contains(out, "ExternalSubscribed      open") && !strings.Contains(out, "←2") {
		l.t.Errorf("the event is no pair of the subscription:\n%s", out)
	}

	// By default, a watch begins after what is recorded.
	l.ok("start", "never", "never-3", `""`)
	watched := l.begin("watch", "never-3")
	l.Eventually("the watch sees an event", func() bool {
		l.ok("suspend", "never-3")
		l.ok("resume", "never-3")
		return strings.Contains(watched.out.String(), "Orchestration")
	})
	l.ok("terminate", "never-3", "-yes", "-reason", "enough")
	watched.end().expect(l.t, statusOK, "OrchestrationTerminated", `reason="enough"`)
	if out := watched.out.String(); strings.Contains(out, "OrchestrationStarted") {
		l.t.Errorf("the watch began too early:\n%s", out)
	}
	l.tenuto("watch", "never-3").expect(l.t, statusOK)
	l.tenuto("watch", "never-1", "-for", "2s", "-from", "1/1").expect(l.t, statusUnavailable, "1/1", "OrchestrationStarted", "has not ended within")
	l.tenuto("watch", "never-1", "-from", "4").expect(l.t, statusUsage, "EXECUTION/EVENT")

	// An interrupt ends it quietly.
	interrupted := l.begin("history", "never-1", "-follow")
	interrupted.await("ExternalSubscribed")
	interrupted.cancel(&signalError{syscall.SIGINT})
	if o := interrupted.end(); o.status != 130 || o.err != "" {
		l.t.Errorf("status %d, %q", o.status, o.err)
	}
}

func testProofs(l *lab) {
	disk := clustertest.New(l.t, 1, clustertest.Definitions(sample.Definitions()...))
	addr, file := disk.Addresses()[0], filepath.Join(l.t.TempDir(), "proof")
	l.ok("start", "greet", "proved-1", `"Ada"`, "-wait", "-addr", addr)
	l.tenuto("verify", "-addr", addr).expect(l.t, statusOK, "replicas of 1 of 1 voters and 0 standbys, 0 differences")
	l.tenuto("verify", "-addr", addr, "-o", "json").expect(l.t, statusOK, `"replicas":1`)
	l.ok("history", "prove", "proved-1", file, "-addr", addr)
	key := strings.TrimSpace(l.ok("history", "key", "-addr", addr))
	l.tenuto("history", "check-proof", file, "-key", key).expect(l.t, statusOK, "ok: proved-1/1", "on 1 of 1 voters")
	l.tenuto("history", "check-proof", file, "-key", strings.Repeat("0", len(key))).expect(l.t, statusRejected)
	l.tenuto("history", "check-proof", file, "-key", "x").expect(l.t, statusUsage, "64 hexadecimal digits")
	l.tenuto("history", "prove", "hello-1", file).expect(l.t, statusUsage, "exists")
	l.tenuto("history", "prove", "hello-1", file+"2").expect(l.t, statusRejected, "in memory")
	l.tenuto("history", "prove", "nothing", file+"2").expect(l.t, statusNotFound)
	content, err := os.ReadFile(file)
	if err != nil {
		l.t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(file, content, 0o600); err != nil {
		l.t.Fatal(err)
	}
	l.tenuto("history", "check-proof", file, "-key", key).expect(l.t, statusRejected)
	l.tenuto("accept", "hello-1", "n0", "-yes").expect(l.t, statusRejected, "in memory")
	l.ok("accept", "hello-1", "n0", "-dry-run")
	l.tenuto("accept", "hello-1", "n0").expect(l.t, statusUsage, "-yes")
}

func testControl(l *lab) {
	for i := range 3 {
		l.ok("start", "never", fmt.Sprintf("task-%d", i), `""`)
	}
	l.tenuto("suspend", "task-0", "task-1", "-dry-run").expect(l.t, statusOK, "would suspend task-0 (running)\nwould suspend task-1 (running)\n")
	l.state("task-0", cluster.Running)
	l.tenuto("resume", "task-0", "-dry-run").expect(l.t, statusRejected, "running, not suspended")
	l.tenuto("suspend", "task-0", "task-1", "-o", "ids").expect(l.t, statusOK, "task-0\ntask-1\n")
	l.state("task-1", cluster.Suspended)
	l.tenuto("resume", "task-0", "-dry-run").expect(l.t, statusOK, "would resume task-0 (suspended)\n")
	l.tenuto("resume", "task-0", "task-1").expect(l.t, statusOK)
	l.state("task-1", cluster.Running)

	list := l.ok("list", "-query", "id=task-*", "-o", "ids")
	l.tenutoWith(list, "cancel", "-").expect(l.t, statusUsage, "cancel of task-0, task-1, task-2 needs -yes")
	l.tenutoWith(l.ok("list", "-query", "id=task-*"), "cancel", "-", "-dry-run").expect(l.t, statusNotFound, "would cancel task-2 (running)\n", "1 of 4 not done") // the header
	l.state("task-2", cluster.Running)
	l.tenutoWith("", "cancel").expect(l.t, statusOK, "nothing to do")
	l.tenuto("cancel").expect(l.t, statusUsage, "usage: tenuto cancel [flags] ID...")

	// On a terminal, the person decides.
	person := func(s *streams) { s.interactive = true }
	o := l.run(l.t.Context(), strings.NewReader("n\n"), person, "cancel", "task-0", "task-1")
	o.expect(l.t, statusRejected, "cancel task-0, task-1? [y/N]", "nothing was done")
	l.state("task-0", cluster.Running)
	l.run(l.t.Context(), strings.NewReader("y\n"), person, "cancel", "task-0", "-reason", "enough").expect(l.t, statusOK)
	l.state("task-0", cluster.Canceled)
	l.tenutoWith("task-0\ntask-1 with more\n\n", "cancel", "-", "-yes", "-json").
		expect(l.t, statusRejected, `{"id":"task-1","action":"cancel","done":true}`, `"id":"task-0","action":"cancel","done":false,"error":"cancel task-0:`)
	l.state("task-1", cluster.Canceled)
	l.tenuto("terminate", "task-2").expect(l.t, statusUsage, "needs -yes")
	l.run(l.t.Context(), strings.NewReader("yes\n"), person, "terminate", "task-2", "-reason", "stuck").expect(l.t, statusOK)
	l.tenuto("get", "task-2").expect(l.t, statusOK, "terminated", "stuck")

	l.tenuto("purge", "task-0").expect(l.t, statusUsage, "needs -yes")
	l.tenuto("purge", "task-0", "never-1", "-dry-run").expect(l.t, statusRejected, "would purge task-0 (canceled)\n", "never-1: it has not ended: it is running")
	l.tenuto("purge", "task-0", "never-1", "nobody", "-yes").expect(l.t, statusRejected, "never-1: it has not ended", "nobody", "2 of 3 not done")
	l.tenuto("get", "task-0").expect(l.t, statusNotFound)
	l.ok("purge", "task-1", "-yes")
	l.ok("start", "parent", "parent-1")
	l.Eventually("the child runs", func() bool { return l.tenuto("get", "parent-1-child").status == statusOK })
	l.ok("terminate", "parent-1", "-yes")
}

func testOperations(l *lab) {
	// An activity that fails.
	l.tenuto("retry", "bank-1", "-dry-run").expect(l.t, statusOK, "would retry bank-1, event 2, call-bank: backing off\n")
	l.ok("hold", "bank-1", "-reason", "the bank asked", "-as", "alice")
	l.tenuto("retry", "bank-1").expect(l.t, statusRejected, "held")
	l.tenuto("pending", "bank-1").expect(l.t, statusOK, "held")
	l.tenuto("release", "bank-1", "-dry-run").expect(l.t, statusOK, "would release bank-1, event 2, call-bank")
	l.ok("release", "bank-1", "-reason", "they are back", "-as", "alice")
	l.tenuto("release", "bank-1").expect(l.t, statusNotFound, "no open operation that is held")
	l.ok("adjust", "bank-1", "-initial-interval", "2h", "-max-interval", "2h", "-start-to-close", "1m")
	l.tenuto("adjust", "bank-1").expect(l.t, statusUsage, "needs a timeout")
	l.Eventually("an attempt fails under the new policy", func() bool {
		l.tenuto("retry", "bank-1", "-reason", "now")
		return strings.Contains(l.ok("history", "bank-1"), "initial=2h0m0s")
	})
	before := l.failedAttempts("bank-1")
	l.Eventually("another attempt has failed", func() bool {
		return l.tenuto("retry", "bank-1").status == statusOK && l.failedAttempts("bank-1") > before
	})
	l.tenuto("fire", "bank-1").expect(l.t, statusNotFound, "no open timer")
	l.tenuto("fire", "bank-1", "-event", "2", "-dry-run").expect(l.t, statusRejected, "ActivityScheduled is no timer")
	l.tenuto("fire", "bank-1", "-event", "2").expect(l.t, statusRejected, "ActivityScheduled")
	l.tenuto("fire", "bank-1", "-event", "7").expect(l.t, statusNotFound, "event 7")
	l.tenuto("complete", "bank-1", `"by hand"`, "-dry-run").expect(l.t, statusOK, "would complete bank-1, event 2, call-bank")
	l.ok("complete", "bank-1", `"by hand"`, "-reason", "called them")
	l.tenuto("wait", "bank-1", "-json").expect(l.t, statusOK, `"output":"by hand"`)
	l.ok("start", "flaky", "bank-2", "1000")
	l.tenuto("fail", "bank-2").expect(l.t, statusUsage, "-message")
	l.ok("fail", "bank-2", "-message", "closed for good", "-code", "closed")
	l.tenuto("wait", "bank-2").expect(l.t, statusRejected, "closed for good")

	// A timer, and the operation of a subscription.
	l.ok("start", "sleeper", "sleeper-1")
	l.ok("hold", "sleeper-1")
	l.tenuto("fire", "sleeper-1").expect(l.t, statusRejected, "held")
	l.ok("release", "sleeper-1")
	l.tenuto("fire", "sleeper-1", "-reason", "wake up").expect(l.t, statusOK)
	l.tenuto("wait", "sleeper-1", "-json").expect(l.t, statusOK, `"output":"awake"`)
	l.ok("start", "order", "order-3", `{"item":"pen","amount":1}`)
	l.Eventually("the order waits", func() bool { return strings.Contains(l.ok("pending", "order-3"), "ExternalSubscribed") })
	l.tenuto("hold", "order-3", "-dry-run").expect(l.t, statusOK, "would hold order-3, event 7")
	l.tenuto("complete", "order-3", "true", "-name", "rejected").expect(l.t, statusNotFound, `wait for an event "rejected"`)
	l.ok("complete", "order-3", "true", "-name", "approved")
	l.tenuto("wait", "order-3").expect(l.t, statusOK, "completed")

	// Of several operations of an instance, none is chosen at random.
	l.ok("start", "two", "two-1")
	l.tenuto("fire", "two-1").expect(l.t, statusRejected, "fire two-1: more than one operation: use -event with one of 2 (TimerCreated), 3 (TimerCreated); or -all")
	l.tenuto("fire", "two-1", "-all", "-dry-run").expect(l.t, statusOK, "would fire two-1, event 2\nwould fire two-1, event 3\n")
	l.ok("fire", "two-1", "-event", "3")
	l.ok("fire", "two-1")
	l.tenuto("wait", "two-1").expect(l.t, statusOK)
	l.tenutoWith("order-1\norder-3\n", "complete", "-", "true").expect(l.t, statusUsage, "complete of order-1, order-3 needs -yes")
	l.ok("start", "parent", "parent-2", "null", "-reuse", "ended")
	l.Eventually("the parent waits", func() bool { return strings.Contains(l.ok("pending", "parent-2"), "SubOrchestrationScheduled") })
	l.ok("fail", "parent-2", "-message", "no child")
	l.tenuto("wait", "parent-2").expect(l.t, statusRejected, "no child")
}

// failedAttempts returns the number of failed attempts of an instance's first operation.
func (l *lab) failedAttempts(id string) int {
	var o operation
	if err := json.Unmarshal([]byte(l.ok("pending", id, "-json")), &o); err != nil {
		l.t.Fatal(err)
	}
	return o.FailedAttempts
}

func testAttemptTokens(l *lab) {
	l.ok("start", "external", "external-1")
	token := <-l.tokens
	l.tenuto("complete", "-token", token, `"x"`, "-dry-run").expect(l.t, statusUsage, "-dry-run")
	l.ok("fail", "-token", token, "-message", "not today")
	token = <-l.tokens // of the next attempt
	l.ok("complete", "-token", token, `"signed"`)
	l.ok("complete", "-token", token, `"signed"`) // repeated
	l.tenuto("complete", "-token", token, `"forged"`).expect(l.t, statusRejected)
	l.tenuto("wait", "external-1", "-json").expect(l.t, statusOK, `"output":"signed"`)
	l.ok("start", "external", "external-2")
	l.ok("fail", "-token", <-l.tokens, "-message", "never", "-non-retryable")
	l.tenuto("wait", "external-2").expect(l.t, statusRejected, "never")
}

func testActivities(l *lab) {
	l.tenuto("activity", "pause", "call-bank", "-dry-run").expect(l.t, statusOK, "would pause activity call-bank\n")
	l.tenuto("activity", "resume", "call-bank").expect(l.t, statusRejected, "not paused")
	l.ok("activity", "pause", "call-bank", "-reason", "bank is down", "-as", "alice")
	l.golden("activity-list", "activity", "list", "-utc")
	l.ok("start", "flaky", "bank-3", "0")
	l.Eventually("the activity is paused", func() bool { return strings.Contains(l.ok("pending", "bank-3"), "paused") })
	l.golden("get-paused", "get", "bank-3", "-pending", "-utc")
	l.ok("activity", "resume", "call-bank")
	l.tenuto("wait", "bank-3").expect(l.t, statusOK, "completed")
	l.tenuto("activity", "list", "-o", "ids").expect(l.t, statusOK)
}

func testAudit(l *lab) {
	out := l.ok("audit", "-query", "id=bank-1*", "-utc")
	for _, text := range []string{"hold  ", "local-for-alice", "the-bank-asked", "called-them"} {
		if !strings.Contains(out, text) {
			l.t.Errorf("%q is missing:\n%s", text, out)
		}
	}
	l.golden("audit", "audit", "-principal", "local for alice", "-utc", "-prefix", "bank-")
	l.tenuto("audit", "-principal", "nobody", "-json").expect(l.t, statusOK)
	l.tenuto("audit", "-until", "1h").expect(l.t, statusOK, "TIME  ID")
	l.tenuto("audit", "-since", "yesterday").expect(l.t, statusUsage, "an age like 2h")
}

func testAgain(l *lab) {
	l.tenuto("rerun", "order-0", "nobody", "-dry-run").expect(l.t, statusNotFound, "would rerun order-0 (failed)\n", "1 of 2 not done")
	l.tenuto("rerun", "order-0", "order-1").expect(l.t, statusUsage, "needs -yes")
	l.ok("rerun", "hello-1", "-reason", "again", "-request-id", "r")
	l.ok("rerun", "hello-1", "-reason", "again", "-request-id", "r") // the same
	l.tenuto("wait", "hello-1", "-json").expect(l.t, statusOK, `"execution":3`, `"output":"hello Bo"`)
	l.tenuto("rewind", "order-1").expect(l.t, statusUsage, "either -to or -before")
	l.tenuto("rewind", "order-1", "-to", "99").expect(l.t, statusRejected)
	l.tenuto("rewind", "order-1", "-to", "5", "-dry-run").expect(l.t, statusOK, "would rewind order-1 (completed)\n")
	l.ok("rewind", "order-1", "-to", "5", "-drop-events", "-reason", "approved by mistake")
	l.state("order-1", cluster.Running) // it waits for the approval again
	l.ok("rewind", "order-1", "-before", "charge", "-drop-events")
	l.state("order-1", cluster.Running)
	l.tenuto("fork", "hello-1", "-to", "1", "-dry-run").expect(l.t, statusOK, "would fork hello-1 (completed)\n")
	id := strings.TrimSpace(l.ok("fork", "hello-1", "hello-fork", "-input", `"Cy"`))
	l.tenuto("wait", id, "-json").expect(l.t, statusOK, `"id":"hello-fork"`, `"output":"hello Cy"`)
	l.tenuto("fork", "nobody", "-to", "1").expect(l.t, statusNotFound)
}

func testBulk(l *lab) {
	for i := range 3 {
		l.ok("start", "never", fmt.Sprintf("many-%d", i), `""`)
	}
	l.tenuto("bulk", "start", "cancel", "-query", "id=many-*", "-dry-run").
		expect(l.t, statusOK, "would cancel ", "3 instances, such as:\n  many-0 (never, running)\n")
	l.tenuto("bulk", "start", "cancel", "-query", "id=many-*").expect(l.t, statusUsage, "cancel of 3 instances needs -yes")
	l.tenuto("bulk", "start", "explode", "-all", "-yes").expect(l.t, statusUsage, "explode")
	l.tenuto("bulk", "start", "send", "-query", "id=many-*", "-yes").expect(l.t, statusUsage, "event")
	id := strings.TrimSpace(l.ok("bulk", "start", "cancel", "-query", "id=many-*", "-yes", "-reason", "closing", "-id", "job-1", "-rate", "0.5"))
	l.ok("bulk", "pause", id, "-reason", "lunch") // at once: the job takes four seconds
	l.Eventually("the job has seen its instances", func() bool { return strings.Contains(l.ok("bulk", "show", id), "matched    3\n") })
	l.tenuto("bulk", "show", id).expect(l.t, statusOK, "state      paused\n", "note       lunch\n", "matched    3\n")
	l.ok("bulk", "resume", id)
	l.ok("wait", id)
	l.state("many-2", cluster.Canceled)
	l.golden("bulk-list", "bulk", "list", "-utc", "-state", "completed")
	l.golden("bulk-show", "bulk", "show", id, "-utc")
	l.tenuto("get", "many-1").expect(l.t, statusOK, "canceled", "closing")
	stopped := strings.TrimSpace(l.ok("bulk", "start", "cancel", "-query", "id=many-*", "-yes", "-json"))
	var job started
	if err := json.Unmarshal([]byte(stopped), &job); err != nil {
		l.t.Fatal(err)
	}
	l.ok("wait", job.ID)
	l.tenuto("bulk", "refusals", job.ID).expect(l.t, statusOK, "many-0  ")
	l.tenuto("bulk", "refusals", job.ID, "-o", "ids").expect(l.t, statusOK, "many-0\nmany-1\nmany-2\n")
	for i := range 5 {
		l.ok("start", "never", fmt.Sprintf("slow-%d", i), `""`)
	}
	last := strings.TrimSpace(l.ok("bulk", "start", "send", "-query", "id=slow-*", "-arg", "event=word", "-arg", `data="x"`, "-rate", "0.1", "-yes"))
	l.tenuto("bulk", "stop", last, "-dry-run").expect(l.t, statusOK, "would stop bulk "+last+": send, it is running")
	l.ok("bulk", "stop", last, "-reason", "wrong one")
	l.tenuto("bulk", "show", last).expect(l.t, statusOK, "state      stopped\n", "wrong one")
}

func testSchedules(l *lab) {
	l.tenuto("schedule", "create", "yearly", "greet", "-cron", "0 0 1 1 *", "-dry-run").expect(l.t, statusOK, "would create schedule yearly: next due times: 20")
	l.tenuto("schedule", "show", "yearly").expect(l.t, statusNotFound)
	l.ok("schedule", "create", "yearly", "greet", "-cron", "0 0 1 1 *", "-input", `"Ada"`, "-zone", "Europe/Berlin")
	l.tenuto("schedule", "create", "yearly", "greet", "-cron", "0 0 1 1 *", "-dry-run").expect(l.t, statusRejected, "exists")
	l.golden("schedule-list", "schedule", "list", "-utc")
	l.golden("schedule-show", "schedule", "show", "yearly", "-utc")
	for _, verb := range []string{"pause", "resume", "trigger", "delete"} {
		l.tenuto("schedule", verb, "yearly", "-dry-run").expect(l.t, statusOK, "would "+verb+" schedule yearly: it starts greet, paused: ")
	}
	l.tenuto("schedule", "update", "yearly", "-cron", "0 5 1 1 *", "-dry-run").expect(l.t, statusOK, "T04:00:00Z")
	l.ok("schedule", "pause", "yearly", "-note", "holidays")
	l.tenuto("schedule", "list").expect(l.t, statusOK, "yearly  paused")
	l.ok("schedule", "resume", "yearly")
	l.ok("schedule", "update", "yearly", "-overlap", "allow")
	l.tenuto("schedule", "trigger", "yearly", "-o", "ids").expect(l.t, statusOK, "yearly-20")
	l.tenuto("schedule", "backfill", "yearly", "2024-12-31T00:00:00Z", "2026-01-02T00:00:00Z", "-dry-run", "-utc").
		expect(l.t, statusOK, "would start greet for 2024-12-31T23:00:00Z\nwould start greet for 2025-12-31T23:00:00Z\n")
	l.ok("schedule", "backfill", "yearly", "2024-12-31T00:00:00Z", "2026-01-02T00:00:00Z")
	l.state("yearly-2024-12-31T23:00:00Z", cluster.Completed)
	l.tenuto("get", "yearly-2024-12-31T23:00:00Z").expect(l.t, statusOK, "completed")
	l.ok("schedule", "delete", "yearly")
	l.state("yearly", cluster.Completed)
	l.tenuto("schedule", "delete", "yearly", "-dry-run").expect(l.t, statusRejected, "ended")
}

func testCluster(l *lab) {
	l.Eventually("all have answered the leader", func() bool { return strings.HasPrefix(l.tenuto("health").out, "health     ok\n") })
	l.golden("members", "members")
	l.tenuto("members", "-o", "ids").expect(l.t, statusOK, "n0\nn1\nn2\n")
	l.golden("health", "health")
	l.tenuto("health", "-json").expect(l.t, statusOK, `{"ok":true,"leader":"n`, `"voters":3,"alive":3,"tolerates":1}`)
	node := httptest.NewServer(l.Node(0).HealthHandler())
	defer node.Close()
	l.tenuto("health", "-url", node.URL+"/readyz").expect(l.t, statusOK, "ok: true\n", "node: n0\n")
	l.tenuto("health", "-url", node.URL+"/nothing").expect(l.t, statusRejected, "404")
	l.tenuto("health", "-url", "http://127.0.0.1:1/readyz").expect(l.t, statusUnavailable, "no answer")
	l.golden("settings", "settings")
	l.tenuto("settings", "Limits.Open=500", "-dry-run").expect(l.t, statusOK, "Limits.Open  ", "500\n")
	l.tenuto("settings", "-o", "yaml").expect(l.t, statusOK, "Limits.Open: 10000\n")
	l.ok("settings", "Limits.Open=9000")
	l.tenuto("token", "-dry-run", "-lifetime", "2h").expect(l.t, statusOK, "would issue a token for one node, valid for 2h0m0s\n")
	token := strings.TrimSpace(l.ok("token", "-lifetime", "2h"))
	l.golden("token-list", "token", "-list", "-utc")
	l.ok("token", "-revoke", token)
	l.tenuto("token", "-revoke", token).expect(l.t, statusRejected)
	l.tenuto("remove", "n9", "-dry-run").expect(l.t, statusNotFound, "n9")
	l.tenuto("remove", "n1").expect(l.t, statusUsage, "remove of n1 needs -yes")
	l.tenuto("transfer", "n9", "-dry-run").expect(l.t, statusNotFound, "n9")
	l.tenuto("transfer", "n9").expect(l.t, statusNotFound, "n9")
	var next, standby string
	l.eventually("another node leads", func(leader int) script {
		next, standby = fmt.Sprintf("n%d", (leader+1)%3), fmt.Sprintf("n%d", (leader+2)%3)
		return script{
			{fmt.Sprintf("would transfer %s: from n%d\n", next, leader), "transfer", next, "-dry-run"},
			{"partitions handed over: 1", "transfer", next},
			{next + "    " + l.Addresses()[(leader+1)%3] + "  leader", "members"},
			{"would drain " + next + ": partition 0 to n", "drain", next, "-dry-run"},
			{"would set role " + next + ": voter, it is leader, pinned: auto", "role", "set", next, "voter", "-dry-run"},
		}
	})
	l.tenuto("role", "set", next, "chief").expect(l.t, statusUsage, "voter, standby or auto")
	l.tenuto("role", "set", "n9", "voter", "-dry-run").expect(l.t, statusNotFound, "n9")
	l.tenuto("role", "set", "n9", "voter").expect(l.t, statusNotFound, "n9")
	l.tenuto("role", "set", next, "voter", "-reason", "test").expect(l.t, statusOK, "")
	l.tenuto("members", "-json").expect(l.t, statusOK, `"role":"voter","pinnedRole":"voter"`)
	l.tenuto("role", "set", next, "auto").expect(l.t, statusOK, "")
	l.ok("role", "set", standby, "standby")
	l.tenuto("members").expect(l.t, statusOK, "  standby\n") // the last column: what is set
	l.Eventually("two voters", func() bool { return strings.Contains(l.tenuto("health", "-json").out, `"voters":2`) })
	l.tenuto("transfer", standby, "-dry-run").expect(l.t, statusRejected, standby+" has no vote")
	l.tenuto("accept", "hello-1", standby, "-dry-run").expect(l.t, statusRejected, standby+" has no vote")
	l.ok("role", "set", standby, "auto")
	l.Eventually("three voters", func() bool { return strings.Contains(l.tenuto("health", "-json").out, `"voters":3`) })
	l.tenuto("drain", "n9").expect(l.t, statusNotFound, "n9")
	l.eventually("a node is drained, and again", func(int) script {
		return script{
			{"", "transfer", next},
			{"partitions handed over: 1", "drain", next},
			{"partitions handed over: 0", "drain", next},
		}
	})
	l.tenuto("cluster", "finalize").expect(l.t, statusUsage, "needs -yes")
	l.eventually("all members say what they speak", func(int) script {
		return script{{"would finalize cluster protocol 4: 4 is used; members speak n0: 4 n1: 4 n2: 4\n", "cluster", "finalize", "-dry-run"}}
	})
	l.tenuto("cluster", "finalize", "-yes", "-reason", "tested").expect(l.t, statusOK, "the cluster uses protocol 4")
	l.tenuto("adopt", "n1", "0123", "-dry-run").expect(l.t, statusOK, "would adopt n1: the recorded directory is ")
	l.Eventually("all have answered the leader", func() bool { return l.tenuto("health").status == statusOK })
	l.tenuto("adopt", "n1", strings.Repeat("0", 32), "-yes").expect(l.t, statusRejected, "still answers")
}

func testBackups(l *lab) {
	disk := clustertest.New(l.t, 1, clustertest.Definitions(sample.Definitions()...))
	addr, dir := disk.Addresses()[0], l.t.TempDir()
	full, increment, restored := filepath.Join(dir, "full"), filepath.Join(dir, "increment"), filepath.Join(dir, "node")
	l.tenuto("backup", full).expect(l.t, statusRejected, "in memory")
	l.tenuto("backup", full, "-addr", addr).expect(l.t, statusOK, "backup ", " partitions")
	l.tenuto("backup", full, "-addr", addr).expect(l.t, statusUsage, "exists")
	l.tenuto("backup", increment, "-addr", addr, "-base", full, "-points").expect(l.t, statusOK, "backup ")
	l.tenuto("verify", full, increment).expect(l.t, statusOK, "is intact", "all hash chains match")
	l.tenuto("verify", dir, "-list").expect(l.t, statusOK, full, increment, " end ", " any ")
	l.tenuto("verify", dir, "-list", "-o", "json").expect(l.t, statusOK, `"file":`, `"points":"any"`)
	l.tenuto("restore", dir, "-list", "-json").expect(l.t, statusOK, `"points":"end"`)
	l.tenuto("verify", full, "-json").expect(l.t, statusOK, `"partitions":1`)
	info, err := readBackupInfo(full)
	if err != nil {
		l.t.Fatal(err)
	}
	between := strconv.FormatUint(info.Partitions[0].Index+1, 10)
	l.tenuto("restore", full, increment, "-dir", filepath.Join(dir, "between"), "-id", "n1", "-index", between).expect(l.t, statusOK, "entry "+between+",")
	l.tenuto("restore", full, increment, "-dir", filepath.Join(dir, "late"), "-id", "n1", "-index", "1000000").expect(l.t, statusUsage, "ends at entry")
	l.tenuto("restore", full, increment, "-dir", filepath.Join(dir, "at"), "-id", "n1", "-at", time.Now().UTC().Format(time.RFC3339Nano)).expect(l.t, statusOK, "is restored to")
	l.tenuto("verify", full, "-at", "2001-01-01T00:00:00Z").expect(l.t, statusUsage, "no backup")
	// A directory has the latest backup as far as it was written when its writer was killed.
	later := filepath.Join(dir, "later")
	l.tenuto("backup", later, "-addr", addr).expect(l.t, statusOK, "backup ")
	content, err := os.ReadFile(later)
	if err := errors.Join(err, os.Remove(later), os.WriteFile(later+".1"+partialSuffix, content[:len(content)/2], 0o600)); err != nil {
		l.t.Fatal(err)
	}
	l.tenuto("verify", dir).expect(l.t, statusOK, "is intact")
	content, err = os.ReadFile(full)
	damaged := filepath.Join(dir, "damaged")
	if err == nil {
		content[len(content)-1] ^= 1
		err = os.WriteFile(damaged, content, 0o600)
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.tenuto("verify", damaged).expect(l.t, statusRejected, "damaged")
	l.tenuto("restore", full, increment, "-dir", restored).expect(l.t, statusUsage, "-id n1")
	l.tenuto("restore", full, increment, "-dir", restored, "-id", "n1").expect(l.t, statusOK, restored+" is restored")
	l.tenuto("restore", full, "-dir", restored, "-id", "n1").expect(l.t, statusUsage, "not empty")
	testBackupProgress(l, addr)
	l.tenuto("recover", dir).expect(l.t, statusRejected, dir)
	l.tenuto("recover", restored).expect(l.t, statusOK, "may be lost: from entry ")
	l.tenuto("recover", restored, "-to", filepath.Join(dir, "recovered")).expect(l.t, statusUsage, "-yes")
	l.tenuto("recover", restored, "-to", filepath.Join(dir, "recovered"), "-yes").expect(l.t, statusUsage, "only member")
}

// testBackupProgress runs commands with backups that print each step. The steps are on the standard
// error, rise, and end before all is done.
func testBackupProgress(l *lab, addr string) {
	dir := l.t.TempDir()
	file := filepath.Join(dir, "file")
	for _, of := range []struct {
		line []string
		verb string
		out  string
	}{
		{[]string{"backup", file, "-addr", addr}, "copied", ""},
		{[]string{"verify", file, "-json"}, "read", "{"},
		{[]string{"restore", file, "-dir", filepath.Join(dir, "node"), "-id", "n1"}, "read", ""},
	} {
		o := l.run(l.t.Context(), nil, func(s *streams) { s.progressPause = 1 }, of.line...)
		o.expect(l.t, statusOK)
		if !strings.HasPrefix(o.out, of.out) || strings.Contains(o.out, " of ") || of.out == "" && o.out != "" {
			l.t.Errorf("%v: the standard output is %q", of.line, o.out)
		}
		steps, last, total := 0, int64(-1), int64(0)
		for line := range strings.Lines(o.err) {
			var done, all, percent int64
			if n, _ := fmt.Sscanf(line, "tenuto: %d of %d bytes "+of.verb+", %d %%", &done, &all, &percent); n < 3 {
				continue // what the command says at its end
			}
			if steps > 0 && (done < last || all != total) || done >= all || percent != 100*done/all {
				l.t.Errorf("%v: %q follows %d of %d", of.line, line, last, total)
			}
			steps, last, total = steps+1, done, all
		}
		if steps == 0 {
			l.t.Errorf("%v: no progress in %q", of.line, o.err)
		}
	}
}

func testTool(l *lab) {
	l.tenuto("version").expect(l.t, statusOK, "tenuto ", "linux/")
	l.tenuto("version", "-json").expect(l.t, statusOK, `"go":"go1.`)
	l.tenuto("completion", "bash").expect(l.t, statusOK, "complete -o default -F _tenuto tenuto")
	l.tenuto("completion", "tcsh").expect(l.t, statusUsage, "bash, fish, zsh")
	l.ok("profile", "set", "lab", "-addr", l.env["TENUTO_ADDR"], "-as", "bob", "-cert", "a.crt")
	l.tenuto("profile", "list").expect(l.t, statusOK, "lab   yes", "bob")
	l.ok("profile", "set", "lab", "-cert", "")
	l.tenuto("profile", "show").expect(l.t, statusOK, "name  lab\n", "as    bob\n")
	l.ok("profile", "set", "other", "-addr", "127.0.0.1:1", "-timeout", "10ms")
	l.ok("profile", "use", "other")
	addr := l.env["TENUTO_ADDR"]
	delete(l.env, "TENUTO_ADDR")
	l.tenuto("list").expect(l.t, statusUnavailable)
	l.tenuto("list", "-profile", "lab").expect(l.t, statusOK, "order-1")
	l.tenuto("list", "-profile", "nothing").expect(l.t, statusUsage, `no profile "nothing"`)
	l.tenuto("cancel", "order-1", "-timeout", "fast").expect(l.t, statusUsage, `-timeout is "fast"`)
	l.env["TENUTO_ADDR"] = addr
	l.ok("profile", "remove", "other")
	l.ok("profile", "remove", "lab")
	dir := filepath.Join(l.t.TempDir(), "certs")
	l.tenuto("cert", "-dir", dir, "-nodes", "n1,n2", "-clients", "operator").expect(l.t, statusOK, "client-operator.key  client", "tenuto profile set operator")
	l.tenuto("cert", "-dir", dir).expect(l.t, statusUsage, "-nodes")
}

func testLostLeader(l *lab) {
	l.ok("start", "shifty", "shifty-1")
	l.swapped.Store(true)
	leader := l.Leader()
	l.Kill(leader)
	l.Leader()
	// The call waits for code that fits, once it has reached the new leader.
	l.Eventually("the outcome of a call is unknown", func() bool {
		return l.tenuto("send", "shifty-1", "word", "1", "-timeout", "100ms").status == statusUnknown
	})
	l.state("shifty-1", cluster.Stalled)
	l.tenuto("get", "shifty-1").expect(l.t, statusOK, "mismatch")
	l.tenuto("retry", "shifty-1", "-dry-run").expect(l.t, statusOK, "would retry shifty-1 (stalled)\n")
	l.tenuto("hold", "shifty-1").expect(l.t, statusRejected, "stalled")
	l.swapped.Store(false)
	l.ok("retry", "shifty-1")
	l.state("shifty-1", cluster.Running)
	dead := fmt.Sprintf("n%d", leader)
	l.Eventually("the new leader knows of the loss", func() bool { return strings.Contains(l.tenuto("health").out, dead+" is unreachable") })
	l.tenuto("health").expect(l.t, statusRejected, "health     not ok\n", "tolerates  0 more failures\n", "problem    "+dead+" is unreachable\n")
	l.tenuto("adopt", dead, strings.Repeat("0", 32), "-yes", "-timeout", "10s").expect(l.t, statusOK, "now has directory")
	l.tenuto("remove", dead, "-dry-run").expect(l.t, statusOK, "would remove "+dead+": ", ", unreachable\n")
	l.ok("remove", dead, "-yes")
	l.Eventually("the two others are the members", func() bool { // no node may lead for a moment
		o := l.tenuto("members", "-o", "ids")
		ids := strings.Fields(o.out)
		return o.status == statusOK && len(ids) == 2 && !slices.Contains(ids, dead)
	})
}
