package usercode

import (
	"bytes"
	"fmt"
	"runtime/pprof"
	"strconv"
	"strings"
)

// label is the profiler label of goroutines that run code of an instance. It identifies their
// stacks here and in the application's profiles.
const label = "tenuto.instance"

// codeStacks returns the stacks of running and blocked code, by instance. It reads the goroutine
// profile, which does not stop the process for long.
func codeStacks(actorFunction string) map[string]string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return nil
	}
	stacks, actorStacks := make(map[string]string), make(map[string]string)
	for _, record := range strings.Split(profile.String(), "\n\n") {
		id, stack := labeledStack(record)
		switch {
		case id == "" || isParked(stack):
		case strings.Contains(stack, actorFunction+"\n"):
			actorStacks[id] += stack // the actor itself: it waits for the code, or runs a codec
		default:
			stacks[id] += stack
		}
	}
	for id, stack := range actorStacks {
		if stacks[id] == "" {
			stacks[id] = stack
		}
	}
	return stacks
}

// isParked reports whether a coroutine waits in a durable call. An ended coroutine that still runs
// deferred functions does not wait.
func isParked(stack string) bool {
	return strings.Contains(stack, ".(*coroutine).park\n") && !strings.Contains(stack, "runtime.Goexit\n")
}

// labeledStack reads one record of the goroutine profile. It returns the instance that its label
// names, "" without one, and the stack as panics print it.
func labeledStack(record string) (id, stack string) {
	var b strings.Builder
	for _, line := range strings.Split(record, "\n") {
		if labels, ok := strings.CutPrefix(line, "# labels: "); ok {
			_, value, _ := strings.Cut(labels, strconv.Quote(label)+":")
			if quoted, err := strconv.QuotedPrefix(value); err == nil {
				id, _ = strconv.Unquote(quoted)
			}
			continue
		}
		fields := strings.Split(strings.TrimPrefix(line, "#"), "\t")
		if strings.HasPrefix(line, "#\t") && len(fields) >= 4 {
			function, _, _ := strings.Cut(fields[2], "+0x")
			fmt.Fprintf(&b, "%s\n\t%s\n", function, fields[len(fields)-1])
		}
	}
	return id, b.String()
}
