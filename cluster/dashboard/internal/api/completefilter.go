package api

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/tenuto-dev/tenuto/cluster/filter"
)

// suggestionsAnswer is what can replace the word of a filter at the cursor.
type suggestionsAnswer struct {
	Suggestions []suggestionView `json:"suggestions"`
	// Start and End bound the part of the text that a suggestion replaces, in UTF-16 code units.
	Start int          `json:"start"`
	End   int          `json:"end"`
	Error *filterError `json:"error"` // in another word, null if there is none
}

type suggestionView struct {
	Text   string `json:"text"`
	Kind   string `json:"kind"` // "word" or "value"
	Detail string `json:"detail,omitempty"`
}

type filterError struct {
	Message string `json:"message"`
	Offset  int    `json:"offset"` // in UTF-16 code units
}

func (a *instanceAPI) completeFilter(ctx context.Context, r *request) (*suggestionsAnswer, error) {
	text := r.FormValue("text")
	cursor, err := r.number("cursor", uint64(len(text)), 0, 1<<20)
	if err != nil {
		return nil, err
	}
	start, end, suggestions := filter.Complete(text, bytesOf(text, int(cursor)), a.values.of(ctx, r))
	answer := &suggestionsAnswer{Suggestions: []suggestionView{}, Start: unitsOf(text[:start]), End: unitsOf(text[:end])}
	for _, s := range suggestions {
		kind := "value"
		if strings.ContainsAny(s.Text[len(s.Text)-1:], "=<>.") {
			kind = "word"
		}
		answer.Suggestions = append(answer.Suggestions, suggestionView{s.Text, kind, s.Detail})
	}
	var syntax *filter.SyntaxError
	if _, err := filter.Parse(text, time.Now()); errors.As(err, &syntax) && (syntax.Offset != start || len(suggestions) == 0) {
		answer.Error = &filterError{syntax.Error(), unitsOf(text[:syntax.Offset])}
	}
	return answer, nil
}

// unitsOf returns the length of a text in UTF-16 code units.
func unitsOf(text string) int { return len(utf16.Encode([]rune(text))) }

// bytesOf returns the offset in bytes of one in UTF-16 code units, as scripts count.
func bytesOf(text string, units int) int {
	for at, r := range text {
		if units <= 0 {
			return at
		}
		units -= utf16.RuneLen(r)
	}
	return len(text)
}
