package replay

import (
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// patchLabel is the prefix of the labels that [Patched] records.
const patchLabel = "tenuto.patch/"

// Patched lets one function hold two branches: the old code for instances that have already passed
// this point, and the new code. It returns true where the instance reaches this point for the first
// time, and records that. On replay it returns the recorded decision. All calls with the same ID in
// one execution return the same value.
//
//	if replay.Patched(ctx, "check-stock") {
//		err = CheckStock.Call(ctx, order)
//	}
//
// When no instance remains that began before the change, remove the old branch and replace the call
// with [DeprecatePatch].
func Patched(ctx *Context, id string) bool { return ctx.x.patch(id, true) }

// DeprecatePatch replaces [Patched] when only the new branch is left. It accepts the records in
// existing histories and makes none. Remove it when no instance with such a record remains.
func DeprecatePatch(ctx *Context, id string) { ctx.x.patch(id, false) }

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
