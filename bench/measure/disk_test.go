package measure

import (
	"errors"
	"os"
	"testing"
)

func TestMeasureDisk(t *testing.T) {
	dir := t.TempDir()
	rates, err := MeasureDisk(dir, 3<<20)
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil || min(rates.Write, rates.Read, rates.Copy) <= 0 {
		t.Errorf("%+v, %v", rates, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
