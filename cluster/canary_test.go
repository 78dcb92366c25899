package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"

	"github.com/tenuto-dev/tenuto/replay"
)

// coalCanary is what every payload of the test below holds.
const coalCanary = "canary-in-a-coal-mine"

var (
	repeated = replay.Activity[string, string]("repeated")
	sung     = replay.Event[string]("sung")
	sing     = replay.Orchestration[string, string]("sing")
	again    = replay.Orchestration[string, string]("again")
)

// singing is code that passes its input through everything that takes payloads;
// with other input it is other code.
func singing(prefix string) []replay.Definition {
	return []replay.Definition{
		repeated.Bind(func(ctx context.Context, text string) (string, error) {
			if replay.ActivityInfo(ctx).Number == 1 {
				return "", errWanted
			}
			return text, nil
		}),
		again.Bind(func(_ *replay.Context, text string) (string, error) { return text, nil }),
		sing.Bind(func(ctx *replay.Context, text string) (string, error) {
			if err := replay.SetStatus(ctx, text); err != nil {
				return "", err
			}
			text, err := repeated.Call(ctx, prefix+text, replay.Retry(replay.RetryPolicy{InitialInterval: time.Millisecond}))
			if err != nil {
				return "", err
			}
			if text, err = again.Call(ctx, text); err != nil {
				return "", err
			}
			_, err = sung.Wait(ctx)
			return text, err
		}),
	}
}

// toldCallers returns what is said to callers of whom nothing is taken.
func toldCallers(ctx context.Context, client *Client) (texts []string) {
	_, known := StartRun(ctx, client, sing, "a", coalCanary)
	ended := Send(ctx, client, "a", sung, coalCanary)
	_, unknown := Call(ctx, client, replay.Orchestration[string, string]("unknown"), "unknown", coalCanary)
	_, wrongType := Call(ctx, client, replay.Orchestration[[]string, string]("sing"), "wrong", []string{coalCanary})
	for _, err := range []error{known, ended, unknown, wrongType} {
		texts = append(texts, fmt.Sprint(err))
	}
	return texts
}

func TestNoPayloadIsShownInLogsMetricsSpansAndErrors(t *testing.T) {
	var logs logbook
	reader := sdk.NewManualReader()
	spans, provider := recordedSpans(t)
	config := Config{
		Dir: t.TempDir(), TracerProvider: provider, MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader)),
		Logger:      slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Definitions: singing(""),
	}
	ctx := testContext(t)
	node := startNode(t, config)
	if err := Send(ctx, node.Client(), "nobody", sung, coalCanary); err == nil {
		t.Fatal("nobody was there")
	}
	for _, id := range []string{"a", "stalled"} {
		if _, err := StartRun(ctx, node.Client(), sing, id, coalCanary); err != nil {
			t.Fatal(err)
		}
	}
	if err := Send(ctx, node.Client(), "a", sung, coalCanary); err != nil {
		t.Fatal(err)
	}
	if _, err := node.Client().Wait(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	texts := append(toldCallers(ctx, node.Client()), fmt.Sprintf("%+v", collected(t, reader)))
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	stall(t, config, &logs)
	logs.mu.Lock() // nobody writes any more
	texts = append(texts, logs.text.String(), fmt.Sprintf("%+v", spans()))
	logs.mu.Unlock()
	for _, text := range texts {
		if at := strings.Index(text, coalCanary); at >= 0 {
			t.Errorf("a payload is shown: …%s…", text[max(at-300, 0):at+len(coalCanary)])
		}
	}
	for _, said := range []string{"activity attempt failed", "instance stalled", "instance=stalled execution=1",
		`expected="ActivityScheduled name=\"repeated\" input=`, `found="ActivityScheduled name=\"repeated\" input=`} {
		if logs.lines(said) == 0 {
			t.Errorf("the log does not say %q", said)
		}
	}
}

// stall wakes an instance on a node with other code.
func stall(t *testing.T, config Config, logs *logbook) {
	t.Helper()
	config.Definitions = singing("not ")
	node := startNode(t, config)
	ctx, cancel := context.WithCancel(testContext(t))
	sent := make(chan error, 1)
	go func() { sent <- Send(ctx, node.Client(), "stalled", sung, coalCanary) }()
	eventually(t, "the instance has stalled", func() bool { return logs.lines("instance stalled") > 0 })
	cancel()
	if err := <-sent; err == nil {
		t.Error("a stalled instance has taken an event")
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
}
