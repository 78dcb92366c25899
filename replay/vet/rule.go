package vet

// A rule is something that orchestration code must not do.
type rule struct {
	name string // the category of its diagnostics
	cure string // what to do instead
	// Whether it is broken by calling a function that does it, too. What is not
	// carried is bad style in orchestration code and harmless in a function that
	// makes no durable calls: a lock that is released before the function returns.
	carried bool
}

const (
	useState  = "keep it in a variable of the orchestration, in its input or in an activity"
	useSorted = "sort it first, as slices.Sorted(maps.Keys(m)) does"
)

var (
	clock      = &rule{"clock", "use ctx.Now(), which is the same on every replay", true}
	zone       = &rule{"zone", "name the time zone; each node has its own", true}
	pause      = &rule{"timer", "use ctx.Sleep or ctx.Timer, which survive the node", true}
	random     = &rule{"random", "use ctx.Random() or ctx.UUID(), or replay.Once for a secret", true}
	goroutine  = &rule{"goroutine", "use replay.Go or replay.Map, which run coroutines in a fixed order", true}
	channel    = &rule{"channel", "use futures with replay.Next or replay.Race, or an event", true}
	lock       = &rule{"sync", "coroutines run one at a time and need no locks; replay.NewSemaphore is for stretches that block", false}
	wait       = &rule{"sync", "use replay.Go and await the futures, with replay.All for example", true}
	foreign    = &rule{"context", "use the *replay.Context; replay.WithTimeout and replay.WithCancel bound what is done in it", false}
	outside    = &rule{"io", "do it in an activity", true}
	machine    = &rule{"env", "pass it in the input, or record it with replay.Once", true}
	printing   = &rule{"print", "use ctx.Log(), which is silent on replay", false}
	exit       = &rule{"exit", "return an error, which fails this instance alone", true}
	global     = &rule{"global", "state of the process is another one on replay; " + useState, true}
	shared     = &rule{"shared", "other instances share it and replays repeat it; " + useState, false}
	sharedRead = &rule{"shared", shared.cure, false}
	mapOrder   = &rule{"maporder", "the order of a map differs on replay; " + useSorted, false}
	unawaited  = &rule{"future", "await it, or give it up with Cancel", false}
	deferred   = &rule{"defer", "deferred functions run also when the instance leaves memory, and there it does nothing; use ctx.OnClose or replay.NewSaga", false}
	captured   = &rule{"capture", "use the *replay.Context that this function is given", false}
	once       = &rule{"once", "on replay the function is not called; return the value, and make durable calls outside of it", false}
	query      = &rule{"query", "it only reads, between turns; what changes the instance is an update or an event", false}
	replaying  = &rule{"replaying", "code that decides by ctx.Replaying() breaks its own history; it is for logs and metrics", false}
	unreasoned = &rule{"allow", "say why: //tenuto:allow reason", false}
)

// What follows is no offence by itself, only in some places.
var (
	// durable calls do nothing when the instance is dropped.
	durable = &rule{name: "durable", carried: true}
	// ordered calls change what comes after them, so that their order matters.
	ordered = &rule{name: "ordered", carried: true}
	// unordered is what comes in the order of a map.
	unordered = &rule{name: "unordered", carried: true}
)

// byName finds the rules that facts carry.
var byName = func() map[string]*rule {
	rules := make(map[string]*rule)
	for _, r := range []*rule{clock, zone, pause, random, goroutine, channel, wait, outside, machine, exit, global, durable, ordered, unordered} {
		rules[r.name] = r
	}
	return rules
}()
