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

// A mutant is a patch that breaks a rule.
type mutant struct {
	name        string
	description string
	invariants  string
	dir         string // of the package whose test catches it
	test        string
	env         string // an environment variable, NAME=VALUE; "" for none
	patch       []byte
}

// readMutants reads the mutants of a directory, sorted by name.
func readMutants(dir string) ([]*mutant, error) {
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
		m, err := parseMutant(strings.TrimSuffix(filepath.Base(file), ".patch"), content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		mutants = append(mutants, m)
	}
	return mutants, nil
}

func parseMutant(name string, content []byte) (*mutant, error) {
	m := &mutant{name: name, patch: content}
	for line := range strings.Lines(string(content)) {
		line, isHead := strings.CutPrefix(strings.TrimSpace(line), "# ")
		if !isHead {
			break
		}
		key, value, _ := strings.Cut(line, ": ")
		switch key {
		case "Breaks":
			m.invariants = value
		case "Caught by":
			m.dir, m.test, _ = strings.Cut(value, " ")
		case "Needs":
			m.env = value
		default:
			m.description = line
		}
	}
	if m.description == "" || m.invariants == "" || m.dir == "" || m.test == "" {
		return nil, errors.New("the header must say what the mutant does, what it breaks and what catches it")
	}
	return m, nil
}

// An outcome is the result of trying a mutant.
type outcome string

const (
	caught    outcome = "caught"
	notCaught outcome = "NOT CAUGHT"
	// The code has changed: the patch must be rewritten.
	patchStale  outcome = "NO LONGER APPLIES"
	buildFailed outcome = "DOES NOT BUILD"
	// The test does not exist, or fails or is skipped without the mutant too.
	testUseless outcome = "PROVES NOTHING"
	// The test cannot run here, for example because it needs root.
	skipped outcome = "SKIPPED"
)

// try runs the mutant's test without and with the patch, and restores the tree. It returns the
// output if something must be corrected.
//
// The patch is applied without fuzz, at any offset. With fuzz, an outdated patch could break
// something else, or nothing.
func (m *mutant) try(tree string) (outcome, string) {
	if out, err := m.apply(tree, "--dry-run"); err != nil {
		return patchStale, out
	}
	switch out, err := m.run(tree); {
	case err == nil && strings.Contains(out, "--- SKIP: "+m.test):
		return skipped, out
	case err != nil || !strings.Contains(out, "--- PASS: "+m.test):
		return testUseless, out
	}
	if out, err := m.apply(tree); err != nil {
		return patchStale, out
	}
	out, err := m.run(tree)
	back, reverseErr := m.apply(tree, "-R")
	switch {
	case reverseErr != nil:
		return patchStale, back
	case err == nil:
		return notCaught, out
	case !strings.Contains(out, "--- FAIL: "+m.test) && !strings.Contains(out, "panic: "):
		return buildFailed, out
	}
	return caught, ""
}

func (m *mutant) apply(tree string, options ...string) (string, error) {
	command := exec.Command("patch", append([]string{"-p1", "--batch", "--fuzz=0", "--no-backup-if-mismatch", "-r", "-"}, options...)...)
	command.Dir, command.Stdin = tree, bytes.NewReader(m.patch)
	out, err := command.CombinedOutput()
	return string(out), err
}

// testTimeout ends a test that a mutant blocks.
const testTimeout = "120s"

func (m *mutant) run(tree string) (string, error) {
	command := exec.Command("go", "test", "-v", "-count=1", "-timeout", testTimeout, "-run", "^"+m.test+"$", ".")
	// The package may be in a module below the root.
	command.Dir = filepath.Join(tree, m.dir)
	command.Env = append(os.Environ(), "GOWORK=off")
	if m.env != "" {
		command.Env = append(command.Env, m.env)
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
