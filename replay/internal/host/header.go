package host

// Headers are the headers of a call or an event, sorted by name. They are never changed.
type Headers []Header

// A Header is one of them.
type Header struct{ Name, Value string }

// HeadersKey is the key of the [Headers] in the context of a client's call and of the body of an
// activity.
type HeadersKey struct{}

// Get returns the value of the header of that name. ok is false if there is none.
func (h Headers) Get(name string) (value string, ok bool) {
	for i := range h {
		if h[i].Name == name {
			return h[i].Value, true
		}
	}
	return "", false
}

// With returns the headers with one of them set.
func (h Headers) With(name, value string) Headers {
	at := 0
	for at < len(h) && h[at].Name < name {
		at++
	}
	rest := h[at:]
	if len(rest) > 0 && rest[0].Name == name {
		rest = rest[1:]
	}
	with := make(Headers, 0, len(h)+1)
	return append(append(append(with, h[:at]...), Header{name, value}), rest...)
}
