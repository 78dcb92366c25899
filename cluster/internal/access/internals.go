package access

import (
	"context"
	"log/slog"

	"github.com/tenuto-dev/tenuto/cluster/internal/completion"
	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

// A Key opens cluster.Client.Internal. Its unexported field keeps other packages from passing a
// literal of the same underlying type.
type Key struct{ _ [0]func() }

// Internals is the request path of a client, for packages of this module. Its functions may be
// called concurrently. Their errors are those of the client's exported methods.
type Internals struct {
	// Call sends a request to the leader of its partition, inside the client's interceptors, until
	// it is answered or ctx ends.
	Call func(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error)
	// Check returns an error for a request that the cluster would reject as invalid.
	Check func(request *clusterpb.Request) error
	// Events passes the recorded events of an execution to pass, in order and in pages, without
	// decoding payloads. Executions count from 1; 0 means the latest. It returns the number of the
	// execution.
	Events func(ctx context.Context, instance string, execution uint64, pass func(*journalpb.Event) error, options ...replay.Option) (number uint64, err error)
	// Encode converts a value to a payload, with the client's codec.
	Encode func(of replay.PayloadInfo, value any) (*journalpb.Payload, error)
	// Converter converts payloads and errors.
	Converter engine.PayloadConverter
	// Authorize returns an error if the Config.Authorize of the client's node refuses a user the
	// right to an action on an instance, "" for an action that concerns no single instance. It is
	// nil for a client of cluster.Dial: nodes check the calls of its program, and know no rights of
	// its users.
	Authorize func(ctx context.Context, user, action, instance string) error
	// Completions is how a handler of completions by signed tokens reaches the cluster.
	Completions completion.Config
	// Reports returns what each member reports of itself, in order of node IDs, when ctx ends or
	// after 2 s at the latest. The error is that of finding the members.
	Reports func(ctx context.Context) ([]NodeReport, error)
	// NodeAddresses returns the addresses of the members, by their IDs.
	NodeAddresses func(ctx context.Context) (map[string]string, error)
	// AskNode sends a request once to a node at an address. That node answers it, not a leader.
	// AskNode rejects the requests that Check does.
	AskNode func(ctx context.Context, node, address string, request *clusterpb.Request) (*clusterpb.Response, error)
	// Backups is for plans of scheduled backups; nil for a client of cluster.Dial.
	Backups *Backups
}

// Backups is how a plan for scheduled backups reaches its node. The functions but RecordPoint do
// not block.
type Backups struct {
	// Leads reports whether the node leads the first partition. Only then it makes backups.
	Leads func() bool
	// Origin returns the cluster's ID and that of its present lineage, "" for the first one.
	Origin func() (cluster, lineage string)
	// Progress states how many bytes of a backup are written, and of how many; 0 and 0 at its end.
	Progress func(written, total int64)
	// RecordPoint records a point to restore to between two backups, if something was recorded
	// since the latest one.
	RecordPoint func(ctx context.Context) error
	// Logger is that of the node.
	Logger *slog.Logger
}

// A NodeReport is what a node reports of itself.
type NodeReport struct {
	Node, Address string
	Report        *clusterpb.NodeReport
	// Err is why there is no report: the node did not answer, or it runs an older build.
	Err error
}

// userKey is the key of a user's name in a context.
type userKey struct{}

// WithUser returns a context whose calls are made on behalf of a user.
func WithUser(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, userKey{}, name)
}

// reasonKey is the key of a reason in a context.
type reasonKey struct{}

// WithReason returns a context whose calls record why they are made.
func WithReason(ctx context.Context, reason string) context.Context {
	return context.WithValue(ctx, reasonKey{}, reason)
}

// ReasonOf returns why the calls with a context are made; "" if nothing is stated.
func ReasonOf(ctx context.Context) string {
	reason, _ := ctx.Value(reasonKey{}).(string)
	return reason
}

// UserOf returns the user on whose behalf calls with a context are made; "" if none is stated.
func UserOf(ctx context.Context) string {
	name, _ := ctx.Value(userKey{}).(string)
	return name
}
