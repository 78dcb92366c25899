package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

const (
	// leadershipInterval is how often a plan checks whether its node leads.
	leadershipInterval = 500 * time.Millisecond
	// A failed backup is tried again after backoffMin, then after twice that, and so on.
	backoffMin = time.Second
	backoffMax = 5 * time.Minute
	// A backup that has failed incrementsTries times in sequence is made as a full one: the node
	// that has the files of the latest one may be the cause.
	incrementsTries = 3
	// beginTimeout bounds the making of a checkpoint, which waits for all partitions, and for a
	// copy of up to 2 GiB of their logs.
	beginTimeout = 3 * time.Minute
	// pointInterval is how often a point to restore to is recorded.
	pointInterval = 10 * time.Second
	// stallMax is how long a backup may make no progress.
	stallMax = 5 * time.Minute
	// Causes that pass by themselves, such as a change of leader or the checkpoint that an earlier
	// leader has left, are not recorded as a failure for this long: a node keeps such a checkpoint
	// for two minutes.
	passingMax = 3 * time.Minute
	// passingBackoffMax bounds the backoff in that time.
	passingBackoffMax = 15 * time.Second
	// cleanupTimeout bounds a removal, and the record of an outcome.
	cleanupTimeout = 10 * time.Second
	// errorMax bounds the recorded error, in bytes.
	errorMax = 1024
)

var (
	errLeadershipLost = errors.New("this node no longer leads the first partition")
	errStalled        = fmt.Errorf("no progress for %v", stallMax)
)

// A checkpoint is what a backup is written from.
type checkpoint interface {
	description() *Info
	write(ctx context.Context, to io.Writer, progress func(written, total int64)) error
	end(ctx context.Context, keepLog bool, instead *Info)
}

// A runner executes a plan on a node, while the node leads the first partition.
type runner struct {
	plan     Plan
	leads    func() bool
	origin   func() (cluster, lineage string)
	begin    func(ctx context.Context, base *Info) (checkpoint, error)
	record   func(ctx context.Context, outcome *journalpb.BackupRecord) error
	point    func(ctx context.Context) error // access.Backups.RecordPoint
	progress func(written, total int64)
	logger   *slog.Logger

	latest string    // the name of the latest backup in the sink
	seen   time.Time // when this node first saw it, or began it
}

// run returns when ctx ends.
func (r *runner) run(ctx context.Context) {
	for sleep(ctx, leadershipInterval) == nil {
		if r.leads() {
			r.lead(ctx)
		}
	}
}

// lead makes the backups that are due until the node no longer leads.
func (r *runner) lead(ctx context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel(nil)
	watching.Go(func() {
		for r.leads() && sleep(ctx, leadershipInterval) == nil {
		}
		cancel(errLeadershipLost)
	})
	if r.plan.Points {
		watching.Go(func() { r.recordPoints(ctx) })
	}
	failures, passing := 0, passingFailures{}
	for ctx.Err() == nil {
		wait, err := r.makeIfDue(ctx, failures < incrementsTries)
		switch {
		case err == nil:
			failures, passing = 0, passingFailures{}
		case ctx.Err() != nil:
			r.logger.Info("scheduled backup stopped", "reason", context.Cause(ctx), "error", err)
		case passing.add(err):
			wait = passing.backoff()
			r.logger.Info("scheduled backup not possible now, trying again", "error", err, "after", wait)
		default:
			wait = min(backoffAfter(failures), backoffMax, r.plan.Every)
			failures++
			r.logger.Warn("scheduled backup failed, trying again", "error", err, "failures", failures, "after", wait)
			r.recordOutcome(ctx, &journalpb.BackupRecord{Error: boundedText(err.Error())})
		}
		_ = sleep(ctx, wait) // the loop ends with ctx
	}
}

// recordPoints records points to restore to until ctx ends.
func (r *runner) recordPoints(ctx context.Context) {
	for sleep(ctx, pointInterval) == nil {
		pointCtx, cancel := context.WithTimeout(ctx, pointInterval)
		if err := r.point(pointCtx); err != nil && ctx.Err() == nil {
			r.logger.Info("cannot record a point to restore to, trying again", "error", err)
		}
		cancel()
	}
}

