package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/replay"
)

// With asCommand set, the test binary is the command.
const asCommand = "TENUTO_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	if config := os.Getenv(asNode); config != "" {
		runNode(config)
	}
	os.Exit(shorttest.Main(m))
}

// outcome is the result of running the command.
type outcome struct {
	status   int
	out, err string
}

// tenuto runs the command in its own process.
func tenuto(t *testing.T, address string, line ...string) outcome {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], line...)
	command.Env = append(os.Environ(), asCommand+"=1", addressVariable+"="+address, "TZ=UTC", "XDG_CONFIG_HOME="+t.TempDir())
	var out, stderr bytes.Buffer
	command.Stdout, command.Stderr = &out, &stderr
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{command.ProcessState.ExitCode(), out.String(), stderr.String()}
}

// expect checks the exit status, and that the output contains each text.
func (o outcome) expect(t *testing.T, status int, texts ...string) {
	t.Helper()
	if o.status != status {
		t.Errorf("status %d; want %d", o.status, status)
	}
	for _, text := range texts {
		if !strings.Contains(o.out+o.err, text) {
			t.Errorf("%q is missing", text)
		}
	}
	if t.Failed() {
		t.Fatalf("output:\n%s\nerrors:\n%s", o.out, o.err)
	}
}

var (
	hello = replay.Orchestration[string, string]("hello")
	never = replay.Orchestration[string, string]("never")
	word  = replay.Event[string]("word")
)

// startCluster starts a node on which hello-1 has ended and never-1 waits, and returns its address.
func startCluster(t *testing.T) (string, *cluster.Client) {
	t.Helper()
	c := clustertest.New(t, 1, clustertest.InMemory(), clustertest.Definitions(
		hello.Bind(func(ctx *replay.Context, name string) (string, error) {
			replay.SetStatus(ctx, "asleep")
			return "hello " + name, nil
		}),
		never.Bind(func(ctx *replay.Context, _ string) (string, error) { return word.Wait(ctx) }),
	))
	client := c.Client(0)
	for { // until the node has raised the protocol
		_, err := cluster.Call(t.Context(), client, hello, "hello-1", "Ada", cluster.Tags(map[string]string{"shop": "north"}), replay.Summary("a greeting"))
		if err == nil {
			break
		}
		if !errors.Is(err, cluster.ErrProtocol) {
			t.Fatal(err)
		}
	}
	if _, err := cluster.StartRun(t.Context(), client, never, "never-1", ""); err != nil {
		t.Fatal(err)
	}
	return c.Addresses()[0], client
}

func TestCommands_ReadState(t *testing.T) {
	address, _ := startCluster(t)
	tenuto(t, address, "list").expect(t, 0, "hello-1  completed  hello", "never-1  running", "SUMMARY", "a-greeting\n", "Z  -\n")
	tenuto(t, address, "list", "-state", "running", "-count").expect(t, 0, "1\n")
	tenuto(t, address, "list", "-limit", "1").expect(t, 0, "hello-1", "-after hello-1")
	tenuto(t, address, "get", "hello-1").expect(t, 0, `"hello Ada"`, `"asleep"`, "shop=north", "completed", "a greeting")
	tenuto(t, address, "stack", "never-1").expect(t, 0, "EventHandle.Wait at tenuto/main_test.go:", "event 2, ExternalSubscribed, word", "\n\t")
	tenuto(t, address, "stack", "-json", "never-1").expect(t, 0, `"call":"EventHandle.Wait"`, `"eventId":2`)
	tenuto(t, address, "stack", "hello-1").expect(t, 1, "ended")
	tenuto(t, address, "get", "never-1", "-pending").expect(t, 0, "running", "event 2, ExternalSubscribed, word")
	tenuto(t, address, "members").expect(t, 0, "n0", address, "leader")

	var shown []instance
	for line := range strings.Lines(tenuto(t, address, "list", "-json", "-tag", "shop=north", "-stale").out) {
		var i instance
		if err := json.Unmarshal([]byte(line), &i); err != nil {
			t.Fatal(err)
		}
		shown = append(shown, i)
	}
	if len(shown) != 1 || shown[0].ID != "hello-1" || shown[0].State != cluster.Completed || shown[0].Summary != "a greeting" {
		t.Errorf("the list shows %+v", shown)
	}
}

