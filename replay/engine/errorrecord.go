package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// Bounds of an error record, so that an event stays within its size limit.
const (
	errorTextMax  = 16 << 10  // bytes of one message or stack
	errorTextsMax = 256 << 10 // bytes of all messages and stacks
	errorCauseMax = 32        // records: the error and all its causes
)

// The codes of the error types of package replay.
const (
	panicCode    = "tenuto.panic"
	activityCode = "tenuto.activity"
	childCode    = "tenuto.child"
	noQueryCode  = "tenuto.no_query"
	canceledCode = host.CanceledCode
	timeoutCode  = host.TimeoutCode
	payloadCode  = "tenuto.payload"
	tooLargeCode = "tenuto.payload_too_large"
	codecCode    = "tenuto.codec"
)

// noQueryDetails are the recorded fields of an error with the code noQueryCode.
type noQueryDetails struct{ Name string }

// EncodeError returns the record of an error, without a codec.
func EncodeError(err error) *journalpb.Error { return encodeError(err) }

// DecodeError returns the error of a record. A record that only a codec can read (see
// [PayloadConverter.DecodeError]) becomes a [*replay.Error] with its code; [EncodeError] turns that
// back into the same record.
func DecodeError(record *journalpb.Error) error { return decodeError(record) }

func encodeError(err error) *journalpb.Error {
	return (&errorEncoder{records: errorCauseMax, bytes: errorTextsMax}).encode(err)
}

// An errorEncoder encodes one error with its causes within the remaining bounds.
type errorEncoder struct{ records, bytes int }

// encode returns nil for a nil error, or after errorCauseMax records.
func (ee *errorEncoder) encode(err error) *journalpb.Error {
	if err == nil || ee.records == 0 {
		return nil
	}
	switch e := err.(type) {
	case *host.AnnotatedError:
		record := ee.encode(e.Err)
		if e.Code != "" {
			record = ee.setCode(record, ee.boundedText(e.Code))
		}
		record.NonRetryable = record.NonRetryable || e.NonRetryable
		return record
	case *replay.Error:
		return ee.encodeDecoded(e)
	case multiError:
		// A multiError is the Cause of a *replay.Error; encodeDecoded encodes its other elements.
		return ee.encode(e[0])
	}
	ee.records--
	record := encodeTyped(err)
	record.Message = ee.boundedText(err.Error())
	record.Stack = ee.boundedText(record.Stack)
	for i, cause := range causesOf(err) {
		if encoded := ee.encode(cause); i == 0 {
			record.Cause = encoded
		} else if encoded != nil {
			record.OtherCauses = append(record.OtherCauses, encoded)
		}
	}
	return record
}

// multiError holds the causes of an error that wraps more than one.
type multiError []error

func (m multiError) Error() string   { return errors.Join(m...).Error() }
func (m multiError) Unwrap() []error { return m }

// encodeTyped returns the code and details for the type of an error.
func encodeTyped(err error) *journalpb.Error {
	switch e := err.(type) {
	case *replay.CanceledError:
		return &journalpb.Error{Code: canceledCode, Details: encodeDetails(e)}
	case *replay.PanicError:
		return &journalpb.Error{Code: panicCode, Stack: e.Stack}
	case *replay.TimeoutError:
		return &journalpb.Error{Code: timeoutCode, Details: encodeDetails(replay.TimeoutError{Kind: e.Kind})}
	case *replay.PayloadError:
		fields := replay.PayloadError{Verb: e.Verb, PayloadInfo: e.PayloadInfo, Type: e.Type, EventID: e.EventID, RequestID: e.RequestID, Sent: e.Sent}
		return &journalpb.Error{Code: payloadCode, NonRetryable: true, Details: encodeDetails(fields)}
	case *replay.PayloadTooLargeError:
		return &journalpb.Error{Code: tooLargeCode, Details: encodeDetails(e)}
	case *replay.CodecError:
		return &journalpb.Error{Code: codecCode, Details: encodeDetails(replay.CodecError{Verb: e.Verb, ContentType: e.ContentType})}
	case *replay.NotRegisteredError:
		if e.Kind == "query" {
			return &journalpb.Error{Code: noQueryCode, Details: encodeDetails(noQueryDetails{e.Name})}
		}
	case *replay.ActivityError:
		return &journalpb.Error{Code: activityCode, Details: encodeDetails(replay.ActivityError{Name: e.Name, EventID: e.EventID, Attempts: e.Attempts})}
	case *replay.ChildError:
		return &journalpb.Error{Code: childCode, Details: encodeDetails(replay.ChildError{Name: e.Name, Instance: e.Instance, EventID: e.EventID})}
	}
	if code := host.SentinelCode(err); code != "" {
		return &journalpb.Error{Code: code}
	}
	if code := host.ErrorTypeCode(err); code != "" {
		return &journalpb.Error{Code: code, Details: encodeDetails(err)}
	}
	return new(journalpb.Error)
}

