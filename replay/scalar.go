package replay

import "strconv"

// Values of the simplest types are written and read without reflection: they are
// most of what small payloads hold. What is written is what encoding/json writes,
// and what is read is only what it reads just so; everything else is left to it.

// appendScalar appends the JSON of a value, if it is one of a simple type.
func appendScalar(data []byte, value any) (appended []byte, ok bool) {
	switch v := value.(type) {
	case int:
		return strconv.AppendInt(data, int64(v), 10), true
	case int64:
		return strconv.AppendInt(data, v, 10), true
	case bool:
		return strconv.AppendBool(data, v), true
	case string:
		if !plainText(v, `"\<>&`) {
			return data, false
		}
		return append(append(append(data, '"'), v...), '"'), true
	}
	return data, false
}

// readScalar reads JSON into what into points to, if that is of a simple type.
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
		if last < 1 || data[0] != '"' || data[last] != '"' || !plainText(string(data[1:last]), `"\`) {
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

// integerMax is how many digits surely fit into 64 bits.
const integerMax = 18

// readInteger reads an integer as JSON has it: without a plus or leading zeros.
func readInteger(data []byte) (n int64, ok bool) {
	digits := data
	if len(digits) > 0 && digits[0] == '-' {
		digits = digits[1:]
	}
	if len(digits) == 0 || len(digits) > integerMax || digits[0] == '0' && len(digits) > 1 {
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

// plainText tells whether a text is printable ASCII without some characters.
func plainText(text, without string) bool {
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
