package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

const whichOperation = `
The operation is the only open one of its kind, or the one that -event or -name selects; "tenuto
pending" lists them.`

var operationCommands = []command{
	{"retry", "ID...", "retry stalled instances, and begin the next attempts of activities that back off", 0, -1, instanceIDs, true, retry, `
A stalled instance, or one that waits for code, tries again. In any other, the activities that back
off begin their next attempts now; -event or -name selects some of them.`},
	{"hold", "ID...", "keep an activity from beginning attempts, or a timer from firing", 0, -1, instanceIDs, true, operationCommand(confirmNever, activities|timers, operate.Hold), whichOperation},
	{"release", "ID...", "end a hold", 0, -1, instanceIDs, true, operationCommand(confirmNever, held, operate.Release), whichOperation},
	{"fire", "ID...", "make a timer fire before it is due", 0, -1, instanceIDs, true, operationCommand(confirmSeveral, timers, operate.FireNow), whichOperation},
	{"adjust", "ID...", "change the timeouts or the retry policy of an open activity", 0, -1, instanceIDs, true, adjust, whichOperation + `
-attempts, -initial-interval, -backoff and -max-interval together replace the retry policy: what is
not given gets its default.`},
	{"complete", "ID VALUE", "end an activity, a child or a wait for an event with a result", 1, 2, instanceIDs, true, complete, whichOperation + `
VALUE is JSON like the input of start. ID may be -, for IDs on the standard input. With -token, the
only argument is VALUE: the token names an attempt that is completed from outside.`},
	{"fail", "ID...", "end an activity or a child with an error, without further attempts", 0, -1, instanceIDs, true, fail, whichOperation + `
With -token there are no IDs: the token names an attempt that is completed from outside, and the
retry policy decides whether there is another.`},
	{"activity pause", "NAME...", "begin no attempts of activities in the whole cluster", 1, -1, noNames, true, activityCommand(operate.PauseActivity, true), ""},
	{"activity resume", "NAME...", "end the pause of activities", 1, -1, noNames, true, activityCommand(operate.ResumeActivity, false), ""},
	{"activity list", "", "list the paused activities", 0, 0, noNames, false, listPauses, ""},
}

// operationKinds are kinds of open operations.
type operationKinds int

const (
	activities operationKinds = 1 << iota
	timers
	children
	subscriptions
	held       // activities and timers that are held
	backingOff // activities whose next attempt is due later
)

// includes reports whether an action on these kinds applies to an operation.
func (k operationKinds) includes(o *cluster.OpenOperation) bool {
	isActivity, isTimer := o.EventType == string(history.ActivityScheduled), o.EventType == string(history.TimerCreated)
	switch {
	case k&held != 0:
		return o.Held
	case k&backingOff != 0:
		return isActivity && o.State == cluster.ActivityBackingOff
	case isActivity:
		return k&activities != 0
	case isTimer:
		return k&timers != 0
	case o.EventType == string(history.SubOrchestrationScheduled):
		return k&children != 0
	case o.EventType == string(history.ExternalSubscribed):
		return k&subscriptions != 0
	}
	return false
}

func (k operationKinds) String() string {
	var names []string
	for i, name := range []string{"activity", "timer", "child", "wait for an event", "operation that is held", "activity that backs off"} {
		if k&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// A target holds the flags that select operations of an instance.
type target struct {
	event, execution uint64
	name             string
	all              bool
	kinds            operationKinds
}

func targetFlags(flags *flag.FlagSet, kinds operationKinds) *target {
	t := &target{kinds: kinds}
	flags.Uint64Var(&t.event, "event", 0, "the operation that the event with this `number` scheduled")
	flags.Uint64Var(&t.execution, "execution", 0, "`number` of the execution that -event counts in (default the latest)")
	flags.StringVar(&t.name, "name", "", "operations of the activity, event or orchestration `NAME`")
	if kinds == backingOff {
		t.all = true
	} else {
		flags.BoolVar(&t.all, "all", false, "all operations to which this applies")
	}
	return t
}

// find returns the selected operations of an instance.
func (t *target) find(ctx context.Context, s *session, verb, id string) ([]*cluster.OpenOperation, error) {
	if t.execution > 0 && t.event == 0 {
		return nil, &usageError{"-execution is for -event"}
	}
	open, err := s.Pending(ctx, id)
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(slices.Clone(open), func(o *cluster.OpenOperation) bool {
		if t.event > 0 {
			return o.EventID != t.event || t.execution > 0 && o.Execution != t.execution
		}
		return !t.kinds.includes(o) || t.name != "" && o.Name != t.name
	})
	switch {
	case t.event > 0 && len(found) == 0:
		return nil, &noOperationError{fmt.Sprintf("%s %s: event %d schedules no open operation", verb, id, t.event)}
	case len(found) == 0:
		return nil, &noOperationError{fmt.Sprintf("%s %s: no open %s%s", verb, id, t.kinds, ofName(t.name))}
	case len(found) > 1 && !t.all:
		var events []string
		for _, o := range found {
			events = append(events, fmt.Sprintf("%d (%s)", o.EventID, strings.TrimSpace(o.EventType+" "+o.Name)))
		}
		return nil, fmt.Errorf("%s %s: more than one operation: use -event with one of %s; or -all", verb, id, strings.Join(events, ", "))
	}
	return found, nil
}

// A noOperationError reports that an instance has no operation to act on.
type noOperationError struct{ reason string }

func (e *noOperationError) Error() string { return e.reason }
func (e *noOperationError) Unwrap() error { return operate.ErrUnknownOperation }

func ofName(name string) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" %q", name)
}

