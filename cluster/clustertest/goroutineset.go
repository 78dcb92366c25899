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

// A goroutineSet is all goroutines that one cluster has started, directly or indirectly. They have
// a profiler label, which a goroutine inherits from the one that starts it. So each cluster finds
// only its own goroutines when tests run in parallel.
type goroutineSet struct{ label string }

const goroutineLabelKey = "tenuto-clustertest"

var goroutineSets atomic.Uint64

func newGoroutineSet() goroutineSet { return goroutineSet{fmt.Sprint(goroutineSets.Add(1))} }

// run runs a function in a goroutine of the set, and waits for it.
func (g goroutineSet) run(what func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		pprof.Do(context.Background(), pprof.Labels(goroutineLabelKey, g.label), func(context.Context) { what() })
	}()
	<-done
}

// leakTimeout is how long goroutines may take to end after everything is closed. On a busy machine
// they may have to wait for a processor.
const leakTimeout = 10 * time.Second

// leaked returns the stacks of the goroutines that are left after timeout, "" if there are none.
func (g goroutineSet) leaked(timeout time.Duration) string {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for limit := time.Now().Add(timeout); ; <-ticker.C {
		leaked := g.stacks()
		if leaked == "" || time.Now().After(limit) {
			return leaked
		}
	}
}

// pooledConnFunctions are the functions of goroutines that an HTTP client starts for a connection.
// It keeps the connection for its next call, so they do not count as leaked.
var pooledConnFunctions = []string{
	"net/http.(*persistConn).readLoop",
	"net/http.(*persistConn).writeLoop",
	"http2ClientConn).readLoop",
	"http2.(*ClientConn).readLoop",
}

// stacks returns the stacks of the set, equal ones once with their number.
func (g goroutineSet) stacks() string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return err.Error()
	}
	labelText := fmt.Sprintf("%q:%q", goroutineLabelKey, g.label)
	var matching []string
	for stackBlock := range strings.SplitSeq(profile.String(), "\n\n") {
		isPooled := slices.ContainsFunc(pooledConnFunctions, func(function string) bool { return strings.Contains(stackBlock, function+"+") })
		if strings.Contains(stackBlock, labelText) && !isPooled {
			matching = append(matching, stackBlock)
		}
	}
	return strings.Join(matching, "\n\n")
}
