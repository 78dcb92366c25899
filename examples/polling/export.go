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

// A Request is what is to be exported, and how patiently.
type Request struct {
	What    string
	First   time.Duration // the first pause; each is half as long again as the one before
	Longest time.Duration // the longest pause
	Limit   time.Duration // then the job is called off
}

// A Job is what the other system says of it.
type Job struct {
	Percent int
	File    string // "" while it is not done
}

var (
	Export = replay.Orchestration[Request, string]("export")
	Begin  = replay.Activity[string, string]("begin")
	Ask    = replay.Activity[string, Job]("ask")
	Forget = replay.Activity[string, bool]("forget")
)

// export begins a job, polls for its end and returns its file.
func export(ctx *replay.Context, request Request) (string, error) {
	id, err := Begin.Call(ctx, request.What)
	if err != nil {
		return "", err
	}
	limited, cancel := replay.WithTimeout(ctx, request.Limit)
	defer cancel()
	file, err := poll(limited, id, request)
	if errors.Is(err, replay.ErrTimeout) {
		if _, forgetErr := Forget.Call(ctx, id); forgetErr != nil {
			err = errors.Join(err, forgetErr)
		}
	}
	return file, err
}

func poll(ctx *replay.Context, id string, request Request) (string, error) {
	pause := request.First
	for {
		job, err := Ask.Call(ctx, id)
		if err != nil || job.File != "" {
			return job.File, err
		}
		if err := replay.SetStatus(ctx, job); err != nil {
			return "", err
		}
		spread := time.Duration(ctx.Random().Int64N(int64(pause)/10 + 1))
		if err := ctx.Sleep(pause + spread); err != nil {
			return "", err
		}
		pause = min(pause+pause/2, request.Longest)
	}
}

// An exporter stands for the other system. Its jobs take some polls.
type exporter struct {
	out   io.Writer
	polls int

	mu   sync.Mutex
	jobs map[string]int // how often each was asked for
}

func newExporter(out io.Writer, polls int) *exporter {
	return &exporter{out: out, polls: polls, jobs: make(map[string]int)}
}

// begin takes a key, and the same key is the same job.
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
