package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestReadValue(t *testing.T) {
	file := filepath.Join(t.TempDir(), "value.json")
	if err := os.WriteFile(file, []byte("{\n  \"a\": 1,\n  \"ö\": tru\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ arg, input, want string }{
		{`{"a":1}`, "", `{"a":1}`},
		{" 1 ", "", "1"},
		{"-", "\"x\"\n", `"x"`},
		{"-", "[1,\n2,,]", "input, standard input is not JSON: line 2, column 3: "},
		{"@" + file, "", "input, " + file + " is not JSON: line 3, column 11: "},
		{"@nothing", "", "read input: open nothing"},
		{"Ada", "", `input is not JSON: line 1, column 1: invalid character 'A' looking for beginning of value; a text needs quotes: '"text"'`},
		{`{"a":1} x`, "", "line 1, column 9: "},
		{`{"a":`, "", "line 1, column 5: unexpected end of JSON input"},
		{"", "", "unexpected end"},
	} {
		got, err := readValue(streams{in: strings.NewReader(c.input)}, "input", c.arg)
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && string(got) != c.want {
			t.Errorf("%q: %s, %v; want %s", c.arg, got, err, c.want)
		}
	}
}

func TestParseTime(t *testing.T) {
	for text, want := range map[string]string{
		"2026-01-02":                "2026-01-02T00:00:00Z",
		"2026-01-02T15:04:05+02:00": "2026-01-02T13:04:05Z",
	} {
		if got, err := parseTime(text); err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	got, err := parseTime("1d2h")
	if age := time.Since(got); err != nil || age < 26*time.Hour || age > 26*time.Hour+time.Minute {
		t.Errorf("1d2h: %v, %v", got, err)
	}
	for _, text := range []string{"", "yesterday", "2026-13-01", "-2h", "2h name=x"} {
		if got, err := parseTime(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}
