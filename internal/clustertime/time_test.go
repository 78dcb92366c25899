package clustertime

import (
	"encoding/json"
	"math"
	"testing"
	"time"
)

func TestTime_Saturates(t *testing.T) {
	last, first := FromUnix(math.MaxInt64), FromUnix(math.MinInt64)
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"the last and more", last.Add(1), last},
		{"the first and less", first.Add(-1), first},
		{"a limit without end", FromUnix(1).Add(math.MaxInt64), last},
		{"an hour later", FromUnix(1).Add(time.Hour), FromUnix(1 + int64(time.Hour))},
		{"an hour earlier", FromUnix(1).Add(-time.Hour), FromUnix(1 - int64(time.Hour))},
		{"from first to last", last.Sub(first), time.Duration(math.MaxInt64)},
		{"from last to first", first.Sub(last), time.Duration(math.MinInt64)},
		{"forward", FromUnix(5).Sub(FromUnix(2)), time.Duration(3)},
		{"backward", FromUnix(-5).Sub(FromUnix(2)), time.Duration(-7)},
		{"before", FromUnix(1).Before(FromUnix(2)), true},
		{"not before itself", FromUnix(1).Before(FromUnix(1)), false},
		{"not after itself", FromUnix(1).After(FromUnix(1)), false},
		{"after", FromUnix(2).After(FromUnix(1)), true},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", c.what, c.got, c.want)
		}
	}
}

// Nodes of earlier builds read and write a plain number.
func TestTime_JSONIsNanoseconds(t *testing.T) {
	text, err := json.Marshal(FromUnix(-17))
	if err != nil || string(text) != "-17" {
		t.Fatalf("%s, %v", text, err)
	}
	var decoded Time
	if err := json.Unmarshal([]byte("1795000000000000001"), &decoded); err != nil || decoded != FromUnix(1795000000000000001) {
		t.Fatalf("%v, %v", decoded, err)
	}
	if err := json.Unmarshal([]byte(`"now"`), &decoded); err == nil {
		t.Error("text was read as a time")
	}
}
