package web

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// compressedMax bounds all assets together, in bytes.
const compressedMax = 250_000

const linesMax = 400 // of a module

func request(t *testing.T, method, target string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w
}

// ours returns the texts of the assets that are not of a library, by name.
func ours(t *testing.T) map[string]string {
	t.Helper()
	s, err := newSite()
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for name, found := range s.assets {
		if !strings.HasPrefix(name, "lib/") {
			texts[name] = string(found.plain)
		}
	}
	return texts
}

func TestAssets_AreSmall(t *testing.T) {
	s, err := newSite()
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, found := range s.assets {
		total += len(found.gzipped)
	}
	t.Logf("%d bytes compressed", total)
	if total > compressedMax {
		t.Errorf("the assets have %d bytes compressed, more than %d", total, compressedMax)
	}
}

func TestAssets_HaveNothingThatThePolicyForbids(t *testing.T) {
	forbidden := map[string]*regexp.Regexp{
		"innerHTML or the like": regexp.MustCompile(`(?i)innerHTML|outerHTML|insertAdjacentHTML|document\.write|setHTMLUnsafe|DOMParser`),
		"eval":                  regexp.MustCompile(`\beval\s*\(|new Function\b|setTimeout\(\s*['"` + "`" + `]`),
		"an absolute URL":       regexp.MustCompile(`(?i)https?://|['"(]//[a-z]`),
		"an inline handler":     regexp.MustCompile(`\son[a-z]+\s*=\s*["']`),
		"a style as text":       regexp.MustCompile(`\sstyle\s*=\s*(["']|\$\{` + "`" + `)`),
		"a javascript URL":      regexp.MustCompile(`(?i)javascript:`),
	}
	texts := ours(t)
	texts["shell.html"] = shellText
	for name, text := range texts {
		text = strings.ReplaceAll(text, `xmlns="http://www.w3.org/2000/svg"`, "") // a name, not an address
		for what, pattern := range forbidden {
			if found := pattern.FindString(text); found != "" {
				t.Errorf("%s has %s: %q", name, what, found)
			}
		}
	}
}

func TestAssets_AreShortModulesThatSayWhatTheyAre(t *testing.T) {
	for name, text := range ours(t) {
		if path.Ext(name) == ".svg" {
			continue
		}
		if !strings.HasPrefix(text, "//") && !strings.HasPrefix(text, "/*") {
			t.Errorf("%s does not begin with a comment", name)
		}
		if lines := strings.Count(text, "\n"); lines > linesMax {
			t.Errorf("%s has %d lines, more than %d", name, lines, linesMax)
		}
	}
}

var imported = regexp.MustCompile(`(?:from|import) '\./([^']+)'`)

func TestAssets_ImportWhatExists(t *testing.T) {
	s, err := newSite()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range ours(t) {
		for _, match := range imported.FindAllStringSubmatch(text, -1) {
			if _, ok := s.assets[match[1]]; !ok {
				t.Errorf("%s imports %s, which does not exist", name, match[1])
			}
		}
	}
}

// parseModules is a program of Node.js that parses the modules in its arguments.
const parseModules = `
const { readFileSync } = require('node:fs');
const { SourceTextModule } = require('node:vm');
for (const name of process.argv.slice(1)) new SourceTextModule(readFileSync(name, 'utf8'), { identifier: name });
`

func TestAssets_ParseIfNodeIsInstalled(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	modules, err := filepath.Glob("assets/*.js")
	if err != nil {
		t.Fatal(err)
	}
	arguments := append([]string{"--experimental-vm-modules", "--eval", parseModules}, modules...)
	if out, err := exec.CommandContext(t.Context(), node, arguments...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestPageModules_ComputeIfNodeIsInstalled(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed")
	}
	if out, err := exec.CommandContext(t.Context(), node, "--test", "testdata/pages.test.mjs").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestLibrary_IsWhatItsSourcesSay(t *testing.T) {
	listed := map[string]bool{"SOURCES": true}
	text, err := os.ReadFile("assets/lib/SOURCES")
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		if len(fields) != 4 {
			t.Fatalf("SOURCES: %q has %d fields, not 4", lines.Text(), len(fields))
		}
		listed[fields[0]] = true
		content, err := os.ReadFile(filepath.Join("assets/lib", fields[0]))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != fields[3] {
			t.Errorf("%s differs from %s of %s", fields[0], fields[2], fields[1])
		}
	}
	entries, err := os.ReadDir("assets/lib")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !listed[entry.Name()] {
			t.Errorf("SOURCES does not say where assets/lib/%s is from", entry.Name())
		}
	}
}

