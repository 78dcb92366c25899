package clustertime

import (
	"cmp"
	"math"
	"strconv"
	"time"
)

// A Time is a moment in cluster time. The zero value means no time. Times may be compared with ==.
type Time struct{ nanoseconds int64 }

// FromUnixNano returns the Time for nanoseconds since 1970 in cluster time, as records hold it.
func FromUnixNano(nanoseconds int64) Time { return Time{nanoseconds} }

// UnixNano returns the time as records hold it.
func (t Time) UnixNano() int64 { return t.nanoseconds }

// IsZero reports whether the time is the zero value.
func (t Time) IsZero() bool { return t == Time{} }

// Before reports whether t is before u.
func (t Time) Before(u Time) bool { return t.nanoseconds < u.nanoseconds }

// After reports whether t is after u.
func (t Time) After(u Time) bool { return u.Before(t) }

// Compare returns -1, 0 or 1 if t is before u, equal to it or after it.
func (t Time) Compare(u Time) int { return cmp.Compare(t.nanoseconds, u.nanoseconds) }

// Add returns t+d. If the sum overflows, it returns the latest or earliest possible time.
func (t Time) Add(d time.Duration) Time {
	sum := t.nanoseconds + int64(d)
	switch {
	case d > 0 && sum < t.nanoseconds:
		sum = math.MaxInt64
	case d < 0 && sum > t.nanoseconds:
		sum = math.MinInt64
	}
	return Time{sum}
}

// Sub returns t-u. If the difference overflows, it returns the largest or smallest duration.
func (t Time) Sub(u Time) time.Duration {
	difference := t.nanoseconds - u.nanoseconds
	switch {
	case t.After(u) && difference < 0:
		difference = math.MaxInt64
	case t.Before(u) && difference > 0:
		difference = math.MinInt64
	}
	return time.Duration(difference)
}

// AsTime returns the time as a date for authors and users. It must not be compared with a local
// clock.
func (t Time) AsTime() time.Time { return time.Unix(0, t.nanoseconds) }

// String returns the time as a date in UTC.
func (t Time) String() string { return t.AsTime().UTC().Format(time.RFC3339Nano) }

// MarshalJSON returns the number that [Time.UnixNano] returns.
func (t Time) MarshalJSON() ([]byte, error) { return strconv.AppendInt(nil, t.nanoseconds, 10), nil }

// UnmarshalJSON reads what MarshalJSON writes.
func (t *Time) UnmarshalJSON(text []byte) (err error) {
	t.nanoseconds, err = strconv.ParseInt(string(text), 10, 64)
	return err
}
