package telemetry

import (
	"strings"
	"testing"
)

func TestTraceparent_RoundTrips(t *testing.T) {
	const text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	if got := FormatTrace(parseTrace(text)); got != text || len(text) != TraceMax {
		t.Errorf("got %q", got)
	}
	for _, bad := range []string{"", "x", text[:54], strings.ToUpper(text), "00" + strings.Repeat("-0", 20)} {
		if parseTrace(bad).IsValid() {
			t.Errorf("%q is taken for a traceparent", bad)
		}
	}
}
