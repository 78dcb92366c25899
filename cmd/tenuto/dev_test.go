package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/dashboard"
	"github.com/tenuto-dev/tenuto/internal/addresstest"
)

// A devNode is a process that runs "tenuto dev".
type devNode struct {
	*exec.Cmd
	printed string // up to the last line of what to type
}

func startDev(t *testing.T, env []string, flags ...string) *devNode {
	t.Helper()
	n := &devNode{Cmd: exec.Command(os.Args[0], append([]string{"dev"}, flags...)...)}
	n.Env = append(append(os.Environ(), asCommand+"=1"), env...)
	stderr, err := n.StderrPipe()
	if err == nil {
		err = n.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = n.Process.Kill()
		_ = n.Wait()
	})
	limit := time.AfterFunc(time.Minute, func() { _ = n.Process.Kill() })
	defer limit.Stop()
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		n.printed += lines.Text() + "\n"
		if strings.Contains(lines.Text(), "tenuto audit") {
			go func() { // so that the node can go on writing
				for lines.Scan() {
				}
			}()
			return n
		}
	}
	t.Fatalf("the node is not ready: %s", n.printed)
	return nil
}

// The commands that "tenuto dev" prints work, and a killed node continues on the same directory.
func TestDev_PrintedCommandsSurviveKill(t *testing.T) {
	address, dir := addresstest.Free(t), filepath.Join(t.TempDir(), "data")
	node := startDev(t, nil, "-dir", dir, "-listen", address)
	shell := installed(t, "sh")
	env := asTenuto(t, "TENUTO_ADDR="+address)
	script := regexp.MustCompile(`(?m)^  (tenuto .*?)(   .*)?$`).FindAllStringSubmatch(node.printed, -1)
	if len(script) < 10 {
		t.Fatalf("few commands in:\n%s", node.printed)
	}
	try := func(command string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		run := exec.CommandContext(ctx, shell, "-ec", command)
		run.Env = env
		out, err := run.CombinedOutput()
		return string(out), err
	}
	typed := func(command string) string {
		t.Helper()
		out, err := try(command)
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		return out
	}
	var outputs []string
	for i, match := range script {
		words := strings.Fields(match[1])
		if awaited := map[string]string{"query": "waiting for approval", "pending": "backing off"}[words[1]]; awaited != "" {
			await(t, awaited, func(context.Context) bool { return strings.Contains(typed("tenuto get -pending "+words[2]), awaited) })
		}
		if words[1] == "retry" { // rejected while an attempt runs
			await(t, match[1], func(context.Context) bool { _, err := try(match[1]); return err == nil })
		} else {
			outputs = append(outputs, typed(match[1]))
		}
		if i == len(script)/2 {
			if err := node.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = node.Wait()
			node = startDev(t, nil, "-dir", dir, "-listen", address)
		}
	}
	all := strings.Join(outputs, "")
	for _, text := range []string{`"hello Ada"`, "ActivityCompleted", `"step":"waiting for approval"`, "order-1  completed", "call-bank", "the-bank-does-not-answer", "called-them"} {
		if !strings.Contains(all, text) {
			t.Errorf("%q is missing in\n%s", text, all)
		}
	}
	if err := node.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := node.Wait(); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
}

func TestDev_RemovesTemporaryDirectory(t *testing.T) {
	temporary := t.TempDir()
	address := addresstest.Free(t)
	node := startDev(t, []string{"TMPDIR=" + temporary}, "-listen", address)
	second := exec.CommandContext(t.Context(), os.Args[0], "dev", "-listen", address)
	second.Env = append(os.Environ(), asCommand+"=1", "TMPDIR="+temporary)
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "choose others with -listen") {
		t.Errorf("a second node on the address: %v, %s", err, out)
	}
	if err := node.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := node.Wait(); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(temporary)
	if err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", slices.Collect(func(yield func(string) bool) {
			for _, entry := range left {
				yield(entry.Name())
			}
		}), err)
	}
}

// sessionOf returns what the dashboard at a URL says about its user.
func sessionOf(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url + "api/session")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(response.StatusCode, " ", string(text))
}

// "tenuto ui" and "tenuto dev" serve the dashboard at the URLs that they print, and at no other
// path.
func TestUI_ServesDashboardOnLoopback(t *testing.T) {
	address := addresstest.Free(t)
	node := startDev(t, nil, "-listen", address)
	ofNode := regexp.MustCompile(`http://\S+/`).FindString(node.printed)
	if got := sessionOf(t, ofNode); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, `"read_only":false`) {
		t.Errorf("tenuto dev: %s", got)
	}
	ui := exec.CommandContext(t.Context(), os.Args[0], "ui", "-addr", address, "-listen", "127.0.0.1:0", "-as", "ada", "-read-only")
	ui.Env = append(os.Environ(), asCommand+"=1")
	stderr, err := ui.StderrPipe()
	if err == nil {
		err = ui.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	lines.Scan()
	url := regexp.MustCompile(`http://\S+/`).FindString(lines.Text())
	if url == "" {
		t.Fatalf("tenuto ui writes %q", lines.Text())
	}
	if got := sessionOf(t, url); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, `"principal":"ada","read_only":true`) {
		t.Errorf("tenuto ui: %s", got)
	}
	if got := sessionOf(t, regexp.MustCompile(`[^/]+/$`).ReplaceAllString(url, "")); !strings.HasPrefix(got, "404 ") {
		t.Errorf("without the random path: %s", got)
	}
	if err := ui.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if err := ui.Wait(); err != nil {
		t.Errorf("after an interrupt: %v", err)
	}
}

func TestUI_RefusesOtherAddresses(t *testing.T) {
	for _, address := range []string{"0.0.0.0:7480", ":7480", "192.0.2.1:7480", "example.com:80", "127.0.0.1"} {
		if _, err := openDashboard(nil, address, dashboard.Options{}); err == nil || !strings.Contains(err.Error(), "is not a loopback address") {
			t.Errorf("%s: %v", address, err)
		}
	}
}
