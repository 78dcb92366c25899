package engine

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// NewOption returns an option of calls whose options are a T: a pointer to a struct, or an
// interface that such pointers implement. name is the name of the function that returns the option
// to the caller.
func NewOption[T any](name string, apply func(T)) (o replay.Option) {
	*o.Host() = host.NewOption(name, apply)
	return o
}

// ApplyOptions applies options to the struct that to points to. call names the kind of call for
// errors, for example "a start". An option that does not apply is a [*replay.InvalidError].
func ApplyOptions(options []replay.Option, to any, call string) error {
	for i := range options {
		if invalid := options[i].Host().ApplyTo(to, call, i); invalid != nil {
			return invalidOption(invalid)
		}
	}
	return nil
}

// invalidOption returns the error of a call with an invalid option; nil if invalid is nil.
func invalidOption(invalid *host.InvalidOption) error {
	if invalid == nil {
		return nil
	}
	return optionError(invalid.Name, "%s", invalid.Reason)
}

// checkActivityOptions checks the options of a call; nil means none. The error is a
// [*replay.InvalidError].
func checkActivityOptions(options *host.ActivityOptions) error {
	if options == nil {
		return nil
	}
	if options.Invalid != nil {
		return invalidOption(options.Invalid)
	}
	for _, limit := range []struct {
		option string
		value  time.Duration
	}{
		{"ScheduleToStart", options.ScheduleToStart},
		{"StartToClose", options.StartToClose},
		{"ScheduleToClose", options.ScheduleToClose},
		{"HeartbeatTimeout", options.Heartbeat},
		{"CancelGrace", options.CancelGrace},
	} {
		if limit.value < 0 {
			return optionError(limit.option, "is %v: a timeout must not be negative", limit.value)
		}
	}
	if tag := options.Tag; len(tag) > host.NameMax || !utf8.ValidString(tag) {
		return optionError("Tag", "%q has %d bytes: at most %d of UTF-8 are allowed", truncate(tag), len(tag), host.NameMax)
	}
	if options.Retry == nil {
		return nil
	}
	return checkCodes(options.Retry.NonRetryableCodes)
}

// RecordedActivityOptions returns the record of options of an activity. call names the kind of call
// for errors. The error is a [*replay.InvalidError].
func RecordedActivityOptions(options []replay.Option, call string) (*journalpb.ActivityOptions, error) {
	all := new(host.ActivityOptions)
	if err := ApplyOptions(options, all, call); err != nil {
		return nil, err
	}
	if err := checkActivityOptions(all); err != nil {
		return nil, err
	}
	record := new(journalpb.ActivityOptions)
	recordActivityOptions(record, all)
	return record, nil
}

// CheckActivityOptions checks recorded options that were received. The error is a
// [*replay.InvalidError].
func CheckActivityOptions(record *journalpb.ActivityOptions) error {
	if record == nil {
		return nil
	}
	if err := CheckRetry(record.Retry); err != nil {
		return err
	}
	return checkActivityOptions(&host.ActivityOptions{
		ScheduleToStart: time.Duration(record.ScheduleToStart), StartToClose: time.Duration(record.StartToClose),
		ScheduleToClose: time.Duration(record.ScheduleToClose), Heartbeat: time.Duration(record.Heartbeat),
		CancelGrace: time.Duration(record.CancelGrace), Tag: record.Tag,
	})
}

// A RetryPolicy is the argument of [replay.Retry], as options get it.
type RetryPolicy = host.RetryPolicy

// RecordedRetry returns the record of a policy for a run; nil for none. The error is a
// [*replay.InvalidError].
func RecordedRetry(policy *RetryPolicy) (*journalpb.RetryPolicy, error) {
	if policy == nil {
		return nil, nil
	}
	return recordedRetry(policy), checkCodes(policy.NonRetryableCodes)
}

// CheckText returns a [*replay.InvalidError] if text is too short, too long, or not UTF-8.
func CheckText(field, text string, least, most int) error {
	reason := ""
	switch {
	case len(text) < least:
		reason = fmt.Sprintf("has %d bytes: at least %d required", len(text), least)
	case len(text) > most:
		reason = fmt.Sprintf("has %d bytes: at most %d are allowed", len(text), most)
	case !utf8.ValidString(text):
		reason = fmt.Sprintf("%.140q is not UTF-8", text)
	default:
		return nil
	}
	return &replay.InvalidError{Field: field, Reason: reason}
}

