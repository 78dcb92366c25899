package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// A scenario is a body, what is done to its instance from outside, and its expected end.
// CONFORMANCE.md lists the behavior that each stands for.
type scenario struct {
	name string
	body func(ctx *replay.Context) (string, error)
	do   func(t *testing.T, client *Client, id string)
	// State, and output or error.
	want string
	// The types of the events after the start, shortened; "" is not compared.
	events string
}

// script runs the body of the scenario named by its input. Names of its children begin with that
// name and a slash.
var script = replay.Orchestration[string, string]("script")

// The activities of scenarios.
var (
	echo            = replay.Activity[string, string]("echo")
	failingActivity = replay.Activity[string, string]("fails")
	hangingActivity = replay.Activity[string, string]("hang") // until it is canceled
	singleAttempt   = replay.RetryPolicy{MaxAttempts: 1}
)

// attemptObserver receives the names of activities that have begun, and of those that were
// canceled.
type attemptObserver struct{ started, canceled chan string }

func (a *attemptObserver) definitions() []replay.Definition {
	return []replay.Definition{
		echo.Bind(func(_ context.Context, s string) (string, error) { return s, nil }),
		failingActivity.Bind(func(_ context.Context, s string) (string, error) { return "", errors.New(s) }),
		hangingActivity.Bind(func(ctx context.Context, s string) (string, error) {
			a.started <- s
			<-ctx.Done()
			a.canceled <- s
			return s, nil // too late
		}),
	}
}

func TestConformance(t *testing.T) {
	h := &attemptObserver{started: make(chan string, 100), canceled: make(chan string, 100)}
	partitions := map[string][]scenario{
		"error": errorScenarios(), "status": statusScenarios(), "continue": continueScenarios(),
		"cancel": cancelScenarios(h), "child": childScenarios(),
	}
	bodies := map[string]func(*replay.Context) (string, error){"waits": waitForWord}
	for partition, scenarios := range partitions {
		for _, s := range scenarios {
			bodies[partition+"/"+s.name] = s.body
		}
	}
	node := startNode(t, Config{InMemory: true, Definitions: append(h.definitions(),
		double.Bind(doubleBody),
		script.Bind(func(ctx *replay.Context, name string) (string, error) { return bodies[name](ctx) }))})
	for partition, scenarios := range partitions {
		for i, s := range scenarios {
			t.Run(partition+"/"+s.name, func(t *testing.T) { s.run(t, node.Client(), partition, fmt.Sprintf("%s-%d", partition, i)) })
		}
	}
}

