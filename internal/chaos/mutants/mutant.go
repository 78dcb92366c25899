package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A mutant is a patch that breaks something.
type mutant struct {
	name   string
	what   string
	breaks string
	dir    string // of the package whose test catches it
	test   string
	needs  string // an environment variable, NAME=VALUE; "" for none
	patch  []byte
}

// read reads the mutants of a directory, in the order of their names.
func read(dir string) ([]*mutant, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no mutants in %s: run this at the root of the repository", dir)
	}
	var mutants []*mutant
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(filepath.Base(file), ".patch"), content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		mutants = append(mutants, m)
	}
	return mutants, nil
}

func parse(name string, content []byte) (*mutant, error) {
	m := &mutant{name: name, patch: content}
	for line := range strings.Lines(string(content)) {
		line, isHead := strings.CutPrefix(strings.TrimSpace(line), "# ")
		if !isHead {
			break
		}
		key, value, _ := strings.Cut(line, ": ")
		switch key {
		case "Breaks":
			m.breaks = value
		case "Caught by":
			m.dir, m.test, _ = strings.Cut(value, " ")
		case "Needs":
			m.needs = value
		default:
			m.what = line
		}
	}
	if m.what == "" || m.breaks == "" || m.dir == "" || m.test == "" {
		return nil, errors.New("its head does not say what it does, what it breaks and what catches it")
	}
	return m, nil
}

// An outcome is what became of a mutant.
type outcome string

const (
	wasCaught    outcome = "caught"
	wasNotCaught outcome = "NOT CAUGHT"
	// The code has changed: the patch must be made anew.
	noLongerApplies outcome = "NO LONGER APPLIES"
	doesNotBuild    outcome = "DOES NOT BUILD"
	// There is no such test, or it fails or is skipped without the mutant too.
	provesNothing outcome = "PROVES NOTHING"
	// The test does not run here, because it needs root for example.
	wasSkipped outcome = "SKIPPED"
)

// try runs the mutant's test without it and with it, and leaves the tree as it
// was. It returns the output where something is to be put right.
//
// The patch is applied to the very lines that it names, wherever they stand now: with the
// command's usual tolerance one that is out of date breaks something else, or nothing.
func (m *mutant) try(tree string) (outcome, string) {
	if out, err := m.apply(tree, "--dry-run"); err != nil {
		return noLongerApplies, out
	}
	switch out, err := m.run(tree); {
	case err == nil && strings.Contains(out, "--- SKIP: "+m.test):
		return wasSkipped, out
	case err != nil || !strings.Contains(out, "--- PASS: "+m.test):
		return provesNothing, out
	}
	if out, err := m.apply(tree); err != nil {
		return noLongerApplies, out
	}
	out, err := m.run(tree)
	back, undone := m.apply(tree, "-R")
	switch {
	case undone != nil:
		return noLongerApplies, back
	case err == nil:
		return wasNotCaught, out
	case !strings.Contains(out, "--- FAIL: "+m.test) && !strings.Contains(out, "panic: "):
		return doesNotBuild, out
	}
	return wasCaught, ""
}

func (m *mutant) apply(tree string, options ...string) (string, error) {
	command := exec.Command("patch", append([]string{"-p1", "--batch", "--fuzz=0", "--no-backup-if-mismatch", "-r", "-"}, options...)...)
	command.Dir, command.Stdin = tree, bytes.NewReader(m.patch)
	out, err := command.CombinedOutput()
	return string(out), err
}

// testTimeout ends a test that a mutant keeps from ending.
const testTimeout = "120s"

func (m *mutant) run(tree string) (string, error) {
	command := exec.Command("go", "test", "-v", "-count=1", "-timeout", testTimeout, "-run", "^"+m.test+"$", m.dir)
	command.Dir = tree
	command.Env = append(os.Environ(), "GOWORK=off")
	if m.needs != "" {
		command.Env = append(command.Env, m.needs)
	}
	out, err := command.CombinedOutput()
	return string(out), err
}

// copyTree copies what the go command needs of a repository.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if base := entry.Name(); relative != "." && base[0] == '.' {
				return fs.SkipDir
			}
			return os.MkdirAll(filepath.Join(to, relative), 0o755)
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, relative), content, 0o644)
	})
}
