package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The nodes in these tests are processes of the test binary.
func TestMain(m *testing.M) {
	if node := os.Getenv(nodeEnv); node != "" {
		exit(runNode(node))
	}
	os.Exit(m.Run())
}

var summaryLine = regexp.MustCompile(`started (\d+), finished (\d+), lost 0;`)

// runCommands returns the output of a run with these commands, and fails the test if anything
// is lost.
func runCommands(t *testing.T, commands ...string) string {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), strings.NewReader(strings.Join(commands, "\n")), &out)
	sum := summaryLine.FindStringSubmatch(out.String())
	if err != nil || sum == nil || sum[1] != sum[2] || sum[1] == "0" {
		t.Errorf("%v\n%s", err, &out)
	}
	return out.String()
}

func TestRun_SurvivesLeaderLoss(t *testing.T) {
	out := runCommands(t, "wait", "kill leader", "wait", "restart", "wait", "pause", "wait", "restart", "wait", "quit", "kill n1")
	for _, want := range []string{`=> kill n\d\n`, `n\d is killed`, `=> pause n\d\n`, `n\d is paused`, `n\d leads`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "kill n1\nkill n1") || strings.Contains(out, ended) {
		t.Error(out)
	}
}

func TestRun_NoMajorityLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: it runs three processes")
	}
	out := runCommands(t, "wait", "kill n1", "kill n2", "kill n2", "kill n4", "dance", "", "restart", "wait")
	for _, want := range []string{"kill n2: n2 is killed", `kill n4: there is no node "n4"`, "dance: unknown command: use kill, pause, restart, wait or quit"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
