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
