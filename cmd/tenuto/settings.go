package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

// A setting is a field of the cluster's settings, under the name that cluster.Settings gives it.
type setting struct {
	name string
	get  func(s *cluster.Settings) any
	set  func(s *cluster.Settings, text string) error
}

func intSetting(name string, field func(s *cluster.Settings) *int) setting {
	return setting{name, func(s *cluster.Settings) any { return *field(s) }, func(s *cluster.Settings, text string) (err error) {
		*field(s), err = strconv.Atoi(text)
		return err
	}}
}

func durationSetting(name string, field func(s *cluster.Settings) *time.Duration) setting {
	return setting{name, func(s *cluster.Settings) any { return field(s).String() }, func(s *cluster.Settings, text string) (err error) {
		*field(s), err = time.ParseDuration(text)
		return err
	}}
}

// clusterSettings are all settings but the rates of activities.
var clusterSettings = []setting{
	{"ActivityPlacement", func(s *cluster.Settings) any { return s.ActivityPlacement }, func(s *cluster.Settings, text string) error {
		s.ActivityPlacement = strings.ReplaceAll(text, "-", " ") // as tables show it
		return nil
	}},
	intSetting("Limits.Open", func(s *cluster.Settings) *int { return &s.Limits.Open }),
	intSetting("Limits.Buffered", func(s *cluster.Settings) *int { return &s.Limits.Buffered }),
	intSetting("Limits.BufferedBytes", func(s *cluster.Settings) *int { return &s.Limits.BufferedBytes }),
	intSetting("Limits.HistoryEvents", func(s *cluster.Settings) *int { return &s.Limits.HistoryEvents }),
	intSetting("Limits.HistoryBytes", func(s *cluster.Settings) *int { return &s.Limits.HistoryBytes }),
	durationSetting("Retention.Completed", func(s *cluster.Settings) *time.Duration { return &s.Retention.Completed }),
	durationSetting("Retention.Failed", func(s *cluster.Settings) *time.Duration { return &s.Retention.Failed }),
	durationSetting("Retention.Canceled", func(s *cluster.Settings) *time.Duration { return &s.Retention.Canceled }),
	durationSetting("Retention.Terminated", func(s *cluster.Settings) *time.Duration { return &s.Retention.Terminated }),
	intSetting("PayloadMax", func(s *cluster.Settings) *int { return &s.PayloadMax }),
	intSetting("Voters", func(s *cluster.Settings) *int { return &s.Voters }),
	durationSetting("ReplaceVoterAfter", func(s *cluster.Settings) *time.Duration { return &s.ReplaceVoterAfter }),
	{"RequireJoinToken", func(s *cluster.Settings) any { return s.RequireJoinToken }, func(s *cluster.Settings, text string) (err error) {
		s.RequireJoinToken, err = strconv.ParseBool(text)
		return err
	}},
	durationSetting("ReplaceLostAfter", func(s *cluster.Settings) *time.Duration { return &s.ReplaceLostAfter }),
	durationSetting("FinalizeProtocolAfter", func(s *cluster.Settings) *time.Duration { return &s.FinalizeProtocolAfter }),
}

// ratePrefix begins the name of the rate of an activity.
const ratePrefix = "ActivityRates."

// settings shows the settings, or changes those that are given as NAME=VALUE and shows the result.
func settings(flags *flag.FlagSet) action {
	dryRun := flags.Bool("dry-run", false, "show the settings as they would be, and change nothing")
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		for _, arg := range args {
			if err := assign(new(cluster.Settings), arg); err != nil {
				return err
			}
		}
		change := func(now *cluster.Settings) {
			for _, arg := range args {
				_ = assign(now, arg) // checked above
			}
		}
		var shown cluster.Settings
		var err error
		if len(args) == 0 || *dryRun {
			if shown, err = client.Settings(ctx); err != nil {
				return &readError{err}
			}
			change(&shown)
		} else {
			shown, err = client.ChangeSettings(ctx, change)
		}
		if err != nil {
			return err
		}
		if !d.isTable() {
			return s.documents(d.format).Write(settingValues(&shown))
		}
		return printSettings(s.out, &shown)
	})
}

// assign sets one setting, given as NAME=VALUE.
func assign(s *cluster.Settings, arg string) error {
	name, text, given := strings.Cut(arg, "=")
	if !given {
		return &usageError{fmt.Sprintf("%q is not NAME=VALUE", arg)}
	}
	var err error
	if activity, is := strings.CutPrefix(name, ratePrefix); is {
		err = assignRate(s, activity, text)
	} else if i := slices.IndexFunc(clusterSettings, func(one setting) bool { return one.name == name }); i >= 0 {
		err = clusterSettings[i].set(s, text)
	} else {
		return &usageError{fmt.Sprintf("there is no setting %q; \"tenuto settings\" lists them", name)}
	}
	if err != nil {
		return &usageError{fmt.Sprintf("value of %s: %v", name, err)}
	}
	return nil
}

// assignRate sets the rate of an activity, given as PERSECOND or PERSECOND,BURST; "" removes it.
func assignRate(s *cluster.Settings, activity, text string) (err error) {
	if text == "" {
		delete(s.ActivityRates, activity)
		return nil
	}
	var rate cluster.Rate
	perSecond, burst, hasBurst := strings.Cut(text, ",")
	if rate.PerSecond, err = strconv.ParseFloat(perSecond, 64); err == nil && hasBurst {
		rate.Burst, err = strconv.Atoi(burst)
	}
	if s.ActivityRates == nil {
		s.ActivityRates = make(map[string]cluster.Rate)
	}
	s.ActivityRates[activity] = rate
	return err
}

// settingValues returns the settings by name, in the form in which they are set.
func settingValues(s *cluster.Settings) map[string]any {
	values := make(map[string]any)
	for _, one := range clusterSettings {
		values[one.name] = one.get(s)
	}
	for activity, rate := range s.ActivityRates {
		values[ratePrefix+activity] = fmt.Sprintf("%g,%d", rate.PerSecond, rate.Burst)
	}
	return values
}

func printSettings(w io.Writer, s *cluster.Settings) error {
	values := settingValues(s)
	table := output.NewRows(w)
	table.Add("SETTING", "VALUE")
	for _, name := range slices.Sorted(maps.Keys(values)) {
		table.Add(output.Cell(name), output.Cell(fmt.Sprint(values[name])))
	}
	return table.Flush()
}
