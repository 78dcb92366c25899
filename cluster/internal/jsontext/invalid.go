package jsontext

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"unicode/utf8"
)

// textDepthMax bounds how deep Invalid searches a value; encoding/json rejects cycles itself.
const textDepthMax = 1000

// Invalid finds a string that is not UTF-8 in what encoding/json would write of a value, and
// returns its path, which begins with name.
func Invalid(name string, value any) (at, text string, found bool) {
	return invalid(name, reflect.ValueOf(value), 0)
}

func invalid(path string, v reflect.Value, depth int) (at, text string, found bool) {
	if !v.IsValid() || depth > textDepthMax || !mayHoldText(v.Type()) {
		return "", "", false
	}
	switch v.Kind() {
	case reflect.String:
		return path, v.String(), !utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return invalid(path, v.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		for i := 0; i < v.Len() && !found; i++ {
			at, text, found = invalid(fmt.Sprintf("%s[%d]", path, i), v.Index(i), depth+1)
		}
	case reflect.Map:
		for entries := v.MapRange(); entries.Next() && !found; {
			if at, text, found = invalid("a key of "+path, entries.Key(), depth+1); !found {
				at, text, found = invalid(fmt.Sprintf("%s[%v]", path, entries.Key()), entries.Value(), depth+1)
			}
		}
	case reflect.Struct:
		for i := 0; i < v.NumField() && !found; i++ {
			if field := v.Type().Field(i); isEncoded(field) {
				at, text, found = invalid(path+"."+field.Name, v.Field(i), depth+1)
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