func TestCommands_SelectAndCount(t *testing.T) {
	address, client := startCluster(t)
	if _, err := cluster.Call(t.Context(), client, hello, "hello-2", "Bo", cluster.Tags(map[string]string{"shop": "south"})); err != nil {
		t.Fatal(err)
	}
	ids := func(o outcome) (ids []string) {
		t.Helper()
		o.expect(t, 0)
		for line := range strings.Lines(o.out) {
			ids = append(ids, strings.Fields(line)[0])
		}
		return ids[1:]
	}
	for line, want := range map[string][]string{
		"-query name=hello|-order|-created":               {"hello-2", "hello-1"},
		"-query name=hello order=-id":                     {"hello-2", "hello-1"},
		"-query state=completed,failed|-tag|shop=south":   {"hello-2"},
		"-query waiting=event:word since<1h":              {"never-1"},
		"-query updated>1h":                               nil,
		"-query ended<1h order=ended|-limit|1":            {"hello-1"},
		"-order|ended|-name|never":                        nil,
		"-query tag.shop=north id=hello-*|-state|running": nil,
	} {
		flags := strings.Split(strings.Replace(line, " ", "|", 1), "|")
		if got := ids(tenuto(t, address, append([]string{"list"}, flags...)...)); !slices.Equal(got, want) {
			t.Errorf("%s: %q; want %q", line, got, want)
		}
	}
	first := tenuto(t, address, "list", "-limit", "1", "-order", "-created", "-name", "hello")
	_, next, ok := strings.Cut(first.err, "-after ")
	if !ok {
		t.Fatalf("no next page: %s", first.err)
	}
	next, _, _ = strings.Cut(next, ",")
	if got := ids(tenuto(t, address, "list", "-order", "-created", "-name", "hello", "-after", next)); !slices.Equal(got, []string{"hello-1"}) {
		t.Errorf("after %s: %q", next, got)
	}
	tenuto(t, address, "count").expect(t, 0, "3\n")
	tenuto(t, address, "count", "-query", "state=running", "-json").expect(t, 0, `{"count":1}`)
	tenuto(t, address, "count", "-by", "state,name").expect(t, 0, "STATE      NAME   COUNT\n", "completed  hello  2\n", "running    never  1\n")
	tenuto(t, address, "count", "-by", "tag:shop", "-json", "-stale").expect(t, 0, `{"by":{"tag:shop":"north"},"count":1}`, `{"by":{"tag:shop":""},"count":1}`)
	tenuto(t, address, "count", "-by", "stat").expect(t, 2, "state, name, version, error, tag:KEY, attr:KEY")
	tenuto(t, address, "list", "-query", "name=x state=cancled").expect(t, 2, "name=x state=cancled\n       ^^^^^^^^^^^^^\n", `did you mean "canceled"?`)
	tenuto(t, address, "list", "-query", "name=x", "-name", "y").expect(t, 2, "twice")
	tenuto(t, address, "list", "-query", "order=-updated", "-order", "id").expect(t, 2, "twice")
	tenuto(t, address, "list", "-order", "size").expect(t, 2, "id, created, updated, ended, timer")
	tenuto(t, address, "list", "-order", "created", "-after", "hello-1").expect(t, 2, "Page.Next")
}

// A list for another command misses no instance, unless it was told to.
func TestList_IDsAreComplete(t *testing.T) {
	address, client := startCluster(t)
	for i := range limitDefault {
		if _, err := cluster.StartRun(t.Context(), client, never, fmt.Sprintf("more-%d", i), ""); err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string]int{"list -o ids": limitDefault + 2, "list -o ids -limit 7": 7, "list -json": limitDefault, "list -json -limit 0": limitDefault + 2} {
		if got := strings.Count(tenuto(t, address, strings.Fields(line)...).out, "\n"); got != want {
			t.Errorf("%s: %d lines; want %d", line, got, want)
		}
	}
}

func TestCommands_ChangeSettings(t *testing.T) {
	address, client := startCluster(t)
	tenuto(t, address, "settings").expect(t, 0, "Limits.Open            10000\n", "Retention.Failed       0s\n", "RequireJoinToken       false\n")
	tenuto(t, address, "settings", "Limits.Open=500", "Retention.Failed=36h", "ActivityRates.charge=2.5,10", "ActivityRates.mail=1").
		expect(t, 0, "ActivityRates.charge   2.5,10\n", "ActivityRates.mail     1,1\n", "36h0m0s")
	tenuto(t, address, "settings", "-json", "ActivityRates.mail=", "RequireJoinToken=true").expect(t, 0, `"RequireJoinToken":true`, `"Limits.Open":500`)
	s, err := client.Settings(t.Context())
	if err != nil || s.Limits.Open != 500 || s.Retention.Failed != 36*time.Hour || !s.RequireJoinToken || len(s.ActivityRates) != 1 ||
		s.ActivityRates["charge"] != (cluster.Rate{PerSecond: 2.5, Burst: 10}) {
		t.Errorf("%+v, %v", s, err)
	}
	for _, arg := range []string{"Limits.Open", "Limits.Closed=1", "Limits.Open=x", "ActivityRates.charge=x", "ActivityRates.charge=1,x", "Limits.Open=-1"} {
		tenuto(t, address, "settings", arg).expect(t, 2)
	}
}

