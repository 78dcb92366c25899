package house

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// replacedWords are words and pairs of words that GLOSSARY.md replaces and that have no other
// meaning here. Identifiers are compared word by word: "reignEnd" contains "reign".
var replacedWords = wordSet(`
	reign reigns crown crowns crowned abdicate abdicates vouch vouches vouched hearsay courier couriers turnstile turnstiles
	dehydrate dehydrates dehydrated dehydrating dehydration dehydrations switchboard switchboards lookout lookouts
	yardstick yardsticks offence offences offense offenses acquit acquits acquitted disbelieve disbelieves disbelieved alarm alarms
	whoever whosever cancelled cancelling behaviour loan loans enrol enrols settler settlers handout handouts goodbye goodbyes`,
	"give up", "gives up", "given up", "giving up", "gave up", "step aside", "steps aside", "stepped aside", "tells whether",
)

func wordSet(words string, pairs ...string) map[string]bool {
	set := make(map[string]bool)
	for _, word := range append(strings.Fields(words), pairs...) {
		set[word] = true
	}
	return set
}

// exemptFromVocabulary are files that explain or record the replaced words.
var exemptFromVocabulary = []string{
	"GLOSSARY.md", "bench/measure/rounds.go", "internal/house/vocabulary_test.go", "bench/results/", "/testdata/", ".pb.go", "proto/journalpb/journal.proto",
}

func TestVocabulary_ReplacedWordsAreGone(t *testing.T) {
	checked := 0
	err := filepath.WalkDir(repositoryRoot, func(name string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if base := entry.Name(); base != "." && base != ".." && strings.HasPrefix(base, ".") {
				return filepath.SkipDir
			}
			return nil
		}
		relative, err := filepath.Rel(repositoryRoot, name)
		if err != nil {
			return err
		}
		relative = filepath.ToSlash(relative)
		if !hasVocabulary(relative) {
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		checked++
		for _, found := range replacedWordsIn(string(content)) {
			t.Errorf("%s:%s; see GLOSSARY.md", relative, found)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked == 0 {
		t.Error("no file was read")
	}
}

// hasVocabulary reports whether a file is compared with the list.
func hasVocabulary(name string) bool {
	for _, part := range exemptFromVocabulary {
		if strings.Contains(name, part) {
			return false
		}
	}
	switch filepath.Ext(name) {
	case ".go", ".md", ".proto", ".patch", ".html":
		return true
	}
	return filepath.Base(name) == "Makefile"
}

// replacedWordsIn returns "line: the word" for each replaced word of a text.
func replacedWordsIn(text string) (found []string) {
	for i, line := range strings.Split(text, "\n") {
		before := ""
		for _, word := range wordsOf(line) {
			for _, candidate := range []string{word, before + " " + word} {
				// Names in recorded data, such as "given-up", cannot change.
				if replacedWords[candidate] && !strings.Contains(line, before+"-"+word) {
					found = append(found, fmt.Sprintf("%d: %q is a replaced word", i+1, candidate))
				}
			}
			before = word
		}
	}
	return found
}

// wordsOf splits a line into words in lower case, and identifiers into theirs.
func wordsOf(line string) (words []string) {
	start, lower := -1, false
	end := func(i int) {
		if start >= 0 {
			words = append(words, strings.ToLower(line[start:i]))
		}
		start = -1
	}
	for i := range len(line) {
		c := line[i]
		upper := c >= 'A' && c <= 'Z'
		if !upper && (c < 'a' || c > 'z') {
			end(i)
			continue
		}
		if upper && lower {
			end(i)
		}
		if start < 0 {
			start = i
		}
		lower = !upper
	}
	end(len(line))
	return words
}

func TestVocabulary_Violations(t *testing.T) {
	for text, want := range map[string]bool{
		"func (r *reign) end() {}":              true,
		"lastReignEnd := 1":                     true,
		"// The leader has given up the lead.":  true,
		"an activity that was cancelled":        true,
		"// The foreign key is a sovereign one": false,
		"a canceled activity":                   false,
		"TestTranscripts/giving-up":             false,
		"// Gives the upper bound.":             false,
	} {
		if got := len(replacedWordsIn(text)) > 0; got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
