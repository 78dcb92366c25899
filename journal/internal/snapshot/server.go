package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"github.com/tenuto-dev/tenuto/internal/frame"
)

// Server answers requests for a snapshot, one at a time.
type Server struct {
	Cluster   string
	Snapshots *Store // nil if this node keeps everything in memory
	// AppliedIndex returns the index of the last entry that is applied here.
	AppliedIndex func() uint64
	// TakeSnapshot takes a snapshot now, unless the newest one has everything.
	TakeSnapshot func() error
	OnServed     func() // called for each snapshot that was sent
	Logger       *slog.Logger

	busy chan struct{} // holds a token during an answer
}

// NewServer returns a server with the given fields.
func NewServer(h Server) *Server {
	h.busy = make(chan struct{}, 1)
	return &h
}

// Serve answers a request whose magic has been read.
func (s *Server) Serve(ctx context.Context, conn net.Conn) error {
	var q Request
	if err := frame.ReadJSON(conn, &q); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-ctx.Done():
		return ctx.Err()
	}
	m, err := s.findSnapshot(&q)
	if err != nil {
		return errors.Join(err, frame.WriteJSON(conn, "", Reply{Rejection: err.Error()}))
	}
	return s.send(conn, m, &q)
}

// findSnapshot returns the newest snapshot if it satisfies the request, or takes one now. A
// snapshot holds only what is committed, so this node need not lead.
func (s *Server) findSnapshot(q *Request) (*Manifest, error) {
	if q.Cluster != s.Cluster {
		return nil, fmt.Errorf("this node belongs to cluster %q", s.Cluster)
	}
	if s.Snapshots == nil {
		return nil, errors.New("this node keeps everything in memory")
	}
	for again := true; ; again = false {
		all, err := s.Snapshots.Manifests()
		if err != nil {
			return nil, err
		}
		if len(all) > 0 && all[0].Index >= q.MinIndex {
			return all[0], nil
		}
		if applied := s.AppliedIndex(); !again || applied < q.MinIndex {
			return nil, fmt.Errorf("this node has applied entries up to %d, not %d", applied, q.MinIndex)
		}
		if err := s.TakeSnapshot(); err != nil {
			return nil, fmt.Errorf("take snapshot: %w", err)
		}
	}
}

func (s *Server) send(conn net.Conn, m *Manifest, q *Request) error {
	stream, err := s.Snapshots.newStream(m)
	if err != nil {
		return errors.Join(err, frame.WriteJSON(conn, "", Reply{Rejection: err.Error()}))
	}
	err = frame.WriteJSON(conn, "", Reply{})
	if err == nil {
		_, err = io.Copy(conn, stream)
	}
	if err = errors.Join(err, stream.Close()); err != nil {
		return fmt.Errorf("send snapshot: %w", err)
	}
	s.OnServed()
	s.Logger.Info("snapshot sent", "index", m.Index, "to", q.Node)
	return nil
}
