package actors_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

var kid = replay.Orchestration[string, string]("kid")

// parent calls one child under the ID "kid".
func parent() replay.Definition {
	return program("parent", func(ctx *replay.Context, text string) (string, error) {
		return kid.Call(ctx, text, replay.ChildID("kid"))
	})
}

// fickle starts the child and gives it up when a word comes.
func fickle() replay.Definition {
	return program("fickle", func(ctx *replay.Context, text string) (string, error) {
		winner, err := replay.Race(ctx, kid.Start(ctx, text, replay.ChildID("kid")), word.Subscribe(ctx))
		if err != nil {
			return "", err
		}
		_, err = word.Wait(ctx)
		return fmt.Sprint(winner), err
	})
}

// patient waits for a word.
func patient() replay.Definition {
	return kid.Bind(func(ctx *replay.Context, _ string) (string, error) { return word.Wait(ctx) })
}

func TestChildsResultIsRecordedOnce(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, parent(), patient())
		refusals := 0
		n.journal.set(func(j *testJournal) {
			j.judge = refuseFirst(t, 3, "SubOrchestrationCompleted", &refusals)
		})
		n.start("p", "parent", "").want(nil)
		idle()
		n.send("kid", "word", "a").want(nil)
		n.wantOutput("p", "a")
		n.wantHistory("p", "OrchestrationStarted", "SubOrchestrationScheduled",
			"SubOrchestrationCompleted of 2", "OrchestrationCompleted")
		if refusals != 3 {
			t.Errorf("%d refusals", refusals)
		}
	})
}

func TestChildsFailureIsTheParentsToHandle(t *testing.T) {
	for name, c := range map[string]struct {
		body func(*replay.Context, string) (string, error)
		want string
	}{
		"error": {func(*replay.Context, string) (string, error) { return "", errors.New("no") }, "no"},
		"panic": {func(*replay.Context, string) (string, error) { panicky(); return "", nil }, "panic: ouch"},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				n := lead(t, newTestJournal(), actors.Config{}, kid.Bind(c.body),
					program("parent", func(ctx *replay.Context, _ string) (string, error) {
						_, err := kid.Call(ctx, "")
						var failed *replay.ChildError
						if !errors.As(err, &failed) {
							return "", err
						}
						return failed.Instance + ": " + failed.Err.Error(), nil
					}))
				n.start("p", "parent", "").want(nil)
				n.wantOutput("p", "p::1.2: "+c.want)
				n.awaitStatus("p::1.2", journalpb.Status_STATUS_FAILED)
			})
		})
	}
}

func TestParentHearsThatItsChildWasTerminated(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{AppendBytesMax: 2000}, bindUpper(),
			kid.Bind(func(ctx *replay.Context, _ string) (string, error) {
				return upper.Call(ctx, strings.Repeat("x", 3000))
			}),
			program("parent", func(ctx *replay.Context, _ string) (string, error) {
				_, err := kid.Call(ctx, "")
				return fmt.Sprint(errors.Is(err, replay.ErrTerminated)), nil
			}))
		n.start("p", "parent", "").want(nil)
		n.wantOutput("p", "true")
	})
}

func TestStrangerUnderTheChildsID(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, patient(),
			program("parent", func(ctx *replay.Context, text string) (string, error) {
				_, err := kid.Call(ctx, text, replay.ChildID("kid"))
				return fmt.Sprint(errors.Is(err, replay.ErrInstanceExists)), nil
			}))
		n.start("kid", "kid", "").want(nil)
		n.start("p", "parent", "").want(nil)
		n.wantOutput("p", "true")
		n.send("kid", "word", "a").want(nil)
		n.wantOutput("kid", "a")
	})
}

func TestParentThatGivesItsChildUpCancelsIt(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, fickle(), patient())
		n.start("p", "fickle", "").want(nil)
		idle()
		n.send("p", "word", "").want(nil)
		n.awaitStatus("kid", journalpb.Status_STATUS_CANCELLED)
		n.send("p", "word", "").want(nil)
		n.wantOutput("p", "1")
		if reason := n.last("kid").GetOrchestrationCancelled().Reason; !strings.Contains(reason, "parent") {
			t.Errorf("cancelled because: %q", reason)
		}
		n.wantHistory("p", "OrchestrationStarted", "SubOrchestrationScheduled", "ExternalSubscribed", "ExternalEvent",
			"CancelRequested of 2", "ExternalSubscribed", "ExternalEvent", "OrchestrationCompleted")
	})
}

