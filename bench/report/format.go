package report

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/bench/measure"
)

// format formats a value with its unit.
func format(value float64, unit string) string {
	switch unit {
	case measure.Duration:
		return formatDuration(value)
	case measure.PerSecond:
		return significant(value) + "/s"
	case measure.Bytes:
		return significant(value) + " B"
	case measure.Count:
		return significant(value)
	}
	return significant(value) + " " + unit
}

func formatDuration(ns float64) string {
	switch d := time.Duration(ns); {
	case d >= time.Second:
		return significant(ns/1e9) + " s"
	case d >= time.Millisecond:
		return significant(ns/1e6) + " ms"
	case d >= time.Microsecond:
		return significant(ns/1e3) + " µs"
	}
	return significant(ns) + " ns"
}

// significant formats a value with three significant digits, in groups.
func significant(v float64) string {
	if v == 0 || math.Abs(v) < 100 {
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-2)
	digits := strconv.FormatFloat(math.Round(v/unit)*unit, 'f', 0, 64)
	return groupDigits(digits)
}

func groupDigits(digits string) string {
	sign, digits := "", digits
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	for at := len(digits) - 3; at > 0; at -= 3 {
		digits = digits[:at] + "," + digits[at:]
	}
	return sign + digits
}

// label returns the name of a metric with its position in a series.
func label(f measure.Metric) string {
	if f.At == 0 {
		return f.Name
	}
	return fmt.Sprintf("%s: %s", f.Name, groupDigits(strconv.FormatFloat(f.At, 'f', 0, 64)))
}
