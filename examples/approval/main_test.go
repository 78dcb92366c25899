package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// runMainEnv makes the test binary run the program.
const runMainEnv = "APPROVAL_IS_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runMainEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// A cli runs the commands of one user, each in its own process.
type cli struct {
	t      *testing.T
	binary string
	dir    string
}

func newCLI(t *testing.T) *cli {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &cli{t: t, binary: binary, dir: t.TempDir()}
}

// expectOutput runs a command and checks that it succeeds and prints each of want.
func (c *cli) expectOutput(command string, want ...string) {
	c.t.Helper()
	output, err := c.run(command)
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", command, err, output)
	}
	c.expectContains(output, want...)
}

func (c *cli) expectContains(output string, want ...string) {
	c.t.Helper()
	for _, part := range want {
		if !strings.Contains(output, part) {
			c.t.Errorf("no %q in\n%s", part, output)
		}
	}
}

func (c *cli) run(command string) (string, error) {
	args := append([]string{"-dir", c.dir}, strings.Fields(command)...)
	program := exec.Command(c.binary, args...)
	program.Env = append(os.Environ(), runMainEnv+"=1")
	output, err := program.CombinedOutput()
	return string(output), err
}

func TestCLI_ApprovedExpenseIsPaid(t *testing.T) {
	u := newCLI(t)
	u.expectOutput("start trip 250", "trip waits for a decision")
	u.expectOutput("status trip", "trip: running", `ActivityScheduled name="reserve"`)
	u.expectOutput("approve trip Ada", "pay 250 for trip", "trip: paid, approved by Ada")
	u.expectOutput("status trip", "trip: paid", `ExternalEvent name="decided"`, "OrchestrationCompleted")
}

func TestCLI_RejectedExpenseIsReleased(t *testing.T) {
	u := newCLI(t)
	u.expectOutput("start yacht 9000000")
	u.expectOutput("reject yacht Bob", "release 9000000 for yacht", "yacht: not paid, rejected by Bob")
}

func TestCLI_UnansweredExpenseIsReleased(t *testing.T) {
	u := newCLI(t)
	// Timing decides which command's node fires a timer, but not what they print together.
	output := ""
	for _, command := range []string{"start -deadline 300ms -remind 70ms desk 80", "watch desk"} {
		printed, err := u.run(command)
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, printed)
		}
		output += printed
	}
	u.expectContains(output, "please decide about 80 for desk", "release 80 for desk", "desk: not paid, nobody answered in time")
	if output, err := u.run("approve desk Ada"); err == nil || !strings.Contains(output, "has ended") {
		t.Errorf("an answer after the deadline: %v\n%s", err, output)
	}
}

func TestCLI_RejectsWrongCommands(t *testing.T) {
	u := newCLI(t)
	u.expectOutput("start once 1")
	for command, want := range map[string]string{
		"":                        "usage:",
		"dance":                   "usage:",
		"start x":                 "usage:",
		"start x many":            "not a positive number",
		"start -deadline -1s x 1": "must be positive",
		"start once 2":            "exists",
		"status nobody":           "no such instance",
		"approve nobody Ada":      "no such instance",
	} {
		if output, err := u.run(command); err == nil || !strings.Contains(output, want) {
			t.Errorf("%q: %v\n%s", command, err, output)
		}
	}
}
