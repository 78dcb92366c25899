package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// toYAML converts a JSON document to YAML in block style, with the fields in the same order.
// Strings that YAML could read as something else are JSON strings, which are also YAML.
func toYAML(document []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	root, err := readNode(decoder)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	root.write(&out, "", false)
	return out.Bytes(), nil
}

// A node is a JSON value.
type node struct {
	scalar string // text in YAML; "" for a mapping or a sequence
	isList bool
	keys   []string // of a mapping, as YAML
	values []*node
}

func readNode(decoder *json.Decoder) (*node, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	delimiter, isDelimiter := token.(json.Delim)
	if !isDelimiter {
		return &node{scalar: scalarOf(token)}, nil
	}
	n := &node{isList: delimiter == '['}
	for decoder.More() {
		if !n.isList {
			key, err := decoder.Token()
			if err != nil {
				return nil, err
			}
			n.keys = append(n.keys, scalarOf(key))
		}
		value, err := readNode(decoder)
		if err != nil {
			return nil, err
		}
		n.values = append(n.values, value)
	}
	_, err = decoder.Token() // the end of n
	return n, err
}

// write writes a node. If inline is set, it continues a line after "- ".
func (n *node) write(out io.Writer, indent string, inline bool) {
	switch {
	case n.scalar != "":
		fmt.Fprintln(out, n.scalar)
	case len(n.values) == 0 && n.isList:
		fmt.Fprintln(out, "[]")
	case len(n.values) == 0:
		fmt.Fprintln(out, "{}")
	default:
		for i, value := range n.values {
			if i > 0 || !inline {
				fmt.Fprint(out, indent)
			}
			if n.isList {
				fmt.Fprint(out, "- ")
				value.write(out, indent+"  ", true)
				continue
			}
			fmt.Fprint(out, n.keys[i], ":")
			if value.scalar != "" || len(value.values) == 0 {
				fmt.Fprint(out, " ")
				value.write(out, "", false)
				continue
			}
			fmt.Fprintln(out)
			value.write(out, indent+"  ", false)
		}
	}
}

// plainText matches text that YAML reads as that string, unless it is a reservedWord.
var plainText = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./@+-]*$`)

// reservedWords are those that some version of YAML reads as another type.
var reservedWords = " true false yes no on off y n null "

func scalarOf(token json.Token) string {
	text, isString := token.(string)
	switch {
	case token == nil:
		return "null"
	case !isString:
		return fmt.Sprint(token)
	case plainText.MatchString(text) && !strings.Contains(reservedWords, " "+strings.ToLower(text)+" "):
		return text
	}
	var quoted bytes.Buffer
	encoder := json.NewEncoder(&quoted)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string can be encoded
	return escapeForYAML(strings.TrimSuffix(quoted.String(), "\n"))
}

// escapeForYAML escapes the characters that JSON strings may contain and YAML forbids.
func escapeForYAML(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0xfeff || r == 0xfffe || r == 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}
