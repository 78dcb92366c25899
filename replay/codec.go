package replay

import (
	"errors"
	"fmt"
	"runtime/debug"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A Codec changes payloads on their way into the journal and back: it encrypts
// or compresses them. It sees inputs, outputs, results, data of events, side
// effects, statuses, details of heartbeats, and the errors of user code with
// their messages, details and stacks. It does not see what the system itself
// goes by: names, versions, IDs, tags, codes of errors, and the reasons given
// for cancelling, suspending and terminating.
//
// Encode need not return the same twice: what code asks for is compared with
// its history after decoding. Decode must return what was given to Encode,
// today and in years, on every node.
//
// The content type that Encode returns is recorded beside the data and given to
// Decode; it says how, with which key for example. It is at most 128 bytes of
// UTF-8. "" says that the data were left as they are: Decode is not asked, and
// they can be read without the codec. So can whatever was recorded before there
// was a codec.
//
// A codec is called concurrently, and while an instance runs its code: it must
// not block for long, so keys are to be had beforehand. A panic in it is an
// error. An error never shows to orchestration code, which would take another
// way than on replay: the turn or the replay fails with a [*CodecError], nothing
// is recorded, whoever sent the input is told, and what the system itself has
// sent is sent again. An activity's attempt fails and is
// retried under its policy. What a codec says in its errors is logged and
// recorded as it is.
type Codec interface {
	Encode(data []byte) (encoded []byte, contentType string, err error)
	Decode(encoded []byte, contentType string) (data []byte, err error)
}

// codecGrowthMax bounds by how much a codec may make a payload longer, in bytes.
const codecGrowthMax = 64 << 10

// A CodecError reports that a codec has failed, or that there is none for a
// payload that needs one.
type CodecError struct {
	Verb        string // "encode" or "decode"
	ContentType string // of what was to be decoded
	Err         error  `json:"-"`
}

func (e *CodecError) Error() string {
	if e.Verb == "encode" {
		return fmt.Sprintf("tenuto: codec: encode: %v", e.Err)
	}
	return fmt.Sprintf("tenuto: codec: decode %q: %v", e.ContentType, e.Err)
}

func (e *CodecError) Unwrap() error { return e.Err }

// apart calls fn in a goroutine of its own, so that runtime.Goexit in it does
// not end the caller's. The error is a [*PanicError], or nil.
func apart(fn func()) (err error) {
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

// isSealed tells whether a payload needs the codec to be read.
func isSealed(payload *journalpb.Payload) bool { return payload.GetContentType() != "" }

// seal has the codec encode a plain payload; another one is returned as it is.
func (p Payloads) seal(payload *journalpb.Payload) (*journalpb.Payload, error) {
	if p.Codec == nil || len(payload.GetData()) == 0 || isSealed(payload) {
		return payload, nil
	}
	var sealed journalpb.Payload
	var err error
	crashed := apart(func() { sealed.Data, sealed.ContentType, err = p.Codec.Encode(payload.Data) })
	switch {
	case crashed != nil:
		err = crashed
	case err != nil:
	case sealed.ContentType == "":
		return payload, nil
	case len(sealed.ContentType) > nameMax || !utf8.ValidString(sealed.ContentType):
		err = fmt.Errorf("content type %q is not UTF-8 of at most %d bytes", cut(sealed.ContentType), nameMax)
	case len(sealed.Data) > len(payload.Data)+codecGrowthMax:
		err = fmt.Errorf("%d bytes have become %d: at most %d more are allowed", len(payload.Data), len(sealed.Data), codecGrowthMax)
	}
	if err != nil {
		return nil, &CodecError{Verb: "encode", Err: err}
	}
	return &sealed, nil
}

// open has the codec decode a payload that is sealed; another one is returned
// as it is.
func (p Payloads) open(payload *journalpb.Payload) (*journalpb.Payload, error) {
	if !isSealed(payload) {
		return payload, nil
	}
	failed := func(err error) (*journalpb.Payload, error) {
		return nil, &CodecError{Verb: "decode", ContentType: cut(payload.ContentType), Err: err}
	}
	if p.Codec == nil {
		return failed(errNoCodec)
	}
	var data []byte
	var err error
	if crashed := apart(func() { data, err = p.Codec.Decode(payload.Data, payload.ContentType) }); crashed != nil {
		return failed(crashed)
	}
	if err != nil {
		return failed(err)
	}
	return &journalpb.Payload{Data: data}, nil
}

var errNoCodec = errors.New("no codec is set")

// sealedMessage stands for the message of an error that only the codec can read.
const sealedMessage = "(encoded)"

// EncodeError turns an error into its record: that of [EncodeError], and with a
// codec one of which only the code, and whether to retry, can be read without.
// The error is a [*CodecError].
func (p Payloads) EncodeError(err error) (*journalpb.Error, error) {
	return p.sealError(encodeError(err))
}

// DecodeError turns a record back into an error. What the codec cannot decode
// keeps its code, and has the [*CodecError] as its cause.
func (p Payloads) DecodeError(record *journalpb.Error) error {
	opened, err := p.openError(record)
	if err != nil {
		return &Error{Code: record.Code, Message: record.Message, NonRetryable: record.NonRetryable, Cause: err, sealed: record}
	}
	return decodeError(opened)
}

// sealError encodes a record as a whole into the details of another, which
// keeps what a retry policy goes by.
func (p Payloads) sealError(record *journalpb.Error) (*journalpb.Error, error) {
	if p.Codec == nil || record == nil || isSealed(record.Details) {
		return record, nil
	}
	data, err := proto.Marshal(record)
	if err != nil {
		return nil, &CodecError{Verb: "encode", Err: err}
	}
	details, err := p.seal(&journalpb.Payload{Data: data})
	if err != nil {
		return nil, err
	}
	if !isSealed(details) {
		return record, nil
	}
	code, final := classifyRecord(record)
	return &journalpb.Error{Code: code, Message: sealedMessage, NonRetryable: final, Details: details}, nil
}

// openError undoes sealError, in causes too. It leaves the record as it is.
func (p Payloads) openError(record *journalpb.Error) (*journalpb.Error, error) {
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
			return nil, &CodecError{Verb: "decode", ContentType: cut(record.Details.ContentType), Err: err}
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

// needsCodec tells whether a record, or a cause in it, is sealed.
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

// sealed returns an error of user code as it may leave the goroutine that the
// code ran in: with a codec, nobody on the way can read it. ErrPending is no
// error of user code.
func (p Payloads) sealed(err error) error {
	if p.Codec == nil || err == nil || errors.Is(err, ErrPending) {
		return err
	}
	record, failed := p.EncodeError(err)
	if failed != nil {
		return failed
	}
	return decodeError(record)
}
