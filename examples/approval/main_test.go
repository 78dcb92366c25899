package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// asProgram makes the binary of the tests be the program.
const asProgram = "APPROVAL_IS_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// terminal runs the commands of one user, each in a process of its own.
type terminal struct {
	t      *testing.T
	binary string
	dir    string
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return &terminal{t: t, binary: binary, dir: t.TempDir()}
}

// says runs a command and checks that it succeeds and prints each of want.
func (u *terminal) says(command string, want ...string) {
	u.t.Helper()
	output, err := u.run(command)
	if err != nil {
		u.t.Fatalf("%s: %v\n%s", command, err, output)
	}
	u.wants(output, want...)
}

func (u *terminal) wants(output string, want ...string) {
	u.t.Helper()
	for _, part := range want {
		if !strings.Contains(output, part) {
			u.t.Errorf("no %q in\n%s", part, output)
		}
	}
}

func (u *terminal) run(command string) (string, error) {
	args := append([]string{"-dir", u.dir}, strings.Fields(command)...)
	program := exec.Command(u.binary, args...)
	program.Env = append(os.Environ(), asProgram+"=1")
	output, err := program.CombinedOutput()
	return string(output), err
}

func TestAnApprovedExpenseIsPaid(t *testing.T) {
	u := newTerminal(t)
	u.says("start trip 250", "trip waits for a decision")
	u.says("status trip", "trip: running", `ActivityScheduled name="reserve"`)
	u.says("approve trip Ada", "pay 250 for trip", "trip: paid, approved by Ada")
	u.says("status trip", "trip: paid", `ExternalEvent name="decided"`, "OrchestrationCompleted")
}

func TestARefusedExpenseIsReleased(t *testing.T) {
	u := newTerminal(t)
	u.says("start yacht 9000000")
	u.says("refuse yacht Bob", "release 9000000 for yacht", "yacht: not paid, refused by Bob")
}

func TestWithoutAnAnswerItIsReleasedAtTheDeadlineAfterReminders(t *testing.T) {
	u := newTerminal(t)
	// Which command's node is there when a timer comes due is a matter of time:
	// what they print together is not.
	output := ""
	for _, command := range []string{"start -deadline 300ms -remind 70ms desk 80", "watch desk"} {
		printed, err := u.run(command)
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, printed)
		}
		output += printed
	}
	u.wants(output, "please decide about 80 for desk", "release 80 for desk", "desk: not paid, nobody answered in time")
	if output, err := u.run("approve desk Ada"); err == nil || !strings.Contains(output, "has ended") {
		t.Errorf("an answer after the deadline: %v\n%s", err, output)
	}
}

func TestWrongCommandsSayWhatIsWrong(t *testing.T) {
	u := newTerminal(t)
	u.says("start once 1")
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
