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

// Once calls fn once and records what it returns under a label; on replay the
// record is returned and fn not called. It serves what is cheap, local and not
// deterministic: a random choice, a configuration value, an environment
// variable. Anything that can fail, block or be slow belongs into an activity,
// and so does anything with an effect outside: a node that dies before the
// record is committed calls fn again. fn must not make durable calls.
func Once[T any](ctx *Context, label string, fn func() (T, error)) (T, error) {
	var zero T
	if err := checkName("side effect", label); err != nil {
		return zero, err
	}
	if strings.HasPrefix(label, patchLabel) {
		return zero, fmt.Errorf("tenuto: labels of side effects that begin with %q are those of Patched", patchLabel)
	}
	of := PayloadOf{"side effect", label, "value"}
	record := &journalpb.SideEffectRecorded{Label: label}
	recorded, err := ctx.x.sideEffect(ctx, record, func() {
		value, err := fn()
		if err == nil {
			record.Value, err = ctx.x.encode(of, value)
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
	if err := deserialize(of, recorded.Value, &value); err != nil {
		return zero, err
	}
	return value, nil
}

// sideEffect waits until the record is at the cursor, fills it if it is new, and
// returns what was recorded.
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
		x.fill(record, fill)
	}
	x.bytesBefore += len(recorded.Value.GetData())
	x.bytes += len(recorded.Value.GetData()) + errorBytes(recorded.Error)
	if recorded.Error.GetCode() == panicCode {
		if recorded.Error.Message == (&crash{}).error().Error() {
			runtime.Goexit()
		}
		panic(recorded.Error.Message)
	}
	return recorded, nil
}

// fill calls the user's function. A panic in it, or a runtime.Goexit, is
// recorded, and goes on both now and on replay.
func (x *Execution) fill(record *journalpb.SideEffectRecorded, fill func()) {
	x.sideways = true
	returned := false
	defer func() {
		x.sideways = false
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

// Random returns a source of random numbers that yields the same ones on every
// replay. It is seeded from instance, run, execution and the time of its start, and
// good for spreading and sampling, not for secrets.
func (c *Context) Random() *rand.Rand {
	x := c.x
	x.running("Random")
	if x.random == nil {
		hash := sha256.New()
		fmt.Fprintf(hash, "%s\x00%d\x00%d", x.instance, x.number, x.startedAt)
		if x.origin.incarnation != 0 {
			fmt.Fprintf(hash, "\x00%d", x.origin.incarnation)
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

// SetStatus publishes a value by which people outside can follow the instance;
// the last one stays visible after its end, and across continue-as-new. The
// error is a [*PayloadError] if the value cannot be encoded.
func SetStatus[T any](ctx *Context, value T) error {
	x := ctx.x
	x.running("SetStatus")
	payload, err := x.encode(PayloadOf{"orchestration", x.origin.name, "status"}, value)
	if err != nil {
		return err
	}
	if x.dropping {
		return ErrDehydrating
	}
	x.enqueue(&journalpb.Event{Body: &journalpb.Event_StatusSet{StatusSet: &journalpb.StatusSet{Value: payload}}}, nil)
	return nil
}
