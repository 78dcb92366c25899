package replay

// A scope is the stretch of code that one cancellation reaches. The root scope
// is that of the instance.
type scope struct {
	parent *scope
	cause  error // why it ended; nil while it has not
}

// err returns why the scope, or one around it, ended.
func (s *scope) err() error {
	for ; s != nil; s = s.parent {
		if s.cause != nil {
			return s.cause
		}
	}
	return nil
}

// within tells whether s is outer or lies in it.
func (s *scope) within(outer *scope) bool {
	for ; s != nil; s = s.parent {
		if s == outer {
			return true
		}
	}
	return false
}

// cancelScope ends a scope: its open operations are given up in the order in
// which they were scheduled, and whoever waits in it gets cause.
func (x *Execution) cancelScope(s *scope, cause error) {
	if s.err() != nil {
		return
	}
	s.cause = cause
	for _, op := range x.unfinished() {
		if op.scope.within(s) {
			x.giveUp(op, cause)
		}
	}
	for _, c := range x.coroutines.all {
		if c.waiting != nil && c.waiting.scope.within(s) {
			x.wakeUp(c, cause)
		}
	}
}
