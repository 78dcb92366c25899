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
func Patched(ctx *Context, id string) bool {
	return ctx.x.patch(id, &operation{name: patchLabel + id, optional: true})
}

// Retired takes the place of [Patched] when only the new branch is left: it
// accepts the records that are still in histories and makes none. When no
// instance is left that has one, it can go too.
func Retired(ctx *Context, id string) {
	ctx.x.patch(id, &operation{name: patchLabel + id, optional: true, retired: true})
}

// patch asks whether the history has, or is to get, the marker. No cancellation
// reaches it: what it decides is about the code, not about the run.
func (x *Execution) patch(id string, op *operation) bool {
	if decided, ok := x.patches[id]; ok || x.dropping {
		return decided
	}
	uncancelled := &Context{x: x, scope: new(scope)}
	x.schedule(uncancelled, &journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{
		SideEffectRecorded: &journalpb.SideEffectRecorded{Label: op.name},
	}}, op)
	if err := x.await(uncancelled, &op.promise); err != nil {
		return false
	}
	return x.patches[id]
}

// decline resolves a marker that the history does not have: the code passed
// this place before it asked for one.
func (x *Execution) decline(head *action) {
	head.elided = true
	x.decide(head.op, false)
	x.step()
}

func (x *Execution) decide(op *operation, patched bool) {
	if x.patches == nil {
		x.patches = make(map[string]bool)
	}
	x.patches[strings.TrimPrefix(op.name, patchLabel)] = patched
	x.settle(&op.promise)
}

// recorded resolves a side effect or a marker that the cursor has met.
func (x *Execution) recorded(op *operation, record *journalpb.SideEffectRecorded) {
	if op.optional {
		x.decide(op, true)
		return
	}
	op.value = record
	x.settle(&op.promise)
}
