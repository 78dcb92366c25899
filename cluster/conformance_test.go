package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// A scenario is a body, what is done to its instance from outside, and how that
// ends. CONFORMANCE.md says which behaviours they stand for.
type scenario struct {
	name string
	body func(ctx *replay.Context) (string, error)
	do   func(t *testing.T, client *Client, id string)
	// State, and output or error.
	want string
	// The types of the events after the start, shortened; "" is not compared.
	events string
}

// script runs the body of the scenario that its input names, and of its
// children, under names that begin with that and a slash.
var script = replay.Orchestration[string, string]("script")

// The activities of scenarios.
var (
	echo  = replay.Activity[string, string]("echo")
	fails = replay.Activity[string, string]("fails")
	hang  = replay.Activity[string, string]("hang") // until it is given up
	once  = replay.RetryPolicy{MaxAttempts: 1}
)

// heard gets the names of activities that have begun, and of those that were told
// to stop.
type heard struct{ begun, stopped chan string }

func (h *heard) definitions() []replay.Definition {
	return []replay.Definition{
		echo.Bind(func(_ context.Context, s string) (string, error) { return s, nil }),
		fails.Bind(func(_ context.Context, s string) (string, error) { return "", errors.New(s) }),
		hang.Bind(func(ctx context.Context, s string) (string, error) {
			h.begun <- s
			<-ctx.Done()
			h.stopped <- s
			return s, nil // too late
		}),
	}
}

func TestConformance(t *testing.T) {
	h := &heard{begun: make(chan string, 100), stopped: make(chan string, 100)}
	groups := map[string][]scenario{
		"error": errorScenarios(), "status": statusScenarios(), "continue": continueScenarios(),
		"cancel": cancelScenarios(h), "child": childScenarios(),
	}
	bodies := map[string]func(*replay.Context) (string, error){"waits": waits}
	for group, scenarios := range groups {
		for _, s := range scenarios {
			bodies[group+"/"+s.name] = s.body
		}
	}
	node := startNode(t, Config{InMemory: true, Definitions: append(h.definitions(),
		double.Bind(doubleBody),
		script.Bind(func(ctx *replay.Context, name string) (string, error) { return bodies[name](ctx) }))})
	for group, scenarios := range groups {
		for i, s := range scenarios {
			t.Run(group+"/"+s.name, func(t *testing.T) { s.play(t, node.Client(), group, fmt.Sprintf("%s-%d", group, i)) })
		}
	}
}

