package state

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/journal/state/store"
)

// roomyOptions keep everything in memory, and flush only on demand.
func roomyOptions(fs vfs.FS) machineOptions {
	o := tinyOptions(fs)
	o.machine = Options{}
	return o
}

func flushNow(t testing.TB, m *Machine) {
	t.Helper()
	at, _ := m.Applied()
	if err := m.Flush(t.Context(), at); err != nil {
		t.Fatal(err)
	}
}

// hookedStore is a store with code before writes and after reads.
type hookedStore struct {
	testStore
	afterView   func(op string)
	beforeWrite func()
}

func (h *hookedStore) View(op string, f func(store.Reader) error) error {
	err := h.testStore.View(op, f)
	if h.afterView != nil {
		h.afterView(op)
	}
	return err
}

func (h *hookedStore) Write(op string, n int, fill func(store.Batch) error) error {
	if h.beforeWrite != nil {
		h.beforeWrite()
	}
	return h.testStore.Write(op, n, fill)
}

// openHooked opens a machine in a store with hooks, which the caller closes.
func openHooked(t testing.TB, o machineOptions, h *hookedStore) *Machine {
	t.Helper()
	s, err := pebblestore.Open(o.Options)
	if err != nil {
		t.Fatal(err)
	}
	h.testStore = testStore{s, o.FS}
	m, err := Open(h, o.machine)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The store can be opened after a crash at any write of a build during which instances of new
// orchestrations have begun.
func TestBuild_FacetNumbersHaveNoGapAfterCrash(t *testing.T) {
	fs := vfs.NewCrashableMem()
	o := roomyOptions(fs)
	m, err := o.open()
	if err != nil {
		t.Fatal(err)
	}
	applyEpoch(t, m)
	for i := range 5 {
		if err := applyAppend(m, fmt.Sprintf("a%d", i), segmentOf(1, 1, started(fmt.Sprintf("name%d", i)))); err != nil {
			t.Fatal(err)
		}
	}
	flushNow(t, m)
	writeAsOlderBuild(t, m, false)
	closed(t, m)
	o.machine.indexStep = 2
	isBuilding, begun := make(chan struct{}), make(chan struct{})
	builds := 0
	var crashed []*vfs.MemFS
	m = openHooked(t, o, &hookedStore{
		afterView: func(op string) {
			if op != "build the index" {
				return
			}
			if builds++; builds == 1 {
				close(isBuilding)
				<-begun
			}
		},
		beforeWrite: func() { crashed = append(crashed, fs.CrashClone(vfs.CrashCloneCfg{})) },
	})
	<-isBuilding
	if err := applyAppend(m, "b", segmentOf(1, 1, started("new"))); err != nil {
		t.Fatal(err)
	}
	close(begun)
	awaitIndex(t, m)
	flushNow(t, m)
	closed(t, m)
	if len(crashed) < 3 {
		t.Fatalf("%d writes", len(crashed))
	}
	for i, fs := range crashed {
		o.FS = fs
		m, err := o.open()
		if err != nil {
			t.Fatalf("after a crash before write %d: %v", i+1, err)
		}
		awaitIndex(t, m)
		checkIndexKeys(t, m)
		closed(t, m)
	}
}
