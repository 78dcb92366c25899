package backup_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/replay"
)

var (
	ask       = replay.Activity[int, string]("ask")
	questions = replay.Orchestration[int, []string]("questions")
)

// startAsking starts a node whose activities send their signed tokens to a channel, and end by
// them.
func startAsking(t *testing.T, dir, id string) (*cluster.Node, <-chan string) {
	t.Helper()
	tokens := make(chan string, 100)
	node, err := cluster.Start(t.Context(), cluster.Config{NodeID: id, Dir: dir, Definitions: []replay.Definition{
		ask.Bind(func(ctx context.Context, _ int) (string, error) {
			token, err := replay.ActivityInfo(ctx).SignedToken(ctx, 24*time.Hour)
			if err != nil {
				return "", err
			}
			tokens <- token
			return "", replay.ErrResultPending
		}),
		questions.Bind(func(ctx *replay.Context, count int) (answers []string, err error) {
			for i := range count {
				answer, err := ask.Call(ctx, i)
				if err != nil {
					return nil, err
				}
				answers = append(answers, answer)
			}
			return answers, nil
		}),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	return node, tokens
}

// answer completes an activity, as soon as its attempt has ended.
func answer(t *testing.T, node *cluster.Node, token, value string) error {
	t.Helper()
	var err error
	eventually(t, "the completion is decided", func(ctx context.Context) bool {
		err = cluster.CompleteActivity(ctx, node.Client(), token, value)
		_, unavailable := errors.AsType[*cluster.UnavailableError](err)
		return !unavailable
	})
	return err
}

// A token from before the backup is valid in the restored cluster. One of an activity that was
// scheduled afterwards is not, although another activity has the same event_id there. So it is if
// the restored cluster is itself restored, and with the tokens of a lineage that is not continued.
func TestRestore_TokensOfActivitiesAfterBackup(t *testing.T) {
	old, oldTokens := startAsking(t, filepath.Join(t.TempDir(), "old"), "o1")
	if _, err := cluster.StartRun(t.Context(), old.Client(), questions, "q", 3); err != nil {
		t.Fatal(err)
	}
	first := <-oldTokens
	_, full := write(t, old.Client(), backup.Options{})
	content := full.Bytes()
	if err := answer(t, old, first, "first, in the old cluster"); err != nil {
		t.Fatal(err)
	}
	lost := <-oldTokens // of the second question, which the backup does not have

	expectRefused := func(node *cluster.Node, token string) {
		t.Helper()
		if err := answer(t, node, token, "of another activity"); !errors.As(err, new(*replay.TokenError)) {
			t.Errorf("a token of an activity that is not in the backup: %v", err)
		}
	}
	restored, tokens := startAsking(t, restoreTo(t, content), "r1")
	expectRefused(restored, lost) // no such event yet
	if err := answer(t, restored, first, "first"); err != nil {
		t.Fatalf("a token from before the backup: %v", err)
	}
	second := <-tokens
	expectRefused(restored, lost)
	_, again := write(t, restored.Client(), backup.Options{})
	other, otherTokens := startAsking(t, restoreTo(t, content), "r1")
	if err := answer(t, other, first, "first"); err != nil {
		t.Fatal(err)
	}
	<-otherTokens
	expectRefused(other, second) // of a lineage that this one does not continue
	twice, twiceTokens := startAsking(t, restoreTo(t, again.Bytes()), "r1")
	expectRefused(twice, lost)
	if err := answer(t, twice, second, "second"); err != nil {
		t.Fatalf("a token from before the second backup: %v", err)
	}
	if err := answer(t, twice, <-twiceTokens, "third"); err != nil {
		t.Fatal(err)
	}
	answers, err := resultOf[[]string](t.Context(), twice.Client(), "q")
	if err != nil || len(answers) != 3 || answers[0] != "first" || answers[1] != "second" || answers[2] != "third" {
		t.Errorf("%q, %v", answers, err)
	}
}

func restoreTo(t *testing.T, content []byte) (dir string) {
	t.Helper()
	return restore(t, bytes.NewReader(content))
}
