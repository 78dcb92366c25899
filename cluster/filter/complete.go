package filter

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
)

// suggestionsMax bounds the suggestions for a word.
const suggestionsMax = 20

// A Suggestion is a text that can replace a word of a filter.
type Suggestion struct {
	// Text is a whole word, or the beginning of one, which ends in an operator, "." or ":".
	Text   string
	Detail string // what it selects; "" for values
}

// A ValueSource returns values that instances have, for [Complete]: names of orchestrations for the
// field "name", for example. For "tag" and "attr" it returns keys if key is "", and otherwise
// values of a key. For "waiting", key is what an instance waits for: "activity", "event", "child"
// or "any". It may return none.
type ValueSource func(field, key string) []string

// Complete returns at most 20 suggestions for the word at an offset: words while there is no
// operator before the offset, then values. Each suggestion replaces text[start:end]. It begins
// where the word begins and ends where the word ends, with two exceptions: it leaves a key or a
// value that the offset is before, and it is empty if the offset is at the beginning of the word.
// Offsets are in bytes; one outside the text stands for its nearest end.
func Complete(text string, offset int, values ValueSource) (start, end int, suggestions []Suggestion) {
	offset = min(max(offset, 0), len(text))
	start = startOfWord(text[:offset])
	c := &completer{typed: text[start:offset], values: values}
	typesValue := c.complete(text[:start])
	return start, endOfWord(text, start, offset, typesValue), c.suggestions[:min(len(c.suggestions), suggestionsMax)]
}

// endOfWord returns where the part of the word at start ends that a suggestion for the offset
// replaces.
func endOfWord(text string, start, offset int, typesValue bool) int {
	field, _, _ := strings.Cut(text[start:], ".")
	switch beforeKey := start + len(field); {
	case offset == start:
		return start
	case words[field].keyed && offset <= beforeKey && beforeKey < len(text):
		return beforeKey + 1
	}
	quoted := false
	for i := start; i < len(text); i++ {
		switch {
		case quoted && text[i] == '\\':
			i++
		case text[i] == '"':
			quoted = !quoted
		case quoted:
		case i >= offset && strings.TrimSpace(text[i:i+1]) == "":
			return i
		case i >= offset && !typesValue && strings.IndexByte("=<>", text[i]) >= 0:
			return i + operatorLength(text[i:])
		}
	}
	return len(text)
}

// operatorLength returns the length of the operator at the beginning of a text.
func operatorLength(text string) int {
	if len(text) > 1 && text[0] != '=' && text[1] == '=' {
		return 2
	}
	return 1
}

// startOfWord returns where the last word of a text begins. A space in quotes ends no word.
func startOfWord(text string) int {
	start, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch {
		case quoted && text[i] == '\\':
			i++
		case text[i] == '"':
			quoted = !quoted
		case !quoted && strings.TrimSpace(text[i:i+1]) == "":
			start = i + 1
		}
	}
	return start
}

// A completer collects suggestions for the part of a word that is typed.
type completer struct {
	typed       string
	values      ValueSource
	suggestions []Suggestion
}

// complete adds the suggestions for a word after others, and reports whether they are for its
// value.
func (c *completer) complete(before string) (typesValue bool) {
	p := &parser{text: c.typed, seen: make(map[string]bool)}
	var w word
	_ = p.readWord(&w)                         // it is incomplete, so it may be invalid
	w.field = strings.TrimSuffix(w.field, ".") // before a key without its closing quote
	known, ok := words[w.field]
	switch {
	case w.op != "" && ok && known.keyed == (w.key != "") && strings.Contains(known.operators, " "+w.op+" "):
		c.addValues(w, c.typed[:w.valueAt])
	case w.op != "":
	case known.keyed && strings.Contains(c.typed, "."):
		for _, key := range c.values(w.field, "") {
			c.add(w.field+"."+quote(key, `=<>`)+"=", "")
		}
	default:
		c.addWords(before)
	}
	return w.op != ""
}

// addWords adds the words of filters that do not stand in the text before.
func (c *completer) addWords(before string) {
	earlier := &parser{text: before, seen: make(map[string]bool)}
	used := make(map[string]bool)
	for w, ok, err := earlier.next(); ok && err == nil; w, ok, err = earlier.next() {
		used[w.field+w.op] = true
	}
	for _, field := range slices.Sorted(maps.Keys(words)) {
		known := words[field]
		if known.keyed {
			c.add(field+".", known.about)
			continue
		}
		for op := range strings.FieldsSeq(known.operators) {
			if !used[field+op] {
				c.add(field+op, known.about)
			}
		}
	}
}

// addValues adds values of a word, whose text up to the operator is head.
func (c *completer) addValues(w word, head string) {
	switch known := words[w.field]; {
	case known.isTime:
		c.addAges(head, w.op)
	case w.field == "state":
		c.addStates(head, w.value)
	case w.field == "order":
		for _, order := range instances.Orders() {
			c.add(head+order, "ascending")
			c.add(head+"-"+order, "descending")
		}
	case w.field == "waiting":
		c.addWaiting(head, w.value)
	case w.field == "failing":
		for _, attempts := range []string{"1", "3", "10"} {
			c.add(head+attempts, "failed attempts")
		}
	default:
		for _, value := range c.values(w.field, w.key) {
			c.add(head+quote(value, ""), "")
		}
	}
}

// addAges adds ages. Only times follow ">=".
func (c *completer) addAges(head, op string) {
	about := map[string]string{"<": "less than that long ago", ">": "more than that long ago"}[op]
	if about == "" {
		return
	}
	for _, age := range []string{"15m", "1h", "1d", "7d"} {
		c.add(head+age, about)
	}
}

// addStates adds a state to those that are given, if they are valid.
func (c *completer) addStates(head, value string) {
	given := strings.Split(value, ",")
	given = given[:len(given)-1]
	check := &parser{}
	if len(given) > 0 && check.applyStates(&word{value: strings.Join(given, ",")}) != "" {
		return
	}
	for _, state := range stateTexts() {
		if !slices.Contains(given, state) {
			c.add(head+strings.Join(append(slices.Clone(given), state), ","), "")
		}
	}
}

func (c *completer) addWaiting(head, value string) {
	if kind, _, named := strings.Cut(value, ":"); named {
		if kind == "timer" || kind != anyKind && !slices.Contains(instances.WaitingKinds(), kind) {
			return
		}
		for _, name := range c.values("waiting", kind) {
			c.add(head+quote(kind+":"+name, ""), "")
		}
		return
	}
	for _, kind := range instances.WaitingKinds() {
		c.add(head+kind, "of any name")
		if kind != "timer" {
			c.add(head+kind+":", "of a name")
		}
	}
	c.add(head+anyKind+":", "of a name, of any kind")
}

// add adds a suggestion that begins with what is typed, whatever its case and quotes are.
func (c *completer) add(text, detail string) {
	typed, candidate := plain(c.typed), plain(text)
	if len(candidate) > len(typed) && strings.EqualFold(candidate[:len(typed)], typed) || candidate == typed && detail == "" && text != c.typed {
		c.suggestions = append(c.suggestions, Suggestion{text, detail})
	}
}

// plain returns a word without the quotes around its value, which may lack the closing one.
func plain(text string) string {
	at := strings.IndexByte(text, '"')
	if at < 0 {
		return text
	}
	quoted := text[at:]
	for _, candidate := range []string{quoted, quoted + `"`} {
		if value, err := strconv.Unquote(candidate); err == nil {
			return text[:at] + value
		}
	}
	return text[:at] + strings.Trim(quoted, `"`)
}