func (s *scenario) run(t *testing.T, client *Client, partition, id string) {
	ctx := testContext(t)
	if _, err := StartRun(ctx, client, script, id, partition+"/"+s.name); err != nil {
		t.Fatal(err)
	}
	if s.do != nil {
		s.do(t, client, id)
	}
	if got := awaitOutcome(t, client, id); got != s.want {
		t.Errorf("%s; want %s", got, s.want)
	}
	history, err := client.History(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	ends, types := 0, []string{}
	for _, event := range history.Events[1:] {
		name := strings.TrimPrefix(string(event.Type), "Orchestration")
		types = append(types, name)
		if name == "Completed" || name == "Failed" || name == "Canceled" || name == "Terminated" {
			ends++
		}
	}
	if got := strings.Join(types, " "); s.events != "" && got != s.events {
		t.Errorf("%s; want %s", got, s.events)
	}
	if ends != 1 {
		t.Errorf("%d terminal events:\n%s", ends, history)
	}
}

// awaitOutcome waits for the end of a run and returns its outcome.
func awaitOutcome(t *testing.T, client *Client, id string) string {
	t.Helper()
	status, err := client.Wait(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	var output string
	if err := status.Output(&output); err != nil {
		t.Fatal(err)
	}
	if status.Err != nil {
		output = status.Err.Error()
	}
	return string(status.State) + " " + output
}

func sendWords(words ...string) func(t *testing.T, client *Client, id string) {
	return func(t *testing.T, client *Client, id string) {
		for _, w := range words {
			if err := Send(testContext(t), client, id, word, w); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func waitForWord(ctx *replay.Context) (string, error) { return word.Wait(ctx) }

// purchaseBody is a purchase in three steps, of which the named ones fail.
func purchaseBody(failing string) func(ctx *replay.Context) (string, error) {
	step := func(ctx *replay.Context, name string) error {
		if name == failing {
			_, err := failingActivity.Call(ctx, "no "+name, replay.Retry(singleAttempt))
			return err
		}
		_, err := echo.Call(ctx, name)
		return err
	}
	return func(ctx *replay.Context) (string, error) {
		if err := step(ctx, "debit"); err != nil {
			return "nothing done: " + errors.Unwrap(err).Error(), nil
		}
		if err := step(ctx, "ship"); err != nil {
			return "given back: " + errors.Unwrap(err).Error(), step(ctx, "credit")
		}
		return "shipped", nil
	}
}

func errorScenarios() []scenario {
	wrong := replay.Activity[int, int]("echo")
	number := replay.Event[int]("word")
	return []scenario{
		{name: "all steps succeed", body: purchaseBody(""), want: "completed shipped",
			events: "ActivityScheduled ActivityCompleted ActivityScheduled ActivityCompleted Completed"},
		{name: "a later step fails and the first is undone", body: purchaseBody("ship"), want: "completed given back: no ship",
			events: "ActivityScheduled ActivityCompleted ActivityScheduled ActivityFailed ActivityScheduled ActivityCompleted Completed"},
		{name: "the first step fails", body: purchaseBody("debit"), want: "completed nothing done: no debit"},
		{name: "the body fails at once", body: func(*replay.Context) (string, error) { return "", errTest },
			want: "failed as wanted", events: "Failed"},
		{name: "an activity's failure is passed on", body: func(ctx *replay.Context) (string, error) {
			return failingActivity.Call(ctx, "broken", replay.Retry(singleAttempt))
		}, want: `failed activity "fails": broken`, events: "ActivityScheduled ActivityFailed Failed"},
		{name: "a panic is the instance's failure", body: func(*replay.Context) (string, error) { panic("boom") },
			want: "failed panic: boom", events: "Failed"},
		{name: "an input of another type fails the activity, and the code goes on", body: func(ctx *replay.Context) (string, error) {
			_, err := wrong.Call(ctx, 1)
			return fmt.Sprint(err != nil), nil
		}, want: "completed true"},
		{name: "an event of another type is an error, and the code goes on", body: func(ctx *replay.Context) (string, error) {
			if _, err := word.Wait(ctx); err != nil { // so words fit one of the types of that name
				return "", err
			}
			_, err := number.Wait(ctx)
			return fmt.Sprint(err != nil), nil
		}, do: sendWords("first", "x"), want: "completed true"},
		{name: "an event before its subscription is kept", body: func(ctx *replay.Context) (string, error) {
			if err := ctx.Sleep(20 * time.Millisecond); err != nil {
				return "", err
			}
			return word.WaitFor(ctx, time.Hour)
		}, do: sendWords("early"), want: "completed early"},
		{name: "the first of two equal events is taken", body: waitForWord, do: func(t *testing.T, client *Client, id string) {
			sendWords("one")(t, client, id)
			if err := Send(testContext(t), client, id, word, "two"); !errors.Is(err, ErrEnded) {
				t.Errorf("an event after the end: %v", err)
			}
		}, want: "completed one", events: "ExternalSubscribed ExternalEvent Completed"},
		{name: "side by side", body: func(ctx *replay.Context) (string, error) {
			a, b, c := echo.Start(ctx, "a"), word.Subscribe(ctx), ctx.Timer(time.Millisecond)
			if _, err := c.Await(ctx); err != nil {
				return "", err
			}
			event, err := b.Await(ctx)
			result, callErr := a.Await(ctx)
			return result + event, errors.Join(err, callErr)
		}, do: sendWords("b"), want: "completed ab"},
	}
}

// customStatusOf returns the custom status of an instance.
func customStatusOf(t *testing.T, client *Client, id string) string {
	t.Helper()
	status, err := client.Get(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	text := "nothing"
	if err := status.CustomStatus(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

func expectStatuses(want ...string) func(t *testing.T, client *Client, id string) {
	return func(t *testing.T, client *Client, id string) {
		for i, w := range want {
			if got := customStatusOf(t, client, id); got != w {
				t.Errorf("look %d: published %q; want %q", i+1, got, w)
			}
			sendWords("next")(t, client, id)
		}
	}
}

// setStatuses sets each list of custom statuses in a turn of its own.
func setStatuses(values ...[]string) func(ctx *replay.Context) (string, error) {
	return func(ctx *replay.Context) (string, error) {
		for _, turn := range values {
			for _, value := range turn {
				if err := replay.SetStatus(ctx, value); err != nil {
					return "", err
				}
			}
			if _, err := word.Wait(ctx); err != nil {
				return "", err
			}
		}
		return "", nil
	}
}

func statusScenarios() []scenario {
	text := func(bytes int) string { return strings.Repeat("x", bytes-len(`""`)) }
	return []scenario{
		{name: "none before one is set", body: setStatuses(nil, []string{"a"}), do: expectStatuses("nothing", "a"), want: "completed "},
		{name: "the last of a turn wins", body: setStatuses([]string{"a", "b", "c"}), do: expectStatuses("c"), want: "completed ",
			events: "StatusSet StatusSet StatusSet ExternalSubscribed ExternalEvent Completed"},
		{name: "kept over turns until another is set", body: setStatuses([]string{"a"}, nil, []string{"b"}), do: expectStatuses("a", "a", "b"), want: "completed "},
		{name: "taken back", body: func(ctx *replay.Context) (string, error) {
			if err := replay.SetStatus(ctx, "a"); err != nil {
				return "", err
			}
			if _, err := word.Wait(ctx); err != nil {
				return "", err
			}
			if err := replay.SetStatus[any](ctx, nil); err != nil {
				return "", err
			}
			return word.Wait(ctx)
		}, do: expectStatuses("a", "nothing"), want: "completed next"},
		{name: "visible after a failure", body: func(ctx *replay.Context) (string, error) {
			return "", errors.Join(replay.SetStatus(ctx, "halfway"), errTest)
		}, do: func(t *testing.T, client *Client, id string) {
			_ = awaitOutcome(t, client, id)
			if got := customStatusOf(t, client, id); got != "halfway" {
				t.Errorf("published %q", got)
			}
		}, want: "failed as wanted"},
		{name: "of the greatest size", body: setStatuses([]string{text(replay.PayloadMax)}), do: func(t *testing.T, client *Client, id string) {
			if got := customStatusOf(t, client, id); len(got) != replay.PayloadMax-2 {
				t.Errorf("%d bytes", len(got))
			}
			sendWords("")(t, client, id)
		}, want: "completed "},
		{name: "too large", body: setStatuses([]string{text(replay.PayloadMax + 1)}),
			want: "failed encode status: tenuto: payload of 1048577 bytes: at most 1048576 are allowed"},
		{name: "kept over continue-as-new", body: func(ctx *replay.Context) (string, error) {
			if ctx.Execution() == 1 {
				return "", errors.Join(replay.SetStatus(ctx, "a"), script.ContinueAsNew(ctx, "status/kept over continue-as-new"))
			}
			return setStatuses(nil, []string{"b"})(ctx)
		}, do: func(t *testing.T, client *Client, id string) {
			awaitSecondExecution(t, client, id)
			expectStatuses("a", "b")(t, client, id)
		}, want: "completed "},
		{name: "taken back after continue-as-new", body: func(ctx *replay.Context) (string, error) {
			if ctx.Execution() == 1 {
				return "", errors.Join(replay.SetStatus(ctx, "a"), script.ContinueAsNew(ctx, "status/taken back after continue-as-new"))
			}
			if err := replay.SetStatus[any](ctx, nil); err != nil {
				return "", err
			}
			return word.Wait(ctx)
		}, do: func(t *testing.T, client *Client, id string) {
			awaitSecondExecution(t, client, id)
			expectStatuses("nothing")(t, client, id)
		}, want: "completed next"},
	}
}

// awaitSecondExecution waits until the code of the second execution waits for a word.
func awaitSecondExecution(t *testing.T, client *Client, id string) {
	t.Helper()
	for r, err := range client.Watch(testContext(t), id, history.Position{Execution: 2, EventID: 1}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Type == "ExternalSubscribed" {
			return
		}
	}
}

func continueScenarios() []scenario {
	return []scenario{
		{name: "without awaiting anything", body: func(ctx *replay.Context) (string, error) {
			if ctx.Execution() < 4 {
				return "", script.ContinueAsNew(ctx, "continue/without awaiting anything")
			}
			return fmt.Sprint(ctx.Execution()), nil
		}, do: func(t *testing.T, client *Client, id string) {
			_ = awaitOutcome(t, client, id)
			executions, err := client.Executions(testContext(t), id)
			var states []string
			for _, e := range executions {
				states = append(states, string(e.State))
			}
			if got := strings.Join(states, ", "); err != nil || got != "continued as new, continued as new, continued as new, completed" {
				t.Errorf("%s, %v", got, err)
			}
		}, want: "completed 4", events: "Completed"},
		{name: "an event goes to the latest execution", body: func(ctx *replay.Context) (string, error) {
			if ctx.Execution() < 2 {
				return "", script.ContinueAsNew(ctx, "continue/an event goes to the latest execution")
			}
			return word.Wait(ctx)
		}, do: func(t *testing.T, client *Client, id string) {
			awaitSecondExecution(t, client, id)
			if err := Send(testContext(t), client, id, word, "x", RequestID("x")); err != nil {
				t.Fatal(err)
			}
			if first, second := countEvents(t, client, id, 1, hasRequestID("x")), countEvents(t, client, id, 2, hasRequestID("x")); first != 0 || second != 1 {
				t.Errorf("%d times in the first, %d in the second", first, second)
			}
		}, want: "completed x", events: "ExternalSubscribed ExternalEvent Completed"},
		{name: "canceled in the second execution", body: func(ctx *replay.Context) (string, error) {
			if ctx.Execution() < 2 {
				return "", script.ContinueAsNew(ctx, "continue/canceled in the second execution")
			}
			return word.Wait(ctx)
		}, do: func(t *testing.T, client *Client, id string) {
			awaitSecondExecution(t, client, id)
			cancelWith("enough")(t, client, id)
		}, want: "canceled canceled: enough", events: "ExternalSubscribed CancelRequested CancelRequested Canceled"},
	}
}

func cancelWith(reasons ...string) func(t *testing.T, client *Client, id string) {
	return func(t *testing.T, client *Client, id string) {
		for _, reason := range reasons {
			if err := client.Cancel(testContext(t), id, reason); err != nil && !errors.Is(err, ErrEnded) {
				t.Fatal(err)
			}
		}
	}
}

// expectCanceled waits until an activity has begun, calls do, and waits until the activity is
// canceled.
func (a *attemptObserver) expectCanceled(name string, do func(t *testing.T, client *Client, id string)) func(t *testing.T, client *Client, id string) {
	return func(t *testing.T, client *Client, id string) {
		expectReceived(t, a.started, name)
		do(t, client, id)
		expectReceived(t, a.canceled, name)
	}
}

func expectReceived(t *testing.T, words <-chan string, want string) {
	t.Helper()
	select {
	case got := <-words:
		if got != want {
			t.Errorf("heard %q; want %q", got, want)
		}
	case <-testContext(t).Done():
		t.Fatalf("never heard %q", want)
	}
}

func cancelScenarios(h *attemptObserver) []scenario {
	return []scenario{
		{name: "a running activity is told, and its result dropped", body: func(ctx *replay.Context) (string, error) {
			return hangingActivity.Call(ctx, "running")
		}, do: h.expectCanceled("running", cancelWith("enough")), want: "canceled canceled: enough", events: "ActivityScheduled CancelRequested CancelRequested Canceled"},
		{name: "an activity that loses a race is told", body: func(ctx *replay.Context) (string, error) {
			_, err := replay.Race(ctx, hangingActivity.Start(ctx, "loser"), word.Subscribe(ctx))
			if err != nil {
				return "", err
			}
			return echo.Call(ctx, "on")
		}, do: h.expectCanceled("loser", sendWords("win")), want: "completed on",
			events: "ActivityScheduled ExternalSubscribed ExternalEvent CancelRequested ActivityScheduled ActivityCompleted Completed"},
		{name: "a canceled activity is told", body: func(ctx *replay.Context) (string, error) {
			future := hangingActivity.Start(ctx, "canceled")
			if _, err := word.Wait(ctx); err != nil {
				return "", err
			}
			future.Cancel(ctx)
			return word.Wait(ctx)
		}, do: h.expectCanceled("canceled", sendWords("give it up", "on")), want: "completed on"},
		{name: "an activity that nobody awaits is told at the end", body: func(ctx *replay.Context) (string, error) {
			hangingActivity.Start(ctx, "forgotten")
			return word.Wait(ctx)
		}, do: h.expectCanceled("forgotten", sendWords("end")), want: "completed end",
			events: "ActivityScheduled ExternalSubscribed ExternalEvent CancelRequested Completed"},
		{name: "an activity that nobody awaits is told at a failure", body: func(ctx *replay.Context) (string, error) {
			hangingActivity.Start(ctx, "failed")
			_, err := word.Wait(ctx)
			return "", errors.Join(err, errTest)
		}, do: h.expectCanceled("failed", sendWords("end")), want: "failed as wanted"},
		{name: "twice: the first reason stays", body: func(ctx *replay.Context) (string, error) {
			_, err := word.Wait(ctx)
			return "", errors.Join(err, replay.WithoutCancel(ctx).Sleep(20*time.Millisecond))
		}, do: cancelWith("first", "second", "third"), want: "canceled canceled: first"},
		{name: "after the end it changes nothing", body: waitForWord, do: func(t *testing.T, client *Client, id string) {
			sendWords("end")(t, client, id)
			before, beforeErr := client.History(testContext(t), id)
			if err := client.Cancel(testContext(t), id, "late"); !errors.Is(err, ErrEnded) {
				t.Errorf("%v; want ErrEnded", err)
			}
			after, afterErr := client.History(testContext(t), id)
			if err := errors.Join(beforeErr, afterErr); err != nil || before.String() != after.String() {
				t.Errorf("%s became %s, %v", before, after, err)
			}
		}, want: "completed end"},
		{name: "the code may go on all the same", body: func(ctx *replay.Context) (string, error) {
			_, err := word.Wait(ctx)
			return fmt.Sprint(errors.Is(err, replay.ErrCanceled)), nil
		}, do: cancelWith("please"), want: "completed true"},
	}
}

// childScenarios cancels children in several ways.
func childScenarios() []scenario {
	child := func(ctx *replay.Context, name string) replay.Option {
		return replay.ChildID(ctx.InstanceID() + "/" + name)
	}
	const derived = "" // the child has the ID that is derived from its parent's event 2
	ends := func(name, want string, do func(t *testing.T, client *Client, id string)) func(t *testing.T, client *Client, id string) {
		return func(t *testing.T, client *Client, id string) {
			child := id + name
			if name == derived {
				child = derivedID(t, client, id, 1, 2)
			}
			eventually(t, "the child runs", func() bool {
				_, err := client.Get(testContext(t), child)
				return err == nil
			})
			do(t, client, id)
			if got := awaitOutcome(t, client, child); got != want {
				t.Errorf("the child: %s; want %s", got, want)
			}
		}
	}
	const canceledByParent = "canceled canceled: canceled by its parent"
	return []scenario{
		{name: "canceled with their parent", body: func(ctx *replay.Context) (string, error) {
			return script.Call(ctx, "waits", child(ctx, "a"))
		}, do: ends("/a", canceledByParent, cancelWith("enough")), want: "canceled canceled: enough"},
		{name: "five are canceled with their parent", body: func(ctx *replay.Context) (string, error) {
			var all []*replay.Future[string]
			for i := range 5 {
				all = append(all, script.Start(ctx, "waits", child(ctx, fmt.Sprint(i))))
			}
			_, err := replay.All(ctx, all...)
			return "", err
		}, do: func(t *testing.T, client *Client, id string) {
			for i := range 5 {
				ends(fmt.Sprintf("/%d", i), canceledByParent, cancelWith("enough"))(t, client, id)
			}
		}, want: "canceled canceled: enough"},
		{name: "canceled directly, the parent hears of it", body: func(ctx *replay.Context) (string, error) {
			_, err := script.Call(ctx, "waits", child(ctx, "a"))
			var failed *replay.ChildError
			return fmt.Sprint(errors.Is(err, replay.ErrCanceled), errors.As(err, &failed) && failed.EventID == 2), nil
		}, do: ends("/a", "canceled canceled: go home", func(t *testing.T, client *Client, id string) {
			cancelWith("go home")(t, client, id+"/a")
		}), want: "completed true true", events: "SubOrchestrationScheduled SubOrchestrationFailed Completed"},
		{name: "the loser of a race is canceled", body: func(ctx *replay.Context) (string, error) {
			_, err := replay.Race(ctx, script.Start(ctx, "waits", child(ctx, "a")), word.Subscribe(ctx))
			return "", err
		}, do: ends("/a", canceledByParent, sendWords("win")), want: "completed "},
		{name: "the loser of a race is canceled under its derived ID", body: func(ctx *replay.Context) (string, error) {
			_, err := replay.Race(ctx, script.Start(ctx, "waits"), word.Subscribe(ctx))
			return "", err
		}, do: ends(derived, canceledByParent, sendWords("win")), want: "completed "},
		{name: "canceled by name", body: func(ctx *replay.Context) (string, error) {
			future := script.Start(ctx, "waits", child(ctx, "a"))
			if _, err := word.Wait(ctx); err != nil {
				return "", err
			}
			future.Cancel(ctx)
			return word.Wait(ctx)
		}, do: ends("/a", canceledByParent, sendWords("give it up", "on")), want: "completed on"},
		{name: "canceled by its parent and from outside, it ends once", body: func(ctx *replay.Context) (string, error) {
			_, err := replay.Race(ctx, script.Start(ctx, "waits", child(ctx, "a")), word.Subscribe(ctx))
			return "", err
		}, do: ends("/a", "canceled canceled: first", func(t *testing.T, client *Client, id string) {
			cancelWith("first")(t, client, id+"/a")
			if err := Send(testContext(t), client, id, word, "win"); err != nil && !errors.Is(err, ErrEnded) {
				t.Fatal(err)
			}
			cancelWith("second")(t, client, id+"/a")
		}), want: "completed "},
		{name: "two of which one fails", body: func(ctx *replay.Context) (string, error) {
			results, err := replay.AllResults(ctx, script.Start(ctx, "error/the body fails at once"), script.Start(ctx, "error/all steps succeed"))
			if err != nil {
				return "", err
			}
			return fmt.Sprint(results[0].Err != nil, " ", results[1].Value), nil
		}, want: "completed true shipped"},
	}
}

// TestConformance_NamedTestsExist checks that the tests named in CONFORMANCE.md exist.
func TestConformance_NamedTestsExist(t *testing.T) {
	table, err := os.ReadFile("CONFORMANCE.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := ""
	files, _ := filepath.Glob("*_test.go")
	internal, _ := filepath.Glob("internal/*/*_test.go")
	for _, file := range slices.Concat(files, internal) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources += string(content)
	}
	names := regexp.MustCompile("`(Test\\w+)(?:/(\\w+))?`").FindAllStringSubmatch(string(table), -1)
	if len(names) < 50 {
		t.Errorf("only %d names", len(names))
	}
	for _, name := range names {
		if !strings.Contains(sources, "func "+name[1]+"(") {
			t.Errorf("there is no %s", name[1])
		}
		if partition := name[2]; partition != "" && (name[1] != "TestConformance" || !strings.Contains(sources, `"`+partition+`": `+partition+"Scenarios")) {
			t.Errorf("there is no group %s of %s", partition, name[1])
		}
	}
}
