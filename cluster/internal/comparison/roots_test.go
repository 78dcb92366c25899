package comparison

import (
	"context"
	"testing"
)

// A request whose caller has gone is not answered: this leader has no journal to sign anything of.
func TestAnswerProofs_SkipsCallersThatHaveGone(t *testing.T) {
	l := &Leader{proofs: make(chan *proofRequest, proofsMax)}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	answer := make(chan proofAnswer, 1)
	l.proofs <- &proofRequest{instance: "a", canceled: gone.Done(), answer: answer}
	l.answerProofs(t.Context())
	if len(l.proofs) != 0 || len(answer) != 0 {
		t.Errorf("%d requests wait, %d answers", len(l.proofs), len(answer))
	}
}
