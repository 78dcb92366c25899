package main

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

// independentReport computes the expected report in another way. Only the table of languages
// is shared with the program.
func independentReport(t *testing.T, top string) Report {
	t.Helper()
	report := Report{Source: top, Languages: make(map[string]Totals)}
	lines := make(map[string][]string) // of a directory's digest
	totals := make(map[string]*Totals) // of a directory
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || entry.IsDir():
			return err
		case !entry.Type().IsRegular():
			report.Skipped++
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		counted := Totals{Files: 1, Bytes: int64(len(content))}
		if text := string(content); text != "" {
			counted.Lines = int64(len(strings.Split(strings.TrimSuffix(text, "\n"), "\n")))
		}
		dir, err := filepath.Rel(top, filepath.Dir(path))
		if err != nil {
			return err
		}
		if totals[dir] == nil {
			totals[dir] = new(Totals)
		}
		totals[dir].add(counted)
		report.Totals.add(counted)
		language := report.Languages[languageOf(path)]
		language.add(counted)
		report.Languages[languageOf(path)] = language
		lines[dir] = append(lines[dir], fmt.Sprintf("%x  %s\n", sha256.Sum256(content), entry.Name()))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	finishReport(&report, lines, totals)
	return report
}

func finishReport(report *Report, lines map[string][]string, totals map[string]*Totals) {
	report.Directories = len(totals)
	var paths []string
	for path, of := range totals {
		paths = append(paths, path)
		report.Largest = append(report.Largest, Package{path, *of})
	}
	sort.Strings(paths)
	whole := ""
	for _, path := range paths {
		// WalkDir visits files by name, so the lines are sorted.
		whole += fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte(strings.Join(lines[path], ""))), path)
	}
	report.Digest = fmt.Sprintf("%x", sha256.Sum256([]byte(whole)))
	sort.Slice(report.Largest, func(i, j int) bool {
		a, b := report.Largest[i], report.Largest[j]
		return a.Bytes > b.Bytes || a.Bytes == b.Bytes && a.Path < b.Path
	})
	if len(report.Largest) > 10 {
		report.Largest = report.Largest[:10]
	}
}
