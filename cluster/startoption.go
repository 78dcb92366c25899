package cluster

import (
	"maps"
	"time"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
)

// A StartOption changes how an instance is started.
type StartOption func(*clusterpb.StartRequest)

// Attach returns the run of an existing instance with that ID, running or ended, instead of an
// error.
func Attach() StartOption { return func(r *clusterpb.StartRequest) { r.Attach = true } }

// RequestID sets the request ID of the start. A repeated start, with the same instance ID and
// request ID, returns the run that the first one began, without an error. A start is recognized
// until its run is purged, or until a later run begins more than 1,000 executions after it. An ID
// has at most 128 bytes. Defaults to a random ID for each call.
func RequestID(id string) StartOption { return func(r *clusterpb.StartRequest) { r.RequestId = id } }

// ReuseWhenEnded allows the ID of an ended instance: a new run begins under it, with the next
// execution number. Defaults to not allowing it.
func ReuseWhenEnded() StartOption {
	return func(r *clusterpb.StartRequest) { r.Reuse = clusterpb.ReusePolicy_REUSE_POLICY_ENDED }
}

// ReuseWhenFailed is [ReuseWhenEnded] for an instance that has ended without completing.
func ReuseWhenFailed() StartOption {
	return func(r *clusterpb.StartRequest) { r.Reuse = clusterpb.ReusePolicy_REUSE_POLICY_FAILED }
}

// StartVersion sets the version of the orchestration to run. Defaults to the leader's pinned
// version, or else to its highest.
func StartVersion(version string) StartOption {
	return func(r *clusterpb.StartRequest) { r.Version = version }
}

// StartAt delays the code until a time. Times before 1678 or after 2262 count as the first or last
// moment of these years. The instance exists at once. The time is compared with the cluster time:
// see cluster/docs/time.md.
func StartAt(at time.Time) StartOption {
	return func(r *clusterpb.StartRequest) { r.StartAt = clampedUnixNanos(at) }
}

// Tags adds tags by which instances can be listed: at most 64, with keys of 1 to 128 bytes and
// values of at most 1,024 bytes.
func Tags(tags map[string]string) StartOption {
	return func(r *clusterpb.StartRequest) {
		if r.Tags == nil {
			r.Tags = make(map[string]string)
		}
		maps.Copy(r.Tags, tags)
	}
}
