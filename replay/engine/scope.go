package engine

import (
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A scope is the part of the code that one cancellation affects. Each outermost scope is a phase of
// the execution: the body or the clean-up. All scopes in a phase end with it. The root scope,
// directly inside the body's phase, ends when the instance is canceled.
//
// Its exported methods are the calls of package replay; see [host.Scope].
type scope struct {
	p       *program
	parent  *scope
	cause   error  // why it ended; nil until it ends
	endedAt uint64 // number of promises resolved before it ended

	ownHeaders []*journalpb.Header // that calls in it carry; nil: those of the run
}

// newScope returns a new scope within another one, or an outermost one if parent is nil.
func (p *program) newScope(parent *scope) *scope {
	s := &scope{p: p, parent: parent}
	if parent != nil {
		s.ownHeaders = parent.ownHeaders
	}
	return s
}

// headers returns the headers that calls in the scope carry.
func (s *scope) headers() []*journalpb.Header {
	if s.ownHeaders != nil {
		return s.ownHeaders
	}
	return s.p.id.options.headers
}

// withHeaders returns a scope within s whose calls carry more headers; s itself if there are none.
// The error is a [*replay.InvalidError] if they are too many together.
func (s *scope) withHeaders(more []*journalpb.Header) (*scope, error) {
	if len(more) == 0 {
		return s, nil
	}
	inner := s.p.newScope(s)
	inner.ownHeaders = mergedHeaders(s.headers(), more)
	return inner, CheckHeaders(inner.ownHeaders)
}

func (s *scope) Header(name string) (value string, ok bool) { return headerIn(s.headers(), name) }

// endedScope returns the innermost of s and its ancestors that is marked as ended, nil if none is.
// It ended before the others, because endScope never marks a scope inside an ended one.
func (s *scope) endedScope() *scope {
	for ; s != nil; s = s.parent {
		if s.cause != nil {
			return s
		}
	}
	return nil
}

// err returns why the scope or an ancestor ended, nil if none has ended.
func (s *scope) err() error {
	if ended := s.endedScope(); ended != nil {
		return ended.cause
	}
	return nil
}

// includes reports whether the promise is resolved and, if the scope has ended, was resolved before
// that.
func (s *scope) includes(p *promise) bool {
	if p.pending() {
		return false
	}
	ended := s.endedScope()
	return ended == nil || p.resolvedSeq <= ended.endedAt
}

// within reports whether s is outer or is nested in it.
func (s *scope) within(outer *scope) bool {
	for ; s != nil; s = s.parent {
		if s == outer {
			return true
		}
	}
	return false
}

// outermost returns the scope of the phase that s belongs to.
func (s *scope) outermost() *scope {
	for s.parent != nil {
		s = s.parent
	}
	return s
}

// A cancellation holds the request to cancel the instance, and whether the code knows of it.
type cancellation struct {
	root     *scope                                  // ends when the instance is canceled
	request  *journalpb.OrchestrationCancelRequested // the first one, nil if there is none
	byParent bool                                    // the parent has asked, in this or an earlier execution
	observed bool                                    // an await or Context.Err has returned it to the code
}

// restore takes what an earlier execution has recorded.
func (c *cancellation) restore(started *journalpb.OrchestrationStarted) {
	c.request, c.byParent = started.CancelRequested, started.CanceledByParent
}

// add adds a recorded request.
func (c *cancellation) add(request *journalpb.OrchestrationCancelRequested) {
	c.byParent = c.byParent || request.ByParent
	if c.request == nil {
		c.request = request
	}
}

// includes reports whether a request would change nothing. The parent's is recorded even after
// other requests, so that the next leader finds it in the history.
func (c *cancellation) includes(request *journalpb.OrchestrationCancelRequested) bool {
	if request.GetByParent() {
		return c.byParent
	}
	return c.request != nil
}

// observe records that the code has got the cancellation of the instance, if err is that
// cancellation. Code gets it only from an await or from Context.Err. observe returns err.
func (c *cancellation) observe(err error) error {
	if err != nil && err == c.root.cause {
		c.observed = true
	}
	return err
}

// carryOver sets what the next execution needs. A request that the code has observed is not carried
// over: the code chose to continue.
func (c *cancellation) carryOver(started *journalpb.OrchestrationStarted) {
	started.CanceledByParent = c.byParent
	if c.request != nil && !c.observed {
		started.CancelRequested = &journalpb.OrchestrationCancelRequested{Reason: c.request.Reason}
	}
}

// cancel ends the root scope for a request to cancel the instance.
func (p *program) cancel(reason string) {
	p.operations.endScope(p.cancellation.root, p.id.canceledError(reason))
}

func (s *scope) Execution() host.Execution { return (*programView)(s.p) }

func (s *scope) Nested() host.Scope { return s.p.newScope(s) }

func (s *scope) Shielded() host.Scope {
	shielded := s.p.newScope(s.outermost())
	shielded.ownHeaders = s.ownHeaders
	return shielded
}

func (s *scope) End(cause error) { s.p.operations.endScope(s, cause) }

func (s *scope) Cause() error { return s.err() }

func (s *scope) Observe(err error) error { return s.p.cancellation.observe(err) }

func (s *scope) Includes(p host.Promise) bool { return s.includes(p.(*promise)) }

func (s *scope) CheckFuture(what string, p host.Promise) { s.p.calls.checkOwners(what, p.(*promise)) }

func (s *scope) Cancel(p host.Promise) {
	if !s.p.coroutines.evicting() {
		s.p.cancelPromise(p.(*promise))
	}
}

func (s *scope) Await(p host.Promise, into any) (value any, err error) {
	q := p.(*promise)
	if q.owner == &s.p.id.ID && !q.pending() && !s.p.coroutines.evicting() {
		s.p.calls.current("Await")
		return s.p.result(q, into)
	}
	if err := s.p.await(s, q); err != nil {
		return nil, err
	}
	return s.p.result(q, into)
}

func (s *scope) Result(p host.Promise, into any) (value any, err error) {
	return s.p.result(p.(*promise), into)
}

func (s *scope) Wait(p host.Promise) error { return s.p.park(s, p.(*promise)) }

func (s *scope) WaitAny(promises []host.Promise) error {
	var few [4]*promise
	list := few[:0]
	for _, p := range promises {
		list = append(list, p.(*promise))
	}
	return s.p.park(s, list...)
}

func (s *scope) Go(fn func(inner host.Scope) (any, error)) *host.Future {
	p := s.p
	p.calls.current("Go")
	if p.coroutines.evicting() {
		return p.resolvedFuture(replay.ErrEvicting)
	}
	if s.outermost() != p.phase {
		return p.resolvedFuture(replay.ErrCanceled)
	}
	if fn == nil {
		return p.resolvedFuture(&replay.InvalidError{Field: "function of Go", Reason: "is nil"})
	}
	inner := p.newScope(s)
	result := &promise{coroutineScope: inner, owner: &p.id.ID}
	c := p.coroutines.spawn(inner, func() {
		value, err := fn(inner)
		if !p.coroutines.evicting() {
			result.value = value
			p.coroutines.resolveErr(result, err)
		}
	})
	c.future = result
	return result.newFuture()
}
