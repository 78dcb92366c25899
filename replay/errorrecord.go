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

// Bounds of an error record, so that an event stays within its size limit.
const (
	errorTextMax  = 16 << 10  // bytes of one message or stack
	errorTextsMax = 256 << 10 // bytes of all messages and stacks
	errorCauseMax = 32        // records: the error and all its causes
)

// The codes of this package's error types.
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

// registeredErrors holds the errors that users registered. It is filled during program
// initialization and only read afterwards.
var registeredErrors struct {
	sync.RWMutex
	sentinels map[error]string
	types     map[reflect.Type]string
	decoders  map[string]func(details []byte) (error, bool)
}

// RegisterError gives a sentinel of another package a code, so that errors.Is finds it on both
// sides of the journal:
//
//	replay.RegisterError("sql.no_rows", sql.ErrNoRows)
//
// Call it during initialization, in every program that shares the journal. It panics if the code or
// the sentinel is already registered.
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

// RegisterErrorType gives errors of type E a code, so that errors.As finds them on both sides of
// the journal, with their exported fields as encoded by encoding/json. Call it as described at
// [RegisterError].
func RegisterErrorType[E error](code string) {
	registeredErrors.Lock()
	defer registeredErrors.Unlock()
	info := reflect.TypeFor[E]()
	if registeredErrors.types[info] != "" || registeredErrors.decoders[code] != nil {
		panic(fmt.Sprintf("tenuto: error type %v or its code %q is already registered", info, code))
	}
	if registeredErrors.types == nil {
		registeredErrors.types = make(map[reflect.Type]string)
		registeredErrors.decoders = make(map[string]func([]byte) (error, bool))
	}
	registeredErrors.types[info] = code
	registeredErrors.decoders[code] = func(details []byte) (error, bool) {
		var value E
		err := json.Unmarshal(details, &value)
		return value, err == nil
	}
}

// sentinelCode returns the code of a sentinel, "" if err is not one.
func sentinelCode(err error) string {
	if s, ok := err.(*sentinel); ok {
		return s.code
	}
	if err == nil || !reflect.ValueOf(err).Comparable() {
		return ""
	}
	registeredErrors.RLock()
	defer registeredErrors.RUnlock()
	return registeredErrors.sentinels[err]
}

// EncodeError returns the record of an error, without a codec.
func EncodeError(err error) *journalpb.Error { return encodeError(err) }

// DecodeError returns the error of a record. A record that only a codec can read (see
// [PayloadConverter.DecodeError]) becomes an [*Error] with its code; [EncodeError] turns that back
// into the same record.
func DecodeError(record *journalpb.Error) error { return decodeError(record) }

func encodeError(err error) *journalpb.Error {
	return (&errorEncoder{records: errorCauseMax, bytes: errorTextsMax}).encode(err)
}

// An errorEncoder encodes one error with its causes within the remaining bounds.
type errorEncoder struct{ records, bytes int }

// encode returns nil for a nil error, or after errorCauseMax records.
func (b *errorEncoder) encode(err error) *journalpb.Error {
	if err == nil || b.records == 0 {
		return nil
	}
	switch e := err.(type) {
	case *annotatedError:
		record := b.encode(e.err)
		if e.code != "" {
			record = b.setCode(record, b.boundedText(e.code))
		}
		record.NonRetryable = record.NonRetryable || e.nonRetryable
		return record
	case *Error:
		return b.encodeDecoded(e)
	case multiError:
		// A multiError is the Cause of an *Error; encodeDecoded encodes its other elements.
		return b.encode(e[0])
	}
	b.records--
	record := encodeTyped(err)
	record.Message = b.boundedText(err.Error())
	record.Stack = b.boundedText(record.Stack)
	for i, cause := range causesOf(err) {
		if encoded := b.encode(cause); i == 0 {
			record.Cause = encoded
		} else if encoded != nil {
			record.OtherCauses = append(record.OtherCauses, encoded)
		}
	}
	return record
}

