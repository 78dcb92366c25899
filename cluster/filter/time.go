package filter

import (
	"strconv"
	"strings"
	"time"
)

// The times that a filter can hold: the cluster counts nanoseconds.
var (
	earliest = time.Date(1678, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC)
)

// parseTime returns the moment of an age, a date or a time.
func parseTime(text string, now time.Time) (at time.Time, isAge bool, reason string) {
	if age, ok := parseAge(text); ok {
		at, isAge = now.Add(-age), true
	} else {
		var err error
		if at, err = time.Parse(time.DateOnly, text); err != nil {
			at, err = time.Parse(time.RFC3339Nano, text)
		}
		if err != nil {
			return at, false, "has neither an age such as 90m or 7d nor a time such as 2026-01-02 or 2026-01-02T15:04:05Z"
		}
	}
	at = at.Round(0).UTC() // without the monotonic clock
	if at.Before(earliest) || at.After(latest) {
		return at, isAge, "is before 1678 or after 2262"
	}
	return at, isAge, ""
}

const day = 24 * time.Hour

// parseAge returns a duration that is not negative, in the form of [time.ParseDuration] with days
// before it.
func parseAge(text string) (age time.Duration, ok bool) {
	days, rest, hasDays := strings.Cut(text, "d")
	if hasDays {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || strings.ContainsAny(days, "eExXpPinNaA_+-") || n > float64(100*365) {
			return 0, false
		}
		age = time.Duration(n * float64(day))
		if rest == "" {
			return age, true
		}
	} else {
		rest = text
	}
	clock, err := time.ParseDuration(rest)
	if err != nil || clock < 0 || rest[0] == '+' || rest[0] == '-' || age+clock < age {
		return 0, false
	}
	return age + clock, true
}

// formatTime returns a moment as parseTime reads it.
func formatTime(at time.Time) string {
	switch {
	case at.Before(earliest):
		at = earliest
	case at.After(latest):
		at = latest
	}
	return at.UTC().Format(time.RFC3339Nano)
}
