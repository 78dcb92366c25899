package session

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// A worker whose context ends continues the session until its results and its drain message are
// sent.
func TestRun_ContextEndKeepsUnsentMessages(t *testing.T) {
	box := NewOutbox[string]()
	for _, result := range []string{"result 1", "result 2"} {
		box.Put(&result)
	}
	in, out := make(chan *string), make(chan *string)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(canceled, NodePings, in, out, box, func(*string) {}); !errors.Is(err, context.Canceled) {
		t.Fatalf("the session ended with %v", err)
	}
	drain := "drain"
	box.Put(&drain)
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), NodePings, in, out, box, func(*string) {}) }()
	var sent []string
	for range 3 {
		sent = append(sent, *<-out)
	}
	if want := []string{"result 1", "result 2", "drain"}; !slices.Equal(sent, want) {
		t.Errorf("sent %q, want %q", sent, want)
	}
	close(in)
	<-ended
}
