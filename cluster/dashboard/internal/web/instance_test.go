package web

import (
	"os/exec"
	"testing"
)

// The modules that lay out the page of an instance are pure, so that they can be tested without a
// browser.
func TestInstanceModules_LayOutTimelinesAndHistories(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs Node.js")
	}
	output, err := exec.CommandContext(t.Context(), node, "--test", "testdata/instance.test.mjs").CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}
