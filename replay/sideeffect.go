package replay

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// SideEffect calls fn once and records its result under a label. On replay it returns the record
// without calling fn. Use it for values that are cheap, local and non-deterministic: a random
// choice, a configuration value, an environment variable. Use an activity for anything that can
// fail, block, be slow or have an external effect: a node that dies before the record is committed
// calls fn again. fn must not make durable calls.
func SideEffect[T any](ctx *Context, label string, fn func() (T, error)) (T, error) {
	var zero T
	if err := checkName("side effect", label); err != nil {
		return zero, err
	}
	if strings.HasPrefix(label, patchLabel) {
		return zero, fmt.Errorf("tenuto: labels of side effects that begin with %q are those of Patched", patchLabel)
	}
	info := PayloadInfo{"side effect", label, "value"}
	record := &journalpb.SideEffectRecorded{Label: label}
	recorded, err := ctx.x.sideEffect(ctx, record, func() {
		value, err := fn()
		if err == nil {
			record.Value, err = ctx.x.encode(info, value)
		}
		record.Error = encodeError(err)
	})
	if err != nil {
		return zero, err
	}
	if recorded.Error != nil {
		return zero, decodeError(recorded.Error)
	}
	var value T
	if err := deserialize(info, recorded.Value, &value); err != nil {
		return zero, err
	}
	return value, nil
}

// sideEffect waits until the cursor reaches the record, fills it if it is new, and returns the
// recorded one.
func (x *Execution) sideEffect(ctx *Context, record *journalpb.SideEffectRecorded, fill func()) (*journalpb.SideEffectRecorded, error) {
	op := x.schedule(ctx, &journalpb.Event{Body: &journalpb.Event_SideEffectRecorded{SideEffectRecorded: record}}, &operation{name: record.Label})
	if err := x.await(ctx, &op.promise); err != nil {
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
			record.Error = encodeError(&PanicError{Message: fmt.Sprint(value)})
		case !returned:
			record.Error = encodeError((&crash{}).error())
		}
	}()
	fill()
	returned = true
}

// Random returns a source of random numbers that yields the same sequence on every replay. Its seed
// derives from instance, incarnation, execution and start time. Use it for spreading and sampling,
// not for secrets.
func (c *Context) Random() *rand.Rand {
	x := c.x
	x.currentCoroutine("Random")
	if x.random == nil {
		hash := sha256.New()
		fmt.Fprintf(hash, "%s\x00%d\x00%d", x.instance, x.number, x.startedAt)
		if x.startInfo.incarnation != 0 {
			fmt.Fprintf(hash, "\x00%d", x.startInfo.incarnation)
		}
		seed := hash.Sum(nil)
		x.random = rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed), binary.LittleEndian.Uint64(seed[8:])))
	}
	return x.random
}

// UUID returns a UUID (RFC 9562, version 4) that is the same on every replay.
func (c *Context) UUID() string {
	var b [16]byte
	random := c.Random()
	binary.LittleEndian.PutUint64(b[:], random.Uint64())
	binary.LittleEndian.PutUint64(b[8:], random.Uint64())
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// SetStatus sets the custom status, which clients can read. The last value remains visible after
// the instance has ended and across continue-as-new. The error is a [*PayloadError] if the value
// cannot be encoded.
func SetStatus[T any](ctx *Context, value T) error {
	x := ctx.x
	x.currentCoroutine("SetStatus")
	payload, err := x.encode(PayloadInfo{"orchestration", x.startInfo.name, "status"}, value)
	if err != nil {
		return err
	}
	if x.evicting {
		return ErrEvicting
	}
	x.enqueue(&journalpb.Event{Body: &journalpb.Event_StatusSet{StatusSet: &journalpb.StatusSet{Value: payload}}}, nil)
	return nil
}
