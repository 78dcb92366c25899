package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

//go:embed assets
var files embed.FS

// contentTypes are the types of the assets by the ends of their names.
var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8",
	".js":  "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// load is called once per process, not once per handler.
var load = sync.OnceValues(newSite)

// Handler returns a handler for the pages and their assets, for paths below the dashboard's root.
// It answers GET and HEAD, and any path: with a page that says so if there is none.
func Handler() http.Handler {
	s, err := load()
	if err != nil {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "the dashboard's assets cannot be read: "+err.Error(), http.StatusInternalServerError)
		})
	}
	return s
}

// An asset is a file in both of its encodings.
type asset struct {
	contentType string
	plain       []byte
	gzipped     []byte
}

type site struct {
	hash   string // of all assets
	assets map[string]asset
	// preloads are the modules that the script of each page imports, by the page's name.
	preloads map[string][]string
}

func newSite() (*site, error) {
	s := &site{assets: map[string]asset{}, preloads: map[string][]string{}}
	all := sha256.New()
	err := fs.WalkDir(files, "assets", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := files.ReadFile(name)
		if err != nil {
			return err
		}
		gzipped, err := compress(content)
		if err != nil {
			return fmt.Errorf("compress %s: %w", name, err)
		}
		name = strings.TrimPrefix(name, "assets/")
		fmt.Fprintf(all, "%s %d\n", name, len(content))
		all.Write(content)
		s.assets[name] = asset{contentType: contentTypeOf(name), plain: content, gzipped: gzipped}
		return nil
	})
	s.hash = hex.EncodeToString(all.Sum(nil)[:8])
	for _, each := range append(slices.Collect(maps.Values(pages)), missing) {
		s.preloads[each.name] = s.importsOf(each.name + ".js")
	}
	return s, err
}

func contentTypeOf(name string) string {
	if known, ok := contentTypes[path.Ext(name)]; ok {
		return known
	}
	return "text/plain; charset=utf-8"
}

func compress(content []byte) ([]byte, error) {
	var compressed bytes.Buffer
	w, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return compressed.Bytes(), nil
}

func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "pages are only read", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path == "" {
		redirectToRoot(w, r)
		return
	}
	escaped := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	if name, ok := strings.CutPrefix(escaped, "assets/"); ok {
		s.serveAsset(w, r, name)
		return
	}
	s.servePage(w, r, escaped)
}

// redirectToRoot adds the slash that is missing at the end of a prefix. Without it, relative URLs
// would be those of the directory above. Only the client knows the whole path, so the location is
// relative.
func redirectToRoot(w http.ResponseWriter, r *http.Request) {
	requested, _, _ := strings.Cut(r.RequestURI, "?")
	w.Header().Set("Location", "./"+path.Base(requested)+"/")
	w.WriteHeader(http.StatusTemporaryRedirect)
}

// assetPath is the path of the assets, relative to the root.
func (s *site) assetPath() string {
	return "assets/" + s.hash + "/"
}

// serveAsset serves HASH/NAME. During a rolling upgrade, nodes behind one address have different
// assets: a page may ask for those of another node. It gets these, and may not keep them.
func (s *site) serveAsset(w http.ResponseWriter, r *http.Request, hashed string) {
	hash, name, _ := strings.Cut(hashed, "/")
	found, ok := s.assets[name]
	if !ok {
		http.Error(w, "there is no such asset", http.StatusNotFound)
		return
	}
	header := w.Header()
	header.Set("Content-Type", found.contentType)
	header.Set("Vary", "Accept-Encoding")
	if hash == s.hash {
		header.Set("Cache-Control", "public, max-age=31536000, immutable")
	} else {
		header.Set("Cache-Control", "no-store")
	}
	content, tag := found.plain, s.hash
	if acceptsGzip(r) {
		header.Set("Content-Encoding", "gzip")
		content, tag = found.gzipped, s.hash+"-gzip"
	}
	header.Set("ETag", `"`+tag+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
}

// acceptsGzip reports whether the client accepts gzip and has not given it the weight 0.
func acceptsGzip(r *http.Request) bool {
	for _, coding := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(strings.TrimSpace(coding), ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			weight = strings.ToLower(strings.ReplaceAll(weight, " ", ""))
			return strings.Trim(strings.TrimPrefix(weight, "q="), "0.") != "" || weight == ""
		}
	}
	return false
}
