package filter

import (
	"errors"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/internal/instances"
)

var now = time.Date(2026, 5, 17, 12, 30, 0, 123456789, time.UTC)

func date(year int, month time.Month, day int) time.Time {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

func TestParse_ReadsEachWord(t *testing.T) {
	for text, want := range map[string]cluster.Filter{
		"":                          {},
		"  \t\n ":                   {},
		"state=failed":              {States: []cluster.State{cluster.Failed}},
		"state=hung,canceled":       {States: []cluster.State{cluster.Hung, cluster.Canceled}},
		"state=waiting-for-code":    {States: []cluster.State{cluster.WaitingForCode}},
		`state="waiting for code"`:  {States: []cluster.State{cluster.WaitingForCode}},
		"name=checkout version=1.9": {Name: "checkout", Version: "1.9"},
		`name="two words"`:          {Name: "two words"},
		`name="say \"yes\""`:        {Name: `say "yes"`},
		"name=a=b<c":                {Name: "a=b<c"},
		"id=order-*":                {IDPrefix: "order-"},
		"id=**":                     {IDPrefix: "*"},
		"parent=p error=timeout":    {ParentID: "p", ErrorCode: "timeout"},
		"tag.a=1 tag.b=2":           {Tags: map[string]string{"a": "1", "b": "2"}},
		`tag.a=""`:                  {Tags: map[string]string{"a": ""}},
		`tag."a =b"="c d"`:          {Tags: map[string]string{"a =b": "c d"}},
		"attr.tenant=acme":          {Attributes: map[string]string{"tenant": "acme"}},
		"attr.a.b=c":                {Attributes: map[string]string{"a.b": "c"}},
		"updated<2h":                {UpdatedFrom: now.Add(-2 * time.Hour)},
		"updated>2h":                {UpdatedBefore: now.Add(-2 * time.Hour)},
		"updated<2h updated>1h30m":  {UpdatedFrom: now.Add(-2 * time.Hour), UpdatedBefore: now.Add(-90 * time.Minute)},
		"created<7d":                {CreatedFrom: now.Add(-7 * 24 * time.Hour)},
		"created>1d12h":             {CreatedBefore: now.Add(-36 * time.Hour)},
		"created<0.5d":              {CreatedFrom: now.Add(-12 * time.Hour)},
		"created>0s":                {CreatedBefore: now},
		"ended>=2026-01-02 ended<2026-02-01T06:00:00+01:00": {
			EndedFrom: date(2026, 1, 2), EndedBefore: date(2026, 2, 1).Add(5 * time.Hour),
		},
		"waiting=activity:charge since>1h": {WaitingKind: "activity", WaitingName: "charge", WaitingBefore: now.Add(-time.Hour)},
		"waiting=timer":                    {WaitingKind: "timer"},
		"waiting=any:a:b":                  {WaitingName: "a:b"},
		`waiting="event:two words"`:        {WaitingKind: "event", WaitingName: "two words"},
		"since>=2026-01-02":                {WaitingFrom: date(2026, 1, 2)},
		"failing>=3 failing.error=down":    {FailingAttempts: 3, FailingCode: "down"},
		"order=updated":                    {Order: "updated"},
		"order=-timer":                     {Order: "timer", Descending: true},
		"order=-id":                        {Descending: true},
		"order=id":                         {},
		"state=failed name=checkout updated<2h attr.tenant=acme failing>=3": {
			States: []cluster.State{cluster.Failed}, Name: "checkout", UpdatedFrom: now.Add(-2 * time.Hour),
			Attributes: map[string]string{"tenant": "acme"}, FailingAttempts: 3,
		},
	} {
		got, err := Parse(text, now)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
}

func TestParse_PointsAtWrongWord(t *testing.T) {
	for text, want := range map[string]struct{ word, reason string }{
		"state=cancled":                  {"state=cancled", `unknown state "cancled": did you mean "canceled"?`},
		"name=x  stat=failed":            {"stat=failed", `unknown word "stat": did you mean "state"?`},
		"state=failed,done x":            {"state=failed,done", `unknown state "done": use one of running, hung,`},
		"state=failed,":                  {"state=failed,", `unknown state ""`},
		"state=failed,failed":            {"state=failed,failed", "twice"},
		"state=continued-as-new":         {"state=continued-as-new", "unknown state"},
		"state":                          {"state", "no operator: use one of ="},
		"state<failed":                   {"state<failed", "operator <: use one of ="},
		"checkout":                       {"checkout", `unknown word "checkout": use one of attr., created`},
		"=failed":                        {"=failed", `unknown word ""`},
		"name= version=1":                {"name=", "no value"},
		`name=""`:                        {`name=""`, "empty value"},
		`tag.a=`:                         {"tag.a=", `no value; "" is the empty one`},
		"tag=a":                          {"tag=a", "no key: write tag.KEY=VALUE"},
		"tag.=a":                         {"tag.=a", "no key"},
		"name.x=a":                       {"name.x=a", "has a key, which only tag and attr have"},
		"failing.eror=a":                 {"failing.eror=a", `nearest word is "failing.error"`},
		"atr.x=a":                        {"atr.x=a", `did you mean "attr."?`},
		"name=a name=b":                  {"name=b", "twice"},
		"tag.a=1 tag.b=1 tag.a=2":        {"tag.a=2", "twice"},
		`name="a b`:                      {`name="a b`[:7], "no closing quote"},
		`name="a"b version=1`:            {`name="a"b`, "text after its closing quote"},
		"id=order-17":                    {"id=order-17", "must end in *"},
		"id=*":                           {"id=*", "no prefix"},
		"updated<yesterday":              {"updated<yesterday", "neither an age"},
		"updated<-2h":                    {"updated<-2h", "neither an age"},
		"updated=2h":                     {"updated=2h", "use one of < > >="},
		"updated<=2h":                    {"updated<=2h", "operator <="},
		"updated>=2h":                    {"updated>=2h", "operator >= and an age"},
		"updated>2026-01-02":             {"updated>2026-01-02", "operator > and a time"},
		"updated<2h updated<3h":          {"updated<3h", "same bound twice"},
		"updated<2h updated>=2026-01-02": {"updated>=2026-01-02", "same bound twice"},
		"created<0001-01-01":             {"created<0001-01-01", "before 1678"},
		"created<9999-01-01":             {"created<9999-01-01", "after 2262"},
		"waiting=signal:paid":            {"waiting=signal:paid", `unknown kind "signal"`},
		"waiting=any":                    {"waiting=any", "no name"},
		"waiting=event:":                 {"waiting=event:", "no name"},
		"waiting=timer:x":                {"waiting=timer:x", "timers have none"},
		"failing>=0":                     {"failing>=0", "number of attempts"},
		"failing>=x":                     {"failing>=x", "number of attempts"},
		"failing>3":                      {"failing>3", "operator >: use one of >="},
		"order=update":                   {"order=update", `did you mean "updated"?`},
		"order=--id":                     {"order=--id", "unknown order"},
		"name=é stat=x":                  {"stat=x", "position 8"},
	} {
		f, err := Parse(text, now)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Errorf("%q: %+v, %v", text, f, err)
			continue
		}
		if syntax.Word != want.word || syntax.Text != text || !strings.HasPrefix(text[syntax.Offset:], syntax.Word) || !strings.Contains(err.Error(), want.reason) {
			t.Errorf("%q: %+v: %v", text, syntax, err)
		}
		if !reflect.DeepEqual(f, cluster.Filter{}) {
			t.Errorf("%q: an error, and the filter %+v", text, f)
		}
	}
}

func TestSyntaxError_CaretIsBelowWord(t *testing.T) {
	_, err := Parse("name=é\tstate=cancled order=id", now)
	var syntax *SyntaxError
	if !errors.As(err, &syntax) {
		t.Fatal(err)
	}
	want := "name=é state=cancled order=id\n" + "       ^^^^^^^^^^^^^"
	if got := syntax.Caret(); got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}

func TestFormat_WritesEachField(t *testing.T) {
	for want, f := range map[string]cluster.Filter{
		"":                              {},
		"state=waiting-for-code,failed": {States: []cluster.State{cluster.WaitingForCode, cluster.Failed}},
		`name="a b" version=1 id=x*`:    {Name: "a b", Version: "1", IDPrefix: "x"},
		`tag."a<b"="" attr.t=acme`:      {Tags: map[string]string{"a<b": ""}, Attributes: map[string]string{"t": "acme"}},
		"updated>=2026-01-02T00:00:00Z updated<2026-01-03T00:00:00Z": {
			UpdatedFrom: date(2026, 1, 2), UpdatedBefore: date(2026, 1, 3).In(time.FixedZone("", 3600)),
		},
		"waiting=any:charge since<2026-01-02T00:00:00Z": {WaitingName: "charge", WaitingBefore: date(2026, 1, 2)},
		"failing>=2 failing.error=down order=-updated":  {FailingAttempts: 2, FailingCode: "down", Order: "updated", Descending: true},
		"order=-id": {Order: "id", Descending: true},
	} {
		if got := Format(f); got != want {
			t.Errorf("%+v: %q; want %q", f, got, want)
		}
	}
}

// Filters with random fields and difficult texts.
func TestParse_ReadsWhatFormatWrites(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	values := []string{"x", "a b", `"`, `\`, "=<>", "ü", "\x00", "\xff", "\u00a0", "*", ",", ":", "-", "any", "a\tb\n", "\ufffd"}
	text := func() string { return values[random.IntN(len(values))] + values[random.IntN(len(values))] }
	moment := func() time.Time { return time.Unix(0, random.Int64N(1<<62)).UTC() }
	for range 5000 {
		var f cluster.Filter
		for _, set := range []func(){
			func() { f.States = []cluster.State{instances.States()[random.IntN(9)]} },
			func() { f.Name, f.Version, f.ParentID = text(), text(), text() },
			func() { f.IDPrefix, f.ErrorCode, f.FailingCode = text(), text(), text() },
			func() { f.Tags = map[string]string{text(): text(), text(): ""} },
			func() { f.Attributes = map[string]string{text(): text()} },
			func() { f.CreatedFrom, f.UpdatedBefore = moment(), moment() },
			func() { f.EndedFrom, f.EndedBefore, f.WaitingFrom = moment(), moment(), moment() },
			func() {
				f.WaitingKind, f.WaitingName = []string{"", "activity", "event", "child"}[random.IntN(4)], text()
			},
			func() { f.FailingAttempts = 1 + random.IntN(1<<31-1) },
			func() { f.Order = []string{"", "created", "updated", "ended", "timer"}[random.IntN(5)] },
			func() { f.Descending = true },
		} {
			if random.IntN(3) == 0 {
				set()
			}
		}
		written := Format(f)
		if got, err := Parse(written, now); err != nil || !reflect.DeepEqual(got, f) {
			t.Fatalf("%q: %+v, %v; want %+v", written, got, err, f)
		}
	}
}

func TestNearest_IsFoundForEachWord(t *testing.T) {
	for _, word := range append(wordTexts(), stateTexts()...) {
		all := slices.Concat(wordTexts(), stateTexts())
		if near := nearest(word[:len(word)-1]+"_", all); distance(near, word) > 2 {
			t.Errorf("%s: %q", word, near)
		}
	}
	if got := slices.Sorted(maps.Keys(words)); len(got) != 16 {
		t.Errorf("%d words, %q: the grammar in doc.go has others", len(got), got)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "state=failed,hung name=x", `tag."a b"="c"`, "updated<2h since>=2026-01-02", "waiting=any:x failing>=3", "order=-ended id=a*",
		`name="`, "state=cancled", "created<1e9d", "created<NaNd", "created<9999999h", "\xff=\xff", `attr.""=x`, "tag..=.",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := Parse(text, now)
		if err != nil {
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || syntax.Text != text || !strings.HasPrefix(text[syntax.Offset:], syntax.Word) || syntax.Error() == "" || syntax.Caret() == "" {
				t.Fatalf("%q: %#v", text, err)
			}
			return
		}
		again, err := Parse(Format(parsed), now.Add(time.Hour))
		if err != nil || !reflect.DeepEqual(again, parsed) {
			t.Fatalf("%q: %+v is written as %q, and read as %+v, %v", text, parsed, Format(parsed), again, err)
		}
	})
}
