package actors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// failsUntil fails before the attempt of a number. Each attempt takes its number of minutes, or
// ends with its context.
func failsUntil(attempts *attemptLog, number int, text string) replay.Definition {
	return work.Bind(func(ctx context.Context, _ int) (string, error) {
		attempts.record(ctx)
		n := replay.ActivityInfo(ctx).Number
		select {
		case <-time.After(time.Duration(n) * time.Minute):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
		if n < number {
			return "", replay.NewError("busy", fmt.Sprint(n, text))
		}
		return "done", nil
	})
}

// wantFailures checks the recorded attempts from a number on against those that ran.
func (l *attemptLog) wantFailures(t *testing.T, recorded []*journalpb.FailedAttempt, first int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, f := range recorded {
		number := first + i
		began := l.starts[number-1]
		took := time.Duration(number) * time.Minute
		if int(f.Number) != number || f.StartedAt != began.UnixNano() || f.EndedAt != began.Add(took).UnixNano() || f.Code != "busy" {
			t.Errorf("attempt %d began %v, recorded is %v", number, began, f)
		}
	}
}

// endOf returns what the third event of an instance, which ends its only activity, says of
// attempts.
func endOf(n *node, id string) (made int, recorded *journalpb.FailedAttempts) {
	n.t.Helper()
	end := n.events(id)[2]
	if failed := end.GetActivityFailed(); failed != nil {
		return int(failed.Attempts), failed.FailedAttempts
	}
	return int(end.GetActivityCompleted().GetAttempts()), end.GetActivityCompleted().GetFailedAttempts()
}

func TestFailures_RecordedWithTheEnd(t *testing.T) {
	for _, test := range []struct {
		until, first int
		option       replay.RetryPolicy
	}{
		{until: 1, first: 1},
		{until: 4, first: 1},
		{until: 30, first: 10}, // the latest 20
		{until: 99, first: 1, option: replay.RetryPolicy{MaxAttempts: 3}},
		{until: 99, first: 1, option: replay.RetryPolicy{MaxAttempts: 1}},
	} {
		inVirtualTime(t, func(t *testing.T) {
			var attempts attemptLog
			n := lead(t, newTestJournal(), actors.Config{}, call(replay.Retry(test.option)), failsUntil(&attempts, test.until, ""))
			n.start("c", "call", "").want(nil)
			if test.option.MaxAttempts == 0 {
				n.wantOutput("c", "done")
			} else {
				_ = n.failure("c")
			}
			made, recorded := endOf(n, "c")
			if made != attempts.count() || len(recorded.GetAttempts()) != min(made-1, 20) {
				t.Errorf("of %d attempts, recorded are %v", attempts.count(), recorded)
			}
			attempts.wantFailures(t, recorded.GetAttempts(), test.first)
			if want := attempts.starts[made-1]; made > 1 && recorded.NextStartedAt != want.UnixNano() {
				t.Errorf("the last attempt began %v, recorded is %v", want, recorded)
			}
			if made == 1 && recorded != nil {
				t.Error("a single attempt is recorded")
			}
		})
	}
}

func TestFailures_SurviveTheLeader(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var attempts attemptLog
		j := newTestJournal()
		n := lead(t, j, actors.Config{}, call(replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour, MaxInterval: time.Hour})), failsUntil(&attempts, 5, ""))
		n.start("c", "call", "").want(nil)
		for number := 1; number <= 4; number++ {
			for attempts.count() < number {
				time.Sleep(time.Minute)
			}
			time.Sleep(time.Duration(number+1) * time.Minute) // its end
			waitIdle()
			recorded := openAttemptOf(t, j, "c").FailedAttempts.GetAttempts()
			if len(recorded) != number {
				t.Fatalf("%d attempts are recorded, not %d", len(recorded), number)
			}
			attempts.wantFailures(t, recorded, 1)
			n.close()
			n = lead(t, j, actors.Config{}, call(), failsUntil(&attempts, 5, ""))
		}
		n.wantOutput("c", "done")
		if made, recorded := endOf(n, "c"); made != 5 || len(recorded.GetAttempts()) != 4 {
			t.Errorf("recorded: %d, %v", made, recorded)
		}
	})
}

func TestFailures_MessageIsShortValidText(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var attempts attemptLog
		n := lead(t, newTestJournal(), actors.Config{}, call(), failsUntil(&attempts, 2, strings.Repeat("é", 300)))
		n.start("c", "call", "").want(nil)
		n.wantOutput("c", "done")
		_, recorded := endOf(n, "c")
		if text := recorded.GetAttempts()[0].Message; len(text) > 200 || len(text) < 190 || !utf8.ValidString(text) || !strings.HasPrefix(text, "1é") {
			t.Errorf("the message has %d bytes: %q", len(text), text)
		}
	})
}

// An activity that has no time for another attempt ends with an error of its own. All attempts are
// among the failed ones then, if the time ended between two of them.
func TestFailures_TimeoutBetweenAttempts(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var attempts attemptLog
		n := lead(t, newTestJournal(), actors.Config{},
			call(replay.ScheduleToClose(2*time.Hour), replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour, MaxInterval: time.Hour})), failsUntil(&attempts, 9, ""))
		n.start("c", "call", "").want(nil)
		var timeout *replay.TimeoutError
		if err := n.failure("c"); !errors.As(err, &timeout) {
			t.Fatal(err)
		}
		made, recorded := endOf(n, "c")
		attempts.wantFailures(t, recorded.GetAttempts(), 1)
		if known := len(recorded.GetAttempts()); recorded.GetNextStartedAt() == 0 && known != made || recorded.GetNextStartedAt() != 0 && known != made-1 {
			t.Errorf("of %d attempts, recorded are %v", made, recorded)
		}
	})
}

// A completion that is repeated is the same, though the first one recorded earlier attempts too.
func TestFailures_RepeatedCompletionIsAccepted(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		tokens := make(chan string, 9)
		n := lead(t, newTestJournal(), actors.Config{}, call(), work.Bind(func(ctx context.Context, _ int) (string, error) {
			info := replay.ActivityInfo(ctx)
			if info.Number == 1 {
				return "", errors.New("not yet")
			}
			tokens <- info.Token()
			return "", replay.ErrResultPending
		}))
		n.start("c", "call", "").want(nil)
		token := <-tokens
		for range 3 {
			if err := n.complete(token, "done", nil); err != nil {
				t.Fatal(err)
			}
			n.wantOutput("c", "done")
		}
		if _, recorded := endOf(n, "c"); len(recorded.GetAttempts()) != 1 {
			t.Errorf("recorded: %v", recorded)
		}
	})
}

// openAttemptOf returns the journal's record of the only open activity of an instance.
func openAttemptOf(t *testing.T, j *testJournal, id string) *journalpb.Attempt {
	t.Helper()
	for open := range j.Machine.InstanceOperations(id) {
		return open.Attempt
	}
	t.Fatal("nothing is open")
	return nil
}
