package cluster

import (
	"context"
	"fmt"
	"io"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// Export writes the history of one execution of an instance, counted from 1, in
// the format of package replay/history: JSON with one event a line, which
// replaytest.Replay replays. 0 means the latest. Payloads are written as they are
// recorded, whatever codec the client has: what is encrypted stays so. Nothing is
// written when the history cannot be had.
//
// Errors: [ErrNotFound] when there is none, [*InputError], [*UnavailableError],
// [ErrNotAuthorized]; ctx's; w's.
func (c *Client) Export(ctx context.Context, id string, execution uint64, w io.Writer, options ...ReadOption) error {
	if w == nil {
		return &InputError{"writer", "is nil"}
	}
	if err := checkID(id); err != nil {
		return err
	}
	response, err := c.read(ctx, &clusterpb.Request{Instance: id, Call: &clusterpb.Request_History{
		History: &clusterpb.HistoryRequest{Execution: execution},
	}}, options)
	if err != nil {
		return fmt.Errorf("export %s: %w", id, err)
	}
	recorded := &history.History{Instance: id, Execution: response.GetHistory().GetExecution()}
	for _, encoded := range response.GetHistory().GetEvents() {
		event := new(journalpb.Event)
		if err := proto.Unmarshal(encoded, event); err != nil {
			return fmt.Errorf("export %s: decode event: %w", id, err)
		}
		recorded.Events = append(recorded.Events, event)
	}
	if err := history.Write(w, recorded); err != nil {
		return fmt.Errorf("export %s: %w", id, err)
	}
	return nil
}
