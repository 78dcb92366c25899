package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

// A Request is what to export, and how to poll.
type Request struct {
	What    string
	First   time.Duration // the first pause; each later one is 1.5 times as long
	Longest time.Duration // the longest pause
	Limit   time.Duration // after this the job is canceled
}

// A Job is the state of a job in the external system.
type Job struct {
	Percent int
	File    string // "" until the job is done
}

var (
	Export = replay.Orchestration[Request, string]("export")
	Begin  = replay.Activity[string, string]("begin")
	Ask    = replay.Activity[string, Job]("ask")
	Forget = replay.Activity[string, bool]("forget")
)

// export starts a job, polls until it is done, and returns its file.
func export(ctx *replay.Context, request Request) (string, error) {
	id, err := Begin.Call(ctx, request.What)
	if err != nil {
		return "", err
	}
	limitedCtx, cancel := replay.WithTimeout(ctx, request.Limit)
	defer cancel()
	file, err := poll(limitedCtx, id, request)
	if errors.Is(err, replay.ErrTimeout) {
		if _, forgetErr := Forget.Call(ctx, id); forgetErr != nil {
			err = errors.Join(err, forgetErr)
		}
	}
	return file, err
}

func poll(ctx *replay.Context, id string, request Request) (string, error) {
	interval := request.First
	for {
		job, err := Ask.Call(ctx, id)
		if err != nil || job.File != "" {
			return job.File, err
		}
		if err := replay.SetStatus(ctx, job); err != nil {
			return "", err
		}
		jitter := time.Duration(ctx.Random().Int64N(int64(interval)/10 + 1))
		if err := ctx.Sleep(interval + jitter); err != nil {
			return "", err
		}
		interval = min(interval+interval/2, request.Longest)
	}
}

// An exporter simulates the external system. Its jobs take several polls.
type exporter struct {
	out   io.Writer
	polls int

	mu   sync.Mutex
	jobs map[string]int // the number of polls of each
}

func newExporter(out io.Writer, polls int) *exporter {
	return &exporter{out: out, polls: polls, jobs: make(map[string]int)}
}

// begin starts a job. The same key means the same job.
func (e *exporter) begin(ctx context.Context, what string) (string, error) {
	key := replay.ActivityInfo(ctx).IdempotencyKey()
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.jobs[key]; !known {
		e.jobs[key] = 0
		fmt.Fprintln(e.out, "begin to export", what)
	}
	return key, nil
}

func (e *exporter) ask(_ context.Context, id string) (Job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.jobs[id]++
	percent := min(100, 100*e.jobs[id]/e.polls)
	fmt.Fprintf(e.out, "%3d%%\n", percent)
	if percent < 100 {
		return Job{Percent: percent}, nil
	}
	return Job{Percent: percent, File: "export.csv"}, nil
}

func (e *exporter) forget(_ context.Context, id string) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.jobs, id)
	return true, nil
}

func definitions(e *exporter) []replay.Definition {
	return []replay.Definition{Export.Bind(export), Begin.Bind(e.begin), Ask.Bind(e.ask), Forget.Bind(e.forget)}
}
