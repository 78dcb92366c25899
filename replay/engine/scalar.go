package engine

import "strconv"

// Values of simple types, which are most small payloads, are encoded and decoded without
// reflection. The output is that of encoding/json. The reader accepts only a subset of what
// encoding/json accepts; everything else is left to encoding/json.

// appendScalar appends the JSON of a value of a simple type.
func appendScalar(data []byte, value any) (appended []byte, ok bool) {
	switch v := value.(type) {
	case int:
		return strconv.AppendInt(data, int64(v), 10), true
	case int64:
		return strconv.AppendInt(data, v, 10), true
	case bool:
		return strconv.AppendBool(data, v), true
	case string:
		if !isPlainText(v, `"\<>&`) {
			return data, false
		}
		return append(append(append(data, '"'), v...), '"'), true
	}
	return data, false
}

// readScalar decodes JSON into the variable that into points to, if that is of a simple type.
func readScalar(data []byte, into any) (ok bool) {
	switch v := into.(type) {
	case *int:
		n, ok := readInteger(data)
		if ok = ok && int64(int(n)) == n; ok {
			*v = int(n)
		}
		return ok
	case *int64:
		n, ok := readInteger(data)
		if ok {
			*v = n
		}
		return ok
	case *bool:
		return readBool(data, v)
	case *string:
		last := len(data) - 1
		if last < 1 || data[0] != '"' || data[last] != '"' || !isPlainText(string(data[1:last]), `"\`) {
			return false
		}
		*v = string(data[1:last])
		return true
	}
	return false
}

func readBool(data []byte, into *bool) (ok bool) {
	switch string(data) {
	case "true":
		*into = true
	case "false":
		*into = false
	default:
		return false
	}
	return true
}

// integerDigitsMax is the number of digits that always fit into 64 bits.
const integerDigitsMax = 18

// readInteger reads a JSON integer: without a plus or leading zeros.
func readInteger(data []byte) (n int64, ok bool) {
	digits := data
	if len(digits) > 0 && digits[0] == '-' {
		digits = digits[1:]
	}
	if len(digits) == 0 || len(digits) > integerDigitsMax || digits[0] == '0' && len(digits) > 1 {
		return 0, false
	}
	for _, digit := range digits {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		n = 10*n + int64(digit-'0')
	}
	if len(digits) < len(data) {
		n = -n
	}
	return n, true
}

// isPlainText reports whether text is printable ASCII without the given characters.
func isPlainText(text, without string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] > '~' {
			return false
		}
		for j := range len(without) {
			if text[i] == without[j] {
				return false
			}
		}
	}
	return true
}