func (s *scenario) play(t *testing.T, client *Client, group, id string) {
	ctx := testContext(t)
	if _, err := StartRun(ctx, client, script, id, group+"/"+s.name); err != nil {
		t.Fatal(err)
	}
	if s.do != nil {
		s.do(t, client, id)
	}
	if got := outcome(t, client, id); got != s.want {
		t.Errorf("%s; want %s", got, s.want)
	}
	history, err := client.History(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	ends, types := 0, []string{}
	for _, event := range history.Events[1:] {
		name := strings.TrimPrefix(event.Type(), "Orchestration")
		types = append(types, name)
		if name == "Completed" || name == "Failed" || name == "Cancelled" || name == "Terminated" {
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

// outcome waits for the end of a run and tells it.
func outcome(t *testing.T, client *Client, id string) string {
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

func sends(words ...string) func(t *testing.T, client *Client, id string) {
	return func(t *testing.T, client *Client, id string) {
		for _, w := range words {
			if err := Send(testContext(t), client, id, word, w); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func waits(ctx *replay.Context) (string, error) { return word.Wait(ctx) }

// order is a purchase in three steps, of which those fail that are named.
func order(failing string) func(ctx *replay.Context) (string, error) {
	step := func(ctx *replay.Context, name string) error {
		if name == failing {
			_, err := fails.Call(ctx, "no "+name, replay.Retry(once))
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
		{name: "all steps succeed", body: order(""), want: "completed shipped",
			events: "ActivityScheduled ActivityCompleted ActivityScheduled ActivityCompleted Completed"},
		{name: "a later step fails and the first is undone", body: order("ship"), want: "completed given back: no ship",
			events: "ActivityScheduled ActivityCompleted ActivityScheduled ActivityFailed ActivityScheduled ActivityCompleted Completed"},
		{name: "the first step fails", body: order("debit"), want: "completed nothing done: no debit"},
		{name: "the body fails at once", body: func(*replay.Context) (string, error) { return "", errWanted },
			want: "failed as wanted", events: "Failed"},
		{name: "an activity's failure is passed on", body: func(ctx *replay.Context) (string, error) {
			return fails.Call(ctx, "broken", replay.Retry(once))
		}, want: `failed activity "fails": broken`, events: "ActivityScheduled ActivityFailed Failed"},
		{name: "a panic is the instance's failure", body: func(*replay.Context) (string, error) { panic("boom") },
			want: "failed panic: boom", events: "Failed"},
		{name: "an input of another type fails the activity, and the code goes on", body: func(ctx *replay.Context) (string, error) {
			_, err := wrong.Call(ctx, 1)
			return fmt.Sprint(err != nil), nil
		}, want: "completed true"},
		{name: "an event of another type is an error, and the code goes on", body: func(ctx *replay.Context) (string, error) {
			_, err := number.Wait(ctx)
			return fmt.Sprint(err != nil), nil
		}, do: sends("x"), want: "completed true"},
		{name: "an event before its subscription is kept", body: func(ctx *replay.Context) (string, error) {
			if err := ctx.Sleep(20 * time.Millisecond); err != nil {
				return "", err
			}
			return word.WaitFor(ctx, time.Hour)
		}, do: sends("early"), want: "completed early"},
		{name: "the first of two equal events is taken", body: waits, do: func(t *testing.T, client *Client, id string) {
			sends("one")(t, client, id)
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
		}, do: sends("b"), want: "completed ab"},
	}
}

// published reads what an instance has published.
func published(t *testing.T, client *Client, id string) string {
	t.Helper()
	status, err := client.Get(testContext(t), id)
	if err != nil {
		t.Fatal(err)
	}
	text := "nothing"
	if err := status.Published(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

func publishes(want ...string) func(t *testing.T, client *Client, id string) {
	return func(t *testing.T, client *Client, id string) {
		for i, w := range want {
			if got := published(t, client, id); got != w {
				t.Errorf("look %d: published %q; want %q", i+1, got, w)
			}
			sends("next")(t, client, id)
		}
	}
}

// sets publishes each list of values in a turn of its own.
func sets(values ...[]string) func(ctx *replay.Context) (string, error) {
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
		{name: "none before one is set", body: sets(nil, []string{"a"}), do: publishes("nothing", "a"), want: "completed "},
		{name: "the last of a turn wins", body: sets([]string{"a", "b", "c"}), do: publishes("c"), want: "completed ",
			events: "StatusSet StatusSet StatusSet ExternalSubscribed ExternalEvent Completed"},
		{name: "kept over turns until another is set", body: sets([]string{"a"}, nil, []string{"b"}), do: publishes("a", "a", "b"), want: "completed "},
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
		}, do: publishes("a", "nothing"), want: "completed next"},
		{name: "visible after a failure", body: func(ctx *replay.Context) (string, error) {
			return "", errors.Join(replay.SetStatus(ctx, "halfway"), errWanted)
		}, do: func(t *testing.T, client *Client, id string) {
			_ = outcome(t, client, id)
			if got := published(t, client, id); got != "halfway" {
				t.Errorf("published %q", got)
			}
		}, want: "failed as wanted"},
		{name: "of the greatest size", body: sets([]string{text(replay.PayloadMax)}), do: func(t *testing.T, client *Client, id string) {
			if got := published(t, client, id); len(got) != replay.PayloadMax-2 {
				t.Errorf("%d bytes", len(got))
			}
			sends("")(t, client, id)
		}, want: "completed "},
		{name: "too large", body: sets([]string{text(replay.PayloadMax + 1)}),
			want: "failed encode status: tenuto: payload of 1048577 bytes: at most 1048576 are allowed"},
		{name: "kept over continue-as-new", body: func(ctx *replay.Context) (string, error) {
			if ctx.Execution() == 1 {
				return "", errors.Join(replay.SetStatus(ctx, "a"), script.ContinueAsNew(ctx, "status/kept over continue-as-new"))
			}
			return sets(nil, []string{"b"})(ctx)
		}, do: func(t *testing.T, client *Client, id string) {
			secondExecution(t, client, id)
			publishes("a", "b")(t, client, id)
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
			secondExecution(t, client, id)
			publishes("nothing")(t, client, id)
		}, want: "completed next"},
	}
}

// secondExecution waits until the code of the second execution waits for a word.
func secondExecution(t *testing.T, client *Client, id string) {
	t.Helper()
	for r, err := range client.Watch(testContext(t), id, Position{2, 1}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Event.Arm() == journalpb.ArmExternalSubscribed {
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
			_ = outcome(t, client, id)
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
			secondExecution(t, client, id)
			if err := Send(testContext(t), client, id, word, "x", EventID("x")); err != nil {
				t.Fatal(err)
			}
			if first, second := countEvents(t, client, id, 1, withRequestID("x")), countEvents(t, client, id, 2, withRequestID("x")); first != 0 || second != 1 {
				t.Errorf("%d times in the first, %d in the second", first, second)
			}
		}, want: "completed x", events: "ExternalSubscribed ExternalEvent Completed"},
		{name: "cancelled in the second execution", body: func(ctx *replay.Context) (string, error) {
			if ctx.Execution() < 2 {
				return "", script.ContinueAsNew(ctx, "continue/cancelled in the second execution")
			}
			return word.Wait(ctx)
		}, do: func(t *testing.T, client *Client, id string) {
			secondExecution(t, client, id)
			cancels("enough")(t, client, id)
		}, want: "cancelled canceled: enough", events: "ExternalSubscribed CancelRequested CancelRequested Cancelled"},
	}
}

func cancels(reasons ...string) func(t *testing.T, client *Client, id string) {
	return func(t *testing.T, client *Client, id string) {
		for _, reason := range reasons {
			if err := client.Cancel(testContext(t), id, reason); err != nil && !errors.Is(err, ErrEnded) {
				t.Fatal(err)
			}
		}
	}
}

// hears waits until an activity has begun, and was told to stop after something
// was done.
func (h *heard) hears(name string, do func(t *testing.T, client *Client, id string)) func(t *testing.T, client *Client, id string) {
	return func(t *testing.T, client *Client, id string) {
		expectWord(t, h.begun, name)
		do(t, client, id)
		expectWord(t, h.stopped, name)
	}
}

func expectWord(t *testing.T, words <-chan string, want string) {
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

func cancelScenarios(h *heard) []scenario {
	return []scenario{
		{name: "a running activity is told, and its result dropped", body: func(ctx *replay.Context) (string, error) {
			return hang.Call(ctx, "running")
		}, do: h.hears("running", cancels("enough")), want: "cancelled canceled: enough", events: "ActivityScheduled CancelRequested CancelRequested Cancelled"},
		{name: "an activity that loses a race is told", body: func(ctx *replay.Context) (string, error) {
			_, err := replay.Race(ctx, hang.Start(ctx, "loser"), word.Subscribe(ctx))
			if err != nil {
				return "", err
			}
			return echo.Call(ctx, "on")
		}, do: h.hears("loser", sends("win")), want: "completed on",
			events: "ActivityScheduled ExternalSubscribed ExternalEvent CancelRequested ActivityScheduled ActivityCompleted Completed"},
		{name: "an activity that is given up is told", body: func(ctx *replay.Context) (string, error) {
			future := hang.Start(ctx, "given up")
			if _, err := word.Wait(ctx); err != nil {
				return "", err
			}
			future.Cancel(ctx)
			return word.Wait(ctx)
		}, do: h.hears("given up", sends("give it up", "on")), want: "completed on"},
		{name: "an activity that nobody awaits is told at the end", body: func(ctx *replay.Context) (string, error) {
			hang.Start(ctx, "forgotten")
			return word.Wait(ctx)
		}, do: h.hears("forgotten", sends("end")), want: "completed end",
			events: "ActivityScheduled ExternalSubscribed ExternalEvent CancelRequested Completed"},
		{name: "an activity that nobody awaits is told at a failure", body: func(ctx *replay.Context) (string, error) {
			hang.Start(ctx, "failed")
			_, err := word.Wait(ctx)
			return "", errors.Join(err, errWanted)
		}, do: h.hears("failed", sends("end")), want: "failed as wanted"},
		{name: "twice: the first reason stays", body: func(ctx *replay.Context) (string, error) {
			_, err := word.Wait(ctx)
			return "", errors.Join(err, replay.WithoutCancel(ctx).Sleep(20*time.Millisecond))
		}, do: cancels("first", "second", "third"), want: "cancelled canceled: first"},
		{name: "after the end it changes nothing", body: waits, do: func(t *testing.T, client *Client, id string) {
			sends("end")(t, client, id)
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
		}, do: cancels("please"), want: "completed true"},
	}
}

// childScenarios give children up in several ways.
func childScenarios() []scenario {
	child := func(ctx *replay.Context, name string) replay.ChildOption {
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
			if got := outcome(t, client, child); got != want {
				t.Errorf("the child: %s; want %s", got, want)
			}
		}
	}
	const givenUp = "cancelled canceled: given up by its parent"
	return []scenario{
		{name: "cancelled with their parent", body: func(ctx *replay.Context) (string, error) {
			return script.Call(ctx, "waits", child(ctx, "a"))
		}, do: ends("/a", givenUp, cancels("enough")), want: "cancelled canceled: enough"},
		{name: "five are cancelled with their parent", body: func(ctx *replay.Context) (string, error) {
			var all []*replay.Future[string]
			for i := range 5 {
				all = append(all, script.Start(ctx, "waits", child(ctx, fmt.Sprint(i))))
			}
			_, err := replay.All(ctx, all...)
			return "", err
		}, do: func(t *testing.T, client *Client, id string) {
			for i := range 5 {
				ends(fmt.Sprintf("/%d", i), givenUp, cancels("enough"))(t, client, id)
			}
		}, want: "cancelled canceled: enough"},
		{name: "cancelled directly, the parent hears of it", body: func(ctx *replay.Context) (string, error) {
			_, err := script.Call(ctx, "waits", child(ctx, "a"))
			var failed *replay.ChildError
			return fmt.Sprint(errors.Is(err, replay.ErrCanceled), errors.As(err, &failed) && failed.EventID == 2), nil
		}, do: ends("/a", "cancelled canceled: go home", func(t *testing.T, client *Client, id string) {
			cancels("go home")(t, client, id+"/a")
		}), want: "completed true true", events: "SubOrchestrationScheduled SubOrchestrationFailed Completed"},
		{name: "the loser of a race is cancelled", body: func(ctx *replay.Context) (string, error) {
			_, err := replay.Race(ctx, script.Start(ctx, "waits", child(ctx, "a")), word.Subscribe(ctx))
			return "", err
		}, do: ends("/a", givenUp, sends("win")), want: "completed "},
		{name: "the loser of a race is cancelled under its derived ID", body: func(ctx *replay.Context) (string, error) {
			_, err := replay.Race(ctx, script.Start(ctx, "waits"), word.Subscribe(ctx))
			return "", err
		}, do: ends(derived, givenUp, sends("win")), want: "completed "},
		{name: "given up by name", body: func(ctx *replay.Context) (string, error) {
			future := script.Start(ctx, "waits", child(ctx, "a"))
			if _, err := word.Wait(ctx); err != nil {
				return "", err
			}
			future.Cancel(ctx)
			return word.Wait(ctx)
		}, do: ends("/a", givenUp, sends("give it up", "on")), want: "completed on"},
		{name: "given up and cancelled from outside, it ends once", body: func(ctx *replay.Context) (string, error) {
			_, err := replay.Race(ctx, script.Start(ctx, "waits", child(ctx, "a")), word.Subscribe(ctx))
			return "", err
		}, do: ends("/a", "cancelled canceled: first", func(t *testing.T, client *Client, id string) {
			cancels("first")(t, client, id+"/a")
			if err := Send(testContext(t), client, id, word, "win"); err != nil && !errors.Is(err, ErrEnded) {
				t.Fatal(err)
			}
			cancels("second")(t, client, id+"/a")
		}), want: "completed "},
		{name: "two of which one fails", body: func(ctx *replay.Context) (string, error) {
			results, err := replay.Settle(ctx, script.Start(ctx, "error/the body fails at once"), script.Start(ctx, "error/all steps succeed"))
			if err != nil {
				return "", err
			}
			return fmt.Sprint(results[0].Err != nil, " ", results[1].Value), nil
		}, want: "completed true shipped"},
	}
}

// TestTheTestsThatConformanceNamesExist reads the names in CONFORMANCE.md.
func TestTheTestsThatConformanceNamesExist(t *testing.T) {
	table, err := os.ReadFile("CONFORMANCE.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := ""
	files, _ := filepath.Glob("*_test.go")
	for _, file := range files {
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
		if group := name[2]; group != "" && (name[1] != "TestConformance" || !strings.Contains(sources, `"`+group+`": `+group+"Scenarios")) {
			t.Errorf("there is no group %s of %s", group, name[1])
		}
	}
}
