package cluster

import (
	"context"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/clusterpb"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// check returns an error if the client or the context is nil.
func (c *Client) check(ctx context.Context) error {
	switch {
	case c == nil || c.transport == nil:
		return &InputError{"client", "is nil: use Node.Client or Dial"}
	case ctx == nil:
		return &InputError{"context", "is nil"}
	}
	return nil
}

func (c *Client) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	return c.transport.call(ctx, request)
}

func applyOptions[T any, O ~func(T)](to T, options []O) error {
	for i, option := range options {
		if option == nil {
			return &InputError{"option", fmt.Sprintf("%d is nil", i+1)}
		}
		option(to)
	}
	return nil
}

// encode converts an argument to a payload. It refuses text that is not UTF-8, which encoding/json
// would silently change.
func (c *Client) encode(of replay.PayloadInfo, value any) (*journalpb.Payload, error) {
	if c == nil {
		return nil, c.check(context.Background())
	}
	if path, text, found := invalidText(of.Part, reflect.ValueOf(value), 0); found {
		return nil, &InputError{path, fmt.Sprintf("%.140q is not UTF-8, which JSON cannot represent: pass it as []byte", text)}
	}
	return c.converter.Encode(of, value)
}

// textDepthMax bounds how deep invalidText searches a value; encoding/json refuses cycles itself.
const textDepthMax = 1000

// invalidText finds a string that is not UTF-8 in what encoding/json would write, and returns its
// path.
func invalidText(path string, v reflect.Value, depth int) (at, text string, found bool) {
	if !v.IsValid() || depth > textDepthMax || !mayHoldText(v.Type()) {
		return "", "", false
	}
	switch v.Kind() {
	case reflect.String:
		return path, v.String(), !utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return invalidText(path, v.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		for i := 0; i < v.Len() && !found; i++ {
			at, text, found = invalidText(fmt.Sprintf("%s[%d]", path, i), v.Index(i), depth+1)
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next() && !found; {
			if at, text, found = invalidText("a key of "+path, entries.Key(), depth+1); !found {
				at, text, found = invalidText(fmt.Sprintf("%s[%v]", path, entries.Key()), entries.Value(), depth+1)
			}
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && !found; i++ {
			if field := v.Type().Field(i); isEncoded(field) {
				at, text, found = invalidText(path+"."+field.Name, v.Field(i), depth+1)
			}
		}
	}
	return at, text, found
}

func isEncoded(field reflect.StructField) bool {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return (field.IsExported() || field.Anonymous) && name != "-"
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	textTypes     sync.Map // of reflect.Type to bool
)

// mayHoldText reports whether values of a type may hold strings that encoding/json writes without
// calling a marshaler.
func mayHoldText(t reflect.Type) bool {
	if known, ok := textTypes.Load(t); ok {
		return known.(bool)
	}
	holds := holdsText(t, make(map[reflect.Type]bool))
	textTypes.Store(t, holds)
	return holds
}

func holdsText(t reflect.Type, visited map[reflect.Type]bool) bool {
	if visited[t] || t.Implements(jsonMarshaler) || t.Implements(textMarshaler) {
		return false
	}
	visited[t] = true
	switch t.Kind() {
	case reflect.String, reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return holdsText(t.Elem(), visited)
	case reflect.Map:
		return holdsText(t.Key(), visited) || holdsText(t.Elem(), visited)
	case reflect.Struct:
		for i := range t.NumField() {
			if field := t.Field(i); isEncoded(field) && holdsText(field.Type, visited) {
				return true
			}
		}
	}
	return false
}
