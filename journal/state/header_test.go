package state

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// fillRandom sets every field reachable from a value, also future ones, sometimes to zero.
func fillRandom(t testing.TB, r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(r.Uint64()) >> r.IntN(64))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(r.Uint64() >> r.IntN(64))
	case reflect.String:
		v.SetString(fmt.Sprintf("%x", r.Uint64())[:r.IntN(8)])
	case reflect.Pointer:
		if r.IntN(2) == 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fillRandom(t, r, v.Elem())
		}
	case reflect.Slice:
		for range r.IntN(4) {
			v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
			fillRandom(t, r, v.Index(v.Len()-1))
		}
	case reflect.Map:
		for range r.IntN(4) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fillRandom(t, r, key)
			fillRandom(t, r, value)
			if v.IsNil() {
				v.Set(reflect.MakeMap(v.Type()))
			}
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Field(i)
			fillRandom(t, r, reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem())
		}
	default:
		t.Fatalf("unsupported kind %v", v.Type())
	}
}

// randomInstance returns an instance with a random header, which no history could produce, and an
// arbitrary history.
func randomInstance(t testing.TB, r *rand.Rand, id string) *instance {
	in := &instance{id: id}
	fillRandom(t, r, reflect.ValueOf(&in.indexEntry).Elem())
	in.hasChainedStart = false // belongs to one append
	in.execution++
	slices.SortFunc(in.open, func(a, b operation) int { return cmp.Compare(a.id, b.id) })
	in.open = slices.CompactFunc(in.open, func(a, b operation) bool { return a.id == b.id })
	for i := range in.open {
		if event, failed := in.open[i].id, r.Uint32(); failed%2 == 0 {
			in.setAttempt(event, failed, must(proto.Marshal(&journalpb.Attempt{
				Ref: &journalpb.OperationRef{Instance: id, EventId: event}, Failed: failed, NextAt: r.Int64(),
			})))
		}
	}
	x := execution{number: in.execution, first: 1}
	for range 1 + r.IntN(4) {
		x.events = append(x.events, []byte(fmt.Sprint(r.Uint64())))
	}
	in.executions, in.last = []execution{x}, uint64(len(x.events))
	in.chainHash = hashEvents(hashExecution(0, id, x.number), x.events)
	return in
}

// An instance is the same after it was written, evicted from memory, and read by another process.
func TestHeader_RoundTripsEveryField(t *testing.T) {
	const instances = 500
	r := rand.New(rand.NewPCG(1, 7))
	o := tinyOptions(vfs.NewMem())
	m := must(o.open())
	want := map[string]*instance{}
	for i := range instances {
		id := fmt.Sprint("i-", i)
		in := randomInstance(t, r, id)
		want[id] = in
		retained := *in
		m.mu.Lock()
		m.instances[id] = &retained
		m.markDirty(&retained)
		m.mu.Unlock()
	}
	if err := m.Advance(1, 1); err != nil {
		t.Fatal(err)
	}
	if err := m.Flush(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"written and dropped", "read by another"} {
		for id, in := range want {
			if _, inMemory := m.instances[id]; inMemory {
				t.Fatalf("%s: instance %s is in memory", what, id)
			}
			if _, err := m.lookup(id, func(got *instance) { wantSameHeader(t, what, got, in) }); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		m = must(o.open())
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
}

func wantSameHeader(t *testing.T, what string, got, want *instance) {
	t.Helper()
	if !reflect.DeepEqual(got.indexEntry, want.indexEntry) {
		t.Errorf("%s: the header of %s is\n\t%+v\nand was\n\t%+v", what, want.id, got.indexEntry, want.indexEntry)
	}
	if got.chainHash != want.chainHash || !reflect.DeepEqual(got.attempts, want.attempts) {
		t.Errorf("%s: the chain hash of %s is %x and the attempts %v; they were %x and %v", what, want.id,
			got.chainHash, got.attempts, want.chainHash, want.attempts)
	}
	if got.instanceNumber == 0 || got.chunks != 1 || got.upTo != (position{want.execution, want.last}) || got.storedHash != want.chainHash {
		t.Errorf("%s: %s is stored as %+v", what, want.id, got.storedState)
	}
}