// CheckCallName returns a [*replay.InvalidError] if a caller may not choose that name.
func CheckCallName(field, name string) error {
	if strings.HasPrefix(name, UpdatePrefix) {
		return &replay.InvalidError{Field: field, Reason: fmt.Sprintf("%.140q begins with %q, which is reserved for updates", name, UpdatePrefix)}
	}
	return CheckText(field, name, 1, host.NameMax)
}

// CheckInstanceID returns a [*replay.InvalidError] if id is not a valid instance ID; see
// [ValidInstanceID].
func CheckInstanceID(id string) error {
	if ValidInstanceID(id) {
		return nil
	}
	return &replay.InvalidError{Field: "instance ID", Reason: fmt.Sprintf("%.140q is not 1 to 128 of A-Z a-z 0-9 . _ : @ / + -", id)}
}

// summaryMax bounds the summary of a run, in bytes.
const summaryMax = 200

// CheckSummary checks the summary of a run. The error is a [*replay.InvalidError].
func CheckSummary(text string) error {
	switch {
	case len(text) > summaryMax:
		return optionError("Summary", "has %d bytes: at most %d are allowed", len(text), summaryMax)
	case !utf8.ValidString(text):
		return optionError("Summary", "%q is not UTF-8", truncate(text))
	case strings.IndexFunc(text, unicode.IsControl) >= 0:
		return optionError("Summary", "%q has control characters", truncate(text))
	}
	return nil
}

// CheckRetry checks a policy that was received. The error is a [*replay.InvalidError].
func CheckRetry(policy *journalpb.RetryPolicy) error {
	return checkCodes(policy.GetNonRetryableCodes())
}

func optionError(option, format string, args ...any) error {
	return &replay.InvalidError{Field: "option " + option, Reason: fmt.Sprintf(format, args...)}
}

// retryCodesMax bounds the error codes in one policy.
const retryCodesMax = 100

func checkCodes(codes []string) error {
	if len(codes) > retryCodesMax {
		return optionError("Retry", "has %d codes: at most %d are allowed", len(codes), retryCodesMax)
	}
	for _, code := range codes {
		switch {
		case !utf8.ValidString(code):
			return optionError("Retry", "has the code %q, which is not UTF-8", truncate(code))
		case len(code) == 0 || len(code) > host.NameMax:
			return optionError("Retry", "has the code %q of %d bytes: 1 to %d are allowed", truncate(code), len(code), host.NameMax)
		}
	}
	return nil
}

// Bounds of headers: their number, and bytes of a name, a value, and all together.
const (
	headersMax      = 32
	headerValueMax  = 1024
	headersBytesMax = 8 << 10
)

// CheckHeaders checks the headers of a call: they must be sorted by name, within the bounds that
// [replay.Header] states. The error is a [*replay.InvalidError].
func CheckHeaders(headers []*journalpb.Header) error {
	if len(headers) > headersMax {
		return invalidHeaders("headers", "are %d: at most %d are allowed", len(headers), headersMax)
	}
	for i, header := range headers {
		switch name, value := header.GetName(), header.GetValue(); {
		case !IsHeaderName(name):
			return invalidHeaders("name of a header", "is %q: 1 to %d of a-z 0-9 . _ - are allowed", truncate(name), host.NameMax)
		case len(value) > headerValueMax:
			return invalidHeaders(fmt.Sprintf("header %q", name), "has %d bytes: at most %d are allowed", len(value), headerValueMax)
		case !utf8.ValidString(value):
			return invalidHeaders(fmt.Sprintf("header %q", name), "is not UTF-8")
		case i > 0 && headers[i-1].Name >= name:
			return invalidHeaders("headers", "are not sorted: %q after %q", name, headers[i-1].Name)
		}
	}
	if bytes := headerBytes(headers); bytes > headersBytesMax {
		return invalidHeaders("headers", "have %d bytes together: at most %d are allowed", bytes, headersBytesMax)
	}
	return nil
}

func invalidHeaders(field, format string, args ...any) error {
	return &replay.InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// IsHeaderName reports whether a header may have that name.
func IsHeaderName(name string) bool {
	other := func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-'
	}
	return len(name) > 0 && len(name) <= host.NameMax && strings.IndexFunc(name, other) < 0
}

// HeadersOf returns the headers that a call of a client with a context carries, nil for none. The
// error is a [*replay.InvalidError].
func HeadersOf(ctx context.Context) ([]*journalpb.Header, error) {
	headers, _ := ctx.Value(host.HeadersKey{}).(host.Headers)
	if len(headers) == 0 {
		return nil, nil
	}
	recorded := make([]*journalpb.Header, len(headers))
	for i, header := range headers {
		recorded[i] = &journalpb.Header{Name: header.Name, Value: header.Value}
	}
	return recorded, CheckHeaders(recorded)
}

