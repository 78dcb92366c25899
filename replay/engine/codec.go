package engine

import (
	"errors"
	"fmt"
	"runtime/debug"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// codecGrowthMax bounds by how many bytes a codec may enlarge a payload.
const codecGrowthMax = 64 << 10

// callIsolated calls fn in its own goroutine, so that runtime.Goexit in it does not end the
// caller's. It returns a [*replay.PanicError] or nil.
func callIsolated(fn func()) (err error) {
	done := make(chan struct{})
	go func() {
		returned := false
		defer func() {
			if value := recover(); !returned {
				err = (&crash{value: value, stack: string(debug.Stack())}).error()
			}
			close(done)
		}()
		fn()
		returned = true
	}()
	<-done
	return err
}

// isSealed reports whether a payload is encoded by a codec.
func isSealed(payload *journalpb.Payload) bool { return payload.GetContentType() != "" }

// seal encodes a plain payload with the codec. It returns other payloads unchanged.
func (p PayloadConverter) seal(payload *journalpb.Payload) (*journalpb.Payload, error) {
	if p.Codec == nil || len(payload.GetData()) == 0 || isSealed(payload) {
		return payload, nil
	}
	var sealed journalpb.Payload
	var err error
	crashed := callIsolated(func() { sealed.Data, sealed.ContentType, err = p.Codec.Encode(payload.Data) })
	switch {
	case crashed != nil:
		err = crashed
	case err != nil:
	case sealed.ContentType == "":
		return payload, nil
	case len(sealed.ContentType) > host.NameMax || !utf8.ValidString(sealed.ContentType):
		err = fmt.Errorf("content type %q is not UTF-8 of at most %d bytes", truncate(sealed.ContentType), host.NameMax)
	case len(sealed.Data) > len(payload.Data)+codecGrowthMax:
		err = fmt.Errorf("%d bytes were encoded to %d: at most %d more are allowed", len(payload.Data), len(sealed.Data), codecGrowthMax)
	}
	if err != nil {
		return nil, &replay.CodecError{Verb: "encode", Err: err}
	}
	return &sealed, nil
}

// open decodes a sealed payload with the codec. It returns other payloads unchanged.
func (p PayloadConverter) open(payload *journalpb.Payload) (*journalpb.Payload, error) {
	if !isSealed(payload) {
		return payload, nil
	}
	failed := func(err error) (*journalpb.Payload, error) {
		return nil, &replay.CodecError{Verb: "decode", ContentType: truncate(payload.ContentType), Err: err}
	}
	if p.Codec == nil {
		return failed(errNoCodec)
	}
	var data []byte
	var err error
	if crashed := callIsolated(func() { data, err = p.Codec.Decode(payload.Data, payload.ContentType) }); crashed != nil {
		return failed(crashed)
	}
	if err != nil {
		return failed(err)
	}
	return &journalpb.Payload{Data: data}, nil
}

var errNoCodec = errors.New("no codec is set")

// sealedMessage replaces the message of an error that only the codec can read.
const sealedMessage = "(encoded)"

// IsSameStart reports whether two starts have the same orchestration and input. Inputs that cannot
// be decoded count as the same.
func (p PayloadConverter) IsSameStart(a, b *journalpb.OrchestrationStarted) bool {
	if a.Name != b.Name {
		return false
	}
	if p.Codec == nil || samePayload(a.Input, b.Input) {
		return samePayload(a.Input, b.Input)
	}
	first, firstErr := p.open(a.Input)
	second, secondErr := p.open(b.Input)
	return firstErr != nil || secondErr != nil || samePayload(first, second)
}

// EncodeError returns the record of an error. With a codec, only the code and whether to retry can
// be read without it. The returned error is a [*replay.CodecError].
func (p PayloadConverter) EncodeError(err error) (*journalpb.Error, error) {
	return p.sealError(encodeError(err))
}

// DecodeError returns the error of a record. If the codec cannot decode it, the result keeps its
// code and wraps the [*replay.CodecError].
func (p PayloadConverter) DecodeError(record *journalpb.Error) error {
	opened, err := p.openError(record)
	if err != nil {
		return sealedError(record, err)
	}
	return decodeError(opened)
}

// sealError encodes a whole record into the details of another record. That one keeps what a retry
// policy needs: the code and whether to retry.
func (p PayloadConverter) sealError(record *journalpb.Error) (*journalpb.Error, error) {
	if p.Codec == nil || record == nil || isSealed(record.Details) {
		return record, nil
	}
	data, err := proto.Marshal(record)
	if err != nil {
		return nil, &replay.CodecError{Verb: "encode", Err: err}
	}
	details, err := p.seal(&journalpb.Payload{Data: data})
	if err != nil {
		return nil, err
	}
	if !isSealed(details) {
		return record, nil
	}
	code, nonRetryable := classifyRecord(record)
	return &journalpb.Error{Code: code, Message: sealedMessage, NonRetryable: nonRetryable, Details: details}, nil
}

// openError reverses sealError, also in causes. It does not change the record.
func (p PayloadConverter) openError(record *journalpb.Error) (*journalpb.Error, error) {
	if !needsCodec(record) {
		return record, nil
	}
	if isSealed(record.Details) {
		plain, err := p.open(record.Details)
		if err != nil {
			return nil, err
		}
		inner := new(journalpb.Error)
		if err := proto.Unmarshal(plain.Data, inner); err != nil {
			return nil, &replay.CodecError{Verb: "decode", ContentType: truncate(record.Details.ContentType), Err: err}
		}
		return p.openError(inner)
	}
	opened := proto.CloneOf(record)
	for _, cause := range append([]**journalpb.Error{&opened.Cause}, pointers(opened.OtherCauses)...) {
		inner, err := p.openError(*cause)
		if err != nil {
			return nil, err
		}
		*cause = inner
	}
	return opened, nil
}

func pointers[T any](list []T) []*T {
	all := make([]*T, len(list))
	for i := range list {
		all[i] = &list[i]
	}
	return all
}

// needsCodec reports whether a record, or one of its causes, is sealed.
func needsCodec(record *journalpb.Error) bool {
	if record == nil {
		return false
	}
	if isSealed(record.Details) || needsCodec(record.Cause) {
		return true
	}
	for _, cause := range record.OtherCauses {
		if needsCodec(cause) {
			return true
		}
	}
	return false
}

// sealUserError seals an error of user code, in the goroutine of that code. ErrResultPending is not
// an error of user code.
func (p PayloadConverter) sealUserError(err error) error {
	if p.Codec == nil || err == nil || errors.Is(err, replay.ErrResultPending) {
		return err
	}
	record, failed := p.EncodeError(err)
	if failed != nil {
		return failed
	}
	return decodeError(record)
}