// An operator acts on an operation.
type operator func(ctx context.Context, client *cluster.Client, op operate.Operation, reason string) error

// onOperations makes a changer of a function that acts on the selected operations.
func (c *change) onOperations(s *session, t *target, reason string, do operator) changer {
	return func(ctx context.Context, id string) ([]changed, error) {
		found, err := t.find(ctx, s, c.verb, id)
		if err != nil {
			return nil, err
		}
		var results []changed
		var failed []error
		for _, o := range found {
			if !c.dryRun {
				op := operate.Operation{InstanceID: id, Execution: o.Execution, EventID: o.EventID}
				err = do(ctx, s.Client, op, reason)
			} else if !t.kinds.includes(o) {
				err = fmt.Errorf("%s %d of %s: %s is no %s", c.verb, o.EventID, id, o.EventType, t.kinds)
			}
			if err != nil {
				failed = append(failed, err)
				continue
			}
			results = append(results, changed{ID: id, EventID: o.EventID, Name: o.Name, detail: string(o.State)})
		}
		return results, errors.Join(failed...)
	}
}

// operationCommand makes a command of a function that acts on operations.
func operationCommand(confirm confirmation, kinds operationKinds, do operator) func(*flag.FlagSet) action {
	return func(flags *flag.FlagSet) action {
		t, reason, c := targetFlags(flags, kinds), reasonFlag(flags), changeFlags(flags, confirm)
		usage := &usage{flags.Name(), "ID..."}
		return withSession(flags, func(ctx context.Context, s *session, args []string) error {
			ids, err := readIDs(usage, s.streams, args)
			if err != nil {
				return err
			}
			return c.run(ctx, s, ids, c.onOperations(s, t, *reason, do))
		})
	}
}

// retry retries a stalled instance, or the activities of another one.
func retry(flags *flag.FlagSet) action {
	t, reason, c := targetFlags(flags, backingOff), reasonFlag(flags), changeFlags(flags, confirmNever)
	usage := &usage{"retry", "ID..."}
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		ids, err := readIDs(usage, s.streams, args)
		if err != nil {
			return err
		}
		onActivities := c.onOperations(s, t, *reason, operate.RetryNow)
		return c.run(ctx, s, ids, func(ctx context.Context, id string) ([]changed, error) {
			status, err := s.Get(ctx, id)
			if err != nil {
				return nil, err
			}
			switch stuck := status.State == cluster.Stalled || status.State == cluster.WaitingForCode; {
			case c.dryRun && stuck:
				return []changed{{ID: id, State: status.State}}, nil
			case stuck, status.Ended():
				return single(changed{ID: id}, s.Retry(ctx, id))
			}
			return onActivities(ctx, id)
		})
	})
}

