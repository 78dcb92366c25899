package membership

import (
	"fmt"
	"testing"
)

// An address that fails gives way to the next one, so that no wrong entry keeps a node unreachable.
func TestBook_ResolveTriesEachAddress(t *testing.T) {
	var b Book
	if got := b.Resolve("id", "recorded:1"); got != "recorded:1" {
		t.Errorf("an unknown node: %s", got)
	}
	b.Learn(Found{Node: "n1", Identity: "id", Address: "stated:1", Answered: "answered:1"})
	for _, want := range []string{"stated:1", "answered:1", "recorded:1", "stated:1"} {
		got := b.Resolve("id", "recorded:1")
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		b.ReportFailure("id", got)
	}
	if got := b.Resolve("id", "recorded:2"); got != "recorded:2" {
		t.Errorf("after another address was recorded: %s", got)
	}
	if got := b.Address("n1"); got != "" {
		t.Errorf("the outdated entry remains: %s", got)
	}
}

// An address belongs to the node that introduced itself there last.
func TestBook_AddressHasOneNode(t *testing.T) {
	var b Book
	b.Learn(Found{Node: "n1", Identity: "id1", Address: "a:1"})
	b.Learn(Found{Node: "n2", Identity: "id2", Address: "a:1"})
	if node, _ := b.NodeAt("a:1", "n1"); node != "n2" {
		t.Errorf("at a:1 is %q", node)
	}
	b.Learn(Found{Node: "n2", Identity: "id2", Address: "b:1"})
	if node, moved := b.NodeAt("a:1", "n2"); node != "" || !moved {
		t.Errorf("at a:1, where n2 was, is %q, moved %v", node, moved)
	}
	if node, moved := b.NodeAt("a:1", "n3"); node != "" || moved {
		t.Errorf("at a:1, where n3 is recorded, is %q, moved %v", node, moved)
	}
}

func TestBook_IsBounded(t *testing.T) {
	var b Book
	for i := range 2 * bookMax {
		b.Learn(Found{Node: fmt.Sprint("n", i), Identity: fmt.Sprint("id", i), Address: fmt.Sprint("a:", i+1)})
	}
	if n := len(b.Addresses("")); n != bookMax || b.Address("n0") != "" || b.Address(fmt.Sprint("n", 2*bookMax-1)) == "" {
		t.Errorf("%d nodes, n0 at %q", n, b.Address("n0"))
	}
}
