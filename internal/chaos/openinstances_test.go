package main

import (
	"testing"
	"time"
)

func TestParseRecovery_LogLine(t *testing.T) {
	const line = `time=2026-01-01T00:00:00Z level=INFO msg="open operations recovered" node=n1 epoch=3 operations=200004 took=1.5s`
	if operations, took, ok := parseRecovery(line); !ok || operations != 200004 || took != 1500*time.Millisecond {
		t.Errorf("%d, %v, %t", operations, took, ok)
	}
	if _, _, ok := parseRecovery(`level=INFO msg=leading operations=7`); ok {
		t.Error("another line was parsed")
	}
}
