package worker

import (
	"context"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster/internal/server"
)

// A Stream is either side of a worker stream.
type Stream interface {
	Context() context.Context
	SendMsg(any) error
	RecvMsg(any) error
}

// Receive returns a channel of incoming messages. It is closed when the stream ends or check
// rejects a message; ended is called before, with the reason.
func Receive[M any, P interface {
	*M
	proto.Message
}](r server.Recoverer, running *sync.WaitGroup, s Stream, check func(P) error, ended func(error)) <-chan P {
	in := make(chan P)
	next := func() error {
		m := P(new(M))
		if err := s.RecvMsg(m); err != nil {
			return err
		}
		if err := check(m); err != nil {
			return err
		}
		select {
		case in <- m:
			return nil
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
	running.Go(func() {
		defer close(in)
		for {
			if err := r.Stream("work", next); err != nil {
				ended(err)
				return
			}
		}
	})
	return in
}

// Transmit returns a channel whose messages are sent until the stream ends. It calls cancel when
// sending fails.
func Transmit[M any](r server.Recoverer, running *sync.WaitGroup, s Stream, cancel func(error)) chan<- *M {
	out := make(chan *M)
	running.Go(func() {
		for {
			select {
			case m := <-out:
				if err := r.Stream("work", func() error { return s.SendMsg(m) }); err != nil {
					cancel(err)
					return
				}
			case <-s.Context().Done():
				return
			}
		}
	})
	return out
}