// encodeTyped returns the code and details for the type of an error.
func encodeTyped(err error) *journalpb.Error {
	switch e := err.(type) {
	case *CanceledError:
		return &journalpb.Error{Code: canceledCode, Details: encodeDetails(e)}
	case *PanicError:
		return &journalpb.Error{Code: panicCode, Stack: e.Stack}
	case *TimeoutError:
		return &journalpb.Error{Code: timeoutCode, Details: encodeDetails(TimeoutError{Kind: e.Kind})}
	case *PayloadError:
		fields := PayloadError{Verb: e.Verb, PayloadInfo: e.PayloadInfo, Type: e.Type, EventID: e.EventID, RequestID: e.RequestID}
		return &journalpb.Error{Code: payloadCode, NonRetryable: true, Details: encodeDetails(fields)}
	case *PayloadTooLargeError:
		return &journalpb.Error{Code: tooLargeCode, Details: encodeDetails(e)}
	case *CodecError:
		return &journalpb.Error{Code: codecCode, Details: encodeDetails(CodecError{Verb: e.Verb, ContentType: e.ContentType})}
	case *NoQueryError:
		return &journalpb.Error{Code: noQueryCode, Details: encodeDetails(e)}
	case *ActivityError:
		return &journalpb.Error{Code: activityCode, Details: encodeDetails(ActivityError{Name: e.Name, EventID: e.EventID, Attempts: e.Attempts})}
	case *ChildError:
		return &journalpb.Error{Code: childCode, Details: encodeDetails(ChildError{Name: e.Name, Instance: e.Instance, EventID: e.EventID})}
	}
	if code := sentinelCode(err); code != "" {
		return &journalpb.Error{Code: code}
	}
	registeredErrors.RLock()
	defer registeredErrors.RUnlock()
	if code := registeredErrors.types[reflect.TypeOf(err)]; code != "" {
		return &journalpb.Error{Code: code, Details: encodeDetails(err)}
	}
	return new(journalpb.Error)
}

// encodeDecoded encodes an error that was read from a journal.
func (b *errorEncoder) encodeDecoded(e *Error) *journalpb.Error {
	if e.sealed != nil {
		return e.sealed
	}
	b.records--
	record := &journalpb.Error{Code: b.boundedText(e.Code), Message: b.boundedText(e.Message), NonRetryable: e.NonRetryable}
	if e.typed != nil {
		record.Details = encodeDetails(e.typed)
	}
	record.Cause = b.encode(e.Cause)
	if causes, ok := e.Cause.(multiError); ok {
		for _, cause := range causes[1:] {
			if encoded := b.encode(cause); encoded != nil {
				record.OtherCauses = append(record.OtherCauses, encoded)
			}
		}
	}
	return record
}

// encodeDetails encodes the fields of an error, or returns nil if they cannot be encoded or are too
// large.
func encodeDetails(value any) *journalpb.Payload {
	payload, err := marshal(value, errorTextMax)
	if err != nil {
		return nil
	}
	return payload
}

// setCode gives a record a code. A record that already has one becomes the cause, so that errors.Is
// still finds its code.
func (b *errorEncoder) setCode(record *journalpb.Error, code string) *journalpb.Error {
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

// boundedText cuts a text to the bounds and replaces invalid UTF-8, which records must not contain.
// Errors of commands and of binary protocols often do.
func (b *errorEncoder) boundedText(text string) string {
	if maximum := min(errorTextMax, b.bytes); len(text) > maximum {
		end := maximum
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + "…"
	}
	b.bytes -= min(len(text), b.bytes)
	return strings.ToValidUTF8(text, "\uFFFD")
}

// causesOf returns the errors that err wraps.
func causesOf(err error) []error {
	if wrapper, ok := err.(interface{ Unwrap() []error }); ok {
		return wrapper.Unwrap()
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
	if own := decodeSystemError(record, cause); own != nil {
		if record.NonRetryable {
			return &annotatedError{err: own, nonRetryable: true}
		}
		return own
	}
	e := &Error{Code: record.Code, Message: record.Message, NonRetryable: record.NonRetryable, Cause: cause}
	registeredErrors.RLock()
	decoder := registeredErrors.decoders[record.Code]
	registeredErrors.RUnlock()
	if decoder != nil {
		if value, ok := decoder(record.Details.GetData()); ok {
			e.typed = value
		}
	}
	return e
}

// decodeSystemError decodes an error of this package's types, and returns nil for others.
func decodeSystemError(record *journalpb.Error, cause error) error {
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
	// Code may have recorded the text, so it must stay the same.
	switch e := e.(type) {
	case *CanceledError:
		e.legacyText = record.Message == e.Reason
	case *PayloadError:
		e.restoreText(record.Message)
	}
	return e
}

func decodeCauses(record *journalpb.Error) error {
	cause := decodeError(record.Cause)
	if len(record.OtherCauses) == 0 {
		return cause
	}
	causes := multiError{cause}
	for _, other := range record.OtherCauses {
		causes = append(causes, decodeError(other))
	}
	return causes
}

// classify returns the outermost code, and whether any part is non-retryable.
func classify(err error) (code string, nonRetryable bool) { return classifyRecord(encodeError(err)) }

func classifyRecord(record *journalpb.Error) (code string, nonRetryable bool) {
	if record == nil {
		return "", false
	}
	code, nonRetryable = record.Code, record.NonRetryable
	for _, cause := range append([]*journalpb.Error{record.Cause}, record.OtherCauses...) {
		inner, innerNonRetryable := classifyRecord(cause)
		if code == "" {
			code = inner
		}
		nonRetryable = nonRetryable || innerNonRetryable
	}
	return code, nonRetryable
}