// encodeDecoded encodes an error that was read from a journal.
func (ee *errorEncoder) encodeDecoded(e *replay.Error) *journalpb.Error {
	if sealed := sealedRecord(e); sealed != nil {
		return sealed
	}
	ee.records--
	record := &journalpb.Error{Code: ee.boundedText(e.Code), Message: ee.boundedText(e.Message), NonRetryable: e.NonRetryable}
	if typed := e.Host().Typed; typed != nil {
		record.Details = encodeDetails(typed)
	}
	record.Cause = ee.encode(e.Cause)
	if causes, ok := e.Cause.(multiError); ok {
		for _, cause := range causes[1:] {
			if encoded := ee.encode(cause); encoded != nil {
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
func (ee *errorEncoder) setCode(record *journalpb.Error, code string) *journalpb.Error {
	switch {
	case record.Code == "":
		record.Code = code
		return record
	case ee.records == 0:
		return record
	}
	ee.records--
	return &journalpb.Error{Code: code, Message: record.Message, NonRetryable: record.NonRetryable, Cause: record}
}

// boundedText cuts a text to the bounds and replaces invalid UTF-8, which records must not contain.
// Errors of commands and of binary protocols often do.
func (ee *errorEncoder) boundedText(text string) string {
	if maximum := min(errorTextMax, ee.bytes); len(text) > maximum {
		end := maximum
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + "…"
	}
	ee.bytes -= min(len(text), ee.bytes)
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
		return sealedError(record, nil)
	}
	cause := decodeCauses(record)
	if own := decodeSystemError(record, cause); own != nil {
		if record.NonRetryable {
			return &host.AnnotatedError{Err: own, NonRetryable: true}
		}
		return own
	}
	e := &replay.Error{Code: record.Code, Message: record.Message, NonRetryable: record.NonRetryable, Cause: cause}
	if decode := host.ErrorDecoderOf(record.Code); decode != nil {
		if value, ok := decode(record.Details.GetData()); ok {
			e.Host().Typed = value
		}
	}
	return e
}

// sealedError returns the error of a record that is still encoded by a codec.
func sealedError(record *journalpb.Error, cause error) error {
	e := &replay.Error{Code: record.Code, Message: record.Message, NonRetryable: record.NonRetryable, Cause: cause}
	e.Host().Sealed = record
	return e
}

// sealedRecord returns the record of an error of sealedError, nil for any other error.
func sealedRecord(err error) *journalpb.Error {
	e, ok := err.(*replay.Error)
	if !ok {
		return nil
	}
	record, _ := e.Host().Sealed.(*journalpb.Error)
	return record
}

// decodeSystemError decodes an error of the types of package replay, and returns nil for others.
func decodeSystemError(record *journalpb.Error, cause error) error {
	var e error
	switch record.Code {
	case panicCode:
		return &replay.PanicError{Message: record.Message, Stack: record.Stack}
	case canceledCode:
		e = new(replay.CanceledError)
	case timeoutCode:
		e = &replay.TimeoutError{Err: cause}
	case payloadCode:
		e = &replay.PayloadError{Err: cause}
	case tooLargeCode:
		e = new(replay.PayloadTooLargeError)
	case codecCode:
		e = &replay.CodecError{Err: cause}
	case noQueryCode:
		e = &replay.NotRegisteredError{Kind: "query"}
	case activityCode:
		e = &replay.ActivityError{Err: cause}
	case childCode:
		e = &replay.ChildError{Err: cause}
	default:
		return nil
	}
	if json.Unmarshal(record.Details.GetData(), e) != nil {
		return nil // a sentinel of that code
	}
	// Code may have recorded the text, so it must stay the same.
	switch e := e.(type) {
	case *replay.CanceledError:
		e.Host().Legacy = record.Message == e.Reason
	case *replay.PayloadError:
		restoreText(e, record.Message)
	case *replay.NotRegisteredError:
		if record.Message != e.Error() {
			e.Host().Leader = record.Message
		}
	}
	return e
}

// restoreText selects the wording that was recorded: that of a refused payload, the detailed one,
// or the one used before protocol 3.
func restoreText(e *replay.PayloadError, recorded string) {
	for _, text := range []host.PayloadText{{Refused: true}, {Detailed: true}} {
		*e.Host() = text
		if strings.HasPrefix(recorded, strings.TrimSuffix(e.Error(), fmt.Sprintf(": %v", e.Err))) {
			return
		}
	}
	*e.Host() = host.PayloadText{}
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

// classifyRecord returns the outermost code, and whether any part is non-retryable.
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
