package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// A Source is where the measurements come from.
type Source struct{ URL string }

// A File refers to the rows between two steps.
type File struct {
	Name string
	Rows int
}

// A Report says where the rows were published.
type Report struct {
	URL  string
	Rows int
}

var (
	Pipeline = replay.Orchestration[Source, Report]("pipeline")
	Fetch    = replay.Activity[string, File]("fetch")
	Convert  = replay.Activity[File, File]("convert")
	Publish  = replay.Activity[File, string]("publish")

	ErrNotMeasurements = replay.NewError("pipeline.not_measurements", "no measurements")
)

var (
	networkRetry = replay.Retry(replay.RetryPolicy{InitialInterval: time.Second, MaxInterval: time.Minute})
	localRetry   = replay.Retry(replay.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaxAttempts: 5})
)

func pipeline(ctx *replay.Context, source Source) (Report, error) {
	raw, err := Fetch.Call(ctx, source.URL, networkRetry,
		replay.StartToClose(10*time.Minute), replay.ScheduleToClose(6*time.Hour))
	if err != nil {
		return Report{}, fmt.Errorf("fetch: %w", err)
	}
	converted, err := Convert.Call(ctx, raw, localRetry, replay.HeartbeatTimeout(10*time.Second))
	if err != nil {
		return Report{}, fmt.Errorf("convert: %w", err)
	}
	url, err := Publish.Call(ctx, converted, networkRetry,
		replay.StartToClose(time.Minute), replay.ScheduleToClose(24*time.Hour))
	if err != nil {
		return Report{}, fmt.Errorf("publish: %w", err)
	}
	return Report{url, converted.Rows}, nil
}

// steps are the activities. Files exist only as names.
type steps struct {
	out       io.Writer
	failAtRow int // the row at which the first attempt to convert fails; 0 for none
}

func (s *steps) fetch(_ context.Context, url string) (File, error) {
	if !strings.HasSuffix(url, ".csv") {
		return File{}, replay.NonRetryable(ErrNotMeasurements)
	}
	fmt.Fprintln(s.out, "fetch", url)
	return File{"weather.csv", 1000}, nil
}

// convert processes row by row and begins where an earlier attempt stopped.
func (s *steps) convert(ctx context.Context, raw File) (File, error) {
	attempt := replay.ActivityInfo(ctx).Number
	done, _ := replay.HeartbeatDetails[int](ctx)
	fmt.Fprintf(s.out, "convert %s from row %d, attempt %d\n", raw.Name, done, attempt)
	for ; done < raw.Rows; done++ {
		if done%100 == 0 { // frequent heartbeats are cheap
			if err := replay.Heartbeat(ctx, done); err != nil {
				return File{}, err
			}
		}
		if attempt == 1 && done == s.failAtRow && s.failAtRow > 0 {
			return File{}, errors.New("out of memory")
		}
	}
	return File{"weather.parquet", raw.Rows}, nil
}

// publish publishes the file under a name that is the same for every attempt.
func (s *steps) publish(ctx context.Context, file File) (string, error) {
	key := replay.ActivityInfo(ctx).IdempotencyKey()
	fmt.Fprintln(s.out, "publish", file.Name)
	return "https://example.org/" + key + "/" + file.Name, nil
}

func definitions(s *steps) []replay.Definition {
	return []replay.Definition{
		Pipeline.Bind(pipeline), Fetch.Bind(s.fetch), Convert.Bind(s.convert), Publish.Bind(s.publish),
	}
}