// hostHeaders returns recorded headers as a context holds them.
func hostHeaders(recorded []*journalpb.Header) host.Headers {
	headers := make(host.Headers, len(recorded))
	for i, header := range recorded {
		headers[i] = host.Header{Name: header.Name, Value: header.Value}
	}
	return headers
}

func headerIn(headers []*journalpb.Header, name string) (value string, ok bool) {
	for _, header := range headers {
		if header.Name == name {
			return header.Value, true
		}
	}
	return "", false
}

// mergedHeaders returns the headers of both lists, sorted. Those of more replace others.
func mergedHeaders(headers, more []*journalpb.Header) []*journalpb.Header {
	merged := slices.Clone(more)
	for _, header := range headers {
		if _, replaced := headerIn(more, header.Name); !replaced {
			merged = append(merged, header)
		}
	}
	slices.SortFunc(merged, func(a, b *journalpb.Header) int { return cmp.Compare(a.Name, b.Name) })
	return merged
}

// recordActivityOptions sets the record of a call's options.
func recordActivityOptions(record *journalpb.ActivityOptions, options *host.ActivityOptions) {
	record.ScheduleToStart = int64(options.ScheduleToStart)
	record.StartToClose = int64(options.StartToClose)
	record.ScheduleToClose = int64(options.ScheduleToClose)
	record.Heartbeat = int64(options.Heartbeat)
	record.CancelGrace = int64(options.CancelGrace)
	record.Tag = options.Tag
	if options.Retry != nil {
		record.Retry = recordedRetry(options.Retry)
	}
}

func recordedRetry(p *host.RetryPolicy) *journalpb.RetryPolicy {
	return &journalpb.RetryPolicy{
		InitialInterval:   int64(p.InitialInterval),
		Backoff:           p.Backoff,
		MaxInterval:       int64(p.MaxInterval),
		MaxAttempts:       uint32(min(max(p.MaxAttempts, 0), math.MaxUint32)),
		NonRetryableCodes: slices.Clone(p.NonRetryableCodes),
		PanicsAreFinal:    p.PanicsAreFinal,
	}
}

// The defaults of [replay.RetryPolicy].
const (
	initialIntervalDefault = time.Second
	backoffDefault         = 2
	maxIntervalDefault     = 100 * time.Second
	jitter                 = 0.2
	intervalMax            = 1 << 61 // 73 years: times must not overflow
)

// RetryAfter reports whether a failed attempt is retried, and returns the delay before the retry.
// Attempts are numbered from 1. chance, between 0 and 1, selects the jitter.
func RetryAfter(options *journalpb.ActivityOptions, attempt int, failure error, chance float64) (delay time.Duration, again bool) {
	policy := options.GetRetry()
	if !permitsRetry(policy, attempt, encodeError(failure)) {
		return 0, false
	}
	return backoffAfter(policy, attempt, chance), true
}

// permitsRetry reports whether another attempt follows a failed one. A nil policy is the default.
func permitsRetry(policy *journalpb.RetryPolicy, attempt int, failure *journalpb.Error) bool {
	code, nonRetryable := classifyRecord(failure)
	if nonRetryable || slices.Contains(policy.GetNonRetryableCodes(), code) && code != "" {
		return false
	}
	if code == panicCode && policy.GetPanicsAreFinal() {
		return false
	}
	maximum := int64(policy.GetMaxAttempts())
	return maximum == 0 || int64(attempt) < maximum
}

// backoffAfter returns the delay between a failed attempt and the next one.
func backoffAfter(policy *journalpb.RetryPolicy, attempt int, chance float64) time.Duration {
	initial := orDefault(time.Duration(policy.GetInitialInterval()), initialIntervalDefault)
	longest := orDefault(time.Duration(policy.GetMaxInterval()), maxIntervalDefault)
	backoff := max(orDefault(policy.GetBackoff(), backoffDefault), 1)
	exact := float64(initial) * math.Pow(backoff, float64(attempt-1))
	exact = min(exact, float64(longest), intervalMax)
	return time.Duration(exact * (1 + jitter*(2*chance-1)))
}

// orDefault returns otherwise if value is not positive, also for NaN.
func orDefault[T ~int64 | ~float64](value, otherwise T) T {
	if value > 0 {
		return value
	}
	return otherwise
}
