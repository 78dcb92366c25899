package cases

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/eventpb"
)

// The size of a record without its events (tags and lengths, epoch, execution, first
// event_id, checksum), and of the tag and length of an event.
const (
	recordOverhead = 26
	eventOverhead  = 2
)

// RecordBytes returns the mean size of the six records that the journal writes for an
// orchestration of five activities in sequence.
func RecordBytes(ctx context.Context) (size int, err error) {
	const steps = 5
	own := &code{}
	node, err := cluster.Start(ctx, cluster.Config{
		InMemory: true, Definitions: own.definitions(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, node.Close()) }()
	const id = "loaded-1000"
	if _, err := cluster.Call(ctx, node.Client(), inSequence, id, steps); err != nil {
		return 0, err
	}
	history, err := node.Client().History(ctx, id)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, message := range eventpb.Messages(history.Events) {
		total += proto.Size(message) + eventOverhead
	}
	return total/(steps+1) + recordOverhead + len(id), nil
}
