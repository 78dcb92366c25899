package api

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/filter"
	"github.com/tenuto-dev/tenuto/cluster/internal/access"
	"github.com/tenuto-dev/tenuto/cluster/internal/schedules"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

const (
	// Values of filters are read again after valuesAge; after valuesRetry if some could not be
	// read.
	valuesAge   = 10 * time.Second
	valuesRetry = time.Second
	// Tags and attributes are those of the valuesSample instances that changed last. Names of
	// events and of activities that fail are those of openSample instances.
	valuesSample = 100
	openSample   = 10
	// namesSample bounds the instances whose names are read if there are too many names to count
	// by.
	namesSample = 1000
)

// valueSet has values by field. The field of a tag or an attribute is "tag.KEY" or "attr.NAME".
// Error codes of open activities and names of events, which lists do not show, have the fields
// "failing.error" and "event".
type valueSet map[string][]string

// add adds a value, which may be known already.
func (s valueSet) add(field, value string) {
	if value != "" {
		s[field] = append(s[field], value)
	}
}

// addInstance adds the name, the version, the tags and the attributes of an instance.
func (s valueSet) addInstance(of *cluster.Status) {
	s.add("name", of.Name)
	s.add("version", of.Version)
	for key, value := range of.Tags {
		s.add("tag", key)
		s.add("tag."+key, value)
	}
	for name, value := range of.Attributes {
		s.add("attr", name)
		s.add("attr."+name, value)
	}
}

// filterValues are values that instances have, read when a filter is completed. Callers share a
// read.
type filterValues struct {
	// read returns the values, and whether all of them could be read.
	read func(ctx context.Context) (known valueSet, complete bool)

	mu      sync.Mutex
	next    time.Time     // when they are read again
	known   valueSet      // not changed in place; nil before the first read
	reading chan struct{} // closed at the end of the read in progress, nil without one
}

// of returns the values that a user may see. If some cannot be read, they are left out.
func (v *filterValues) of(ctx context.Context, r *request) filter.ValueSource {
	return func(field, key string) []string {
		known := v.current(ctx)
		mayGet := func() bool { return r.authorize(cluster.ActionGet, "") == nil }
		switch {
		case field == "waiting":
			return known.waiting(key, r.seesMembers(), mayGet())
		case field == "failing.error" && !mayGet(), field == "attr" && key != "" && r.api.config.hidesAttribute(key):
			return nil
		case key != "":
			field += "." + key
		}
		return known[field]
	}
}

// waiting returns the names of what instances may wait for.
func (s valueSet) waiting(kind string, seesMembers, mayGet bool) (names []string) {
	if (kind == "activity" || kind == "any") && seesMembers {
		names = append(names, s["activity"]...)
	}
	if (kind == "event" || kind == "any") && mayGet {
		names = append(names, s["event"]...)
	}
	if kind == "child" || kind == "any" {
		names = append(names, s["name"]...)
	}
	return names
}

