package backup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An Entry is a backup in a sink or in a file.
type Entry struct {
	// Name is that in the sink, or the path of the file.
	Name string
	// Size is that of the stream, in bytes.
	Size int64
	// ID, Base, Cut and Time are those of the Info.
	ID, Base string
	Cut      uint64
	Time     time.Time
	// Points is [Info.HasPoints]. [List] does not set it.
	Points bool

	origin string // see originOf
}

// The name of a scheduled backup is
//
//	tenuto-ORIGIN-CUT-TIME-ID-BASE.backup
//
// with "full" as the base of a full one, so that names suffice to find what continues what.
const (
	namePrefix = "tenuto"
	nameSuffix = ".backup"
	nameTime   = "20060102T150405.000000000Z"
	fullBase   = "full"
)

// originOf identifies a lineage of a cluster in names: 16 hexadecimal digits.
func originOf(cluster, lineage string) string {
	sum := sha256.Sum256([]byte(cluster + "\x00" + lineage))
	return hex.EncodeToString(sum[:8])
}

// nameOf returns the name of a scheduled backup.
func nameOf(info *Info) string {
	return strings.Join([]string{
		namePrefix, originOf(info.Cluster, info.Lineage), fmt.Sprintf("%016x", info.Cut),
		info.Time.UTC().Format(nameTime), info.ID, cmp.Or(info.Base, fullBase),
	}, "-") + nameSuffix
}

// parseName parses what nameOf returns.
func parseName(name string) (Entry, bool) {
	content, ok := strings.CutSuffix(name, nameSuffix)
	parts := strings.Split(content, "-")
	if !ok || len(parts) != 6 || parts[0] != namePrefix || len(parts[1]) != 16 || !isID(parts[4]) {
		return Entry{}, false
	}
	cut, cutErr := strconv.ParseUint(parts[2], 16, 64)
	at, timeErr := time.Parse(nameTime, parts[3])
	e := Entry{Name: name, ID: parts[4], Cut: cut, Time: at, origin: parts[1]}
	if parts[5] != fullBase {
		e.Base = parts[5]
	}
	return e, cutErr == nil && timeErr == nil && (e.Base == "" || isID(e.Base))
}

// List returns the scheduled backups in a sink, oldest first. What has another name is ignored. The
// error is that of the sink.
func List(ctx context.Context, in Sink) ([]Entry, error) {
	sizes, err := in.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list backups: %w", err)
	}
	var entries []Entry
	for name, size := range sizes {
		if e, ok := parseName(name); ok {
			e.Size = size
			entries = append(entries, e)
		}
	}
	Sort(entries)
	return entries, nil
}

// Entry returns the entry of a backup that is stored under a name.
func (i *Info) Entry(name string) Entry {
	size, _ := i.Bytes()
	return Entry{Name: name, Size: size, ID: i.ID, Base: i.Base, Cut: i.Cut, Time: i.Time, Points: i.HasPoints(), origin: originOf(i.Cluster, i.Lineage)}
}

// Sort sorts entries, oldest first. Those of one lineage of a cluster are in the order of their
// cuts, because the clock of a node may have been wrong, and the lineages in the order of the times
// of their newest. Entries that neither [List] nor [Info.Entry] has returned are in the order of
// their times.
func Sort(entries []Entry) {
	newest := make(map[string]time.Time)
	for _, e := range entries {
		if e.Time.After(newest[e.origin]) {
			newest[e.origin] = e.Time
		}
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		if a.origin != b.origin {
			return cmp.Or(newest[a.origin].Compare(newest[b.origin]), cmp.Compare(a.origin, b.origin))
		}
		byCut, byTime := cmp.Compare(a.Cut, b.Cut), a.Time.Compare(b.Time)
		if a.origin == "" {
			byCut, byTime = byTime, byCut
		}
		return cmp.Or(byCut, byTime, cmp.Compare(a.Name, b.Name))
	})
}

// ErrNoBackup means that there is no complete chain of backups to restore from.
var ErrNoBackup = errors.New("tenuto: there is no backup to restore from")

// Chain returns the entries to restore, in order, to be as near as possible to a time, and not
// after it: a full backup and the incremental ones after it. If the next one has points
// ([Entry.Points]), it is the last, although it is after the time. The zero time means the latest;
// see [Sort]. An entry whose base is missing is ignored. The error is [ErrNoBackup].
func Chain(entries []Entry, at time.Time) ([]Entry, error) {
	entries = slices.Clone(entries)
	Sort(entries)
	for i, e := range slices.Backward(entries) {
		if !at.IsZero() && e.Time.After(at) {
			continue
		}
		if chain := chainOf(entries, e); chain != nil {
			if points := pointsAt(entries, i, at); points != nil {
				return points, nil
			}
			return chain, nil
		}
	}
	return nil, ErrNoBackup
}

