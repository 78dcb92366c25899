package web

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
	"net/url"
	"strings"
)

//go:embed shell.html
var shellText string

var shell = template.Must(template.New("shell").Parse(shellText))

// A page is what the shell needs to know of one kind of page.
type page struct {
	name    string // of its module: assets/NAME.js
	heading string
	section string // the entry of the navigation that is current
	styles  []string
}

// pages are the pages by their path; "*" stands for an ID.
var pages = map[string]page{
	"":            {name: "overview", heading: "Overview"},
	"instances":   {name: "instances", heading: "Instances", section: "instances"},
	"instances/*": {name: "instance", heading: "Instance", section: "instances", styles: []string{"instance.css"}},
	"code":        {name: "code", heading: "Code", section: "code"},
	"schedules":   {name: "schedules", heading: "Schedules", section: "schedules"},
	"schedules/*": {name: "schedule", heading: "Schedule", section: "schedules"},
	"jobs":        {name: "jobs", heading: "Bulk jobs", section: "jobs"},
	"jobs/*":      {name: "job", heading: "Bulk job", section: "jobs"},
	"cluster":     {name: "cluster", heading: "Cluster", section: "cluster"},
}

var missing = page{name: "missing", heading: "Not found", section: "none"}

type link struct{ Path, Section, Label string }

var navigation = []link{
	{"", "", "Overview"},
	{"instances", "instances", "Instances"},
	{"code", "code", "Code"},
	{"schedules", "schedules", "Schedules"},
	{"jobs", "jobs", "Jobs"},
	{"cluster", "cluster", "Cluster"},
}

// shellData is what shell.html shows.
type shellData struct {
	Title, Heading, Base, Assets, Module, Section, Page, ID string
	Styles, Preload                                         []string
	Navigation                                              []link
}

// pageAt returns the page of an escaped path without its leading slash, and the ID in it.
func pageAt(path string) (found page, id string, ok bool) {
	collection, escaped, nested := strings.Cut(path, "/")
	if !nested {
		found, ok = pages[path]
		return found, "", ok
	}
	if escaped == "" || strings.Contains(escaped, "/") {
		return page{}, "", false
	}
	id, err := url.PathUnescape(escaped)
	if err != nil {
		return page{}, "", false
	}
	found, ok = pages[collection+"/*"]
	return found, id, ok
}

// baseOf returns the relative URL of the dashboard's root for a page at an escaped path.
func baseOf(path string) string {
	if depth := strings.Count(path, "/"); depth > 0 {
		return strings.Repeat("../", depth)
	}
	return "./"
}

func (s *site) servePage(w http.ResponseWriter, r *http.Request, path string) {
	found, id, ok := pageAt(path)
	status := http.StatusOK
	if !ok {
		found, status = missing, http.StatusNotFound
	}
	heading := found.heading
	if id != "" {
		heading = id
	}
	base := baseOf(path)
	data := shellData{
		Title: heading + " · Tenuto", Heading: heading, Base: base, Assets: base + s.assetPath(),
		Module: found.name + ".js", Section: found.section, Page: found.name, ID: id,
		Styles: append([]string{"base.css", "parts.css", "pages.css"}, found.styles...), Preload: s.preloads[found.name], Navigation: navigation,
	}
	var text bytes.Buffer
	if err := shell.Execute(&text, data); err != nil {
		http.Error(w, "the page cannot be rendered: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(text.Bytes()) // an error means that the client has gone
	}
}
