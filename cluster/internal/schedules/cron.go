package schedules

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	cron "github.com/netresearch/go-cron"
)

// searchYears bounds the search for a time: from 1970 to the latest year of timers.
const searchYears = 300

// parserOptions are the fields and forms of an expression. If both the day of the month and the
// weekday are restricted, one of them has to match, as in POSIX.
const parserOptions = cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow |
	cron.Descriptor | cron.Extended | cron.DowOrDom

// cronFields are the names of the fields of an expression. The first may be missing.
var cronFields = []string{"second", "minute", "hour", "day of month", "month", "day of week"}

// itemPattern is what an element of a list in a field may look like. The parser also accepts other
// text, such as "+5" or "*-5".
var itemPattern = regexp.MustCompile(`^((\*|\?|\w+(-\w+)?)(/\d+)?|\w+#\w+)$`)

// parseCron returns the times that an expression selects. Its Next takes and returns wall clocks as
// times in UTC.
func parseCron(field, expression string) (*cron.SpecSchedule, error) {
	expression = strings.TrimSpace(expression)
	switch {
	case expression == "":
		return nil, invalid(field, "is empty")
	case len(expression) > expressionMax:
		return nil, invalid(field, "has %d bytes: at most %d are allowed", len(expression), expressionMax)
	case strings.Contains(expression, "="):
		return nil, invalid(field, "is %q: set the time zone in Spec.TimeZone", expression)
	case strings.HasPrefix(expression, "@every"):
		return nil, invalid(field, "is %q: set the interval in Spec.Every", expression)
	}
	parser, err := cron.TryNewParser(parserOptions)
	if err != nil {
		return nil, fmt.Errorf("cron parser: %w", err)
	}
	parser = parser.WithMaxSearchYears(searchYears)
	if expression[0] != '@' {
		if err := checkFields(parser, field, expression); err != nil {
			return nil, err
		}
	}
	parsed, err := parser.Parse(expression)
	if err != nil {
		return nil, invalid(field, "is %q: %v", expression, err)
	}
	selected, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return nil, invalid(field, "is %q, which is not an expression of times", expression)
	}
	selected.Location = time.UTC
	return selected, nil
}

// checkFields returns an error that names the first field that is not valid.
func checkFields(parser cron.Parser, field, expression string) error {
	given := strings.Fields(expression)
	names := cronFields
	switch len(given) {
	case len(names):
	case len(names) - 1:
		names = names[1:]
	default:
		return invalid(field, "is %q, which has %d fields: 5 are needed, or 6 with seconds", expression, len(given))
	}
	for i, text := range given {
		for item := range strings.SplitSeq(text, ",") {
			if !itemPattern.MatchString(item) {
				return invalid(field, "is %q: field %q (%s): %q is not valid", expression, text, names[i], item)
			}
		}
		alone := slices.Repeat([]string{"*"}, len(given))
		alone[i] = text
		if _, err := parser.Parse(strings.Join(alone, " ")); err != nil {
			return invalid(field, "is %q: field %q (%s): %v", expression, text, names[i], err)
		}
	}
	return nil
}

// starBit marks a field of cron.SpecSchedule as unrestricted, like "*".
const starBit = 1 << 63

// selected returns the times that a calendar selects, like parseCron.
func (c Calendar) selected(field string) (*cron.SpecSchedule, error) {
	s := &cron.SpecSchedule{Location: time.UTC, MaxSearchYears: searchYears}
	var err error
	bits := func(name string, values []int, least, most int, byDefault uint64) (set uint64) {
		if len(values) == 0 {
			return byDefault
		}
		for _, value := range values {
			if value < least || value > most {
				if err == nil {
					err = invalid(field+"."+name, "has %d: %d to %d are allowed", value, least, most)
				}
				return 0
			}
			set |= 1 << value
		}
		return set
	}
	days, fromEnd := splitDays(c.Days)
	s.Month = bits("Months", toInts(c.Months), 1, 12, rangeBits(1, 12)|starBit)
	s.Dom = bits("Days", days, 1, 31, 0)
	s.Dow = bits("Weekdays", toInts(c.Weekdays), 0, 6, rangeBits(0, 6)|starBit)
	s.Hour = bits("Hours", c.Hours, 0, 23, 1)
	s.Minute = bits("Minutes", c.Minutes, 0, 59, 1)
	s.Second = bits("Seconds", c.Seconds, 0, 59, 1)
	if len(c.Days) == 0 {
		s.Dom = rangeBits(1, 31) | starBit
	}
	for _, day := range fromEnd {
		if day < -31 && err == nil {
			err = invalid(field+".Days", "has %d: 1 to 31 and -31 to -1 are allowed", day)
		}
		s.DomConstraints = append(s.DomConstraints, dayFromEnd(day))
	}
	for _, year := range c.Years {
		if (year < 1970 || year >= latest.Year()) && err == nil {
			err = invalid(field+".Years", "has %d: 1970 to %d are allowed", year, latest.Year()-1)
		}
		if s.Year == nil {
			s.Year = make(map[int]struct{})
		}
		s.Year[year] = struct{}{}
	}
	return s, err
}

// splitDays separates days that count from the end of the month.
func splitDays(all []int) (days, fromEnd []int) {
	for _, day := range all {
		if day < 0 {
			fromEnd = append(fromEnd, day)
		} else {
			days = append(days, day)
		}
	}
	return days, fromEnd
}

// dayFromEnd selects a day that counts from the end of the month: -1 is the last.
func dayFromEnd(day int) cron.DomConstraint {
	if day == -1 {
		return cron.DomConstraint{Type: cron.DomLast}
	}
	return cron.DomConstraint{Type: cron.DomLastOffset, N: -1 - day}
}

func toInts[T ~int](values []T) []int {
	ints := make([]int, len(values))
	for i, value := range values {
		ints[i] = int(value)
	}
	return ints
}

// rangeBits returns a set of the numbers from least to most.
func rangeBits(least, most int) (set uint64) {
	for value := least; value <= most; value++ {
		set |= 1 << value
	}
	return set
}
