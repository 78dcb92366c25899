// Package web serves the pages of the dashboard and their assets.
//
// The server renders a shell: title, navigation and an element that names the page. A module of
// assets/ draws the content from the JSON API (package api). The assets are plain ES modules and
// style sheets without a build step; assets/lib holds the only library, htm with Preact, and
// assets/lib/SOURCES says where its files are from.
//
// All URLs are relative, computed from the depth of the request's path, so that the handler works
// under any prefix. Nothing depends on inline scripts or styles, eval or other hosts; tests check
// that.
package web
