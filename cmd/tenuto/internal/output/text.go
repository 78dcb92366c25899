package output

import (
	"cmp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Cell returns text as one word for a table, "-" for none.
func Cell(text string) string {
	return cmp.Or(Line(strings.Join(strings.Fields(text), "-")), "-")
}

// Line returns text in one line, with escapes for characters that are not printable.
func Line(text string) string {
	return escape(text, func(r rune) bool { return unicode.IsPrint(r) })
}

// Lines is Line for text that may have several lines, with tabs.
func Lines(text string) string {
	return escape(text, func(r rune) bool { return r == '\n' || r == '\t' || unicode.IsPrint(r) })
}

func escape(text string, isPlain func(r rune) bool) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		if isPlain(r) && (r != utf8.RuneError || size > 1) {
			b.WriteString(text[:size])
		} else {
			quoted := strconv.QuoteToASCII(text[:size])
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[size:]
	}
	return b.String()
}

// Times formats times for people.
type Times struct {
	UTC bool // not in the local zone
	Now time.Time
}

// Cell returns a time as one word, "-" for the zero time.
func (t Times) Cell(at time.Time) string {
	switch {
	case at.IsZero():
		return "-"
	case t.UTC:
		return at.UTC().Format(time.RFC3339)
	}
	return at.Local().Format(time.RFC3339)
}

// Relative returns a time with its distance from now, such as "2026-01-02T15:04:05Z (2h5m ago)".
func (t Times) Relative(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	age := t.Now.Sub(at)
	if age < 0 {
		return t.Cell(at) + " (in " + Duration(-age) + ")"
	}
	return t.Cell(at) + " (" + Duration(age) + " ago)"
}

// Duration returns a duration with two units at most, such as "2h5m", "3d4h" or "1.2s".
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return trimZero(d.Round(time.Second).String(), "m0s")
	case d < 24*time.Hour:
		return trimZero(strings.TrimSuffix(d.Round(time.Minute).String(), "0s"), "h0m")
	}
	hours := int(d.Round(time.Hour) / time.Hour)
	return trimZero(strconv.Itoa(hours/24)+"d"+strconv.Itoa(hours%24)+"h", "d0h")
}

// trimZero removes a last unit that is 0: "1h0m" becomes "1h".
func trimZero(text, zero string) string {
	if strings.HasSuffix(text, zero) {
		return text[:len(text)-len(zero)+1]
	}
	return text
}
