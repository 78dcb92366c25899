package actors_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// wantBusy fails unless a message was refused at once, and left nothing behind.
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
		t.Errorf("to be repeated after %v", busy.RetryAfter)
	}
	return busy
}

func TestOneInstanceGetsATenthOfTheWindow(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{WindowMax: 50}, collect())
		for _, id := range []string{"hot", "cold"} {
			n.start(id, "collect", "xxxxxxxxxx").want(nil)
		}
		n.journal.holdAll()
		taken := sendWords(n, "hot", 0, 5)
		if bound := wantBusy(t, n.send("hot", "word", "no")).Bound; bound != actors.BoundInstance {
			t.Errorf("the bound is %q", bound)
		}
		taken = append(taken, n.send("cold", "word", "a"))
		n.journal.flow()
		for _, r := range taken {
			r.want(nil)
		}
		n.send("hot", "word", "again").want(nil)
		if got := n.system.Stats(n.partition); got.Rejections != (actors.Rejections{Instance: 1}) || got.MessagesHeld != 0 {
			t.Errorf("counted %+v, %d are held", got.Rejections, got.MessagesHeld)
		}
	})
}

func TestWindowIsBoundedInMessagesAndBytes(t *testing.T) {
	for name, config := range map[string]actors.Config{
		"messages": {WindowMax: 40},
		"bytes":    {WindowBytesMax: 40 * 60},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				n := lead(t, newTestJournal(), config, collect())
				n.journal.holdAll()
				var taken []*reply
				for i := range 100 {
					r := n.start(fmt.Sprintf("c%d", i), "collect", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")
					select {
					case a := <-r.ch:
						r.ch <- a
						if bound := wantBusy(t, r).Bound; bound != actors.BoundWindow {
							t.Errorf("the bound is %q", bound)
						}
						if _, ok := n.journal.Instance(fmt.Sprintf("c%d", i)); ok {
							t.Error("a start that was refused was executed")
						}
					default:
						taken = append(taken, r)
					}
				}
				if len(taken) < 20 || len(taken) > 60 {
					t.Errorf("%d were taken", len(taken))
				}
				idle()
				got := n.system.Stats(n.partition)
				if got.Rejections != (actors.Rejections{Window: uint64(100 - len(taken))}) || got.MessagesHeld != len(taken) {
					t.Errorf("counted %+v, %d are held", got.Rejections, got.MessagesHeld)
				}
				n.journal.flow()
				for _, r := range taken {
					r.want(nil)
				}
				n.start("later", "collect", "").want(nil)
			})
		})
	}
}

// A flood of twice what the journal takes: new starts are refused when what is
// there takes too long, and what has been begun goes on.
func TestFloodOfStartsIsShedAndCompletionsGoOn(t *testing.T) {
	virtually(t, func(t *testing.T) {
		var c tally
		j := newTestJournal()
		n := lead(t, j, actors.Config{}, call(), c.slowly("leader", time.Millisecond))
		j.set(func(j *testJournal) { j.pace = steady(150 * time.Millisecond) })
		var taken []string
		refused := 0
		for i := range 400 {
			for k := range 5 {
				id := fmt.Sprintf("c%d-%d", i, k)
				r := n.start(id, "call", "")
				select {
				case a := <-r.ch:
					r.ch <- a
					if busy := wantBusy(t, r); busy.RetryAfter != 150*time.Millisecond || busy.Bound != actors.BoundDelay {
						t.Errorf("refused with %+v", busy)
					}
					if _, ok := n.journal.Instance(id); ok {
						t.Error("a start that was refused was executed")
					}
					refused++
				default:
					taken = append(taken, id)
				}
			}
			time.Sleep(time.Millisecond)
		}
		if refused < 200 || len(taken) < 200 {
			t.Errorf("%d refused, %d taken", refused, len(taken))
		}
		for _, id := range taken {
			n.wantOutput(id, "leader 1")
		}
		j.set(func(j *testJournal) { j.pace = nil })
		n.start("later", "call", "").want(nil)
	})
}

func TestAnswersTellThatItIsCrowdedBeforeAnyStartIsRefused(t *testing.T) {
	for each, crowded := range map[int]bool{1: false, 4: true} { // in a millisecond
		virtually(t, func(t *testing.T) {
			n := lead(t, newTestJournal(), actors.Config{}, collect())
			n.journal.set(func(j *testJournal) { j.pace = steady(80 * time.Millisecond) })
			var replies []*reply
			for i := range 300 * each {
				replies = append(replies, n.start(fmt.Sprintf("c%d", i), "collect", ""))
				if i%each == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			told := 0
			for _, r := range replies {
				answer := <-r.ch
				if answer.Err != nil {
					t.Fatal(answer.Err)
				}
				if answer.Crowded {
					told++
				}
			}
			if told > 0 != crowded {
				t.Errorf("%d of %d were told that it is crowded", told, len(replies))
			}
		})
	}
}

// A slow journal alone is no overload.
func TestFewStartsAreTakenHoweverLongTheyTake(t *testing.T) {
	virtually(t, func(t *testing.T) {
		n := lead(t, newTestJournal(), actors.Config{}, collect())
		n.journal.set(func(j *testJournal) { j.pace = steady(time.Second) })
		for i := range 1000 {
			n.start(fmt.Sprintf("c%d", i), "collect", "")
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		for i := range 1000 {
			if _, ok := n.journal.Instance(fmt.Sprintf("c%d", i)); !ok {
				t.Fatalf("start %d was refused", i)
			}
		}
	})
}

func TestStalledInstanceWithAFullInboxCanBeTerminated(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		n, _ := stallWith(t, j, actors.Config{InboxMax: 3})
		var waiting []*reply
		for {
			r := n.send("o", "word", "more")
			idle()
			if len(r.ch) > 0 {
				wantBusy(t, r)
				break
			}
			waiting = append(waiting, r)
		}
		terminate := func() *reply {
			return n.deliver("o", actors.Message{Message: replay.Message{Event: &journalpb.Event{Body: &journalpb.Event_OrchestrationTerminated{
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
