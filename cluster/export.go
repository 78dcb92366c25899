package cluster

import (
	"context"
	"fmt"
	"io"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// Export writes the history of one execution of an instance in the format of package
// replay/history: JSON with one event per line, which replaytest.Replay replays. Executions count
// from 1; 0 means the latest. Payloads are written as recorded, regardless of the client's codec.
// Nothing is written if the history cannot be read.
//
// Errors: [ErrNotFound] if there is no such execution, [*InputError], [*UnavailableError],
// [ErrNotAuthorized]; those of ctx and w.
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
