package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")
	shellWord  = regexp.MustCompile(`'[^']*'|[^\s']+`)
)

// Every command line of the guides names a command, and has flags and arguments that it takes.
func TestGuides_CommandLinesAreValid(t *testing.T) {
	guides, err := filepath.Glob("../../*/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := 0
	for _, guide := range append(guides, "../../README.md") {
		content, err := os.ReadFile(guide)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range shellBlock.FindAllStringSubmatch(string(content), -1) {
			for line := range strings.Lines(strings.ReplaceAll(block[1], "\\\n", " ")) {
				if strings.HasPrefix(line, "tenuto ") {
					lines++
					checkCommandLine(t, guide, strings.TrimSpace(line))
				}
			}
		}
	}
	if lines < 30 {
		t.Errorf("found %d command lines", lines)
	}
}

func checkCommandLine(t *testing.T, guide, line string) {
	t.Helper()
	line, _, _ = strings.Cut(line, " #")
	for part := range strings.SplitSeq(line, " | tenuto ") {
		var words []string
		for _, word := range shellWord.FindAllString(strings.TrimPrefix(part, "tenuto "), -1) {
			words = append(words, strings.Trim(word, "'"))
		}
		c, rest := findCommand(words)
		if c == nil {
			t.Errorf("%s: %s: no such command", guide, line)
			continue
		}
		flags, _ := c.prepare()
		args, err := parseFlags(flags, rest)
		if err != nil || len(args) < c.argsMin || c.argsMax >= 0 && len(args) > c.argsMax {
			t.Errorf("%s: %s: %v, arguments %q; usage: %s", guide, line, err, args, c.usage())
		}
	}
}
