package replay

import (
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// patchLabel begins the labels of the records of [Patched].
const patchLabel = "tenuto.patch/"

// Patched lets one function carry two branches: the code as it was, for
// instances that have passed this place already, and the code as it is now. It
// returns true where the instance comes here for the first time, and records
// that; on replay it returns what was decided then. All calls with the same ID
// in one execution return the same.
//
//	if replay.Patched(ctx, "check-stock") {
//		err = CheckStock.Call(ctx, order)
//	}
//
// When no instance is left that began before the change, the old branch can go,
// and the call itself with [Retired].
func Patched(ctx *Context, id string) bool { return ctx.x.patch(id, true) }

// Retired takes the place of [Patched] when only the new branch is left: it
// accepts the records that are still in histories and makes none. When no
// instance is left that has one, it can go too.
func Retired(ctx *Context, id string) { ctx.x.patch(id, false) }

// patch decides at once: where the history has the marker, yes; where it goes on
// without, no, because the code passed this place before it asked; at its end,
// yes, if new markers are made. What other coroutines and cancellations do
// makes no difference, so that code from before the question and code with it
// agree on all else.
func (x *Execution) patch(id string, marks bool) bool {
	x.running("Patched")
	if decided, ok := x.patches[id]; ok || x.dropping {
		return decided
	}
	if err := checkName("patch", id); err != nil {
		panic(err)
	}
	if x.replaying && !x.foreseen {
		x.coroutines.halt()
	}
	patched := x.markers[id] || marks && x.last >= x.horizon
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

// foresee notes which markers the rest of the history has, and lets the step
// that was halted for it go on.
func (x *Execution) foresee(rest []*journalpb.Event) {
	x.foreseen = true
	x.horizon = x.last
	x.markers = make(map[string]bool)
	for _, event := range rest {
		x.horizon = event.EventId
		if id, isMarker := strings.CutPrefix(event.GetSideEffectRecorded().GetLabel(), patchLabel); isMarker {
			x.markers[id] = true
		}
	}
	x.coroutines.halted = false
	x.step()
}