// pointsAt returns the chain of an entry after the one at index last, the last before a time, that
// has points around that time; nil if there is none. It need not continue that one: the points are
// those of the log, which has that one, too. Of several, it is the one with the fewest entries to
// apply.
func pointsAt(entries []Entry, last int, at time.Time) (best []Entry) {
	if at.IsZero() {
		return nil
	}
	since := time.Time{}
	for _, e := range entries[last+1:] {
		if !e.Points || e.origin != entries[last].origin || !e.Time.After(at) {
			continue
		}
		chain := chainOf(entries, e)
		if len(chain) < 2 {
			continue
		}
		if base := chain[len(chain)-2]; !base.Time.After(at) && base.Time.After(since) {
			best, since = chain, base.Time
		}
	}
	return best
}

// chainOf returns what an entry needs, the entry itself last; nil if a part of it is missing.
func chainOf(entries []Entry, last Entry) []Entry {
	chain := []Entry{last}
	for chain[0].Base != "" {
		at := slices.IndexFunc(entries, func(e Entry) bool { return e.ID == chain[0].Base })
		if at < 0 || len(chain) > len(entries) { // names could form a circle
			return nil
		}
		chain = slices.Insert(chain, 0, entries[at])
	}
	return chain
}

// surplus returns the entries that need not be kept, in the order in which to remove them: what
// continues another one is removed before that, so that a removal that stops in between leaves
// complete chains. keep is how many points to restore to remain; 0: all.
func surplus(entries []Entry, keep int) []Entry {
	if keep == 0 {
		return nil
	}
	needed := make(map[string]bool)
	for _, e := range slices.Backward(entries) {
		chain := chainOf(entries, e)
		if keep > 0 && chain != nil {
			keep--
			for _, of := range chain {
				needed[of.ID] = true
			}
		}
	}
	var removed []Entry
	for _, e := range slices.Backward(entries) {
		if !needed[e.ID] && chainOf(entries, e) != nil {
			removed = append(removed, e)
		}
	}
	return removed
}

// RestoreAt restores, like [Restore], from a sink, to the latest point that is not after a time;
// the zero time means the end of the newest backup. Target.Until must be zero. Errors:
// [ErrNoBackup], those of the sink, and those of Restore.
func RestoreAt(ctx context.Context, to Target, from Sink, at time.Time) (*Info, error) {
	if to.Until != (Point{}) {
		return nil, fmt.Errorf("restore: %w", invalid("Target.Until", "is set: RestoreAt has a time"))
	}
	to.Until.Time = at
	readers, closeAll, err := openAt(ctx, from, at)
	if err != nil {
		return nil, fmt.Errorf("restore: %w", err)
	}
	info, err := Restore(ctx, to, readers...)
	return info, errors.Join(err, closeAll())
}

// openAt returns readers of the chain of a time.
func openAt(ctx context.Context, in Sink, at time.Time) (readers []io.Reader, closeAll func() error, err error) {
	entries, err := List(ctx, in)
	if err != nil {
		return nil, nil, err
	}
	if err := findPoints(ctx, in, entries, at); err != nil {
		return nil, nil, err
	}
	chain, err := Chain(entries, at)
	if err != nil {
		return nil, nil, err
	}
	readers, closeAll = openChain(ctx, in, chain)
	return readers, closeAll, nil
}

// findPoints sets Points of the entries after a time that continue one before it.
func findPoints(ctx context.Context, in Sink, entries []Entry, at time.Time) error {
	for i := range entries {
		e := &entries[i]
		if at.IsZero() || !e.Time.After(at) || !slices.ContainsFunc(entries, func(of Entry) bool { return of.ID == e.Base && !of.Time.After(at) }) {
			continue
		}
		info, err := readEntry(ctx, in, *e)
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
		e.Points = info.HasPoints()
	}
	return nil
}

// openChain returns readers of entries, which are opened when they are first read.
func openChain(ctx context.Context, in Sink, chain []Entry) (readers []io.Reader, closeAll func() error) {
	var lazy []*lazyReader
	for _, e := range chain {
		r := &lazyReader{open: func() (io.ReadCloser, error) { return in.Open(ctx, e.Name) }}
		lazy, readers = append(lazy, r), append(readers, r)
	}
	return readers, func() (err error) {
		for _, r := range lazy {
			if r.opened != nil {
				err = errors.Join(err, r.opened.Close())
			}
		}
		return err
	}
}

// A lazyReader is opened by the first call of Read.
type lazyReader struct {
	open   func() (io.ReadCloser, error)
	opened io.ReadCloser
}

// Read implements io.Reader.
func (r *lazyReader) Read(b []byte) (int, error) {
	if r.opened == nil {
		opened, err := r.open()
		if err != nil {
			return 0, err
		}
		r.opened = opened
	}
	return r.opened.Read(b)
}
