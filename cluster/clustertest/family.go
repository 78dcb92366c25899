package clustertest

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// A family is all the goroutines that descend from one cluster, told apart by
// their profiler label, which a goroutine inherits from the one that starts it. So
// clusters in parallel tests, and whatever else runs, do not get in each other's
// way.
type family struct{ label string }

const familyKey = "tenuto-clustertest"

var families atomic.Uint64

func newFamily() family { return family{fmt.Sprint(families.Add(1))} }

// do has a function run by a goroutine of the family, and waits for it.
func (f family) do(what func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		pprof.Do(context.Background(), pprof.Labels(familyKey, f.label), func(context.Context) { what() })
	}()
	<-done
}

// leavePatience is how long goroutines may take to end when all is closed: they
// have been told, and may wait for a processor.
const leavePatience = 10 * time.Second

// left returns the stacks of the goroutines that are still there when that time is
// over, "" if there are none.
func (f family) left(patience time.Duration) string {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for limit := time.Now().Add(patience); ; <-ticker.C {
		left := f.stacks()
		if left == "" || time.Now().After(limit) {
			return left
		}
	}
}

// pooled are the functions of goroutines that an HTTP client starts for a connection. It keeps
// the connection for the next call, whoever makes that, so they belong to no attempt.
var pooled = []string{
	"net/http.(*persistConn).readLoop",
	"net/http.(*persistConn).writeLoop",
	"http2ClientConn).readLoop",
	"http2.(*ClientConn).readLoop",
}

// stacks returns those of the family, equal ones once, with their number.
func (f family) stacks() string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return err.Error()
	}
	mark := fmt.Sprintf("%q:%q", familyKey, f.label)
	var ours []string
	for group := range strings.SplitSeq(profile.String(), "\n\n") {
		isPooled := slices.ContainsFunc(pooled, func(function string) bool { return strings.Contains(group, function+"+") })
		if strings.Contains(group, mark) && !isPooled {
			ours = append(ours, group)
		}
	}
	return strings.Join(ours, "\n\n")
}
