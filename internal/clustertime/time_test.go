package clustertime

import (
	"encoding/json"
	"math"
	"testing"
	"time"
)

func TestTime_Saturates(t *testing.T) {
	last, first := FromUnixNano(math.MaxInt64), FromUnixNano(math.MinInt64)
	for _, c := range []struct {
		what      string
		got, want any
	}{
		{"the last and more", last.Add(1), last},
		{"the first and less", first.Add(-1), first},
		{"a limit without end", FromUnixNano(1).Add(math.MaxInt64), last},
		{"an hour later", FromUnixNano(1).Add(time.Hour), FromUnixNano(1 + int64(time.Hour))},
		{"an hour earlier", FromUnixNano(1).Add(-time.Hour), FromUnixNano(1 - int64(time.Hour))},
		{"from first to last", last.Sub(first), time.Duration(math.MaxInt64)},
		{"from last to first", first.Sub(last), time.Duration(math.MinInt64)},
		{"forward", FromUnixNano(5).Sub(FromUnixNano(2)), time.Duration(3)},
		{"backward", FromUnixNano(-5).Sub(FromUnixNano(2)), time.Duration(-7)},
		{"before", FromUnixNano(1).Before(FromUnixNano(2)), true},
		{"not before itself", FromUnixNano(1).Before(FromUnixNano(1)), false},
		{"not after itself", FromUnixNano(1).After(FromUnixNano(1)), false},
		{"after", FromUnixNano(2).After(FromUnixNano(1)), true},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", c.what, c.got, c.want)
		}
	}
}

// Nodes of earlier builds read and write a plain number.
func TestTime_JSONIsNanoseconds(t *testing.T) {
	text, err := json.Marshal(FromUnixNano(-17))
	if err != nil || string(text) != "-17" {
		t.Fatalf("%s, %v", text, err)
	}
	var decoded Time
	if err := json.Unmarshal([]byte("1795000000000000001"), &decoded); err != nil || decoded != FromUnixNano(1795000000000000001) {
		t.Fatalf("%v, %v", decoded, err)
	}
	if err := json.Unmarshal([]byte(`"now"`), &decoded); err == nil {
		t.Error("text was read as a time")
	}
}
