package filter

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// A SyntaxError reports text that is no filter.
type SyntaxError struct {
	// Text is the whole text.
	Text string
	// Offset is where Word begins in Text, in bytes.
	Offset int
	// Word is the part that is not valid, as it is in Text.
	Word string
	// Reason says why, for example `has the unknown state "faild": did you mean "failed"?`.
	Reason string
}

// Error names the word, its position, counted in characters from 1, and the reason.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("filter: %q at position %d %s", shorten(e.Word), e.column()+1, e.Reason)
}

// Caret returns two lines for a terminal: the text, and below it a mark for each character of the
// word.
func (e *SyntaxError) Caret() string {
	line := strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, e.Text)
	return line + "\n" + strings.Repeat(" ", e.column()) + strings.Repeat("^", max(1, utf8.RuneCountInString(e.Word)))
}

// column returns how many characters are before the word.
func (e *SyntaxError) column() int {
	return utf8.RuneCountInString(e.Text[:min(max(e.Offset, 0), len(e.Text))])
}

// shortenedMax bounds what an error repeats of a word, in bytes.
const shortenedMax = 140

func shorten(text string) string {
	if len(text) <= shortenedMax {
		return text
	}
	return strings.ToValidUTF8(text[:shortenedMax], "") + "…"
}

// unknownWord is the reason for a word that no filter has.
func unknownWord(w *word) string {
	field := w.field
	if w.key != "" {
		field += "."
	}
	if known, ok := words[w.field]; ok {
		switch {
		case known.keyed && w.key == "":
			return fmt.Sprintf("has no key: write %s.KEY=VALUE", w.field)
		case !known.keyed && w.key != "":
			return fmt.Sprintf("has a key, which only tag and attr have; the nearest word is %q", nearest(w.field+"."+w.key, wordTexts()))
		case w.op == "":
			return "has no operator: use one of" + strings.TrimRight(known.operators, " ")
		}
	}
	return noneOf("word", field, wordTexts())
}

// wordTexts returns the words of filters.
func wordTexts() []string {
	var all []string
	for _, field := range slices.Sorted(maps.Keys(words)) {
		if words[field].keyed {
			field += "."
		}
		all = append(all, field)
	}
	return all
}

// noneOf is the reason for a text that is none of the permitted ones.
func noneOf(what, text string, permitted []string) string {
	if near := nearest(text, permitted); near != "" {
		return fmt.Sprintf("has the unknown %s %q: did you mean %q?", what, shorten(text), near)
	}
	return fmt.Sprintf("has the unknown %s %q: use one of %s", what, shorten(text), strings.Join(permitted, ", "))
}

// nearest returns the permitted text with the fewest different characters; "" if all differ in more
// than a third of theirs and in more than 2.
func nearest(text string, permitted []string) string {
	if len(text) > shortenedMax {
		return ""
	}
	best, found := 0, ""
	for _, candidate := range permitted {
		d := distance(text, candidate)
		if d <= max(2, len(candidate)/3) && d < len(candidate) && (found == "" || d < best) {
			best, found = d, candidate
		}
	}
	return found
}

// distance returns how many bytes to insert, remove or replace to turn one text into the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
