package cluster

import (
	"context"
	"fmt"
	"io"

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
	recorded := &history.History{Instance: id}
	_, err := c.readHistory(ctx, id, execution, options, func(execution uint64, event *journalpb.Event) error {
		recorded.Execution = execution
		recorded.Events = append(recorded.Events, event)
		return nil
	})
	if err != nil {
		return fmt.Errorf("export %s: %w", id, err)
	}
	if err := history.Write(w, recorded); err != nil {
		return fmt.Errorf("export %s: %w", id, err)
	}
	return nil
}
