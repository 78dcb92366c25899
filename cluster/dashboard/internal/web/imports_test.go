package web

import (
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func TestImports_ArePreloadedByPages(t *testing.T) {
	s, err := load()
	if err != nil {
		t.Fatal(err)
	}
	modules := s.importsOf("instance.js")
	for _, name := range []string{"lib/htm-preact.js", "timeline.js", "timeline-rows.js", "timeline-model.js"} {
		if !slices.Contains(modules, name) {
			t.Errorf("instance.js imports %v, without %s", modules, name)
		}
	}
	for _, name := range modules {
		if _, ok := s.assets[name]; !ok {
			t.Errorf("instance.js imports %s, which is no asset", name)
		}
	}
	answer := httptest.NewRecorder()
	Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/instances/a", nil))
	for _, name := range modules {
		if link := fmt.Sprintf(`<link rel="modulepreload" href="../%s%s">`, s.assetPath(), name); !strings.Contains(answer.Body.String(), link) {
			t.Errorf("the page lacks %s", link)
		}
	}
}
