package broken_test

import (
	"testing"

	"github.com/tenuto-dev/tenuto/replay/engine"
	"github.com/tenuto-dev/tenuto/replay/internal/broken"
)

func TestCases_AllBind(t *testing.T) {
	if got := len(broken.Cases()); got != 12 {
		t.Errorf("%d cases", got)
	}
	if _, err := engine.NewRegistry(broken.Definitions()...); err != nil {
		t.Error(err)
	}
}
