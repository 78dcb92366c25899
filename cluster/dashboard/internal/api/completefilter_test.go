package api

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf16"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
	"github.com/tenuto-dev/tenuto/journal/state/index"
	"github.com/tenuto-dev/tenuto/replay"
)

// A filter is completed with the words of filters and with values that instances have.
func TestCompleteFilter(t *testing.T) {
	c := clustertest.New(t, 1, clustertest.Definitions(welcomeDefinitions()...))
	if _, err := cluster.StartRun(t.Context(), c.Client(0), welcome, "w", "x", cluster.Tags(map[string]string{"größe": "xl 2"})); err != nil {
		t.Fatal(err)
	}
	a := newAPI(c.Client(0))
	c.Eventually("the instance is listed", func() bool {
		return len(fetch[instancesAnswer](t, a, "GET", "/instances?fresh=false", "", http.StatusOK).Instances) == 1
	})
	for _, test := range []struct {
		text, before string // the text up to the cursor, "" for all
		want         string // the suggestions, with | between them
		offset       int    // of the error, -1 for none
	}{
		{text: "st", want: "state=", offset: -1},
		{text: "name=", want: "name=welcome", offset: -1},
		{text: "tag.", want: "tag.größe=", offset: -1},
		{text: "tag.größe=x", want: `tag.größe="xl 2"`, offset: -1},
		{text: "tag.größe=ü state=f", want: "state=failed", offset: -1},
		{text: "tag.größe=ü state=f", before: "tag.größe=ü sta", want: "state=", offset: -1},
		{text: "tag.größe=😀 stat=x na", want: "name=", offset: 13},
		{text: "nothing", want: "", offset: 0},
	} {
		cursor := len(utf16.Encode([]rune(test.text)))
		if test.before != "" {
			cursor = len(utf16.Encode([]rune(test.before)))
		}
		query := url.Values{"text": {test.text}, "cursor": {strconv.Itoa(cursor)}}
		answer := fetch[suggestionsAnswer](t, a, "GET", "/filter/complete?"+query.Encode(), "", http.StatusOK)
		var texts []string
		for _, s := range answer.Suggestions {
			texts = append(texts, s.Text)
		}
		offset := -1
		if answer.Error != nil {
			offset = answer.Error.Offset
		}
		if got := strings.Join(texts, "|"); got != test.want || offset != test.offset {
			t.Errorf("%s: %s, error at %d; want %s, at %d", test.text, got, offset, test.want, test.offset)
		}
	}
	query := url.Values{"text": {"tag.größe=😀 sta=x y"}, "cursor": {"15"}}
	answer := fetch[suggestionsAnswer](t, a, "GET", "/filter/complete?"+query.Encode(), "", http.StatusOK)
	if len(answer.Suggestions) != 1 || answer.Start != 13 || answer.End != 17 {
		t.Errorf("in the middle of a word: %+v", answer)
	}
	fetch[errorAnswer](t, a, "GET", "/filter/complete?text=a&cursor=x", "", http.StatusBadRequest)
}

// Error codes and names of events are not in lists, and are suggested to users who may read
// instances.
func TestCompleteFilter_ValuesThatListsDoNotShow(t *testing.T) {
	fails, flaky := replay.Orchestration[string, string]("fails"), replay.Activity[string, string]("flaky")
	tries := replay.Orchestration[string, string]("tries")
	c := clustertest.New(t, 1, clustertest.Definitions(append(welcomeDefinitions(),
		fails.Bind(func(*replay.Context, string) (string, error) { return "", replay.NewError("broken", "it broke") }),
		flaky.Bind(func(context.Context, string) (string, error) { return "", replay.NewError("unsteady", "once more") }),
		tries.Bind(func(ctx *replay.Context, in string) (string, error) {
			return flaky.Call(ctx, in, replay.Retry(replay.RetryPolicy{InitialInterval: time.Hour}))
		}),
	)...))
	for _, of := range []replay.OrchestrationHandle[string, string]{welcome, fails, tries} {
		if _, err := cluster.StartRun(t.Context(), c.Client(0), of, of.Name(), "x"); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"error=broken", "failing.error=unsteady", "waiting=event:word"} {
		c.Eventually(text+" is listed", func() bool {
			query := url.Values{"filter": {text}}
			return len(fetch[instancesAnswer](t, newAPI(c.Client(0)), "GET", "/instances?"+query.Encode(), "", http.StatusOK).Instances) == 1
		})
	}
	for text, want := range map[string]string{
		"error=": "error=broken", "failing.error=": "failing.error=unsteady", "waiting=event:": "waiting=event:word",
		"waiting=any:w": "waiting=any:welcome waiting=any:word", "waiting=activity:": "waiting=activity:flaky waiting=activity:greet",
	} {
		c.Eventually(want+" is suggested", func() bool { // nodes may report late
			query := url.Values{"text": {text}}
			var texts []string
			for _, s := range fetch[suggestionsAnswer](t, newAPI(c.Client(0)), "GET", "/filter/complete?"+query.Encode(), "", http.StatusOK).Suggestions {
				texts = append(texts, s.Text)
			}
			slices.Sort(texts)
			return strings.Join(texts, " ") == want
		})
	}
}

// Callers share a read, and none waits for it that has values already. What cannot be read stays as
// it was, and is read again soon.
func TestFilterValues_ShareReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan valueSet) // nil: the read fails
		v := &filterValues{read: func(context.Context) (valueSet, bool) {
			read := <-answers
			return read, read != nil
		}}
		got := make(chan string, 3)
		ask := func() {
			go func() { got <- strings.Join(v.current(t.Context())["name"], " ") }()
			synctest.Wait()
		}
		expect := func(n int, want string) {
			t.Helper()
			for range n {
				if name := <-got; name != want {
					t.Errorf("%q; want %q", name, want)
				}
			}
			synctest.Wait()
		}
		for range 3 {
			ask()
		}
		abandoned, cancel := context.WithCancel(t.Context())
		cancel()
		if known := v.current(abandoned); known != nil {
			t.Errorf("a caller that has gone got %v", known)
		}
		answers <- valueSet{"name": {"b", "a", "b"}}
		expect(3, "a b")
		ask()
		expect(1, "a b") // without a read

		time.Sleep(valuesAge)
		ask()
		ask()
		expect(1, "a b") // the other one reads
		answers <- nil
		expect(1, "a b")
		time.Sleep(valuesRetry)
		ask()
		answers <- valueSet{"name": {"c"}}
		expect(1, "c")
	})
}

// manyNames has more pairs of names and versions than can be counted, and more versions.
type manyNames struct{ valueReader }

func (manyNames) CountBy(_ context.Context, _ cluster.Filter, dimensions []string, _ ...replay.Option) ([]index.Group, error) {
	if !slices.Equal(dimensions, []string{"name"}) {
		return nil, &replay.InvalidError{Field: "dimensions", Reason: "are too many"}
	}
	return []index.Group{{Values: []string{"a"}}, {Values: []string{"b"}}}, nil
}

func (manyNames) List(context.Context, cluster.Filter, string, int, ...replay.Option) (*cluster.Page, error) {
	return &cluster.Page{Instances: []*cluster.Status{{Name: "a", Version: "1"}}}, nil
}

func TestFilterValues_TooManyToCount(t *testing.T) {
	known := valueSet{}
	err := known.readGroups(t.Context(), manyNames{}, "name", "version")
	if err != nil || !slices.Contains(known["name"], "b") || !slices.Contains(known["version"], "1") {
		t.Errorf("%v, %v", known, err)
	}
}
