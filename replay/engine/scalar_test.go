package engine

import (
	"encoding/json"
	"math"
	"reflect"
	"testing"
)

// The result must equal that of encoding/json.
func TestScalar_MatchesEncodingJSON(t *testing.T) {
	for _, value := range []any{
		0, 1, -1, 42, math.MaxInt, math.MinInt, int64(7), int64(math.MaxInt64), int64(math.MinInt64), true, false,
		"", "plain", "two words", `quo"te`, `back\slash`, "<&>", "tab\t", "ü", "\x7f", "\xff", "\u2028",
	} {
		want, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := appendScalar(nil, value); ok && string(got) != string(want) {
			t.Errorf("%v encoded as %s, want %s", value, got, want)
		}
		checkScalar(t, string(want))
	}
	if data, ok := appendScalar(nil, int32(1)); ok {
		t.Errorf("an int32 was encoded as a scalar: %s", data)
	}
}

func TestScalar_RejectsNonScalars(t *testing.T) {
	for _, data := range []string{
		"", " 1", "1 ", "01", "-", "-0", "--1", "+1", "1.0", "1e3", "null", "nul", "True", `"`, `""`, `"a`, `a"`, `"a"b"`,
		`"\u0041"`, "\"\x01\"", "\"\xff\"", "999999999999999999", "9999999999999999999", "-999999999999999999", "[1]", "{}",
	} {
		checkScalar(t, data)
	}
}

func FuzzScalar(f *testing.F) {
	f.Add("1")
	f.Add(`"a"`)
	f.Fuzz(func(t *testing.T, data string) {
		checkScalar(t, data)
		want, err := json.Marshal(data)
		if got, ok := appendScalar(nil, data); ok && (err != nil || string(got) != string(want)) {
			t.Errorf("%q encoded as %s, want %s", data, got, want)
		}
	})
}

// checkScalar decodes data into every simple type, with and without encoding/json.
func checkScalar(t *testing.T, data string) {
	t.Helper()
	for _, into := range []any{new(int), new(int64), new(bool), new(string)} {
		want := reflect.New(reflect.TypeOf(into).Elem()).Interface()
		err := json.Unmarshal([]byte(data), want)
		if ok := readScalar([]byte(data), into); ok && (err != nil || !reflect.DeepEqual(into, want)) {
			t.Errorf("%q decoded into a %T as %v, want %v, %v", data, into, reflect.ValueOf(into).Elem(), reflect.ValueOf(want).Elem(), err)
		}
	}
}
