package schedules

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // so that the tests do not depend on the machine

	"github.com/tenuto-dev/tenuto/internal/shorttest"
	"github.com/tenuto-dev/tenuto/replay"
)

// The zones of the tests: a change by one hour in the north, at another date and hour, and one by
// half an hour in the south.
var zones = []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe"}

// timesBetween returns the due times in an interval, formatted in the zone of the Spec.
func timesBetween(t *testing.T, spec Spec, from, before string) []string {
	t.Helper()
	zone, err := time.LoadLocation(spec.TimeZone)
	if err != nil {
		t.Fatal(err)
	}
	start, end := parseTime(t, from), parseTime(t, before)
	times, err := compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for due := times.next(start.Add(-1)); !due.IsZero() && due.Before(end); due = times.next(due) {
		found = append(found, due.In(zone).Format("01-02T15:04Z07:00"))
	}
	return found
}

func parseTime(t *testing.T, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestDueTimes_WhenTheClockIsSet(t *testing.T) {
	for _, test := range []struct{ name, zone, cron, from, before, want string }{
		{"Berlin: a skipped time is due at the end of the skipped hour", "Europe/Berlin", "30 2 * * *",
			"2026-03-28T00:00:00+01:00", "2026-03-31T00:00:00+02:00", "03-28T02:30+01:00 03-29T03:00+02:00 03-30T02:30+02:00"},
		{"Berlin: skipped times are one due time", "Europe/Berlin", "*/20 2,3 * * *",
			"2026-03-29T00:00:00+01:00", "2026-03-30T00:00:00+02:00", "03-29T03:00+02:00 03-29T03:20+02:00 03-29T03:40+02:00"},
		{"Berlin: a repeated time is due once, the first time", "Europe/Berlin", "30 2 * * *",
			"2026-10-25T00:00:00+02:00", "2026-10-27T00:00:00+01:00", "10-25T02:30+02:00 10-26T02:30+01:00"},
		{"Berlin: a time after the repeated hour", "Europe/Berlin", "0 3 * * *",
			"2026-10-25T00:00:00+02:00", "2026-10-26T00:00:00+01:00", "10-25T03:00+01:00"},
		{"Berlin: every hour follows the clock when one is skipped", "Europe/Berlin", "30 * * * *",
			"2026-03-29T01:00:00+01:00", "2026-03-29T05:00:00+02:00", "03-29T01:30+01:00 03-29T03:30+02:00 03-29T04:30+02:00"},
		{"Berlin: every hour at the end of the skipped hour", "Europe/Berlin", "@hourly",
			"2026-03-29T01:00:00+01:00", "2026-03-29T05:00:00+02:00", "03-29T01:00+01:00 03-29T03:00+02:00 03-29T04:00+02:00"},
		{"Berlin: every hour runs twice in the repeated one", "Europe/Berlin", "30 * * * *",
			"2026-10-25T01:00:00+02:00", "2026-10-25T04:00:00+01:00", "10-25T01:30+02:00 10-25T02:30+02:00 10-25T02:30+01:00 10-25T03:30+01:00"},
		{"Berlin: a range of all hours is every hour", "Europe/Berlin", "30 0-23 * * *",
			"2026-10-25T02:00:00+02:00", "2026-10-25T03:00:00+01:00", "10-25T02:30+02:00 10-25T02:30+01:00"},
		{"New York: skipped", "America/New_York", "30 2 * * *",
			"2026-03-08T00:00:00-05:00", "2026-03-10T00:00:00-04:00", "03-08T03:00-04:00 03-09T02:30-04:00"},
		{"New York: repeated", "America/New_York", "30 1 * * *",
			"2026-11-01T00:00:00-04:00", "2026-11-03T00:00:00-05:00", "11-01T01:30-04:00 11-02T01:30-05:00"},
		{"New York: every quarter of an hour, repeated", "America/New_York", "*/30 * * * *",
			"2026-11-01T01:00:00-04:00", "2026-11-01T02:30:00-05:00", "11-01T01:00-04:00 11-01T01:30-04:00 11-01T01:00-05:00 11-01T01:30-05:00 11-01T02:00-05:00"},
		{"Lord Howe: half an hour is skipped", "Australia/Lord_Howe", "15 2 * * *",
			"2026-10-04T00:00:00+10:30", "2026-10-06T00:00:00+11:00", "10-04T02:30+11:00 10-05T02:15+11:00"},
		{"Lord Howe: the rest of the hour is not", "Australia/Lord_Howe", "45 2 * * *",
			"2026-10-04T00:00:00+10:30", "2026-10-05T00:00:00+11:00", "10-04T02:45+11:00"},
		{"Lord Howe: half an hour is repeated", "Australia/Lord_Howe", "45 1 * * *",
			"2026-04-05T00:00:00+11:00", "2026-04-07T00:00:00+10:30", "04-05T01:45+11:00 04-06T01:45+10:30"},
		{"Lord Howe: every hour shows the repeated half twice", "Australia/Lord_Howe", "45 * * * *",
			"2026-04-05T01:00:00+11:00", "2026-04-05T03:00:00+10:30", "04-05T01:45+11:00 04-05T01:45+10:30 04-05T02:45+10:30"},
		{"Apia: a skipped day", "Pacific/Apia", "0 12 * * *",
			"2011-12-29T00:00:00-10:00", "2012-01-01T00:00:00+14:00", "12-29T12:00-10:00 12-31T00:00+14:00 12-31T12:00+14:00"},
		{"Sao Paulo: midnight is skipped", "America/Sao_Paulo", "@daily",
			"2018-11-03T00:00:00-03:00", "2018-11-06T00:00:00-02:00", "11-03T00:00-03:00 11-04T01:00-02:00 11-05T00:00-02:00"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := strings.Join(timesBetween(t, Spec{Cron: []string{test.cron}, TimeZone: test.zone}, test.from, test.before), " ")
			if got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// expectedDue computes the due times of one fixed time of the day by looking at every minute.
func expectedDue(zone *time.Location, hour, minute int, from, before time.Time) (due []time.Time) {
	decided := make(map[string]bool) // by date
	previous := from.Add(-time.Minute).In(zone)
	for at := from; at.Before(before); at = at.Add(time.Minute) {
		shown := at.In(zone)
		date := shown.Format(time.DateOnly)
		minuteOf := func(t time.Time) int { return t.Hour()*60 + t.Minute() }
		wanted := hour*60 + minute
		sameDay := previous.Format(time.DateOnly) == date
		if !decided[date] && (minuteOf(shown) == wanted || sameDay && minuteOf(previous) < wanted && minuteOf(shown) > wanted) {
			decided[date] = true
			due = append(due, at.UTC())
		}
		previous = shown
	}
	return due
}

func TestDueTimes_OfAYearInThreeZonesMatchTheClock(t *testing.T) {
	from, before := parseTime(t, "2026-01-01T12:00:00Z"), parseTime(t, "2027-01-01T12:00:00Z")
	for _, name := range zones {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		all := [][2]int{{2, 15}, {1, 45}, {0, 0}, {1, 30}, {2, 0}, {2, 30}, {2, 59}, {3, 0}, {23, 59}}
		for _, at := range all[:shorttest.SequentialRounds(len(all))] {
			times, err := compile(Spec{Cron: []string{fmt.Sprintf("%d %d * * *", at[1], at[0])}, TimeZone: name})
			if err != nil {
				t.Fatal(err)
			}
			var got []time.Time
			for due := times.next(from.Add(-1)); due.Before(before); due = times.next(due) {
				got = append(got, due)
			}
			if want := expectedDue(zone, at[0], at[1], from, before); !slices.EqualFunc(got, want, time.Time.Equal) || len(got) != 365 {
				t.Errorf("%s at %v: %d due times, want %d:\n%v\n%v", name, at, len(got), len(want), got, want)
			}
		}
	}
}

func TestDueTimes_Forms(t *testing.T) {
	const from, before = "2026-11-24T00:00:00Z", "2026-12-08T00:00:00Z"
	for _, test := range []struct {
		name string
		spec Spec
		want string
	}{
		{"seconds", Spec{Cron: []string{"0,30 59 23 30 * *"}}, "11-30T23:59Z 11-30T23:59Z"},
		{"one of two days has to match", Spec{Cron: []string{"0 0 1 * 6"}}, "11-28T00:00Z 12-01T00:00Z 12-05T00:00Z"},
		{"last day of the month", Spec{Cron: []string{"0 0 L * *"}}, "11-30T00:00Z"},
		{"first Monday", Spec{Cron: []string{"0 9 * * MON#1"}}, "12-07T09:00Z"},
		{"Sunday is 7, too", Spec{Cron: []string{"0 0 * * 7"}}, "11-29T00:00Z 12-06T00:00Z"},
		{"weekly", Spec{Cron: []string{"@weekly"}}, "11-29T00:00Z 12-06T00:00Z"},
		{"two expressions, each time once", Spec{Cron: []string{"0 0 1 * *", "@monthly", "0 6 1 12 *"}}, "12-01T00:00Z 12-01T06:00Z"},
		{"an interval with an offset", Spec{Every: 7 * 24 * time.Hour, Offset: time.Hour}, "11-26T01:00Z 12-03T01:00Z"},
		{"a calendar", Spec{Calendars: []Calendar{{Days: []int{1, -1}, Hours: []int{6, 18}, Minutes: []int{30}}}},
			"11-30T06:30Z 11-30T18:30Z 12-01T06:30Z 12-01T18:30Z"},
		{"all fields of a calendar have to match", Spec{Calendars: []Calendar{{Months: []time.Month{12}, Days: []int{1, 2, 3, 4, 5, 6, 7}, Weekdays: []time.Weekday{1}}}}, "12-07T00:00Z"},
		{"a date", Spec{Calendars: []Calendar{{Years: []int{2026}, Months: []time.Month{11}, Days: []int{-3}}}}, "11-28T00:00Z"},
		{"bounds", Spec{Every: 24 * time.Hour, From: time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC), Until: time.Date(2026, 11, 28, 0, 0, 0, 0, time.UTC)},
			"11-26T00:00Z 11-27T00:00Z"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := strings.Join(timesBetween(t, test.spec, from, before), " "); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestDueTimes_AreRare(t *testing.T) {
	times, err := compile(Spec{Cron: []string{"0 0 29 2 *"}, Calendars: []Calendar{{Years: []int{2200}}}})
	if err != nil {
		t.Fatal(err)
	}
	if due := times.next(parseTime(t, "2096-03-01T00:00:00Z")); !due.Equal(parseTime(t, "2104-02-29T00:00:00Z")) {
		t.Errorf("after 2096-02-29 follows %v", due)
	}
	if due := times.first(parseTime(t, "2199-12-01T00:00:00Z"), 500); len(due) != 365+15 {
		t.Errorf("%d due times until timers end; want all days of 2200 and 15 leap days", len(due))
	}
}

func TestCheck_NamesTheField(t *testing.T) {
	daily := []string{"@daily"}
	valid := Target{"report", []byte("1")}
	for _, test := range []struct {
		id           string
		spec         Spec
		target       Target
		field, cause string
	}{
		{"", Spec{Cron: daily}, valid, "schedule ID", "is not 1 to 80"},
		{strings.Repeat("x", 81), Spec{Cron: daily}, valid, "schedule ID", "is not 1 to 80"},
		{"a b", Spec{Cron: daily}, valid, "schedule ID", "is not 1 to 80"},
		{"s", Spec{}, valid, "Spec", "has no times"},
		{"s", Spec{Cron: []string{"@daily", "60 * * * *"}}, valid, "Spec.Cron[1]", `field "60" (minute)`},
		{"s", Spec{Cron: []string{"* 24 * * *"}}, valid, "Spec.Cron[0]", "(hour)"},
		{"s", Spec{Cron: []string{"* * 0 * *"}}, valid, "Spec.Cron[0]", "(day of month)"},
		{"s", Spec{Cron: []string{"* * * foo *"}}, valid, "Spec.Cron[0]", `field "foo" (month)`},
		{"s", Spec{Cron: []string{"* * * * 8"}}, valid, "Spec.Cron[0]", "(day of week)"},
		{"s", Spec{Cron: []string{"61 * * * * *"}}, valid, "Spec.Cron[0]", "(second)"},
		{"s", Spec{Cron: []string{"1,,2 * * * *"}}, valid, "Spec.Cron[0]", `(minute): "" is not valid`},
		{"s", Spec{Cron: []string{"+5 * * * *"}}, valid, "Spec.Cron[0]", `(minute): "+5" is not valid`},
		{"s", Spec{Cron: []string{"*-5 * * * *"}}, valid, "Spec.Cron[0]", "(minute)"},
		{"s", Spec{Cron: []string{"*/0 * * * *"}}, valid, "Spec.Cron[0]", "(minute)"},
		{"s", Spec{Cron: []string{"* * * *"}}, valid, "Spec.Cron[0]", "has 4 fields: 5 are needed"},
		{"s", Spec{Cron: []string{"0 0 30 2 *"}}, valid, "Spec.Cron[0]", "selects no time"},
		{"s", Spec{Cron: []string{"@reboot"}}, valid, "Spec.Cron[0]", "@reboot"},
		{"s", Spec{Cron: []string{"@every 1h"}}, valid, "Spec.Cron[0]", "Spec.Every"},
		{"s", Spec{Cron: []string{"CRON_TZ=UTC 0 0 * * *"}}, valid, "Spec.Cron[0]", "Spec.TimeZone"},
		{"s", Spec{Cron: []string{" "}}, valid, "Spec.Cron[0]", "is empty"},
		{"s", Spec{Cron: slices.Repeat(daily, 21)}, valid, "Spec.Cron", "at most 20"},
		{"s", Spec{Calendars: []Calendar{{Hours: []int{24}}}}, valid, "Spec.Calendars[0].Hours", "has 24: 0 to 23"},
		{"s", Spec{Calendars: []Calendar{{Days: []int{0}}}}, valid, "Spec.Calendars[0].Days", "has 0"},
		{"s", Spec{Calendars: []Calendar{{Days: []int{-32}}}}, valid, "Spec.Calendars[0].Days", "has -32"},
		{"s", Spec{Calendars: []Calendar{{Years: []int{1969}}}}, valid, "Spec.Calendars[0].Years", "has 1969"},
		{"s", Spec{Calendars: []Calendar{{Months: []time.Month{2}, Days: []int{30}}}}, valid, "Spec.Calendars[0]", "selects no time"},
		{"s", Spec{Every: 1500 * time.Millisecond}, valid, "Spec.Every", "whole seconds"},
		{"s", Spec{Every: -time.Second}, valid, "Spec.Every", "whole seconds"},
		{"s", Spec{Every: time.Minute, Offset: time.Minute}, valid, "Spec.Offset", "less than Spec.Every"},
		{"s", Spec{Cron: daily, Offset: time.Minute}, valid, "Spec.Offset", "less than Spec.Every"},
		{"s", Spec{Cron: daily, TimeZone: "Europe/Atlantis"}, valid, "Spec.TimeZone", "Europe/Atlantis"},
		{"s", Spec{Cron: daily, TimeZone: "Local"}, valid, "Spec.TimeZone", "IANA"},
		{"s", Spec{Cron: daily, Overlap: "sometimes"}, valid, "Spec.Overlap", "sometimes"},
		{"s", Spec{Cron: daily, CatchUp: time.Second}, valid, "Spec.CatchUp", "10s to"},
		{"s", Spec{Cron: daily, Jitter: 25 * time.Hour}, valid, "Spec.Jitter", "0 to 24h"},
		{"s", Spec{Cron: daily, From: latest.Add(1)}, valid, "Spec.From", "is after 2261"},
		{"s", Spec{Cron: daily, From: latest, Until: latest}, valid, "Spec.Until", "is not after Spec.From"},
		{"s", Spec{Cron: daily, RunID: "{id}"}, valid, "Spec.RunID", "{time}"},
		{"s", Spec{Cron: daily, RunID: "{time} "}, valid, "Spec.RunID", "is not 1 to 128"},
		{"s", Spec{Cron: daily, Version: strings.Repeat("1", 129)}, valid, "Spec.Version", "at most 128"},
		{"s", Spec{Cron: daily, Summary: strings.Repeat("x", 201)}, valid, "Spec.Summary", "200"},
		{"s", Spec{Cron: daily, Retry: &replay.RetryPolicy{NonRetryableCodes: []string{""}}}, valid, "Spec.Retry", "a code of 0 bytes"},
		{"s", Spec{Cron: daily}, Target{"", []byte("1")}, "orchestration", "has a name of 0 bytes"},
		{"s", Spec{Cron: daily}, Target{Name, []byte("1")}, "orchestration", "are reserved"},
		{"s", Spec{Cron: daily}, Target{"report", []byte("{")}, "input", "is not JSON"},
		{"s", Spec{Cron: daily}, Target{"report", make([]byte, 256_001)}, "input", "at most 256000"},
	} {
		err := Check(test.id, test.spec, test.target)
		var invalid *replay.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != test.field || !strings.Contains(invalid.Reason, test.cause) {
			t.Errorf("%+v: %v; want field %q, reason with %q", test.spec, err, test.field, test.cause)
		}
	}
	if err := Check(strings.Repeat("x", 80), Spec{Cron: daily}, valid); err != nil {
		t.Error(err)
	}
}

func TestPlan_DecidesEachDueTimeOnceWhateverTheClockDoes(t *testing.T) {
	start := parseTime(t, "2026-11-24T00:00:30Z")
	spec := Spec{Every: time.Minute, CatchUp: 10 * time.Minute}
	decided := make(map[time.Time]int)
	last, missed := start, 0
	// The clock goes back by an hour, jumps ahead by 9 minutes, then by an hour.
	for _, now := range []time.Duration{0, time.Minute, 2 * time.Minute, -time.Hour, time.Minute, 2 * time.Minute, 11 * time.Minute, 71 * time.Minute, 72 * time.Minute} {
		p := newPlan("s", spec, last, start.Add(now))
		for _, due := range p.Due {
			decided[due]++
		}
		missed += p.Missed
		if p.Last.Before(last) {
			t.Fatalf("at %v: decided up to %v, after %v", now, p.Last, last)
		}
		if last = p.Last; !p.At.After(start.Add(now)) {
			t.Errorf("at %v: the next start is at %v", now, p.At)
		}
	}
	for due, times := range decided {
		if times != 1 {
			t.Errorf("%v was started %d times", due, times)
		}
	}
	// At 71 minutes, of the 60 due times since 11 minutes, those older than 10 minutes are missed.
	if len(decided) != 11+10+1 || missed != 50 {
		t.Errorf("%d were started, %d missed", len(decided), missed)
	}
}

func TestPlan_IsBounded(t *testing.T) {
	start := parseTime(t, "2026-01-01T00:00:00Z")
	now := start.AddDate(1, 0, 0)
	spec := Spec{Every: time.Second, CatchUp: time.Hour}
	p := newPlan("s", spec, start, now)
	if p.Missed != missedMax || len(p.Due) != dueMax || !p.More || !p.Next.IsZero() {
		t.Errorf("missed %d, due %d, more %v, next %v", p.Missed, len(p.Due), p.More, p.Next)
	}
	if first := p.Due[0]; !first.Equal(now.Add(-time.Hour)) {
		t.Errorf("the first start is for %v; want %v", first, now.Add(-time.Hour))
	}
	if again := newPlan("s", spec, p.Last, now); !again.Due[0].Equal(p.Due[dueMax-1].Add(time.Second)) || again.Missed != 0 {
		t.Errorf("the next plan begins with %v, after %v", again.Due[0], p.Due[dueMax-1])
	}
}

func TestPlan_JitterDelaysButKeepsTheOrder(t *testing.T) {
	start := parseTime(t, "2026-01-01T00:00:00Z")
	spec := Spec{Cron: []string{"0 * * * *", "30 0 * * *"}, Jitter: 45 * time.Minute}
	times, err := compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	last, delays := start, make(map[time.Duration]bool)
	for range 200 {
		p := newPlan("s", spec, last, last)
		delay := p.At.Sub(p.Next)
		if delay < 0 || delay >= spec.Jitter || !p.At.Before(times.next(p.Next)) {
			t.Fatalf("due %v starts at %v", p.Next, p.At)
		}
		if early := newPlan("s", spec, last, p.At.Add(-1)); len(early.Due) != 0 {
			t.Fatalf("due before its jitter: %+v", early)
		}
		delays[delay] = true
		last = p.Next
	}
	if len(delays) < 190 {
		t.Errorf("%d different delays of 200", len(delays))
	}
	if a, b := newPlan("s", spec, start, start), newPlan("other", spec, start, start); a.At.Equal(b.At) {
		t.Error("two schedules have the same jitter")
	}
}

func TestPlan_CountsAboutAThousandMissedWithAnyJitter(t *testing.T) {
	last := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	now := last.AddDate(1, 0, 0)
	for _, spec := range []Spec{
		{Every: time.Second, Jitter: 24 * time.Hour},
		{Every: time.Minute, Jitter: 24 * time.Hour, CatchUp: time.Hour},
		{Cron: []string{"* 0 * * *"}, Jitter: 24 * time.Hour, CatchUp: time.Hour},
		{Every: time.Minute},
	} {
		p := newPlan("s", spec, last, now)
		if p.Missed < missedMax || p.Missed > missedMax+2 {
			t.Errorf("%+v: %d missed", spec, p.Missed)
		}
	}
}

// The last due time before the window starts in the window if the jitter delays it until then.
func TestPlan_SkipsNoDueTimeThatTheJitterDelaysIntoTheWindow(t *testing.T) {
	spec := Spec{Cron: []string{"* 0 * * *"}, Jitter: 24 * time.Hour, CatchUp: time.Hour}
	last := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	due := time.Date(2000, 12, 1, 0, 59, 0, 0, time.UTC)
	at := due.Add(jitter("s", due, 23*time.Hour+time.Minute))
	if at.Sub(due) < 2*time.Hour {
		t.Fatalf("the jitter is %v", at.Sub(due))
	}
	if p := newPlan("s", spec, last, at.Add(59*time.Minute)); len(p.Due) != 1 || !p.Due[0].Equal(due) {
		t.Errorf("due %v, missed %d, last %v; want %v", p.Due, p.Missed, p.Last, due)
	}
}
