package cluster

import (
	"maps"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A StartOption changes how an instance is started.
type StartOption func(*clusterpb.StartRequest)

// Attach makes it no error that an instance of that ID exists, running or
// ended: its run is the one that is returned.
func Attach() StartOption { return func(r *clusterpb.StartRequest) { r.Attach = true } }

// RequestID names the start: a start with the ID of an instance of which a run
// was begun by the same request is the same start, and no error. A start is recognized
// until its run is purged, or until a later run begins more than 1,000 executions after
// it. At most 128 bytes. Defaults to a random one for each call.
func RequestID(id string) StartOption { return func(r *clusterpb.StartRequest) { r.RequestId = id } }

// ReuseWhenEnded allows that an instance of that ID exists, if it has ended: a
// new run begins, with the next execution. Defaults to not allowing it.
func ReuseWhenEnded() StartOption {
	return func(r *clusterpb.StartRequest) { r.Reuse = clusterpb.ReusePolicy_REUSE_POLICY_ENDED }
}

// ReuseWhenFailed is [ReuseWhenEnded] for an instance that has ended otherwise
// than by completing.
func ReuseWhenFailed() StartOption {
	return func(r *clusterpb.StartRequest) { r.Reuse = clusterpb.ReusePolicy_REUSE_POLICY_FAILED }
}

// StartVersion names the version of the orchestration to run. Defaults to the
// pinned one, or else the highest, that the leading node has.
func StartVersion(version string) StartOption {
	return func(r *clusterpb.StartRequest) { r.Version = version }
}

// StartAt lets the code begin at a time, of the years 1678 to 2262 (one before or
// after counts as the first or the last moment of these); the instance exists
// from now on. The time is compared with the cluster time: see "Time" in the package
// documentation.
func StartAt(at time.Time) StartOption {
	return func(r *clusterpb.StartRequest) { r.StartAt = nanos(at) }
}

// Tags adds tags, by which instances can be listed: at most 64, with keys of 1 to
// 128 bytes and values of at most 1,024.
func Tags(tags map[string]string) StartOption {
	return func(r *clusterpb.StartRequest) {
		if r.Tags == nil {
			r.Tags = make(map[string]string)
		}
		maps.Copy(r.Tags, tags)
	}
}
