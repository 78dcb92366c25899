package main

import (
	"testing"
	"time"
)

func TestALineTellsWhatWasTakenUp(t *testing.T) {
	const line = `time=2026-01-01T00:00:00Z level=INFO msg="open operations taken up" node=n1 epoch=3 operations=200004 took=1.5s`
	if operations, took, ok := takenUpIn(line); !ok || operations != 200004 || took != 1500*time.Millisecond {
		t.Errorf("%d, %v, %t", operations, took, ok)
	}
	if _, _, ok := takenUpIn(`level=INFO msg=leading operations=7`); ok {
		t.Error("another line tells nothing")
	}
}
