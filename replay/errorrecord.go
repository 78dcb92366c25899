package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// Bounds of a record, so that an error never makes an event too large to keep.
const (
	errorTextMax  = 16 << 10  // bytes of a message or a stack
	errorTextsMax = 256 << 10 // bytes of all of them
	errorCauseMax = 32        // records, all told: the error and what it wraps
)

// The codes of the system's own error types.
const (
	panicCode    = "tenuto.panic"
	activityCode = "tenuto.activity"
	childCode    = "tenuto.child"
	noQueryCode  = "tenuto.no_query"
	canceledCode = "tenuto.canceled"
	timeoutCode  = "tenuto.timeout"
	payloadCode  = "tenuto.payload"
	tooLargeCode = "tenuto.payload_too_large"
	codecCode    = "tenuto.codec"
)

// registered are the errors that users have registered. It is filled while the
// program is initialised and read ever after.
var registered struct {
	sync.RWMutex
	sentinels map[error]string
	types     map[reflect.Type]string
	decoders  map[string]func(details []byte) (error, bool)
}

// RegisterError makes a sentinel of somebody else known by a code, so that
// errors.Is finds it on both sides of the journal:
//
//	replay.RegisterError("sql.no_rows", sql.ErrNoRows)
//
// It is to be called while the program is initialised, in every program that
// shares the journal, and panics when the code or the sentinel is registered
// already.
func RegisterError(code string, err error) {
	registered.Lock()
	defer registered.Unlock()
	for known, other := range registered.sentinels {
		if known == err || other == code {
			panic(fmt.Sprintf("tenuto: error %q or its code %q is registered already", err, code))
		}
	}
	if registered.sentinels == nil {
		registered.sentinels = make(map[error]string)
	}
	registered.sentinels[err] = code
}

// RegisterErrorType makes errors of type E known by a code, so that errors.As
// finds them, with their exported fields (as encoding/json writes them), on both
// sides of the journal. When to call it is said at [RegisterError].
func RegisterErrorType[E error](code string) {
	registered.Lock()
	defer registered.Unlock()
	of := reflect.TypeFor[E]()
	if registered.types[of] != "" || registered.decoders[code] != nil {
		panic(fmt.Sprintf("tenuto: error type %v or its code %q is registered already", of, code))
	}
	if registered.types == nil {
		registered.types = make(map[reflect.Type]string)
		registered.decoders = make(map[string]func([]byte) (error, bool))
	}
	registered.types[of] = code
	registered.decoders[code] = func(details []byte) (error, bool) {
		var value E
		err := json.Unmarshal(details, &value)
		return value, err == nil
	}
}

// sentinelCode returns the code of a sentinel, "" if err is none.
func sentinelCode(err error) string {
	if s, ok := err.(*sentinel); ok {
		return s.code
	}
	if err == nil || !reflect.ValueOf(err).Comparable() {
		return ""
	}
	registered.RLock()
	defer registered.RUnlock()
	return registered.sentinels[err]
}

// EncodeError turns an error into its record, without a codec.
func EncodeError(err error) *journalpb.Error { return encodeError(err) }

// DecodeError turns a record back into an error. One that only a codec can read
// (see [Payloads.DecodeError]) becomes an [*Error] with its code, which
// [EncodeError] turns into the same record again.
func DecodeError(record *journalpb.Error) error { return decodeError(record) }

func encodeError(err error) *journalpb.Error {
	return (&errorEncoder{records: errorCauseMax, bytes: errorTextsMax}).encode(err)
}

// An errorEncoder encodes one error with its causes, and knows how much room is
// left.
type errorEncoder struct{ records, bytes int }

// encode returns nil when there is no room for another record.
func (b *errorEncoder) encode(err error) *journalpb.Error {
	if err == nil || b.records == 0 {
		return nil
	}
	switch e := err.(type) {
	case *marked:
		record := b.encode(e.err)
		if e.code != "" {
			record = b.recode(record, b.text(e.code))
		}
		record.NonRetryable = record.NonRetryable || e.final
		return record
	case *Error:
		return b.crossed(e)
	case several:
		// Only ever a cause, and then taken apart below.
		return b.encode(e[0])
	}
	b.records--
	record := encodeTyped(err)
	record.Message = b.text(err.Error())
	record.Stack = b.text(record.Stack)
	for i, cause := range causesOf(err) {
		if encoded := b.encode(cause); i == 0 {
			record.Cause = encoded
		} else if encoded != nil {
			record.OtherCauses = append(record.OtherCauses, encoded)
		}
	}
	return record
}

// encodeTyped returns the record of what is special about an error.
func encodeTyped(err error) *journalpb.Error {
	switch e := err.(type) {
	case *CanceledError:
		return &journalpb.Error{Code: canceledCode, Details: details(e)}
	case *PanicError:
		return &journalpb.Error{Code: panicCode, Stack: e.Stack}
	case *TimeoutError:
		return &journalpb.Error{Code: timeoutCode, Details: details(TimeoutError{Kind: e.Kind})}
	case *PayloadError:
		fields := PayloadError{Verb: e.Verb, PayloadOf: e.PayloadOf, Type: e.Type, EventID: e.EventID, RequestID: e.RequestID}
		return &journalpb.Error{Code: payloadCode, NonRetryable: true, Details: details(fields)}
	case *PayloadTooLargeError:
		return &journalpb.Error{Code: tooLargeCode, Details: details(e)}
	case *CodecError:
		return &journalpb.Error{Code: codecCode, Details: details(CodecError{Verb: e.Verb, ContentType: e.ContentType})}
	case *NoQueryError:
		return &journalpb.Error{Code: noQueryCode, Details: details(e)}
	case *ActivityError:
		return &journalpb.Error{Code: activityCode, Details: details(ActivityError{Name: e.Name, EventID: e.EventID, Attempts: e.Attempts})}
	case *ChildError:
		return &journalpb.Error{Code: childCode, Details: details(ChildError{Name: e.Name, Instance: e.Instance, EventID: e.EventID})}
	}
	if code := sentinelCode(err); code != "" {
		return &journalpb.Error{Code: code}
	}
	registered.RLock()
	defer registered.RUnlock()
	if code := registered.types[reflect.TypeOf(err)]; code != "" {
		return &journalpb.Error{Code: code, Details: details(err)}
	}
	return new(journalpb.Error)
}

