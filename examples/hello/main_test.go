package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenuto-dev/tenuto/cluster"
)

// runMainEnv makes the test binary run the program.
const runMainEnv = "HELLO_IS_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runMainEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestHello_RunsActivityOnce(t *testing.T) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for range 2 {
		command := exec.Command(binary)
		command.Dir = dir
		command.Env = append(os.Environ(), runMainEnv+"=1")
		output, err := command.Output()
		if err != nil || string(output) != "Hello, Ada!\n" {
			t.Fatalf("output %q, %v", output, err)
		}
	}
	node, err := cluster.Start(t.Context(), cluster.Config{Dir: filepath.Join(dir, "data", "hello")})
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	history, err := node.Client().History(t.Context(), "hello-1")
	if err != nil {
		t.Fatal(err)
	}
	want := readmeHistory(t)
	if len(want) != len(history.Events) {
		t.Fatalf("the README shows %d events, there are %d:\n%s", len(want), len(history.Events), history)
	}
	for i, event := range history.Events {
		if !strings.HasSuffix(want[i], event.String()) {
			t.Errorf("the README shows %q, the event is %q", want[i], event)
		}
	}
}

// readmeHistory returns the lines of the history in the README.
func readmeHistory(t *testing.T) []string {
	t.Helper()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(readme), "```history\n")
	if !found {
		t.Fatal("the README shows no history")
	}
	shown, _, _ := strings.Cut(after, "\n```")
	return strings.Split(shown, "\n")
}

func TestHello_ReadmeShowsProgram(t *testing.T) {
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```go\n"+string(program)+"```") {
		t.Error("README.md does not show main.go as it is")
	}
	lines := 0
	for line := range strings.Lines(string(program)) {
		if strings.TrimSpace(line) != "" {
			lines++
		}
	}
	if lines > 24 {
		t.Errorf("%d non-blank lines, more than 24", lines)
	}
}
