// Package vet finds code that makes orchestrations disagree with their history, before it
// runs. It is an analyzer for go vet, golangci-lint and every other driver of a
// [golang.org/x/tools/go/analysis.Analyzer].
//
//	go install github.com/tenuto-dev/tenuto/replay/vet/cmd/tenuto-vet@latest
//	go vet -vettool=$(which tenuto-vet) ./...
//
// Package plugin adds it to golangci-lint.
//
// Orchestration code is every function with a parameter of type *replay.Context: bound bodies, what
// they call with it, and literals passed to replay.Go, Map, OnClose and so on. If orchestration
// code calls or names another function of the module, the analyzer reports what that function does.
// The diagnostic shows the path:
//
//	shop.go:12:9: calls price, which calls time.Now (price.go:7): use ctx.Now(), which …
//
// Activities may do anything, and so may functions that replay.SideEffect calls.
//
// # Rules
//
// A call of a function that breaks a rule marked * also breaks that rule.
//
//	rule         bad                                        good
//	clock *      time.Now(), time.Since(t)                  ctx.Now(), ctx.Now().Sub(t)
//	zone *       ctx.Now().Local(), time.Local,             time.UTC, time.FixedZone(name, offset),
//	             time.LoadLocation(name)                    an activity
//	timer *      time.Sleep(d), time.After(d)               ctx.Sleep(d), ctx.Timer(d)
//	random *     rand.IntN(6), uuid.New()                   ctx.Random().IntN(6), ctx.UUID(),
//	                                                        replay.SideEffect for a secret
//	goroutine *  go f(), group.Go(f)                        replay.Go(ctx, f),
//	                                                        replay.Map(ctx, limit, inputs, f)
//	channel *    <-c, c <- v, close(c), select              future.Await(ctx), replay.Next,
//	                                                        replay.Race, an event
//	sync *       mu.Lock(), group.Wait() (* this alone)     nothing, replay.NewSemaphore(1),
//	                                                        replay.All(ctx, futures...)
//	context      context.Background(), an outer ctx         replay.WithTimeout(ctx, d),
//	                                                        replay.WithCancel(ctx)
//	io *         os.ReadFile, http.Get, db.Query            an activity
//	cluster *    cluster.Send, cluster.Call, client.Get     an activity, or Buy.Call, Buy.Start and
//	                                                        Buy.Chain of a handle
//	env *        os.Getenv, os.Args, runtime.NumCPU()       the input, or
//	                                                        replay.SideEffect(ctx, "width", width)
//	print        fmt.Println, log.Print, slog.Info          ctx.Log().Info
//	exit *       os.Exit, log.Fatal, runtime.Goexit         return err
//	global *     count++ of a package variable, or          a variable of the orchestration, its
//	             reading one that changes after init        input, an activity
//	shared       total++ of a variable around the           the same
//	             orchestration, b.count++ of the receiver
//	             of a bound method, a semaphore or future
//	             of the process
//	maporder     for k := range m { Pay.Call(ctx, k) }      keys := slices.Sorted(maps.Keys(m))
//	                                                        for _, k := range keys { … }
//	             Ship.Call(ctx, keysOf(m)), unsorted        keys := keysOf(m); slices.Sort(keys)
//	future       Pay.Start(ctx, in), and no more            future.Await(ctx), future.Cancel(ctx),
//	                                                        replay.All
//	error        ctx.Sleep(d), _, _ = Pay.Call(ctx, in)     if err := ctx.Sleep(d); err != nil { … }
//	continue     Buy.ContinueAsNew(ctx, in)                 return out, Buy.ContinueAsNew(ctx, in)
//	             return out, nil
//	defer        defer Refund.Call(ctx, in)                 ctx.OnClose(…),
//	                                                        replay.NewSaga(ctx).Compensate(ctx, …)
//	capture      replay.Go(ctx, func(c *replay.Context)     Pay.Call(c, in)
//	             … { Pay.Call(ctx, in) })
//	once         replay.SideEffect(ctx, "x",                x, err := replay.SideEffect(…)
//	             func() … { x = 1 })
//	query        a query or validation that writes,         an update, an event
//	             or makes durable calls
//	replaying    if !ctx.Replaying() { Pay.Call(ctx, in) }  replay.Patched, for changed code
//	allow        //tenuto:allow                             //tenuto:allow only shown to people
//
// The rule "future" accepts two ways to ignore a future: "_ = replay.Go(…)" for a coroutine
// that continues by itself, and replay.OnParentClose(AbandonChild) for a child that outlives
// its parent.
//
// The rule "error" is about waits: Call, Wait, WaitFor, SendTo, CancelInstance, Sleep, Await,
// AwaitFor, All, AllResults, AwaitUpdates, Map, Next, Race, Send, Receive and Acquire. Code that
// ignores their errors, with "_" or without, continues after a cancel. The rule accepts waits that
// a cancel does not reach, which are those in clean-up and with replay.WithoutCancel, and awaits of
// a future that the function has canceled. It does not look at what happens to an error in a
// variable.
//
// The rule "continue" is also about functions that return what ContinueAsNew returns. It accepts an
// error that may leave the function in any way, but not one that is only compared or logged.
//
// # Interfaces and function values
//
// The analyzer follows calls through interfaces and function values to what the package assigns: to
// variables, fields, elements, results and parameters, in whatever order. The diagnostic says "may
// call". These values do not count:
//
//   - those that tests assign;
//   - those that other code assigns to the same variable, if orchestration code assigns some;
//   - arguments of exported functions, except in package main, and those that the body of an
//     activity passes.
//
// # Silencing
//
// A comment with a reason silences diagnostics on its line or, if it stands alone, on the
// line below. On a line of a function that orchestrations call, it silences the diagnostic
// for all of them.
//
//	started := time.Now() //tenuto:allow only shown to people
//
// Tests may read and write variables around their orchestrations.
//
// # Limits
//
// The analyzer reports only what it knows to be wrong. It does not see:
//
//   - calls through reflection, and through interfaces and function values that come from another
//     package;
//   - waits whose error a function returns, if its caller drops it;
//   - what other modules do, except those in its list, which includes the standard library;
//   - package variables that another package changes, and changes through pointers and
//     methods;
//   - a *replay.Context, or values in map order, that are first stored in a structure;
//   - that the last assignment in a range over a map wins ("for k := range m { chosen = k }");
//   - parameters whose type is a map only by its constraint ("M ~map[K]V");
//   - writes to the receiver of a body and its results in map order, if the body is bound in
//     another package than its own.
//
// No analyzer sees that code was changed under running instances. replaytest.Replay detects that,
// given their histories.
package vet
