package vet

// A rule is something that orchestration code must not do.
type rule struct {
	name   string // the category of its diagnostics
	advice string // what to do instead
	// transitive: a call of a function that breaks the rule breaks the rule, too. Violations of
	// other rules are harmless in a function without durable calls, such as a lock that it releases
	// before it returns.
	transitive bool
}

const (
	useState  = "keep it in a variable of the orchestration, in its input or in an activity"
	useSorted = "sort it first, as slices.Sorted(maps.Keys(m)) does"
)

var (
	clock         = &rule{"clock", "use ctx.Now(), which is the same on every replay", true}
	zone          = &rule{"zone", "each node has its own time zone and time zone database; use UTC or time.FixedZone, or convert in an activity", true}
	sleep         = &rule{"timer", "use ctx.Sleep or ctx.Timer, which survive the node", true}
	random        = &rule{"random", "use ctx.Random() or ctx.UUID(), or replay.SideEffect for a secret", true}
	goroutine     = &rule{"goroutine", "use replay.Go or replay.Map, which run coroutines in a fixed order", true}
	channel       = &rule{"channel", "use futures with replay.Next or replay.Race, or an event", true}
	lock          = &rule{"sync", "coroutines run one at a time and need no locks; replay.NewSemaphore is for sections that block", false}
	wait          = &rule{"sync", "use replay.Go and await the futures, with replay.All for example", true}
	goContext     = &rule{"context", "use the *replay.Context; replay.WithTimeout and replay.WithCancel bound what is done in it", false}
	externalIO    = &rule{"io", "do it in an activity", true}
	clusterCall   = &rule{"cluster", "it does I/O that is not recorded; do it in an activity, or start an instance with Call, Start or Chain of its handle", true}
	environment   = &rule{"env", "pass it in the input, or record it with replay.SideEffect", true}
	printing      = &rule{"print", "use ctx.Log(), which is silent on replay", false}
	exit          = &rule{"exit", "return an error, which fails this instance alone", true}
	global        = &rule{"global", "the state of the process differs on replay; " + useState, true}
	shared        = &rule{"shared", "other instances share it and replays repeat it; " + useState, false}
	sharedRead    = &rule{"shared", shared.advice, false}
	mapOrder      = &rule{"maporder", "the order of a map differs on replay; " + useSorted, false}
	unawaited     = &rule{"future", "await it, or cancel it with Cancel", false}
	dropped       = &rule{"continue", "return it from the orchestration, which otherwise does not continue as new", false}
	unchecked     = &rule{"error", "handle it; otherwise the code continues after a cancel or a timeout", false}
	deferred      = &rule{"defer", "deferred functions also run when the instance is evicted, where durable calls do nothing; use ctx.OnClose or replay.NewSaga", false}
	captured      = &rule{"capture", "use the *replay.Context that this function is given", false}
	sideEffect    = &rule{"once", "on replay the function is not called; return the value, and make durable calls outside the function", false}
	query         = &rule{"query", "queries only read, between turns; use an update or an event to change the instance", false}
	replaying     = &rule{"replaying", "code that depends on ctx.Replaying() contradicts its history; use it for logs and metrics only", false}
	missingReason = &rule{"allow", "say why: //tenuto:allow reason", false}
)

// The analyzer tracks these everywhere and reports them only in some places.
var (
	// durable calls do nothing while the instance is evicted.
	durable = &rule{name: "durable", transitive: true}
	// ordered calls affect later ones, so their order matters.
	ordered = &rule{name: "ordered", transitive: true}
	// unordered is a result in map order.
	unordered = &rule{name: "unordered", transitive: true}
	// continuing functions return the error of ContinueAsNew.
	continuing = &rule{name: "continuing", transitive: true}
)

// rulesByName maps the names in facts to rules.
var rulesByName = func() map[string]*rule {
	rules := make(map[string]*rule)
	for _, r := range []*rule{clock, zone, sleep, random, goroutine, channel, wait, externalIO, clusterCall, environment, exit, global,
		durable, ordered, unordered, continuing} {
		rules[r.name] = r
	}
	return rules
}()
