package engine

import (
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

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
	patched := p.patches.decide(id, marks, p.cursor.eventID)
	if patched {
		p.operations.queue.add(&journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{
			SideEffectRecorded: &journalpb.SideEffectRecorded{Label: patchLabel + id},
		}}, nil)
	}
	return patched
}