// current returns the values. If they are too old, it reads them, unless another caller does: then
// it returns the old ones, or waits for the first.
func (v *filterValues) current(ctx context.Context) valueSet {
	v.mu.Lock()
	known, reading, due := v.known, v.reading, !time.Now().Before(v.next)
	if due && reading == nil {
		v.reading = make(chan struct{})
	}
	v.mu.Unlock()
	switch {
	case due && reading == nil:
		return v.renew()
	case known != nil || reading == nil:
		return known
	}
	select {
	case <-reading:
	case <-ctx.Done():
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.known
}

// renew reads the values. The read does not end with the request that began it: pages abandon
// requests while the user types, and other callers may wait for the values. A field that could not
// be read stays as it was.
func (v *filterValues) renew() (known valueSet) {
	ctx, cancel := context.WithTimeout(context.Background(), membersTimeout)
	defer cancel()
	v.mu.Lock()
	known = v.known
	v.mu.Unlock()
	age := valuesRetry
	defer func() { // also if a codec of the user panics
		v.mu.Lock()
		defer v.mu.Unlock()
		close(v.reading)
		v.known, v.reading, v.next = known, nil, time.Now().Add(age)
	}()
	read, complete := v.read(ctx)
	all := valueSet{}
	if complete {
		age = valuesAge
	} else {
		maps.Copy(all, known)
	}
	for field, values := range read {
		slices.Sort(values)
		all[field] = slices.Compact(values)
	}
	known = all
	return known
}

// valueReader is what values of filters are read from.
type valueReader interface {
	CountBy(ctx context.Context, f cluster.Filter, dimensions []string, options ...replay.Option) ([]index.Group, error)
	List(ctx context.Context, f cluster.Filter, after string, limit int, options ...replay.Option) (*cluster.Page, error)
	Pending(ctx context.Context, id string) ([]*cluster.OpenOperation, error)
	Internal(access.Key) (access.Internals, error)
}

// readValues reads all values.
func readValues(ctx context.Context, from valueReader) (known valueSet, complete bool) {
	known = valueSet{}
	failed := []error{
		known.readGroups(ctx, from, "name", "version"),
		known.readGroups(ctx, from, "error"),
		known.readList(ctx, from, cluster.Filter{Order: "updated", Descending: true}, valuesSample),
		known.readActivities(ctx, from),
		known.readOpen(ctx, from, cluster.Filter{WaitingKind: "event", Order: "updated", Descending: true}),
		known.readOpen(ctx, from, cluster.Filter{FailingAttempts: 1, Order: "updated", Descending: true}),
	}
	return known, errors.Join(failed...) == nil
}

// readGroups adds the values of dimensions. If all of them have too many values together, it reads
// those of each, and if one has too many, those of the first instances.
func (s valueSet) readGroups(ctx context.Context, from valueReader, dimensions ...string) error {
	groups, err := from.CountBy(ctx, cluster.Filter{}, dimensions, cluster.Stale())
	for _, g := range groups {
		for i, dimension := range dimensions {
			s.add(dimension, g.Values[i])
		}
	}
	switch {
	case !errors.As(err, new(*replay.InvalidError)):
		return err
	case len(dimensions) == 1:
		return s.readList(ctx, from, cluster.Filter{}, namesSample)
	}
	err = nil
	for _, dimension := range dimensions {
		err = errors.Join(err, s.readGroups(ctx, from, dimension))
	}
	return err
}

// readList adds the values that the first instances of a list have.
func (s valueSet) readList(ctx context.Context, from valueReader, f cluster.Filter, most int) error {
	page, err := from.List(ctx, f, "", most, cluster.Stale())
	if err != nil {
		return err
	}
	for _, of := range page.Instances {
		s.addInstance(of)
	}
	return nil
}

// readOpen adds the names of the events that the first instances of a list wait for, and the error
// codes of their activities. An instance may have ended since it was listed.
func (s valueSet) readOpen(ctx context.Context, from valueReader, f cluster.Filter) error {
	page, err := from.List(ctx, f, "", openSample, cluster.Stale())
	if err != nil {
		return err
	}
	for _, of := range page.Instances {
		open, err := from.Pending(ctx, of.InstanceID)
		if err != nil && !errors.Is(err, cluster.ErrNotFound) {
			return err
		}
		for _, o := range open {
			if o.EventType == string(history.ExternalSubscribed) {
				s.add("event", o.Name)
			}
			if n := len(o.Failures); n > 0 {
				s.add("failing.error", o.Failures[n-1].Code)
			}
		}
	}
	return nil
}

// readActivities adds the activities that nodes have code for. A node that does not answer in time
// is left out.
func (s valueSet) readActivities(ctx context.Context, from valueReader) error {
	internals, err := from.Internal(access.Key{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, overviewTimeout)
	defer cancel()
	reports, err := internals.Reports(ctx)
	for _, r := range reports {
		for _, activity := range r.Report.GetActivities() {
			if !strings.HasPrefix(activity.Name, schedules.ReservedPrefix) {
				s.add("activity", activity.Name)
			}
		}
	}
	return err
}
