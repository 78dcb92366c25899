// Package vet finds, before anything runs, what makes orchestrations disagree
// with their history: an analyzer for go vet, golangci-lint and whatever else
// takes a [golang.org/x/tools/go/analysis.Analyzer].
//
//	go install github.com/tenuto-dev/tenuto/cmd/tenuto-vet@latest
//	go vet -vettool=$(which tenuto-vet) ./...
//
// Package plugin, beside this one, brings it into golangci-lint.
//
// Orchestration code is every function with a parameter of type *replay.Context:
// bodies that are bound, what they call with it, literals given to replay.Go,
// Map, OnClose and the like. Functions without one are judged by what they do
// where orchestration code calls or names them, in every package of the module;
// the diagnostic shows the way there:
//
//	shop.go:12:9: calls price, which calls time.Now (price.go:7): use ctx.Now(), which is the same on every replay
//
// Activities are free to do what they like, and so is what replay.Once calls.
//
// # Rules
//
// The rules marked * are broken by calling a function that breaks them, too.
//
//	rule         bad                                        good
//	clock *      time.Now(), time.Since(t)                  ctx.Now(), ctx.Now().Sub(t)
//	zone *       ctx.Now().Local(), time.Local              ctx.Now().In(zone), with the zone in the input
//	timer *      time.Sleep(d), time.After(d)               ctx.Sleep(d), ctx.Timer(d)
//	random *     rand.IntN(6), uuid.New()                   ctx.Random().IntN(6), ctx.UUID(), replay.Once for a secret
//	goroutine *  go f(), group.Go(f)                        replay.Go(ctx, f), replay.Map(ctx, limit, inputs, f)
//	channel *    <-c, c <- v, close(c), select              future.Await(ctx), replay.Next, replay.Race, an event
//	sync *       mu.Lock(), group.Wait() (* this alone)     nothing, replay.NewSemaphore(1), replay.All(ctx, futures...)
//	context      context.Background(), an outer ctx         replay.WithTimeout(ctx, d), replay.WithCancel(ctx)
//	io *         os.ReadFile, http.Get, db.Query            an activity
//	env *        os.Getenv, os.Args, runtime.NumCPU()       the input, or replay.Once(ctx, "width", width)
//	print        fmt.Println, log.Print, slog.Info          ctx.Log().Info
//	exit *       os.Exit, log.Fatal, runtime.Goexit         return err
//	global *     count++ of a package variable, or          a variable of the orchestration, its input, an activity
//	             reading one that changes after init
//	shared       total++ of a variable around the           the same
//	             orchestration, b.count++ of the receiver
//	             of a bound method, a semaphore or future
//	             of the process
//	maporder     for k := range m { Pay.Call(ctx, k) }      for _, k := range slices.Sorted(maps.Keys(m)) { … }
//	             Ship.Call(ctx, keysOf(m)), unsorted        keys := keysOf(m); slices.Sort(keys)
//	future       Pay.Start(ctx, in), and no more            future.Await(ctx), future.Cancel(ctx), replay.All
//	defer        defer Refund.Call(ctx, in)                 ctx.OnClose(…), replay.NewSaga(ctx).Compensate(ctx, …)
//	capture      replay.Go(ctx, func(c *replay.Context)     Pay.Call(c, in)
//	             … { Pay.Call(ctx, in) })
//	once         replay.Once(ctx, "x", func() … { x = 1 })  x, err := replay.Once(…)
//	query        a query or validation that writes,         an update, an event
//	             or makes durable calls
//	replaying    if !ctx.Replaying() { Pay.Call(ctx, in) }  replay.Patched, for other code than before
//	allow        //tenuto:allow                             //tenuto:allow only shown to people
//
// A coroutine that is to go on by itself is started with "_ = replay.Go(…)", a
// child that is to outlive its parent with replay.OnParentClose(AbandonChild).
// The rule "future" takes both for meant.
//
// # Silencing
//
// A comment with a reason silences what is reported on its line, or, when it
// stands alone, on the line below it. On the line of the offence in a function
// that orchestrations call it silences the offence for all of them.
//
//	started := time.Now() //tenuto:allow only shown to people
//
// Tests may write to and read variables around their orchestrations, to watch
// them.
//
// # Limits
//
// The analyzer reports what it knows to be wrong and lets pass what it cannot
// see. It does not see what is called through interfaces, function values
// (except package variables that begin as a function, "var now = time.Now") and
// reflection; what other modules do, of which it knows only a list, as of the
// standard library; package variables that another package changes; what is
// changed through pointers and methods; a *replay.Context or an order of a map
// that is stored in a structure first; of a range over a map, that the last
// assignment wins ("for k := range m { chosen = k }"); a parameter of a type
// that is only by its constraint a map ("M ~map[K]V"); and where a body is bound
// in another package than the one that declares it, what its receiver keeps, and
// a result that the order of a map has made. And no analyzer sees that code was
// changed under running instances: replaytest.Replay does, over their histories.
package vet
