package filter

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
)

// Parse returns the filter that a text describes; see the grammar of the package. Ages count back
// from now. Times of the result are in UTC. The error is a [*SyntaxError].
func Parse(text string, now time.Time) (cluster.Filter, error) {
	p := &parser{text: text, now: now, seen: make(map[string]bool)}
	for {
		w, ok, err := p.next()
		switch {
		case err != nil:
			return cluster.Filter{}, err
		case !ok:
			return p.filter, nil
		}
		if reason := p.apply(&w); reason != "" {
			return cluster.Filter{}, p.errorAt(w.start, p.at, reason)
		}
	}
}

// A parser reads the words of a text into a filter.
type parser struct {
	text   string
	at     int // offset of what follows
	now    time.Time
	filter cluster.Filter
	seen   map[string]bool // words without their values
}

// A word is a part of a filter: field, operator and value.
type word struct {
	start  int
	field  string
	key    string // of a tag or attribute
	op     string
	value  string
	quoted bool
	// valueAt is the offset of the value, 0 without an operator.
	valueAt int
}

func (p *parser) errorAt(start, end int, reason string) error {
	return &SyntaxError{Text: p.text, Offset: start, Word: p.text[start:end], Reason: reason}
}

// next reads a word; ok is false at the end of the text.
func (p *parser) next() (w word, ok bool, err error) {
	for p.at < len(p.text) {
		r, size := utf8.DecodeRuneInString(p.text[p.at:])
		if !unicode.IsSpace(r) {
			break
		}
		p.at += size
	}
	if w.start = p.at; p.at == len(p.text) {
		return w, false, nil
	}
	if reason := p.readWord(&w); reason != "" {
		end := p.at + lengthOfWord(p.text[p.at:])
		return w, false, p.errorAt(w.start, end, reason)
	}
	return w, true, nil
}

// readWord reads field, operator and value. It returns why they are not valid.
func (p *parser) readWord(w *word) (reason string) {
	w.field = p.readField()
	if prefix := strings.TrimSuffix(w.field, "."); prefix != w.field && p.at < len(p.text) && p.text[p.at] == '"' {
		if w.key, reason = p.readQuoted(); reason != "" {
			return reason
		}
		w.field = prefix
	} else if prefix, key, ok := strings.Cut(w.field, "."); ok && w.field != wordFailingError {
		w.field, w.key = prefix, key
	}
	for _, op := range []string{">=", "<=", "=", "<", ">"} {
		if strings.HasPrefix(p.text[p.at:], op) {
			w.op = op
			break
		}
	}
	if w.op == "" {
		return unknownWord(w)
	}
	p.at += len(w.op)
	w.valueAt = p.at
	if w.quoted = p.at < len(p.text) && p.text[p.at] == '"'; !w.quoted {
		n := lengthOfWord(p.text[p.at:])
		w.value = p.text[p.at : p.at+n]
		p.at += n
		return ""
	}
	if w.value, reason = p.readQuoted(); reason == "" && lengthOfWord(p.text[p.at:]) > 0 {
		return "has text after its closing quote"
	}
	return reason
}

// readField reads up to an operator, a quote or a space.
func (p *parser) readField() string {
	start := p.at
	for p.at < len(p.text) {
		r, size := utf8.DecodeRuneInString(p.text[p.at:])
		if unicode.IsSpace(r) || strings.ContainsRune(`=<>"`, r) {
			break
		}
		p.at += size
	}
	return p.text[start:p.at]
}

// readQuoted reads a string in quotes.
func (p *parser) readQuoted() (value, reason string) {
	quoted, err := strconv.QuotedPrefix(p.text[p.at:])
	if err == nil {
		value, err = strconv.Unquote(quoted)
	}
	if err != nil {
		return "", "has no closing quote, or an escape that Go strings do not have"
	}
	p.at += len(quoted)
	return value, ""
}

// lengthOfWord returns how many bytes are before the next space.
func lengthOfWord(text string) int {
	if n := strings.IndexFunc(text, unicode.IsSpace); n >= 0 {
		return n
	}
	return len(text)
}

// apply adds a word to the filter. It returns why the word is not valid.
func (p *parser) apply(w *word) (reason string) {
	known, ok := words[w.field]
	switch {
	case !ok || known.keyed != (w.key != ""):
		return unknownWord(w)
	case !strings.Contains(known.operators, " "+w.op+" "):
		return "has the operator " + w.op + ": use one of" + strings.TrimRight(known.operators, " ")
	case w.value == "" && !w.quoted:
		return `has no value; "" is the empty one`
	case w.value == "" && !known.keyed:
		return "has an empty value"
	}
	if !known.isTime && p.repeats(w.field+"\x00"+w.key) {
		return "is given twice"
	}
	return known.apply(p, w)
}

// repeats reports whether a word was there before.
func (p *parser) repeats(what string) bool {
	again := p.seen[what]
	p.seen[what] = true
	return again
}

const wordFailingError = "failing.error"

// A knownWord says how to read the words of a field.
type knownWord struct {
	keyed     bool
	isTime    bool
	operators string
	about     string // what it selects
	apply     func(p *parser, w *word) (reason string)
}

// words has the words of a filter. It is assigned in init, because functions in it use it.
var words map[string]knownWord