func TestCommands_ControlInstances(t *testing.T) {
	address, client := startCluster(t)
	state := func() cluster.State {
		t.Helper()
		status, err := client.Get(t.Context(), "never-1")
		if err != nil {
			t.Fatal(err)
		}
		return status.State
	}
	for _, step := range []struct {
		verb string
		want cluster.State
	}{
		{"suspend", cluster.Suspended},
		{"resume", cluster.Running},
		{"terminate", cluster.Terminated},
	} {
		line := []string{step.verb, "never-1"}
		if step.verb == "terminate" {
			tenuto(t, address, line...).expect(t, 2, "needs -yes")
			line = append(line, "-yes")
		}
		tenuto(t, address, line...).expect(t, 0)
		if got := state(); got != step.want {
			t.Errorf("after %s it is %s; want %s", step.verb, got, step.want)
		}
	}
	tenuto(t, address, "cancel", "-reason", "too late", "never-1").expect(t, 1, "cancel never-1")
	tenuto(t, address, "retry", "never-1").expect(t, 1, "tenuto: retry never-1: the instance is not stalled: it is terminated\n")

	if _, err := cluster.StartRun(t.Context(), client, never, "never-2", ""); err != nil {
		t.Fatal(err)
	}
	tenuto(t, address, "cancel", "never-2", "-reason", "enough").expect(t, 0)
	if status, err := client.Wait(t.Context(), "never-2"); err != nil || status.State != cluster.Canceled {
		t.Errorf("after cancel: %+v, %v", status, err)
	}
	tenuto(t, address, "get", "never-2").expect(t, 0, "canceled", "enough")
}

// fields returns the words of each line of a table, by the first word.
func (o outcome) fields() map[string][]string {
	lines := make(map[string][]string)
	for line := range strings.Lines(o.out) {
		words := strings.Fields(line)
		lines[words[0]] = words
	}
	return lines
}

func TestTables_EveryCellIsOneWord(t *testing.T) {
	address, client := startCluster(t)
	if _, _, err := client.IssueJoinToken(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, line := range [][]string{{"list"}, {"members"}, {"token", "-list"}} {
		columns := 0
		for _, words := range tenuto(t, address, line...).fields() {
			if columns == 0 {
				columns = len(words)
			}
			if len(words) != columns || columns < 3 {
				t.Errorf("%v: %q; want %d columns", line, words, columns)
			}
		}
	}
	for text, want := range map[string]string{"": "-", "waiting for code": "waiting-for-code", "running": "running", " ": "-"} {
		if got := output.Cell(text); got != want {
			t.Errorf("cell of %q: %q; want %q", text, got, want)
		}
	}
}

func TestMembers_DeadNodeAndNoLeader(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: it awaits that three nodes know of a loss")
	}
	c := clustertest.New(t, 3, clustertest.InMemory(), clustertest.Definitions(hello.Bind(
		func(*replay.Context, string) (string, error) { return "", nil })))
	leader := c.Leader()
	address, dead := c.Addresses()[leader], (leader+1)%3
	shown := func(node, column int, want string) func() bool {
		return func() bool {
			words := tenuto(t, address, "members").fields()[fmt.Sprintf("n%d", node)]
			return len(words) == 9 && words[column] == want
		}
	}
	c.Eventually("the follower is alive", shown(dead, 4, "alive"))
	c.Kill(dead)
	c.Eventually("the dead one is unreachable", shown(dead, 4, "unreachable"))
	c.Kill((leader + 2) % 3)
	c.Eventually("there is no leader", shown(leader, 2, "follower"))
	tenuto(t, address, "members").expect(t, 3, "unknown", "no node leads")
	tenuto(t, address, "members", "-json").expect(t, 3, `"liveness":"unknown"`)
}

// Replicas in quarantine and instances that are stopped are problems.
func TestHealth_NamesQuarantines(t *testing.T) {
	members := []cluster.Member{
		{NodeID: "n1", Voter: true, Leader: true, Liveness: cluster.MemberAlive, BehindKnown: true, Stopped: 1},
		{NodeID: "n2", Voter: true, Liveness: cluster.MemberAlive, BehindKnown: true, Quarantined: 2},
	}
	h := healthOf(members)
	if h.OK || len(h.Problems) != 2 || !strings.Contains(h.Problems[0], "1 instances are stopped") || !strings.Contains(h.Problems[1], "n2 has 2 replicas") {
		t.Errorf("%+v", h)
	}
	members[0].Stopped, members[1].Quarantined = 0, 0
	if h := healthOf(members); !h.OK {
		t.Errorf("%+v", h)
	}
}

