package filter

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// someValues are what instances have.
func someValues(field, key string) []string {
	switch field {
	case "name":
		return []string{"checkout", "check in", "refund"}
	case "tag":
		if key == "" {
			return []string{"region", "a=b"}
		}
		return []string{key + "-1"}
	case "waiting":
		return []string{"charge of " + key, "ship"}
	}
	return nil
}

func TestComplete(t *testing.T) {
	for _, c := range []struct {
		text  string // to the cursor
		start int
		want  string // the texts, with | between them
	}{
		{"", 0, "attr.|created<|created>|created>=|ended<|ended>|ended>=|error=|failing>=|failing.error=|id=|name=|order=|parent=|since<|since>|since>=|state=|tag.|updated<"},
		{"na", 0, "name="},
		{"state=failed st", 13, ""},
		{"state=failed na", 13, "name="},
		{"created<1h cr", 11, "created>|created>="},
		{"state=f", 0, "state=failed"},
		{"state=failed,t", 0, "state=failed,terminated"},
		{"state=failed,f", 0, ""},
		{"STATE=f", 0, ""},
		{"name=Check", 0, `name=checkout|name="check in"`},
		{`name="check i`, 0, `name="check in"`},
		{"name=checkout", 0, ""},
		{"order=-u", 0, "order=-updated"},
		{"waiting=a", 0, "waiting=activity|waiting=activity:|waiting=any:"},
		{"waiting=activity:", 0, `waiting="activity:charge of activity"|waiting=activity:ship`},
		{"waiting=timer", 0, ""},
		{"since<", 0, "since<15m|since<1h|since<1d|since<7d"},
		{"failing", 0, "failing>=|failing.error="},
		{"failing>=", 0, "failing>=1|failing>=3|failing>=10"},
		{"tag", 0, "tag."},
		{"tag.", 0, `tag.region=|tag."a=b"=`},
		{`tag."a`, 0, `tag."a=b"=`},
		{`tag."a=b"=`, 0, `tag."a=b"=a=b-1`},
		{"tag.region=", 0, "tag.region=region-1"},
		{"attr.x=", 0, ""},
		{"unknown=", 0, ""},
		{`name="a b" st`, 11, "state="},
		{"name=größe st", 13, "state="},
	} {
		start, end, suggestions := Complete(c.text, len(c.text), someValues)
		var texts []string
		for _, s := range suggestions {
			texts = append(texts, s.Text)
		}
		if got := strings.Join(texts, "|"); start != c.start || end != len(c.text) || got != c.want {
			t.Errorf("%s: from %d to %d: %s; want from %d: %s", c.text, start, end, got, c.start, c.want)
		}
	}
}

// In the middle of a word, a suggestion leaves nothing of what it replaces, and keeps the value of
// a word whose name is completed.
func TestComplete_InTheMiddleOfAWord(t *testing.T) {
	for _, c := range []struct{ before, after, want string }{
		{"sta", "te=failed name=x", "state=failed name=x"},
		{"fail", "ng>=3", "failing>=3"},
		{"st", "x name=x", "state= name=x"},
		{"name=ch", "eck", "name=checkout"},
		{"a=b name=ch", "eck state=failed", "a=b name=checkout state=failed"},
		{`name="check i`, `x and y" state=failed`, `name="check in" state=failed`},
		{"tag.re", "gion=eu x", "tag.region=eu x"},
		{`tag."a`, `=b"=x y`, `tag."a=b"=x y`},
		{"state=f", "", "state=failed"},
		{"ta", "g.region=eu x", "tag.region=eu x"},
		{"tag", "", "tag."},
		{"a=b ", "name=x", "a=b attr.name=x"},
		{"ord", "\xff= x", "order= x"},
	} {
		text := c.before + c.after
		start, end, all := Complete(text, len(c.before), someValues)
		if len(all) == 0 {
			t.Errorf("%s|%s: no suggestions", c.before, c.after)
		} else if got := text[:start] + all[0].Text + text[end:]; got != c.want {
			t.Errorf("%s|%s: %s; want %s", c.before, c.after, got, c.want)
		}
	}
}

// A suggestion leads to a text in which no word before it is wrong that was not wrong before, and a
// value that is accepted leads to a valid word.
func FuzzComplete(f *testing.F) {
	for _, text := range []string{"", "state=failed na", `name="che`, "tag.r", `tag."a`, "waiting=activity:c", "created<", "a=b order=", "\xff=", `"`, "state=failed,"} {
		f.Add(text, len(text))
	}
	f.Fuzz(func(t *testing.T, text string, offset int) {
		start, end, suggestions := Complete(text, offset, someValues)
		if start < 0 || start > end || end < min(offset, len(text)) || end > len(text) || len(suggestions) > suggestionsMax {
			t.Fatalf("%q at %d: from %d, %d suggestions", text, offset, start, len(suggestions))
		}
		if _, err := Parse(text[:start], now); err != nil || !utf8.ValidString(text) {
			return
		}
		for _, s := range suggestions {
			complete := !strings.ContainsAny(s.Text[len(s.Text)-1:], "=<>.:")
			_, err := Parse(text[:start]+s.Text, now)
			if complete && err != nil && !slices.Contains([]string{"is given twice", "has the same bound twice"}, err.(*SyntaxError).Reason) {
				t.Fatalf("%q at %d: %q: %v", text, offset, s.Text, err)
			}
			if err != nil && err.(*SyntaxError).Offset < start {
				t.Fatalf("%q at %d: %q: %v", text, offset, s.Text, err)
			}
		}
	})
}