func TestPages_HaveModulesAndRelativeURLs(t *testing.T) {
	for target, want := range map[string]struct{ base, page, id string }{
		"/":                          {"./", "overview", ""},
		"/instances":                 {"./", "instances", ""},
		"/instances/a%2Fb%22%3E%3Cx": {"../", "instance", "a/b&#34;&gt;&lt;x"},
		"/schedules/nightly":         {"../", "schedule", "nightly"},
		"/jobs/bulk-1":               {"../", "job", "bulk-1"},
		"/cluster":                   {"./", "cluster", ""},
	} {
		w := request(t, http.MethodGet, target)
		body := w.Body.String()
		if w.Code != http.StatusOK {
			t.Errorf("%s: status %d", target, w.Code)
		}
		for _, part := range []string{`data-base="` + want.base + `"`, `data-page="` + want.page + `"`, want.base + "assets/", want.page + ".js"} {
			if !strings.Contains(body, part) {
				t.Errorf("%s: %s is missing in\n%s", target, part, body)
			}
		}
		if want.id != "" && !strings.Contains(body, `data-id="`+want.id+`"`) {
			t.Errorf("%s: the ID %s is missing in\n%s", target, want.id, body)
		}
		for _, attribute := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(body, -1) {
			if strings.HasPrefix(attribute[1], "/") || strings.Contains(attribute[1], ":") {
				t.Errorf("%s: %s is not relative", target, attribute[1])
			}
		}
	}
}

func TestPages_UnknownPathsSaySo(t *testing.T) {
	for _, target := range []string{"/instances/", "/instances/*/x", "/nothing", "/instances/a/b", "/*", "/code/x"} {
		if w := request(t, http.MethodGet, target); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "missing.js") {
			t.Errorf("%s: status %d\n%s", target, w.Code, w.Body)
		}
	}
	if w := request(t, http.MethodPost, "/"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: status %d", w.Code)
	}
}

func TestPages_PrefixWithoutSlashGetsOne(t *testing.T) {
	w := httptest.NewRecorder()
	http.StripPrefix("/ops/tenuto", Handler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/ops/tenuto?x=1", nil))
	if got := w.Header().Get("Location"); w.Code != http.StatusTemporaryRedirect || got != "./tenuto/" {
		t.Errorf("status %d, location %q", w.Code, got)
	}
}

func TestAssets_AreCachedByHashAndCompressed(t *testing.T) {
	s, err := load()
	if err != nil {
		t.Fatal(err)
	}
	target := "/" + s.assetPath() + "page.js"
	plain := request(t, http.MethodGet, target)
	if plain.Body.String() != string(s.assets["page.js"].plain) || plain.Header().Get("Content-Encoding") != "" {
		t.Errorf("without gzip: %v", plain.Header())
	}
	zipped := request(t, http.MethodGet, target, "Accept-Encoding", "br, gzip")
	if zipped.Header().Get("Content-Encoding") != "gzip" || !bytes.Equal(zipped.Body.Bytes(), s.assets["page.js"].gzipped) {
		t.Errorf("with gzip: %v", zipped.Header())
	}
	if got := zipped.Header().Get("Cache-Control"); !strings.Contains(got, "immutable") {
		t.Errorf("Cache-Control: %q", got)
	}
	for _, accepted := range []string{"gzip;q=0", "gzip; Q=0.0"} {
		if refused := request(t, http.MethodGet, target, "Accept-Encoding", accepted); refused.Header().Get("Content-Encoding") != "" {
			t.Errorf("%s got gzip", accepted)
		}
	}
	again := request(t, http.MethodGet, target, "Accept-Encoding", "gzip", "If-None-Match", zipped.Header().Get("ETag"))
	if again.Code != http.StatusNotModified {
		t.Errorf("If-None-Match: status %d", again.Code)
	}
	other := request(t, http.MethodGet, "/assets/0123456789abcdef/page.js")
	if other.Code != http.StatusOK || other.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("another node's hash: status %d, %v", other.Code, other.Header())
	}
	if none := request(t, http.MethodGet, "/"+s.assetPath()+"../web.go"); none.Code != http.StatusNotFound {
		t.Errorf("outside the assets: status %d", none.Code)
	}
}
