package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The nodes of these tests are processes of this binary.
func TestMain(m *testing.M) {
	if node := os.Getenv(nodeVariable); node != "" {
		exit(runNode(node))
	}
	os.Exit(m.Run())
}

var summaryLine = regexp.MustCompile(`started (\d+), finished (\d+), lost 0;`)

// expect returns what a run with these commands prints, if it ends with nothing lost.
func expect(t *testing.T, commands ...string) string {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), strings.NewReader(strings.Join(commands, "\n")), &out)
	sum := summaryLine.FindStringSubmatch(out.String())
	if err != nil || sum == nil || sum[1] != sum[2] || sum[1] == "0" {
		t.Errorf("%v\n%s", err, &out)
	}
	return out.String()
}

func TestOrchestrationsGoOnWithoutTheirLeader(t *testing.T) {
	out := expect(t, "wait", "kill leader", "wait", "restart", "wait", "pause", "wait", "restart", "wait", "quit", "kill n1")
	for _, want := range []string{`=> kill n\d\n`, `n\d is killed`, `=> pause n\d\n`, `n\d is paused`, `n\d leads`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "kill n1\nkill n1") || strings.Contains(out, ended) {
		t.Error(out)
	}
}

func TestWithoutAMajorityNothingGoesOnAndNothingIsLost(t *testing.T) {
	out := expect(t, "wait", "kill n1", "kill n2", "kill n2", "kill n4", "dance", "", "restart", "wait")
	for _, want := range []string{"kill n2: n2 is killed", `kill n4: there is no node "n4"`, "dance: kill, pause, restart, wait or quit"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
