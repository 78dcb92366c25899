package engine_test

import (
	"testing"
	"unsafe"

	"github.com/tenuto-dev/tenuto/replay/engine"
)

// The next size in which Go allocates is an eighth larger, for every instance in memory.
func TestExecution_TakesAtMost1024Bytes(t *testing.T) {
	if size := unsafe.Sizeof(engine.Execution{}); size > 1024 {
		t.Errorf("an Execution has %d bytes: move what only some runs have, as runOptions does", size)
	}
}
