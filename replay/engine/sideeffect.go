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
	recorded, err := s.x.sideEffect(s, record, func() {
		value, err := fn()
		if err == nil {
			record.Value, err = s.x.encode(info, value)
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
func (x *Execution) sideEffect(s *scope, record *journalpb.SideEffectRecorded, fill func()) (*journalpb.SideEffectRecorded, error) {
	op := x.schedule(s, &journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{SideEffectRecorded: record}}, &operation{name: record.Label})
	if err := x.await(s, &op.promise); err != nil {
		return nil, err
	}
	if op.err != nil {
		return nil, op.err
	}
	recorded := op.value.(*journalpb.SideEffectRecorded)
	if recorded == record {
		x.runSideEffect(record, fill)
	}
	x.legacyBytes += len(recorded.Value.GetData())
	x.bytes += len(recorded.Value.GetData()) + errorBytes(recorded.Error)
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
func (x *Execution) runSideEffect(record *journalpb.SideEffectRecorded, fill func()) {
	x.inSideEffect = true
	returned := false
	defer func() {
		x.inSideEffect = false
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

// patch decides at once. If the history has the marker, it returns true. If the history continues
// without it, the code passed this point before the patch existed, and patch returns false. At the
// end of the history it returns marks. Other coroutines and cancellations do not affect the
// decision, so code with and without the patch agree on everything else.
func (x *Execution) patch(id string, marks bool) bool {
	x.currentCoroutine("Patched")
	if decided, ok := x.patches[id]; ok || x.evicting {
		return decided
	}
	if err := checkName("patch", id); err != nil {
		panic(err)
	}
	if x.replaying && !x.lookedAhead {
		x.coroutines.halt()
	}
	patched := x.markers[id] || marks && x.lastEventID >= x.historyEnd
	if patched {
		x.enqueue(&journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{
			SideEffectRecorded: &journalpb.SideEffectRecorded{Label: patchLabel + id},
		}}, nil)
	}
	if x.patches == nil {
		x.patches = make(map[string]bool)
	}
	x.patches[id] = patched
	return patched
}

// lookAhead records which markers the rest of the history has, and resumes the step that was halted
// for it.
func (x *Execution) lookAhead(rest []*journalpb.Event) {
	x.lookedAhead = true
	x.historyEnd = x.lastEventID
	x.markers = make(map[string]bool)
	for _, event := range rest {
		x.historyEnd = event.EventId
		if id, isMarker := strings.CutPrefix(event.GetSideEffectRecorded().GetLabel(), patchLabel); isMarker {
			x.markers[id] = true
		}
	}
	x.coroutines.halted = false
	x.step()
}
