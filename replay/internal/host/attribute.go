package host

import (
	"reflect"
	"strconv"
	"time"
)

// AttributeOf returns the value of an attribute as a string, a bool, an int64, a float64 or a
// time.Time.
func AttributeOf(value any) any {
	if t, ok := value.(time.Time); ok {
		return t
	}
	switch v := reflect.ValueOf(value); v.Kind() {
	case reflect.Bool:
		return v.Bool()
	case reflect.Int, reflect.Int64:
		return v.Int()
	case reflect.Float64:
		return v.Float()
	default:
		return v.String()
	}
}

// AttributeText returns the text of a value of AttributeOf.
func AttributeText(value any) string {
	switch v := value.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	}
	return ""
}

// ParseAttribute stores the value with that text in the variable of an attribute's type that into
// points to. It reports whether there is one.
func ParseAttribute(text string, into any) bool {
	if t, ok := into.(*time.Time); ok {
		parsed, err := time.Parse(time.RFC3339Nano, text)
		*t = parsed
		return err == nil
	}
	v := reflect.ValueOf(into).Elem()
	var err error
	switch v.Kind() {
	case reflect.Bool:
		var b bool
		b, err = strconv.ParseBool(text)
		v.SetBool(b)
	case reflect.Int, reflect.Int64:
		var n int64
		n, err = strconv.ParseInt(text, 10, v.Type().Bits())
		v.SetInt(n)
	case reflect.Float64:
		var f float64
		f, err = strconv.ParseFloat(text, 64)
		v.SetFloat(f)
	default:
		v.SetString(text)
	}
	return err == nil
}
