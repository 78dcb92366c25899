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

// check refuses a call without a client or a context.
func (c *Client) check(ctx context.Context) error {
	switch {
	case c == nil || c.access == nil:
		return &InputError{"client", "is nil: use Node.Client or Dial"}
	case ctx == nil:
		return &InputError{"context", "is nil"}
	}
	return nil
}

// call brings a request to the leader and its answer back.
func (c *Client) call(ctx context.Context, request *clusterpb.Request) (*clusterpb.Response, error) {
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	return c.access.call(ctx, request)
}

// apply applies the options of a call to what they change.
func apply[T any, O ~func(T)](to T, options []O) error {
	for i, option := range options {
		if option == nil {
			return &InputError{"option", fmt.Sprintf("%d is nil", i+1)}
		}
		option(to)
	}
	return nil
}

// encode turns an argument of a call into a payload. It refuses text that is not UTF-8:
// encoding/json would change it without an error.
func (c *Client) encode(of replay.PayloadOf, value any) (*journalpb.Payload, error) {
	if c == nil {
		return nil, c.check(context.Background())
	}
	if path, text, found := invalidText(of.Part, reflect.ValueOf(value), 0); found {
		return nil, &InputError{path, fmt.Sprintf("%.140q is not UTF-8, which JSON cannot hold: pass it as []byte", text)}
	}
	return c.payloads.Encode(of, value)
}

// textDepthMax bounds how deep a value is searched; encoding/json refuses cycles itself.
const textDepthMax = 1000

// invalidText finds a string that is not UTF-8 in what encoding/json would write, and
// returns the way to it.
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

// isEncoded reports whether encoding/json looks at a field.
func isEncoded(field reflect.StructField) bool {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return (field.IsExported() || field.Anonymous) && name != "-"
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	textTypes     sync.Map // of reflect.Type to bool
)

// mayHoldText reports whether values of a type may hold strings that encoding/json writes
// itself.
func mayHoldText(t reflect.Type) bool {
	if known, ok := textTypes.Load(t); ok {
		return known.(bool)
	}
	holds := holdsText(t, make(map[reflect.Type]bool))
	textTypes.Store(t, holds)
	return holds
}

func holdsText(t reflect.Type, looked map[reflect.Type]bool) bool {
	if looked[t] || t.Implements(jsonMarshaler) || t.Implements(textMarshaler) {
		return false
	}
	looked[t] = true
	switch t.Kind() {
	case reflect.String, reflect.Interface:
		return true
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return holdsText(t.Elem(), looked)
	case reflect.Map:
		return holdsText(t.Key(), looked) || holdsText(t.Elem(), looked)
	case reflect.Struct:
		for i := range t.NumField() {
			if field := t.Field(i); isEncoded(field) && holdsText(field.Type, looked) {
				return true
			}
		}
	}
	return false
}
