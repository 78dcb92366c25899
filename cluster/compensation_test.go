package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/replay"
)

// journey books three things, waits, and cancels the bookings when it is canceled.
var (
	journey       = replay.Orchestration[string, string]("journey")
	bookActivity  = replay.Activity[string, string]("book")
	cancelBooking = replay.Activity[string, string]("give-back")
)

func journeyBody(ctx *replay.Context, _ string) (string, error) {
	saga := replay.NewSaga(ctx)
	for _, what := range []string{"flight", "hotel", "car"} {
		if _, err := bookActivity.Call(ctx, what); err != nil {
			return "", err
		}
		saga.Compensate(ctx, func(ctx *replay.Context) error {
			_, err := cancelBooking.Call(ctx, what)
			return err
		})
	}
	return word.Wait(ctx)
}

// journeyDefinitions binds a journey whose activities log their begin and end to the file effects.
// The activity called hold does not end.
func journeyDefinitions(effects, hold string) []replay.Definition {
	note := func(verb string) func(context.Context, string) (string, error) {
		return func(ctx context.Context, what string) (string, error) {
			if err := appendLine(effects, "begin "+verb+" "+what); err != nil {
				return "", err
			}
			if verb+" "+what == hold {
				<-ctx.Done()
				return "", ctx.Err()
			}
			return "", appendLine(effects, "end "+verb+" "+what)
		}
	}
	return []replay.Definition{journey.Bind(journeyBody), bookActivity.Bind(note("book")), cancelBooking.Bind(note("give back"))}
}

func appendLine(name, line string) error {
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(file, line)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

func readLines(t *testing.T, name string) []string {
	t.Helper()
	content, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
}

// The process is killed in each step of the compensation: earlier steps are not repeated, that step
// is retried, and the rest follows in order.
func TestCompensation_RunsOnceInReverseAcrossKills(t *testing.T) {
	t.Parallel()
	order := []string{"car", "hotel", "flight"}
	for killed, what := range order {
		t.Run("killed while giving back the "+what, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			config := nodeProcessConfig{Dir: filepath.Join(dir, "node"), Effects: filepath.Join(dir, "effects"), HangAt: "give back " + what}
			node := startNodeProcess(t, config)
			node.send("journey j")
			eventually(t, "all is booked", func() bool {
				return slices.ContainsFunc(node.history("j"), func(event string) bool { return strings.HasPrefix(event, "ExternalSubscribed") })
			})
			node.send("cancel j")
			eventually(t, "it is in the middle", func() bool { return slices.Contains(readLines(t, config.Effects), "begin "+config.HangAt) })
			node.kill()

			config.HangAt = ""
			node = startNodeProcess(t, config)
			node.send("end j")
			if state := node.awaitLine("end"); state != string(Canceled) {
				t.Errorf("it ended %s; want canceled", state)
			}
			var want []string
			for i, what := range order {
				if i == killed {
					want = append(want, "begin give back "+what) // the attempt that was lost
				}
				want = append(want, "begin give back "+what, "end give back "+what)
			}
			if got := readLines(t, config.Effects)[6:]; !slices.Equal(got, want) {
				t.Errorf("effects:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			expectCompensated(t, node, order)
		})
	}
}

// expectCompensated checks that a history has each step of the compensation once, begun and
// completed before the next.
func expectCompensated(t *testing.T, node *nodeProcess, order []string) {
	t.Helper()
	events := node.history("j")
	from := slices.IndexFunc(events, func(event string) bool { return strings.HasPrefix(event, "OrchestrationCancelRequested") })
	var got, want []string
	for _, event := range events[from:] {
		if !strings.HasPrefix(event, "CancelRequested") { // of what was waited for
			got = append(got, strings.Fields(event)[0])
		}
	}
	want = append(want, "OrchestrationCancelRequested")
	for range order {
		want = append(want, "ActivityScheduled", "ActivityCompleted")
	}
	if want = append(want, "OrchestrationCanceled"); !slices.Equal(got, want) {
		t.Errorf("history:\n%s", strings.Join(events, "\n"))
	}
}