func init() {
	words = map[string]knownWord{
		"state":   {operators: " = ", apply: (*parser).applyStates, about: "states, with commas between them"},
		"name":    textWord("name of the orchestration", func(f *cluster.Filter) *string { return &f.Name }),
		"version": textWord("version of the orchestration", func(f *cluster.Filter) *string { return &f.Version }),
		"parent":  textWord("ID of the parent", func(f *cluster.Filter) *string { return &f.ParentID }),
		"error":   textWord("error code of the end", func(f *cluster.Filter) *string { return &f.ErrorCode }),
		"id":      {operators: " = ", apply: (*parser).applyID, about: "beginning of the ID, with * at its end"},
		"tag":     mapWord("a tag: tag.KEY=VALUE", func(f *cluster.Filter) *map[string]string { return &f.Tags }),
		"attr":    mapWord("an attribute: attr.KEY=VALUE", func(f *cluster.Filter) *map[string]string { return &f.Attributes }),
		"created": timeWord("when the instance was created", func(f *cluster.Filter) (*time.Time, *time.Time) { return &f.CreatedFrom, &f.CreatedBefore }),
		"updated": timeWord("when the last event was recorded", func(f *cluster.Filter) (*time.Time, *time.Time) { return &f.UpdatedFrom, &f.UpdatedBefore }),
		"ended":   timeWord("when the instance ended", func(f *cluster.Filter) (*time.Time, *time.Time) { return &f.EndedFrom, &f.EndedBefore }),
		"since":   timeWord("since when it waits", func(f *cluster.Filter) (*time.Time, *time.Time) { return &f.WaitingFrom, &f.WaitingBefore }),
		"waiting": {operators: " = ", apply: (*parser).applyWaiting, about: "what the instance waits for"},
		"failing": {operators: " >= ", apply: (*parser).applyFailing, about: "failed attempts of an open activity"},
		"order":   {operators: " = ", apply: (*parser).applyOrder, about: "order of the list"},

		wordFailingError: textWord("error code of the last failed attempt", func(f *cluster.Filter) *string { return &f.FailingCode }),
	}
}

func textWord(about string, field func(*cluster.Filter) *string) knownWord {
	return knownWord{operators: " = ", about: about, apply: func(p *parser, w *word) string {
		*field(&p.filter) = w.value
		return ""
	}}
}

func mapWord(about string, field func(*cluster.Filter) *map[string]string) knownWord {
	return knownWord{keyed: true, about: about, operators: " = ", apply: func(p *parser, w *word) string {
		values := field(&p.filter)
		if *values == nil {
			*values = make(map[string]string)
		}
		(*values)[w.key] = w.value
		return ""
	}}
}

func timeWord(about string, fields func(*cluster.Filter) (from, before *time.Time)) knownWord {
	return knownWord{isTime: true, about: about, operators: " < > >= ", apply: func(p *parser, w *word) string {
		from, before := fields(&p.filter)
		return p.applyTime(w, from, before)
	}}
}

// applyTime sets a bound. "<" is before a moment, but less than an age ago.
func (p *parser) applyTime(w *word, from, before *time.Time) (reason string) {
	bound := before
	at, isAge, reason := parseTime(w.value, p.now)
	switch {
	case reason != "":
		return reason
	case isAge && w.op == ">=":
		return "has the operator >= and an age: use < (less than that long ago) or >"
	case !isAge && w.op == ">":
		return "has the operator > and a time: use >= (from that moment on) or <"
	case isAge && w.op == "<", w.op == ">=":
		bound = from
	}
	if !bound.IsZero() {
		return "has the same bound twice"
	}
	*bound = at
	return ""
}

func (p *parser) applyStates(w *word) (reason string) {
	for _, text := range strings.Split(w.value, ",") {
		state := cluster.State(strings.ReplaceAll(text, "-", " "))
		if !slices.Contains(instances.States(), state) {
			return noneOf("state", text, stateTexts())
		}
		if slices.Contains(p.filter.States, state) {
			return "has the state " + text + " twice"
		}
		p.filter.States = append(p.filter.States, state)
	}
	return ""
}

// stateTexts returns the states as words without spaces.
func stateTexts() (texts []string) {
	for _, state := range instances.States() {
		texts = append(texts, strings.ReplaceAll(string(state), " ", "-"))
	}
	return texts
}

func (p *parser) applyID(w *word) (reason string) {
	prefix, ok := strings.CutSuffix(w.value, "*")
	switch {
	case !ok:
		return "must end in *: a filter selects IDs by their prefix"
	case prefix == "":
		return "has no prefix"
	}
	p.filter.IDPrefix = prefix
	return ""
}

// anyKind stands for all kinds of operations with a name.
const anyKind = "any"

func (p *parser) applyWaiting(w *word) (reason string) {
	kind, name, named := strings.Cut(w.value, ":")
	switch {
	case kind != anyKind && !slices.Contains(instances.WaitingKinds(), kind):
		return noneOf("kind", kind, append(instances.WaitingKinds(), anyKind))
	case named && name == "", !named && kind == anyKind:
		return "has no name after the kind"
	case named && kind == "timer":
		return "has a name, but timers have none"
	}
	if kind == anyKind {
		kind = ""
	}
	p.filter.WaitingKind, p.filter.WaitingName = kind, name
	return ""
}

func (p *parser) applyFailing(w *word) (reason string) {
	n, err := strconv.ParseInt(w.value, 10, 32)
	if err != nil || n < 1 {
		return "has no number of attempts from 1 to 2147483647"
	}
	p.filter.FailingAttempts = int(n)
	return ""
}

func (p *parser) applyOrder(w *word) (reason string) {
	order, descending := strings.CutPrefix(w.value, "-")
	if !slices.Contains(instances.Orders(), order) {
		return noneOf("order", order, instances.Orders())
	}
	if order == instances.Orders()[0] {
		order = "" // by ID
	}
	p.filter.Order, p.filter.Descending = order, descending
	return ""
}
