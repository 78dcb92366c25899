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

// payloadCanary is part of every payload of the test below.
const payloadCanary = "canary-in-a-coal-mine"

var (
	canaryActivity      = replay.Activity[string, string]("repeated")
	canaryEvent         = replay.Event[string]("sung")
	canaryOrchestration = replay.Orchestration[string, string]("sing")
	retriedCanary       = replay.Orchestration[string, string]("again")
)

// canaryDefinitions passes the input through everything that takes payloads. Another input makes
// other code.
func canaryDefinitions(prefix string) []replay.Definition {
	return []replay.Definition{
		canaryActivity.Bind(func(ctx context.Context, text string) (string, error) {
			if replay.ActivityInfo(ctx).Number == 1 {
				return "", errTest
			}
			return text, nil
		}),
		retriedCanary.Bind(func(_ *replay.Context, text string) (string, error) { return text, nil }),
		canaryOrchestration.Bind(func(ctx *replay.Context, text string) (string, error) {
			if err := replay.SetStatus(ctx, text); err != nil {
				return "", err
			}
			text, err := canaryActivity.Call(ctx, prefix+text, replay.Retry(replay.RetryPolicy{InitialInterval: time.Millisecond}))
			if err != nil {
				return "", err
			}
			if text, err = retriedCanary.Call(ctx, text); err != nil {
				return "", err
			}
			_, err = canaryEvent.Wait(ctx)
			return text, err
		}),
	}
}

// callerErrors returns the texts of errors of rejected calls.
func callerErrors(ctx context.Context, client *Client) (texts []string) {
	_, known := StartRun(ctx, client, canaryOrchestration, "a", payloadCanary)
	ended := Send(ctx, client, "a", canaryEvent, payloadCanary)
	_, unknown := Call(ctx, client, replay.Orchestration[string, string]("unknown"), "unknown", payloadCanary)
	_, wrongType := Call(ctx, client, replay.Orchestration[[]string, string]("sing"), "wrong", []string{payloadCanary})
	for _, err := range []error{known, ended, unknown, wrongType} {
		texts = append(texts, fmt.Sprint(err))
	}
	return texts
}

func TestPayloads_NotInLogsMetricsSpansErrors(t *testing.T) {
	var logs logRecorder
	reader := sdk.NewManualReader()
	spans, provider := newSpanRecorder(t)
	config := Config{
		Dir: t.TempDir(), TracerProvider: provider, MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader)),
		Logger:      logs.loggerAt(slog.LevelDebug),
		Definitions: canaryDefinitions(""),
	}
	ctx := testContext(t)
	node := startNode(t, config)
	if err := Send(ctx, node.Client(), "unknown", canaryEvent, payloadCanary); err == nil {
		t.Fatal("no node was found")
	}
	for _, id := range []string{"a", "stalled"} {
		if _, err := StartRun(ctx, node.Client(), canaryOrchestration, id, payloadCanary); err != nil {
			t.Fatal(err)
		}
	}
	if err := Send(ctx, node.Client(), "a", canaryEvent, payloadCanary); err != nil {
		t.Fatal(err)
	}
	if _, err := node.Client().Wait(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	texts := append(callerErrors(ctx, node.Client()), fmt.Sprintf("%+v", collectMetrics(t, reader)))
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
	stallInstance(t, config, &logs)
	texts = append(texts, string(logs.all()), fmt.Sprintf("%+v", spans()))
	for _, text := range texts {
		if at := strings.Index(text, payloadCanary); at >= 0 {
			t.Errorf("a payload is shown: …%s…", text[max(at-300, 0):at+len(payloadCanary)])
		}
	}
	for _, value := range []string{"activity attempt failed", "instance stalled, ", "instance=stalled execution=1",
		`expected="ActivityScheduled name=\"repeated\" input=`, `found="ActivityScheduled name=\"repeated\" input=`} {
		if logs.countLines(value) == 0 {
			t.Errorf("the log does not say %q", value)
		}
	}
}

// stallInstance wakes an instance on a node with other code.
func stallInstance(t *testing.T, config Config, logs *logRecorder) {
	t.Helper()
	config.Definitions = canaryDefinitions("not ")
	node := startNode(t, config)
	ctx, cancel := context.WithCancel(testContext(t))
	sent := make(chan error, 1)
	go func() { sent <- Send(ctx, node.Client(), "stalled", canaryEvent, payloadCanary) }()
	eventually(t, "the instance has stalled", func() bool { return logs.countLines("instance stalled, ") > 0 })
	cancel()
	if err := <-sent; err == nil {
		t.Error("a stalled instance has taken an event")
	}
	if err := node.Close(); err != nil {
		t.Fatal(err)
	}
}
