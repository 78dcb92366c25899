package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCompletion_Candidates(t *testing.T) {
	address, _ := startCluster(t)
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config, []byte(`{"profiles":{"north":{"addr":"`+address+`"},"south":{}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"TENUTO_ADDR": address, "TENUTO_CONFIG": config}
	for _, c := range []struct{ line, want string }{
		{"li", "list"},
		{"hi", "history"},
		{"history e", "export"},
		{"schedule tr", "trigger"},
		{"sch", "schedule"},
		{"activity ", "pause resume list"},
		{"nothing ", ""},
		{"get ", "hello-1 never-1"},
		{"get he", "hello-1"},
		{"get hello-1 -stale ne", "never-1"},
		{"stack hello-1 ", ""},
		{"history he", "hello-1"},
		{"history check ", ""},
		{"get -o ", "table json yaml"},
		{"list -o w", "wide"},
		{"list -state st", "stalled"},
		{"list -order -u", "-updated"},
		{"list --sta", "--stale --state"},
		{"list -sta", "-stale -state"},
		{"list -addr ", ""},
		{"remove ", "n0"},
		{"list -profile s", "south"},
		{"profile use ", "north south"},
		{"get -profile north -addr 127.0.0.1:1 -timeout 10ms he", ""},
		{"get -profile nothing he", ""},
		{"schedule create s -overlap buffer", "buffer-one buffer-all"},
	} {
		want := strings.Fields(c.want)
		var o outcome
		var got []string
		for range 3 { // a cluster that is too busy to answer within completionTimeout completes nothing
			o, got = runAlone(t, env, append([]string{completeWord}, strings.Split(c.line, " ")...)...), nil
			for line := range strings.Lines(o.out) {
				word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
				got = append(got, word)
			}
			if len(got) > 0 || len(want) == 0 {
				break
			}
		}
		if o.status != statusOK || o.err != "" || !slices.Equal(got, want) {
			t.Errorf("%q: %q, status %d, %s; want %q", c.line, got, o.status, o.err, want)
		}
	}
}

// installed returns the path of a shell, and skips the test if there is none.
func installed(t *testing.T, shell string) string {
	t.Helper()
	path, err := exec.LookPath(shell)
	if err != nil {
		t.Skipf("%s is not installed", shell)
	}
	return path
}

// asTenuto returns the environment of a shell that finds this command as "tenuto".
func asTenuto(t *testing.T, more ...string) []string {
	t.Helper()
	dir := t.TempDir()
	executable, err := os.Executable()
	if err == nil {
		err = os.Symlink(executable, filepath.Join(dir, "tenuto"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return append(os.Environ(), append([]string{asCommand + "=1", "PATH=" + dir + ":" + os.Getenv("PATH"), "HOME=" + dir, "XDG_CONFIG_HOME=" + t.TempDir()}, more...)...)
}

func TestCompletion_Scripts(t *testing.T) {
	address, _ := startCluster(t)
	for shell, question := range map[string]string{
		"bash": `source <(tenuto completion bash)
			COMP_WORDS=(tenuto get ne) COMP_CWORD=2; _tenuto; printf '%s\n' "${COMPREPLY[@]}"
			COMP_WORDS=(tenuto history -st) COMP_CWORD=2; _tenuto; printf '%s\n' "${COMPREPLY[@]}"
			COMP_WORDS=(tenuto history check ./) COMP_CWORD=3; _tenuto; printf '%s\n' "${#COMPREPLY[@]}"`,
		"zsh": `compdef() { : }; _files() { print 0 }
			_describe() { print -l -- ${${(P)2}%%:*} }
			source <(tenuto completion zsh)
			words=(tenuto get ne) CURRENT=3; _tenuto
			words=(tenuto history -st) CURRENT=3; _tenuto
			words=(tenuto history check ./) CURRENT=4; _tenuto`,
		"fish": `tenuto completion fish | source
			complete -C 'tenuto get ne' | cut -f1
			complete -C 'tenuto history -st' | cut -f1
			count (complete -C 'tenuto history check nothing-here')`,
	} {
		t.Run(shell, func(t *testing.T) {
			path := installed(t, shell)
			file := filepath.Join(t.TempDir(), "script")
			if err := os.WriteFile(file, []byte(completionScripts[shell]), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), path, "-n", file).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			asked := exec.CommandContext(t.Context(), path, "-c", question)
			asked.Env = asTenuto(t, "TENUTO_ADDR="+address)
			out, err := asked.CombinedOutput()
			var exit *exec.ExitError // the last count of fish is 0, which is its status 1
			if err != nil && !errors.As(err, &exit) || string(out) != "never-1\n-stale\n0\n" {
				t.Errorf("%v: %q", err, out)
			}
		})
	}
}