// While the child's start is refused the parent gives the child up. The start is
// repeated, and so must the cancellation be.
func TestChildGivenUpBeforeItStartedIsCancelledWhenItHas(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, fickle(), patient())
		n.journal.set(func(j *testJournal) {
			j.judge = func(a *journalpb.Append) error {
				if a.Instance == "kid" && j.log[len(j.log)-1].Instance == "p" && len(j.log) < 2 {
					return errRefused
				}
				return nil
			}
		})
		n.start("p", "fickle", "").want(nil)
		time.Sleep(time.Second) // the start was refused some times
		n.send("p", "word", "").want(nil)
		n.awaitStatus("kid", journalpb.Status_STATUS_CANCELLED)
	})
}

// The parent gives its child up before it knows that a stranger has the ID.
func TestStrangerIsNotCancelledForAChild(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, fickle(), patient())
		n.start("kid", "kid", "").want(nil)
		n.journal.holdAll()
		n.start("p", "fickle", "")
		idle()
		n.send("p", "word", "")
		n.journal.letGo(nil)
		idle()
		n.journal.flow() // the word was first
		idle()
		if many := n.count("p", "CancelRequested"); many != 1 {
			t.Fatalf("history of the parent: %v", n.history("p"))
		}
		time.Sleep(time.Hour)
		n.send("kid", "word", "a").want(nil)
		n.wantOutput("kid", "a")
	})
}

func TestManyChildren(t *testing.T) {
	virtually(t, func(t *testing.T) {
		const many = 200
		n := lead(t, newTestJournal(), actors.Config{ResidentMax: 10}, bindUpper(), shout(),
			program("fan", func(ctx *replay.Context, _ string) (string, error) {
				var futures []*replay.Future[string]
				for range many {
					futures = append(futures, shoutHandle.Start(ctx, "x"))
				}
				results, err := replay.All(ctx, futures...)
				return strings.Join(results, ""), err
			}))
		n.start("f", "fan", "").want(nil)
		n.wantOutput("f", strings.Repeat("X", many))
	})
}

// A child may end, and its parent's node die, before the parent has heard.
func TestChildsEndIsReportedByTheNextLeader(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, parent(), patient())
		first.start("p", "parent", "").want(nil)
		idle()
		j.set(func(j *testJournal) {
			j.judge = func(a *journalpb.Append) error {
				if a.Instance == "p" {
					return errRefused
				}
				return nil
			}
		})
		first.send("kid", "word", "a").want(nil)
		time.Sleep(time.Second)
		first.close()
		j.set(func(j *testJournal) { j.judge = nil })
		second := lead(t, j, actors.Config{}, parent(), patient())
		second.wantOutput("p", "a")
	})
}

func TestActivityOfAChildKnowsWhoseItIs(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, parent(),
			kid.Bind(func(ctx *replay.Context, text string) (string, error) { return upper.Call(ctx, text) }),
			upper.Bind(func(ctx context.Context, _ string) (string, error) {
				return replay.ActivityInfo(ctx).IdempotencyKey(), nil
			}))
		n.start("p", "parent", "").want(nil)
		n.wantOutput("p", "kid/1/2")
	})
}

// A parent reads that its child was canceled in the words of protocol 3 only from a node of a
// cluster that has come to it: nodes from before would read others, and disagree.
func TestACanceledChildIsReportedInTheWordsOfTheProtocol(t *testing.T) {
	for text, begin := range map[string]func(*testing.T, *testJournal, actors.Config, ...replay.Definition) *node{
		"enough": func(t *testing.T, j *testJournal, c actors.Config, d ...replay.Definition) *node {
			return lead(t, j, c, d...)
		},
		"canceled: enough": leadNewest,
	} {
		virtually(t, func(t *testing.T) {
			n := begin(t, newTestJournal(), actors.Config{}, patient(), program("parent", func(ctx *replay.Context, _ string) (string, error) {
				_, err := kid.Call(ctx, "", replay.ChildID("c"))
				return errors.Unwrap(err).Error(), nil
			}))
			n.start("p", "parent", "").want(nil)
			idle()
			n.deliver("c", actors.Message{Message: replay.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationCancelRequested{
				OrchestrationCancelRequested: &journalpb.OrchestrationCancelRequested{Reason: "enough"},
			}}}}).want(nil)
			n.wantOutput("p", text)
			if record := n.events("p")[2].GetSubOrchestrationFailed().GetError(); record.GetMessage() != text {
				t.Errorf("recorded: %q; want %q", record.GetMessage(), text)
			}
		})
	}
}
