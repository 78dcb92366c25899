package host

import (
	"fmt"
	"reflect"
	"sync"
)

// NameMax bounds names, versions, tags and codes, in bytes.
const NameMax = 128

// The codes of sentinels that have a type with more fields.
const (
	CanceledCode = "tenuto.canceled"
	TimeoutCode  = "tenuto.timeout"
)

// A Sentinel is an error that is identified by its code, also after it was recorded in the journal.
type Sentinel struct{ Code, Message string }

func (s *Sentinel) Error() string { return s.Message }

// An AnnotatedError adds a code, or that the error is not retryable. Only the record of the error
// shows them.
type AnnotatedError struct {
	Err          error
	Code         string
	NonRetryable bool
}

func (a *AnnotatedError) Error() string { return a.Err.Error() }
func (a *AnnotatedError) Unwrap() error { return a.Err }

// A DecodedError holds what the engine keeps in an error that it read from the journal.
type DecodedError struct {
	Typed  error // value of a registered type
	Sealed any   // the record, if it is still encoded by a codec
}

// A CanceledText selects the text of a canceled error.
type CanceledText struct {
	Legacy bool // the reason alone, as before protocol 3
}

// A NotRegisteredText replaces the text of an error about a name without code.
type NotRegisteredText struct {
	Leader string // the whole text, of the leader or the instance; "": the text of the type
}

// A PayloadText selects the text of a payload error.
type PayloadText struct {
	Detailed bool // it identifies the payload and its event_id
	Refused  bool // it identifies the payload, the expected type, and what was sent
}

// A MismatchText holds what the engine keeps in a mismatch.
type MismatchText struct {
	// Redact returns the description of an event without payloads; nil if none are described.
	Redact func(description string) string
}

// registeredErrors holds the errors that users registered. Programs fill it during their
// initialization.
var registeredErrors struct {
	sync.RWMutex
	sentinels map[error]string
	types     map[reflect.Type]string
	decoders  map[string]ErrorDecoder
}

// An ErrorDecoder returns an error from its encoded fields.
type ErrorDecoder func(details []byte) (error, bool)

// RegisterError gives a sentinel a code. It panics if either is already registered for a
// sentinel.
func RegisterError(code string, err error) {
	registeredErrors.Lock()
	defer registeredErrors.Unlock()
	for known, other := range registeredErrors.sentinels {
		if known == err || other == code {
			panic(fmt.Sprintf("tenuto: error %q or its code %q is already registered", err, code))
		}
	}
	if registeredErrors.sentinels == nil {
		registeredErrors.sentinels = make(map[error]string)
	}
	registeredErrors.sentinels[err] = code
}

// RegisterErrorType gives a type of errors a code. It panics if either is already registered.
func RegisterErrorType(code string, info reflect.Type, decode ErrorDecoder) {
	registeredErrors.Lock()
	defer registeredErrors.Unlock()
	if registeredErrors.types[info] != "" || registeredErrors.decoders[code] != nil {
		panic(fmt.Sprintf("tenuto: error type %v or its code %q is already registered", info, code))
	}
	if registeredErrors.types == nil {
		registeredErrors.types = make(map[reflect.Type]string)
		registeredErrors.decoders = make(map[string]ErrorDecoder)
	}
	registeredErrors.types[info] = code
	registeredErrors.decoders[code] = decode
}

// SentinelCode returns the code of a sentinel, "" if err is not one.
func SentinelCode(err error) string {
	if s, ok := err.(*Sentinel); ok {
		return s.Code
	}
	if err == nil || !reflect.ValueOf(err).Comparable() {
		return ""
	}
	registeredErrors.RLock()
	defer registeredErrors.RUnlock()
	return registeredErrors.sentinels[err]
}

// ErrorTypeCode returns the code of an error's registered type, "" if it has none.
func ErrorTypeCode(err error) string {
	registeredErrors.RLock()
	defer registeredErrors.RUnlock()
	return registeredErrors.types[reflect.TypeOf(err)]
}

// ErrorDecoderOf returns the decoder of the type that is registered under a code, nil if there is
// none.
func ErrorDecoderOf(code string) ErrorDecoder {
	registeredErrors.RLock()
	defer registeredErrors.RUnlock()
	return registeredErrors.decoders[code]
}
