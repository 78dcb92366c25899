package vet

import (
	"fmt"
	"os"
	"testing"
)

// scratchDir contains files that the tests share.
var scratchDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tenuto-vet")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	scratchDir = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