// passingFailures are failures in sequence whose causes pass by themselves.
type passingFailures struct {
	since time.Time // of the first
	count int
}

// add reports whether a failure is one of them, and not too long after the first.
func (p *passingFailures) add(err error) bool {
	_, unavailable := errors.AsType[*cluster.UnavailableError](err)
	if !unavailable && !errors.Is(err, ErrInProgress) && !errors.Is(err, ErrMissed) {
		return false
	}
	if p.count++; p.count == 1 {
		p.since = time.Now()
	}
	return time.Since(p.since) < passingMax
}

// backoff returns the pause after the latest of them.
func (p *passingFailures) backoff() time.Duration {
	return min(backoffAfter(p.count-1), passingBackoffMax)
}

// backoffAfter returns the pause after a number of earlier failures in sequence.
func backoffAfter(failures int) time.Duration { return backoffMin << min(failures, 20) }

// makeIfDue makes a backup if one is due, a full one unless it may continue another. It returns how
// long it is until the next one.
func (r *runner) makeIfDue(ctx context.Context, mayContinue bool) (wait time.Duration, err error) {
	defer func() {
		if panicked := recover(); panicked != nil { // of the sink
			err = fmt.Errorf("panic: %v\n%s", panicked, debug.Stack())
		}
	}()
	entries, err := r.list(ctx)
	if err != nil {
		return 0, err
	}
	latest, _ := Chain(entries, time.Time{})
	if len(latest) > 0 {
		// With Points, the full backup that follows the last of its chain may have failed.
		fullFailed := r.plan.Points && len(latest)-1 > r.increments()
		due := r.due(latest[len(latest)-1])
		if due > 0 && !fullFailed {
			return due, nil
		}
		mayContinue = mayContinue && due <= 0
	}
	if !mayContinue {
		latest = nil
	}
	begun := time.Now()
	if err := r.make(ctx, latest); err != nil {
		return 0, err
	}
	return max(r.plan.Every-time.Since(begun), 0), nil
}

// due returns how long it is until the backup after the latest one. The clock of the node that made
// that one may have been ahead: this node waits for at most Every since it has seen it.
func (r *runner) due(latest Entry) time.Duration {
	if latest.Name != r.latest {
		r.latest, r.seen = latest.Name, time.Now()
	}
	return r.plan.Every - max(time.Since(latest.Time), time.Since(r.seen))
}

// list returns the backups in the sink that are of this lineage of the cluster.
func (r *runner) list(ctx context.Context) ([]Entry, error) {
	entries, err := List(ctx, r.plan.To)
	origin := originOf(r.origin())
	return slices.DeleteFunc(entries, func(e Entry) bool { return e.origin != origin }), err
}

// make makes a backup that continues the last of a chain, or a full one. With Points, the full one
// follows one that continues the chain, so that there are points between them, too.
func (r *runner) make(ctx context.Context, chain []Entry) error {
	fullDue := len(chain) == 0 || len(chain)-1 >= r.increments()
	var latest *Info
	if len(chain) > 0 && r.increments() > 0 {
		latest = r.readInfo(ctx, chain[len(chain)-1])
	}
	if !fullDue || r.plan.Points && len(chain) > 0 {
		made, err := r.makeOne(ctx, latest, latest)
		if err != nil || made.Base == "" || !fullDue {
			return err
		}
		latest = made
	}
	_, err := r.makeOne(ctx, nil, latest)
	return err
}