// adjustFlags declares the flags for adjustments. The result returns the options that were given.
func adjustFlags(flags *flag.FlagSet) func() []replay.Option {
	scheduleToStart := flags.Duration("schedule-to-start", 0, "`timeout` until an attempt begins")
	startToClose := flags.Duration("start-to-close", 0, "`timeout` of each attempt")
	scheduleToClose := flags.Duration("schedule-to-close", 0, "`timeout` of the whole activity")
	heartbeat := flags.Duration("heartbeat", 0, "`timeout` between heartbeats")
	grace := flags.Duration("cancel-grace", 0, "`duration` in which an attempt may clean up")
	var policy replay.RetryPolicy
	flags.IntVar(&policy.MaxAttempts, "attempts", 0, "the maximum `number` of attempts (default without limit)")
	flags.DurationVar(&policy.InitialInterval, "initial-interval", 0, "`backoff` after the first attempt (default 1s)")
	flags.Float64Var(&policy.Backoff, "backoff", 0, "`factor` by which the backoff grows (default 2)")
	flags.DurationVar(&policy.MaxInterval, "max-interval", 0, "the longest `backoff` (default 100s)")
	return func() (options []replay.Option) {
		option := map[string]func() replay.Option{
			"schedule-to-start": func() replay.Option { return replay.ScheduleToStart(*scheduleToStart) },
			"start-to-close":    func() replay.Option { return replay.StartToClose(*startToClose) },
			"schedule-to-close": func() replay.Option { return replay.ScheduleToClose(*scheduleToClose) },
			"heartbeat":         func() replay.Option { return replay.HeartbeatTimeout(*heartbeat) },
			"cancel-grace":      func() replay.Option { return replay.CancelGrace(*grace) },
		}
		ofPolicy := false
		flags.Visit(func(f *flag.Flag) {
			if make := option[f.Name]; make != nil {
				options = append(options, make())
			}
			ofPolicy = ofPolicy || slices.Contains([]string{"attempts", "initial-interval", "backoff", "max-interval"}, f.Name)
		})
		if ofPolicy {
			options = append(options, replay.Retry(policy))
		}
		return options
	}
}

func adjust(flags *flag.FlagSet) action {
	optionsOf := adjustFlags(flags)
	t, reason, c := targetFlags(flags, activities), reasonFlag(flags), changeFlags(flags, confirmNever)
	usage := &usage{"adjust", "ID..."}
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		options := optionsOf()
		if len(options) == 0 {
			return &usageError{"adjust needs a timeout or a part of the retry policy; see tenuto adjust -h"}
		}
		ids, err := readIDs(usage, s.streams, args)
		if err != nil {
			return err
		}
		return c.run(ctx, s, ids, c.onOperations(s, t, *reason, func(ctx context.Context, client *cluster.Client, op operate.Operation, reason string) error {
			return operate.Adjust(ctx, client, op, reason, options...)
		}))
	})
}

func complete(flags *flag.FlagSet) action {
	t, reason, c := targetFlags(flags, activities|children|subscriptions), reasonFlag(flags), changeFlags(flags, confirmSeveral)
	token := flags.String("token", "", "`token` of the attempt, as its code has handed it out")
	usage := &usage{"complete", "ID VALUE"}
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		if (*token == "") != (len(args) == 2) {
			return usage.error()
		}
		value, err := readValue(s.streams, "value", args[len(args)-1])
		if err != nil {
			return err
		}
		if *token != "" {
			return c.byToken(ctx, s, func(ctx context.Context) error {
				return cluster.CompleteActivity(ctx, s.Client, *token, value)
			})
		}
		ids, err := readIDs(usage, s.streams, args[:1])
		if err != nil {
			return err
		}
		return c.run(ctx, s, ids, c.onOperations(s, t, *reason, func(ctx context.Context, client *cluster.Client, op operate.Operation, reason string) error {
			return operate.Complete(ctx, client, op, value, reason)
		}))
	})
}

func fail(flags *flag.FlagSet) action {
	t, reason, c := targetFlags(flags, activities|children), reasonFlag(flags), changeFlags(flags, confirmSeveral)
	token := flags.String("token", "", "`token` of the attempt, as its code has handed it out")
	message := flags.String("message", "", "`text` of the error; required")
	code := flags.String("code", "", "`code` of the error, by which the code of the instance recognizes it")
	nonRetryable := flags.Bool("non-retryable", false, "with -token: there is no further attempt")
	usage := &usage{"fail", "ID..."}
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		if *message == "" {
			return &usageError{"fail needs -message; see tenuto fail -h"}
		}
		failure := errors.New(*message)
		if *code != "" {
			failure = replay.NewError(*code, *message)
		}
		if *token != "" {
			if len(args) > 0 {
				return &usageError{"-token takes no ID"}
			}
			if *nonRetryable {
				failure = replay.NonRetryable(failure)
			}
			return c.byToken(ctx, s, func(ctx context.Context) error {
				return cluster.FailActivity(ctx, s.Client, *token, failure)
			})
		}
		ids, err := readIDs(usage, s.streams, args)
		if err != nil {
			return err
		}
		return c.run(ctx, s, ids, c.onOperations(s, t, *reason, func(ctx context.Context, client *cluster.Client, op operate.Operation, reason string) error {
			return operate.Fail(ctx, client, op, failure, reason)
		}))
	})
}

// byToken ends an attempt that is completed from outside.
func (c *change) byToken(ctx context.Context, s *session, do func(ctx context.Context) error) error {
	if c.dryRun {
		return &usageError{"-dry-run does not work with -token: only the end of the attempt shows whether the token is valid"}
	}
	ctx, cancel := s.limited(ctx)
	defer cancel()
	return do(ctx)
}
