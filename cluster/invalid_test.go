package cluster

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/wire"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// invalidCalls makes calls that are not valid and returns the texts of the errors.
var invalidCalls = replay.Orchestration[int, []string]("invalid-calls")

func invalidCallsBody(ctx *replay.Context, _ int) (texts []string, err error) {
	_, option := double.Call(ctx, 1, replay.StartToClose(-time.Second))
	_, name := replay.Activity[int, int]("").Call(ctx, 1)
	_, child := doubled.Call(ctx, 1, replay.ChildID("no ID"))
	for _, err := range []error{option, name, child} {
		var invalid *replay.InvalidError
		if !errors.As(err, &invalid) {
			return nil, fmt.Errorf("%v; want an InvalidError", err)
		}
		texts = append(texts, err.Error())
	}
	return texts, nil
}

// Histories have recorded the texts, so they must not change.
const (
	negativeTimeoutText = `call of activity "double": tenuto: option StartToClose is -1s: a timeout must not be negative`
	emptyNameText       = `tenuto: name of activity "" has 0 bytes: 1 to 128 are allowed`
	childIDText         = `tenuto: option ChildID "no ID" is not 1 to 128 of A-Z a-z 0-9 . _ : @ / + -`
	instanceIDText      = `tenuto: instance ID "no ID" is not 1 to 128 of A-Z a-z 0-9 . _ : @ / + -`
	emptyDirText        = "tenuto: Config.Dir is empty: set a directory, or set InMemory in a test"
)

// localAndRemote returns the node's own client and one over the network.
func localAndRemote(t *testing.T, definitions ...replay.Definition) map[string]*Client {
	t.Helper()
	node := startNode(t, Config{InMemory: true, Listen: loopbackAddress(t), Definitions: definitions})
	return map[string]*Client{"local": node.Client(), "remote": dialNodes(t, DialConfig{}, node)}
}

func TestInvalidError_KeepsText(t *testing.T) {
	checkGoroutineLeaks(t)
	ctx := testContext(t)
	for where, client := range localAndRemote(t, append(definitions(), invalidCalls.Bind(invalidCallsBody))...) {
		texts, err := Call(ctx, client, invalidCalls, "i-"+where, 0)
		if want := strings.Join([]string{negativeTimeoutText, emptyNameText, childIDText}, "\n"); err != nil || strings.Join(texts, "\n") != want {
			t.Errorf("%s: the code got\n%s\n%v; want\n%s", where, strings.Join(texts, "\n"), err, want)
		}
		unchecked := func() error { // which the leader rejects
			return errOf(client.call(ctx, &clusterpb.Request{Instance: "no ID", Call: &clusterpb.Request_Query{Query: &clusterpb.QueryRequest{Name: "q"}}}))
		}
		for name, err := range map[string]error{"checked by the client": client.Cancel(ctx, "no ID", ""), "checked by the leader": unchecked()} {
			var invalid *replay.InvalidError
			if where == "local" && name == "checked by the leader" {
				continue // the node's own client need not be checked again
			}
			if !errors.As(err, &invalid) || invalid.Field != "instance ID" || invalid.Error() != instanceIDText || !strings.HasSuffix(err.Error(), instanceIDText) {
				t.Errorf("%s: %s: %v", where, name, err)
			}
		}
	}
	_, err := Start(ctx, Config{})
	var invalid *replay.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != "Config.Dir" || err.Error() != emptyDirText {
		t.Errorf("an empty Config: %v", err)
	}
	for _, invalid := range []*replay.InvalidError{
		{Field: "option StartToClose", Reason: "is -1s: a timeout must not be negative"},
		{Field: `name of activity ""`, Reason: "has 0 bytes: 1 to 128 are allowed"},
		{Field: "Config.Dir", Reason: "is empty: set a directory, or set InMemory in a test"},
	} {
		failure := toFailure(invalid)
		var received *replay.InvalidError
		if err := fromFailure(failure); failure.Code != "input" || !errors.As(err, &received) || *received != *invalid || err.Error() != invalid.Error() {
			t.Errorf("%v was received as %v", failure, err)
		}
	}
}

func TestNotRegisteredError_KeepsTextAndKind(t *testing.T) {
	checkGoroutineLeaks(t)
	ctx := testContext(t)
	for where, client := range localAndRemote(t, ledgerDefinitions()...) {
		id := "l-" + where
		if _, err := StartRun(ctx, client, ledgerOrchestration, id, 1); err != nil {
			t.Fatal(err)
		}
		for text, test := range map[string]struct {
			err  error
			want replay.NotRegisteredError
		}{
			`tenuto: the leader has no code for the orchestration: "none", version "2"`: {
				errOf(StartRun(ctx, client, replay.Orchestration[int, int]("none"), "n", 1, replay.Version("2"))),
				replay.NotRegisteredError{Kind: "orchestration", Name: "none", Version: "2"},
			},
			`the instance does not answer query "none"`: {
				errOf(Query(ctx, client, id, replay.Query[int, int]("none"), 1)),
				replay.NotRegisteredError{Kind: "query", Name: "none"},
			},
			`the instance does not handle update "none"`: {
				errOf(CallUpdate(ctx, client, id, replay.Update[int, int]("none"), 1)),
				replay.NotRegisteredError{Kind: "update", Name: "none"},
			},
		} {
			var got *replay.NotRegisteredError
			if !errors.As(test.err, &got) || got.Kind != test.want.Kind || got.Name != test.want.Name || got.Version != test.want.Version {
				t.Errorf("%s: %v; want %+v", where, test.err, test.want)
			} else if got.Error() != text || !strings.HasSuffix(test.err.Error(), text) {
				t.Errorf("%s: the text is %q, of %q; want %q", where, got, test.err, text)
			}
		}
	}
}

// A failure keeps what has no code; one of an earlier build has only the text.
func TestNotRegisteredError_SentToOtherNode(t *testing.T) {
	for _, kind := range []string{"orchestration", "activity", "query", "update"} {
		sent := &replay.NotRegisteredError{Kind: kind, Name: "pay"}
		err := fromFailure(toFailure(fmt.Errorf("start: %w", sent)))
		var got *replay.NotRegisteredError
		if !errors.As(err, &got) || got.Kind != kind || got.Name != "pay" || err.Error() != "start: "+sent.Error() {
			t.Errorf("%v was received as %v", sent, err)
		}
	}
	const text = `tenuto: the leader has no code for the orchestration: "pay", version ""`
	err := fromFailure(&clusterpb.Failure{Code: "no_code", Message: text, NotExecuted: true})
	var got *replay.NotRegisteredError
	if !errors.As(err, &got) || got.Kind != "orchestration" || got.Name != "" || err.Error() != text {
		t.Errorf("of an earlier build: %v", err)
	}
	if f := toFailure(err); f.Code != wire.CodeNoCode || f.Message != text || !f.NotExecuted {
		t.Errorf("sent on as %v", f)
	}
}
