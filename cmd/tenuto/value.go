package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// readValue reads a JSON value from an argument: the text itself, @FILE, or - for the standard
// input. name names the value in errors.
func readValue(s streams, name, arg string) (json.RawMessage, error) {
	text, source := []byte(arg), name
	var err error
	if path, isFile := strings.CutPrefix(arg, "@"); isFile {
		source = name + ", " + path
		text, err = os.ReadFile(path)
	} else if arg == fromInput {
		source = name + ", standard input"
		text, err = io.ReadAll(s.in)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if err := checkJSON(text); err != nil {
		return nil, &usageError{fmt.Sprintf("%s is not JSON: %v", source, err)}
	}
	return bytes.TrimSpace(text), nil
}

// checkJSON returns an error that says where a text is not JSON.
func checkJSON(text []byte) error {
	var value json.RawMessage
	err := json.Unmarshal(text, &value)
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return err
	}
	before := text[:min(max(int(syntax.Offset)-1, 0), len(text))]
	line := bytes.Count(before, []byte("\n"))
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	hint := ""
	if len(bytes.TrimSpace(text)) > 0 && line == 0 && column <= 1 {
		hint = `; a text needs quotes: '"text"'`
	}
	return fmt.Errorf("line %d, column %d: %w%s", line+1, column+1, err, hint)
}

// unmarshalStrict decodes JSON and rejects fields that it does not know.
func unmarshalStrict(text string, value any) error {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(value)
}