// Right after a change of leader, a member that has not answered the new one is a problem.
func TestHealth_AwaitsAnswerToNewLeader(t *testing.T) {
	h := healthOf([]cluster.Member{
		{NodeID: "n1", Voter: true, Leader: true, Liveness: cluster.MemberAlive, BehindKnown: true},
		{NodeID: "n2", Voter: true, Liveness: cluster.MemberAlive, BehindKnown: true},
		{NodeID: "n3", Voter: true, Liveness: cluster.MemberAlive},
	})
	if h.OK || h.Alive != 2 || h.Tolerates != 0 || len(h.Problems) != 1 || !strings.Contains(h.Problems[0], "n3 has not answered") {
		t.Errorf("%+v", h)
	}
}

func TestReportError_PrefixesOnce(t *testing.T) {
	var stderr bytes.Buffer
	failed := fmt.Errorf("get x: %w", &cluster.UnavailableError{Err: fmt.Errorf("status: %w", cluster.ErrNotFound)})
	if got := reportError(t.Context(), nil, streams{err: &stderr}, failed); got != statusUnavailable || strings.Count(stderr.String(), "tenuto:") != 1 {
		t.Errorf("status %d: %s", got, stderr.String())
	}
}

func TestHistory_ExportPassesCheck(t *testing.T) {
	address, _ := startCluster(t)
	file := filepath.Join(t.TempDir(), "hello.json")
	tenuto(t, address, "history", "export", "-o", file, "hello-1").expect(t, 0)
	tenuto(t, "", "history", "check", file).expect(t, 0, "ok: hello-1/1", "last: OrchestrationCompleted")

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := tenuto(t, address, "history", "export", "hello-1", "-execution=1").out; got != string(text) {
		t.Errorf("the standard output gets\n%s\nand the file\n%s", got, text)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	broken := bytes.Join(append(lines[:1:1], lines[2:]...), nil) // without its first event
	if err := os.WriteFile(file, broken, 0o666); err != nil {
		t.Fatal(err)
	}
	tenuto(t, "", "history", "check", file).expect(t, 1, "event_id 2 after 0", "1 of 1 files")
}

func TestCommandLine_Rejections(t *testing.T) {
	address, _ := startCluster(t)
	for _, c := range []struct {
		address string
		line    string
		status  int
		text    string
	}{
		{address, "get nobody", 6, "get nobody"},
		{address, "history export unknown", 6, "unknown"},
		{address, "get what?", 2, "instance ID"},
		{address, "get", 2, "usage: tenuto get [flags] ID..."},
		{address, "get a b", 6, "2 of 2 not done"},
		{address, "stack a b", 2, "usage: tenuto stack [flags] ID"},
		{address, "list -limit -1", 2, "-limit"},
		{address, "list -state ended", 2, `filter by state is "ended", which is none of: running, hung, stalled,`},
		{address, "list -count -state running -state ended", 2, "canceled, terminated"},
		{address, "list -count -state waiting-for-code", 0, "0\n"},
		{address, "list -count -json -name hello", 0, "{\"count\":1}\n"},
		{address, "list -nonsense", 2, "tenuto list -h"},
		{address, "list -tag shop", 2, "key=value"},
		{address, "list -cert x", 2, "belong together"},
		{address, "-version", 0, "tenuto "},
		{address, "explode", 2, `unknown command "explode"`},
		{address, "history", 2, "usage: tenuto history [flags] ID"},
		{address, "schedule", 2, `"schedule" needs a subcommand; see tenuto schedule -h`},
		{address, "schedul show x", 2, `unknown command "schedul": did you mean "schedule show"?`},
		{address, "lst", 2, `did you mean "list"?`},
		{address, "help list", 0, "-prefix"},
		{"", "history -h", 0, "history export ID"},
		{"", "history --help", 0, "history check FILE..."},
		{"", "schedule explode", 2, `unknown command "schedule explode"`},
		{"", "list", 2, "name a node"},
		{"nowhere", "list", 2, "host:port"},
		{"127.0.0.1:1", "list -timeout 10ms", 3, "nothing was done"},
		{"", "", 2, "Show instances:"},
		{"", "help", 0, "history export ID"},
		{"", "list -h", 0, "-prefix"},
		{"", "history check no-such-file", 1, "no-such-file"},
	} {
		t.Run(c.line, func(t *testing.T) {
			tenuto(t, c.address, strings.Fields(c.line)...).expect(t, c.status, c.text)
		})
	}
}
