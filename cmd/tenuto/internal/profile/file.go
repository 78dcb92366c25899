package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Field describes a field of profiles.
type Field struct {
	Name   string
	IsPath bool
	Check  func(value string) error // nil: any value is valid
}

// A Profile holds values by the names of fields.
type Profile map[string]string

// A File is the content of a file of profiles.
type File struct {
	// Current is the profile to use if none is named; "" for none.
	Current  string
	Profiles map[string]Profile

	path   string
	fields []Field
}

// An Error reports a file that is not valid.
type Error struct {
	File   string
	Line   int    // counted from 1
	Field  string // path to the field, such as profiles.shop.addr; "" if none is concerned
	Reason string
}

func (e *Error) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
	}
	return fmt.Sprintf("%s:%d: %s %s", e.File, e.Line, e.Field, e.Reason)
}

// Load reads a file. One that does not exist has no profiles. The error is an [*Error] or that of
// reading.
func Load(path string, fields []Field) (*File, error) {
	f := &File{Profiles: make(map[string]Profile), path: path, fields: fields}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	p := &parser{file: f, text: text, decoder: json.NewDecoder(bytes.NewReader(text))}
	return f, p.parse()
}

// Get returns a profile whose paths are absolute, or relative to the working directory as the path
// of the file is.
func (f *File) Get(name string) (Profile, error) {
	recorded, ok := f.Profiles[name]
	if !ok {
		return nil, fmt.Errorf("%s has no profile %q", f.path, name)
	}
	found := maps.Clone(recorded)
	for _, field := range f.fields {
		if value := found[field.Name]; field.IsPath && value != "" && !filepath.IsAbs(value) {
			found[field.Name] = filepath.Join(filepath.Dir(f.path), value)
		}
	}
	return found, nil
}

// Names returns the names of the profiles in their order.
func (f *File) Names() []string { return slices.Sorted(maps.Keys(f.Profiles)) }

// Save writes the file, readable by its owner only, and replaces the old one at once.
func (f *File) Save() error {
	text, err := json.MarshalIndent(content{f.Current, f.Profiles}, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	written, err := os.CreateTemp(filepath.Dir(f.path), filepath.Base(f.path)+".*")
	if err != nil {
		return err
	}
	_, err = written.Write(append(text, '\n'))
	if err = errors.Join(err, written.Close()); err == nil {
		err = os.Rename(written.Name(), f.path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(written.Name()))
	}
	return nil
}

// content is the form of the file.
type content struct {
	Current  string             `json:"current,omitempty"`
	Profiles map[string]Profile `json:"profiles"`
}

// A parser reads a file token by token, to know the line of each.
type parser struct {
	file    *File
	text    []byte
	decoder *json.Decoder
}

func (p *parser) parse() error {
	err := p.object("", func(key string) (err error) {
		switch key {
		case "current":
			p.file.Current, err = p.string(key)
			return err
		case "profiles":
			return p.object(key, p.profile)
		}
		return p.invalid(key, "is unknown: the fields are current and profiles")
	})
	if err != nil {
		return err
	}
	if _, err := p.decoder.Token(); !errors.Is(err, io.EOF) {
		return p.invalid("", "something follows the end of the object")
	}
	if _, ok := p.file.Profiles[p.file.Current]; p.file.Current != "" && !ok {
		line := 1 + bytes.Count(p.text[:max(0, bytes.Index(p.text, []byte(`"current"`)))], []byte("\n"))
		return &Error{p.file.path, line, "current", fmt.Sprintf("names %q, which is no profile", p.file.Current)}
	}
	return nil
}

func (p *parser) profile(name string) error {
	read := make(Profile)
	if _, twice := p.file.Profiles[name]; twice {
		return p.invalid("profiles."+name, "is there twice")
	}
	p.file.Profiles[name] = read
	return p.object("profiles."+name, func(key string) error {
		path := "profiles." + name + "." + key
		i := slices.IndexFunc(p.file.fields, func(f Field) bool { return f.Name == key })
		if i < 0 {
			return p.invalid(path, "is unknown: the fields are "+strings.Join(p.file.fieldNames(), ", "))
		}
		value, err := p.string(path)
		if err != nil {
			return err
		}
		if check := p.file.fields[i].Check; check != nil {
			if err := check(value); err != nil {
				return p.invalid(path, err.Error())
			}
		}
		read[key] = value
		return nil
	})
}

func (f *File) fieldNames() (names []string) {
	for _, field := range f.fields {
		names = append(names, field.Name)
	}
	return names
}

// object reads an object and calls read after each key.
func (p *parser) object(path string, read func(key string) error) error {
	token, err := p.token(path)
	if err != nil {
		return err
	}
	if token != json.Delim('{') {
		return p.invalid(path, "must be an object")
	}
	for p.decoder.More() {
		key, err := p.token(path)
		if err != nil {
			return err
		}
		if err := read(key.(string)); err != nil { // the decoder accepts only texts as keys
			return err
		}
	}
	_, err = p.token(path)
	return err
}

func (p *parser) string(path string) (string, error) {
	token, err := p.token(path)
	if err != nil {
		return "", err
	}
	text, ok := token.(string)
	if !ok {
		return "", p.invalid(path, "must be a text in quotes")
	}
	return text, nil
}

func (p *parser) token(path string) (json.Token, error) {
	token, err := p.decoder.Token()
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		return token, nil
	case errors.As(err, &syntax):
		return nil, &Error{p.file.path, p.lineAt(syntax.Offset), path, "is not JSON: " + syntax.Error()}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, p.invalid(path, "is not JSON: the file ends too early")
	}
	return nil, err
}

func (p *parser) invalid(path, reason string) error {
	return &Error{p.file.path, p.lineAt(p.decoder.InputOffset()), path, reason}
}

// lineAt returns the line of the byte before an offset.
func (p *parser) lineAt(offset int64) int {
	before := p.text[:min(max(offset-1, 0), int64(len(p.text)))]
	return 1 + bytes.Count(before, []byte("\n"))
}