// makeOne makes a backup that continues another one, or a full one if that is nil or shares nothing
// with it. latest is the latest backup before, which nothing else is to continue; nil for none.
func (r *runner) makeOne(ctx context.Context, base, latest *Info) (*Info, error) {
	begun := time.Now()
	checkpoint, err := r.beginCheckpoint(ctx, base)
	if err != nil {
		return nil, err
	}
	stored := false
	defer func() { checkpoint.end(ctx, stored && r.increments() > 0, latest) }() // after a panic of the sink, too
	info := checkpoint.description()
	err = r.store(ctx, checkpoint)
	if stored = err == nil; !stored {
		return nil, err
	}
	r.latest, r.seen = nameOf(info), begun
	stream, state := info.Bytes()
	r.logger.Info("scheduled backup made", "backup", info.ID, "base", info.Base, "points", info.HasPoints(), "bytes", stream, "state_bytes", state, "from", info.Node, "after", time.Since(begun))
	r.recordOutcome(ctx, &journalpb.BackupRecord{
		Id: info.ID, Time: info.Time.UnixNano(), Duration: int64(time.Since(begun)), Bytes: uint64(stream), StateBytes: uint64(state),
	})
	if err := r.prune(ctx); err != nil && ctx.Err() == nil {
		r.logger.Warn("cannot remove old backups, trying again after the next one", "error", err)
	}
	return info, nil
}

func (r *runner) beginCheckpoint(ctx context.Context, base *Info) (checkpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	return r.begin(ctx, base)
}

// increments returns how many incremental backups follow a full one.
func (r *runner) increments() int {
	if r.plan.Increments == 0 {
		return incrementsDefault
	}
	return r.plan.Increments
}

// readInfo reads the description of a backup that the next one is to continue. It returns nil if
// that is not possible, so that the next one is a full one.
func (r *runner) readInfo(ctx context.Context, e Entry) *Info {
	info, err := readEntry(ctx, r.plan.To, e)
	if err != nil {
		r.logger.Warn("cannot continue the latest backup, making a full one", "backup", e.Name, "error", err)
		return nil
	}
	return info
}

// readEntry reads the description of a backup in a sink.
func readEntry(ctx context.Context, in Sink, e Entry) (info *Info, err error) {
	from, err := in.Open(ctx, e.Name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	if info, err = ReadInfo(from); err != nil {
		return nil, err
	}
	if info.ID != e.ID {
		return nil, damaged(fmt.Errorf("%s has the backup %s", e.Name, info.ID))
	}
	return info, nil
}

// store writes a backup to the sink. After an error nothing is left there.
func (r *runner) store(ctx context.Context, from checkpoint) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(stallMax, func() { cancel(errStalled) })
	defer stalled.Stop()
	defer r.progress(0, 0)
	name := nameOf(from.description())
	stored := false
	defer func() {
		if !stored { // after a panic, too
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
			defer cancel()
			err = errors.Join(err, r.plan.To.Remove(ctx, name))
		}
	}()
	size, err := put(ctx, r.plan.To, name, from, func(written, total int64) {
		stalled.Reset(stallMax)
		r.progress(written, total)
	})
	if err != nil {
		if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
			return fmt.Errorf("%w: %w", cause, err)
		}
		return err
	}
	sizes, err := r.plan.To.List(ctx)
	if err != nil {
		return err
	}
	if sizes[name] != size {
		return fmt.Errorf("the sink has %d bytes of %s, which has %d", sizes[name], name, size)
	}
	stored = true
	return nil
}

// prune removes what need not be kept.
func (r *runner) prune(ctx context.Context) error {
	entries, err := r.list(ctx)
	if err != nil {
		return err
	}
	for _, e := range surplus(entries, r.plan.Keep) {
		if err := r.plan.To.Remove(ctx, e.Name); err != nil {
			return err
		}
		r.logger.Info("old backup removed", "backup", e.Name)
	}
	return nil
}

// recordOutcome records an outcome in the journal. The backup is made or not, whether or not it is
// recorded.
func (r *runner) recordOutcome(ctx context.Context, outcome *journalpb.BackupRecord) {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	if err := r.record(ctx, outcome); err != nil && ctx.Err() == nil {
		r.logger.Warn("cannot record the outcome of a scheduled backup", "error", err)
	}
}

// boundedText returns the beginning of a text, without what a record must not contain.
func boundedText(text string) string {
	text = strings.ToValidUTF8(text, "?")
	if len(text) > errorMax {
		text = strings.ToValidUTF8(text[:errorMax], "")
	}
	return text
}

func invalidPlan(field, reason string) error {
	return &replay.InvalidError{Field: field, Reason: reason}
}

// sleep waits for a duration. The error is that of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
