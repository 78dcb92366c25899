package engine

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

func (s *scope) SideEffect(label string, fn func() (any, error), into any) error {
	if err := checkName("side effect", label); err != nil {
		return err
	}
	if strings.HasPrefix(label, patchLabel) {
		return fmt.Errorf("tenuto: labels of side effects that begin with %q are those of Patched", patchLabel)
	}
	info := replay.PayloadInfo{Kind: "side effect", Name: label, Part: "value"}
	record := &journalpb.SideEffectRecorded{Label: label}
	recorded, err := s.p.sideEffect(s, record, func() {
		value, err := fn()
		if err == nil {
			record.Value, err = s.p.encode(info, value)
		}
		record.Error = encodeError(err)
	})
	if err != nil {
		return err
	}
	if recorded.Error != nil {
		return decodeError(recorded.Error)
	}
	return deserialize(info, recorded.Value, into)
}

// sideEffect waits until the cursor reaches the record, fills it if it is new, and returns the
// recorded one.
func (p *program) sideEffect(s *scope, record *journalpb.SideEffectRecorded, fill func()) (*journalpb.SideEffectRecorded, error) {
	op := p.schedule(s, &journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{SideEffectRecorded: record}}, &operation{name: record.Label})
	if err := p.await(s, &op.promise); err != nil {
		return nil, err
	}
	if op.err != nil {
		return nil, op.err
	}
	recorded := op.value.(*journalpb.SideEffectRecorded)
	if recorded == record {
		p.coroutines.current.runSideEffect(record, fill)
	}
	p.cursor.size.addSideEffect(recorded)
	if recorded.Error.GetCode() == panicCode {
		if recorded.Error.Message == (&crash{}).error().Error() {
			runtime.Goexit()
		}
		panic(recorded.Error.Message)
	}
	return recorded, nil
}

// runSideEffect calls the user's function. It records a panic or a runtime.Goexit, which sideEffect
// repeats both now and on replay.
func (c *coroutine) runSideEffect(record *journalpb.SideEffectRecorded, fill func()) {
	c.callback = "SideEffect"
	returned := false
	defer func() {
		c.callback = ""
		value := recover()
		switch {
		case value != nil:
			record.Error = encodeError(&replay.PanicError{Message: fmt.Sprint(value)})
		case !returned:
			record.Error = encodeError((&crash{}).error())
		}
	}()
	fill()
	returned = true
}

// patchLabel is the prefix of the labels that [replay.Patched] records.
const patchLabel = "tenuto.patch/"

// patches holds the decisions of [replay.Patched], each made once.
type patches struct {
	decided    map[string]bool
	markers    map[string]bool // patch markers in the history that is being replayed
	historyEnd uint64          // last event_id of that history
}

// lookAhead notes which markers the rest of the history after the cursor has.
func (p *patches) lookAhead(cursor uint64, rest []*journalpb.Event) {
	p.historyEnd = cursor
	p.markers = make(map[string]bool)
	for _, event := range rest {
		p.historyEnd = event.EventId
		if id, isMarker := strings.CutPrefix(event.GetSideEffectRecorded().GetLabel(), patchLabel); isMarker {
			p.markers[id] = true
		}
	}
}

// decide returns the decision of a patch with the cursor at eventID and keeps it.
func (p *patches) decide(id string, marks bool, eventID uint64) (patched bool) {
	patched = p.markers[id] || marks && eventID >= p.historyEnd
	if p.decided == nil {
		p.decided = make(map[string]bool)
	}
	p.decided[id] = patched
	return patched
}

// patch decides at once. If the history has the marker, it returns true. If the history continues
// without it, the code passed this point before the patch existed, and patch returns false. At the
// end of the history it returns marks. Other coroutines and cancellations do not affect the
// decision, so code with and without the patch agree on everything else.
func (p *program) patch(id string, marks bool) bool {
	p.calls.current("Patched")
	if decided, ok := p.patches.decided[id]; ok || p.coroutines.evicting() {
		return decided
	}
	if err := checkName("patch", id); err != nil {
		panic(err)
	}
	if p.cursor.mode == replayingBeforeLookAhead {
		p.coroutines.halt()
	}
	at := p.cursor.eventID
	if p.id.options.copied.cuts(at+p.operations.queue.count()+1, p.patches.historyEnd) {
		at = p.patches.historyEnd // the source may have the marker after the copied events
	}
	patched := p.patches.decide(id, marks, at)
	if patched {
		p.operations.queue.add(&journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{
			SideEffectRecorded: &journalpb.SideEffectRecorded{Label: patchLabel + id},
		}}, nil)
	}
	return patched
}
