package output_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

func TestLine_EscapesControlCharacters(t *testing.T) {
	for text, want := range map[string]string{
		"plain, größer ←": "plain, größer ←",
		"\x1b[2J":         `\x1b[2J`,
		"a\nb\tc":         `a\nb\tc`,
		"\u202eevil":      `\u202eevil`,
		"\xff\xfe ok":     `\xff\xfe ok`,
		"\ufffd":          "\ufffd",
		"\x00\u0085":      `\x00\u0085`,
	} {
		if got := output.Line(text); got != want {
			t.Errorf("Line(%q) is %q; want %q", text, got, want)
		}
	}
	if got := output.Lines("a\n\tb\x1b"); got != "a\n\tb\\x1b" {
		t.Errorf("Lines: %q", got)
	}
	if got := output.Cell(" two\nwords\x1b "); got != `two-words\x1b` {
		t.Errorf("Cell: %q", got)
	}
}

func TestDuration_TwoUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1234 * time.Microsecond: "1ms",
		1250 * time.Millisecond: "1.3s",
		90 * time.Second:        "1m30s",
		time.Minute:             "1m",
		2 * time.Hour:           "2h",
		125 * time.Minute:       "2h5m",
		76 * time.Hour:          "3d4h",
		48 * time.Hour:          "2d",
		-time.Minute:            "-1m",
	} {
		if got := output.Duration(d); got != want {
			t.Errorf("%v is %q; want %q", d, got, want)
		}
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	times := output.Times{UTC: true, Now: now}
	if got := times.Relative(now.Add(-time.Hour)) + ", " + times.Relative(now.Add(90*time.Second)); got != "2026-01-02T02:04:05Z (1h ago), 2026-01-02T03:05:35Z (in 1m30s)" {
		t.Error(got)
	}
}

func TestRows_StayAligned(t *testing.T) {
	var out bytes.Buffer
	rows := output.NewRows(&out)
	rows.Add("A", "BEE", "C")
	rows.Add("\x1b[31mred\x1b[0m", "←", "last one")
	if err := rows.Flush(); err != nil {
		t.Fatal(err)
	}
	rows.Add("x", "y", "z") // later, with the same columns
	if err := rows.Flush(); err != nil {
		t.Fatal(err)
	}
	want := "A    BEE  C\n\x1b[31mred\x1b[0m  ←    last one\nx    y    z\n"
	if out.String() != want {
		t.Errorf("%q; want %q", out.String(), want)
	}
}

func TestDocuments_YAML(t *testing.T) {
	var out bytes.Buffer
	d := output.NewDocuments(&out, output.YAML)
	for _, value := range []any{
		map[string]any{
			"a": "plain", "b": "true", "c": "1", "d": "two words", "e": 1.5, "f": nil, "g": true, "no": "#", "h": []any{}, "i": map[string]any{},
			"j": []any{1, "x: y", []any{"z"}, map[string]any{"k": "v", "l": []any{map[string]any{"m": "\u0085\x1b<&>"}}}},
		},
		"text",
		[]int{1, 2},
	} {
		if err := d.Write(value); err != nil {
			t.Fatal(err)
		}
	}
	want := `a: plain
b: "true"
c: "1"
d: "two words"
e: 1.5
f: null
g: true
h: []
i: {}
j:
  - 1
  - "x: y"
  - - z
  - k: v
    l:
      - m: "\u0085\u001b<&>"
"no": "#"
---
text
---
- 1
- 2
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestPrinter_Formats(t *testing.T) {
	columns := []output.Column[string]{
		{Name: "ID", Cell: strings.ToUpper},
		{Name: "LENGTH", Wide: true, Cell: func(s string) string { return strings.Repeat("x", len(s)) }},
	}
	for format, want := range map[output.Format]string{
		output.Table: "ID\nAB\n",
		output.Wide:  "ID  LENGTH\nAB  xx\n",
		output.JSON:  "\"ab\"\n",
		output.YAML:  "ab\n",
		output.IDs:   "id-ab\n",
	} {
		var out bytes.Buffer
		p := output.NewPrinter(&out, format, columns, func(s string) string { return "id-" + s })
		if err := p.Write("ab"); err != nil {
			t.Fatal(err)
		}
		if err := p.Flush(); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v; want %q", format, out.String(), err, want)
		}
	}
}