// crossed encodes an error that came out of a journal.
func (b *errorEncoder) crossed(e *Error) *journalpb.Error {
	if e.sealed != nil {
		return e.sealed
	}
	b.records--
	record := &journalpb.Error{Code: b.text(e.Code), Message: b.text(e.Message), NonRetryable: e.NonRetryable}
	if e.typed != nil {
		record.Details = details(e.typed)
	}
	record.Cause = b.encode(e.Cause)
	if causes, ok := e.Cause.(several); ok {
		for _, cause := range causes[1:] {
			if encoded := b.encode(cause); encoded != nil {
				record.OtherCauses = append(record.OtherCauses, encoded)
			}
		}
	}
	return record
}

// details encodes the fields of an error; one that cannot be encoded, or would
// be too large, goes without.
func details(value any) *journalpb.Payload {
	payload, err := marshal(value, errorTextMax)
	if err != nil {
		return nil
	}
	return payload
}

// recode gives a record a code. One that has a code already stays whole, as
// the cause: errors.Is goes on finding it.
func (b *errorEncoder) recode(record *journalpb.Error, code string) *journalpb.Error {
	switch {
	case record.Code == "":
		record.Code = code
		return record
	case b.records == 0:
		return record
	}
	b.records--
	return &journalpb.Error{Code: code, Message: record.Message, NonRetryable: record.NonRetryable, Cause: record}
}

// text makes text fit for a record, which holds nothing but UTF-8 and not too
// much of it. Errors of commands and of binary protocols often are something
// else.
func (b *errorEncoder) text(text string) string {
	if most := min(errorTextMax, b.bytes); len(text) > most {
		end := most
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + "…"
	}
	b.bytes -= min(len(text), b.bytes)
	return strings.ToValidUTF8(text, "\uFFFD")
}

// causesOf returns what an error wraps.
func causesOf(err error) []error {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		return several.Unwrap()
	}
	if cause := errors.Unwrap(err); cause != nil {
		return []error{cause}
	}
	return nil
}

func decodeError(record *journalpb.Error) error {
	if record == nil {
		return nil
	}
	if isSealed(record.Details) {
		return &Error{Code: record.Code, Message: record.Message, NonRetryable: record.NonRetryable, sealed: record}
	}
	cause := decodeCauses(record)
	if own := decodeOwn(record, cause); own != nil {
		if record.NonRetryable {
			return &marked{err: own, final: true}
		}
		return own
	}
	e := &Error{Code: record.Code, Message: record.Message, NonRetryable: record.NonRetryable, Cause: cause}
	registered.RLock()
	decoder := registered.decoders[record.Code]
	registered.RUnlock()
	if decoder != nil {
		if value, ok := decoder(record.Details.GetData()); ok {
			e.typed = value
		}
	}
	return e
}

// decodeOwn decodes an error of one of the system's own types, nil for another.
func decodeOwn(record *journalpb.Error, cause error) error {
	var e error
	switch record.Code {
	case panicCode:
		return &PanicError{Message: record.Message, Stack: record.Stack}
	case canceledCode:
		e = new(CanceledError)
	case timeoutCode:
		e = &TimeoutError{Err: cause}
	case payloadCode:
		e = &PayloadError{Err: cause}
	case tooLargeCode:
		e = new(PayloadTooLargeError)
	case codecCode:
		e = &CodecError{Err: cause}
	case noQueryCode:
		e = new(NoQueryError)
	case activityCode:
		e = &ActivityError{Err: cause}
	case childCode:
		e = &ChildError{Err: cause}
	default:
		return nil
	}
	if json.Unmarshal(record.Details.GetData(), e) != nil {
		return nil // a sentinel of that code
	}
	// Code may have recorded the text, so that it stays the one that it was.
	switch e := e.(type) {
	case *CanceledError:
		e.earlier = record.Message == e.Reason
	case *PayloadError:
		e.worded(record.Message)
	}
	return e
}

func decodeCauses(record *journalpb.Error) error {
	cause := decodeError(record.Cause)
	if len(record.OtherCauses) == 0 {
		return cause
	}
	causes := several{cause}
	for _, other := range record.OtherCauses {
		causes = append(causes, decodeError(other))
	}
	return causes
}

// classify finds the outermost code and whether any part forbids a retry.
func classify(err error) (code string, final bool) { return classifyRecord(encodeError(err)) }

func classifyRecord(record *journalpb.Error) (code string, final bool) {
	if record == nil {
		return "", false
	}
	code, final = record.Code, record.NonRetryable
	for _, cause := range append([]*journalpb.Error{record.Cause}, record.OtherCauses...) {
		inner, innerFinal := classifyRecord(cause)
		if code == "" {
			code = inner
		}
		final = final || innerFinal
	}
	return code, final
}
