package vet

import (
	"fmt"
	"os"
	"testing"
)

// scratch is where what the tests share is kept.
var scratch string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "tenuto-vet")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	scratch = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}
