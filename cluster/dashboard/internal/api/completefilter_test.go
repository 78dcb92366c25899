package api

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/clustertest"
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
	fetch[errorAnswer](t, a, "GET", "/filter/complete?text=a&cursor=x", "", http.StatusBadRequest)
}
