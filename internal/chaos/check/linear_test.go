package check

import (
	"fmt"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
)

// Three clients send to a register at the same time, again and again, before one reads it.
func TestRegisterModel_DecidesConcurrentSendsWithoutReads(t *testing.T) {
	const clients, rounds = 3, 20
	for name, c := range map[string]struct {
		swapped int // the event that the read shows before its predecessor
		want    porcupine.CheckResult
	}{
		"of the same time in any order":    {clients*rounds - 1, porcupine.Ok},
		"the later one before the earlier": {clients * (rounds - 1), porcupine.Illegal},
	} {
		t.Run(name, func(t *testing.T) {
			var accepted []string
			operations := []porcupine.Operation{call(0, 0, 1, evidence.Request{Kind: evidence.Start}, evidence.Answer{Outcome: evidence.Acked})}
			for round := range rounds {
				for client := range clients {
					id := fmt.Sprint(round, "/", client)
					accepted = append(accepted, id)
					begin := int64(10*round + 10)
					operations = append(operations, call(client, begin, begin+9, evidence.Request{Kind: evidence.Send, RequestID: id}, evidence.Answer{Outcome: evidence.Acked}))
				}
			}
			accepted[c.swapped-1], accepted[c.swapped] = accepted[c.swapped], accepted[c.swapped-1]
			operations = append(operations, call(0, 1000, 1001, evidence.Request{Kind: evidence.Read},
				evidence.Answer{Outcome: evidence.Acked, State: "running", AcceptedIDs: accepted}))
			if got := porcupine.CheckOperationsTimeout(registerModel(longestAccepted(operations)), operations, linearizabilityTimeout); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

func call(client int, begin, end int64, in evidence.Request, out evidence.Answer) porcupine.Operation {
	return porcupine.Operation{ClientId: client, Input: in, Output: out, Call: begin, Return: end}
}
