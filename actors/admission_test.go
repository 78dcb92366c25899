package actors_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// wantBusy fails unless a message was rejected at once without an effect.
func wantBusy(t *testing.T, r *reply) *actors.BusyError {
	t.Helper()
	var busy *actors.BusyError
	select {
	case a := <-r.ch:
		if !errors.As(a.Err, &busy) || !errors.Is(a.Err, actors.ErrBusy) {
			t.Fatalf("answered %v", a.Err)
		}
	default:
		t.Fatal("not answered at once")
	}
	if busy.RetryAfter < 50*time.Millisecond || busy.RetryAfter > 2*time.Second {
		t.Errorf("RetryAfter is %v", busy.RetryAfter)
	}
	return busy
}

func TestAdmission_InstanceShare(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{InFlightMax: 50}, collect())
		for _, id := range []string{"hot", "cold"} {
			n.start(id, "collect", "xxxxxxxxxx").want(nil)
		}
		n.journal.holdAppends()
		consumed := sendWords(n, "hot", 0, 5)
		if bound := wantBusy(t, n.send("hot", "word", "no")).Bound; bound != actors.BoundInstance {
			t.Errorf("the bound is %q", bound)
		}
		consumed = append(consumed, n.send("cold", "word", "a"))
		n.journal.releaseAppends()
		for _, r := range consumed {
			r.want(nil)
		}
		n.send("hot", "word", "again").want(nil)
		if got := n.system.Stats(n.partition); got.Rejections != (actors.Rejections{Instance: 1}) || got.MessagesInFlight != 0 {
			t.Errorf("counted %+v, %d are held", got.Rejections, got.MessagesInFlight)
		}
	})
}

func TestAdmission_LimitsMessagesAndBytes(t *testing.T) {
	for name, config := range map[string]actors.Config{
		"messages": {InFlightMax: 40},
		"bytes":    {InFlightBytesMax: 40 * 60},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T) {
				n := lead(t, newTestJournal(), config, collect())
				n.journal.holdAppends()
				var consumed []*reply
				for i := range 100 {
					r := n.start(fmt.Sprintf("c%d", i), "collect", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")
					select {
					case a := <-r.ch:
						r.ch <- a
						if bound := wantBusy(t, r).Bound; bound != actors.BoundInFlight {
							t.Errorf("the bound is %q", bound)
						}
						if _, ok := n.journal.Instance(fmt.Sprintf("c%d", i)); ok {
							t.Error("a rejected start was executed")
						}
					default:
						consumed = append(consumed, r)
					}
				}
				if len(consumed) < 20 || len(consumed) > 60 {
					t.Errorf("%d were taken", len(consumed))
				}
				waitIdle()
				got := n.system.Stats(n.partition)
				if got.Rejections != (actors.Rejections{InFlight: uint64(100 - len(consumed))}) || got.MessagesInFlight != len(consumed) {
					t.Errorf("counted %+v, %d are held", got.Rejections, got.MessagesInFlight)
				}
				n.journal.releaseAppends()
				for _, r := range consumed {
					r.want(nil)
				}
				n.start("later", "collect", "").want(nil)
			})
		})
	}
}

// With twice the load that the journal takes, new starts are rejected once messages take too long,
// and running instances continue.
func TestAdmission_ShedsStartsNotCompletions(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		var c attemptCounter
		j := newTestJournal()
		n := lead(t, j, actors.Config{}, call(), c.slowWork("leader", time.Millisecond))
		j.configure(func(j *testJournal) { j.commitDelay = constantDelay(150 * time.Millisecond) })
		var consumed []string
		rejected := 0
		for i := range 400 {
			for k := range 5 {
				id := fmt.Sprintf("c%d-%d", i, k)
				r := n.start(id, "call", "")
				select {
				case a := <-r.ch:
					r.ch <- a
					if busy := wantBusy(t, r); busy.RetryAfter != 150*time.Millisecond || busy.Bound != actors.BoundDelay {
						t.Errorf("rejected with %+v", busy)
					}
					if _, ok := n.journal.Instance(id); ok {
						t.Error("a rejected start was executed")
					}
					rejected++
				default:
					consumed = append(consumed, id)
				}
			}
			time.Sleep(time.Millisecond)
		}
		if rejected < 200 || len(consumed) < 200 {
			t.Errorf("%d rejected, %d taken", rejected, len(consumed))
		}
		for _, id := range consumed {
			n.wantOutput(id, "leader 1")
		}
		j.configure(func(j *testJournal) { j.commitDelay = nil })
		n.start("later", "call", "").want(nil)
	})
}

func TestAdmission_SignalsOverloadBeforeShedding(t *testing.T) {
	for each, overloaded := range map[int]bool{1: false, 4: true} { // in a millisecond
		inVirtualTime(t, func(t *testing.T) {
			n := lead(t, newTestJournal(), actors.Config{}, collect())
			n.journal.configure(func(j *testJournal) { j.commitDelay = constantDelay(80 * time.Millisecond) })
			var replies []*reply
			for i := range 300 * each {
				replies = append(replies, n.start(fmt.Sprintf("c%d", i), "collect", ""))
				if i%each == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			observed := 0
			for _, r := range replies {
				answer := <-r.ch
				if answer.Err != nil {
					t.Fatal(answer.Err)
				}
				if answer.Overloaded {
					observed++
				}
			}
			if observed > 0 != overloaded {
				t.Errorf("%d of %d answers say Overloaded", observed, len(replies))
			}
		})
	}
}

// A slow journal alone is not overload.
func TestAdmission_SlowJournalIsNotOverload(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.configure(func(j *testJournal) { j.commitDelay = constantDelay(time.Second) })
		for i := range 1000 {
			n.start(fmt.Sprintf("c%d", i), "collect", "")
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		for i := range 1000 {
			if _, ok := n.journal.Instance(fmt.Sprintf("c%d", i)); !ok {
				t.Fatalf("start %d was rejected", i)
			}
		}
	})
}

func TestAdmission_TerminatesStalledFullInbox(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		n, _ := stalledInstanceWith(t, j, actors.Config{InboxMax: 3})
		var waiting []*reply
		for {
			r := n.send("o", "word", "more")
			waitIdle()
			if len(r.ch) > 0 {
				wantBusy(t, r)
				break
			}
			waiting = append(waiting, r)
		}
		terminate := func() *reply {
			return n.deliver("o", actors.Message{Message: engine.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{
				OrchestrationTerminated: &journalpb.OrchestrationTerminated{Reason: "enough"},
			}}}})
		}
		terminate().want(nil)
		n.awaitStatus("o", journalpb.Status_STATUS_TERMINATED)
		for _, r := range waiting {
			r.want(actors.ErrEnded)
		}
	})
}
