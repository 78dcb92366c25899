package measure

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"
)

// A Subject is something to measure.
type Subject struct {
	Name        string
	Description string
	// The subjects with which this one is compared. They run directly before it.
	Baselines []*Subject
	// Measures once. dir is new, empty and removed afterwards. Run calls progress from time to time
	// with a description of what it is doing.
	Run func(ctx context.Context, dir string, progress func(string)) (*Result, error)
}

// SubjectResults are the results of all repetitions of a subject.
type SubjectResults struct {
	Name        string    `json:"name"`
	Description string    `json:"description"`
	Results     []*Result `json:"results"`
	// For each result, the metrics of its baselines by name. Empty for a baseline.
	Baselines []map[string]float64 `json:"yardsticks,omitempty"`
}

// A Plan says how to measure subjects.
type Plan struct {
	Subjects []*Subject
	// The number of repetitions, at least 1.
	Repeat int
	// Contains temporary data directories. Defaults to os.TempDir().
	Dir string
	// Called with a description of what a run is doing. May be nil.
	Progress func(string)
}

// Run measures every subject once in each repetition, so that temporary disturbances affect all
// subjects alike. On error it also returns the results so far; the error is that of the first
// failed run, or of ctx. Baselines come first in the results.
func (p Plan) Run(ctx context.Context) ([]*SubjectResults, error) {
	if p.Progress == nil {
		p.Progress = func(string) {}
	}
	r := &roundRunner{plan: p, results: make(map[*Subject]*SubjectResults)}
	for _, subject := range p.Subjects {
		for _, baseline := range subject.Baselines {
			r.resultsOf(baseline)
		}
	}
	for _, subject := range p.Subjects {
		r.resultsOf(subject)
	}
	for r.round = 1; r.round <= p.Repeat; r.round++ {
		for _, subject := range p.Subjects {
			if err := r.measure(ctx, subject); err != nil {
				return r.all, err
			}
		}
	}
	return r.all, nil
}

type roundRunner struct {
	plan    Plan
	round   int
	results map[*Subject]*SubjectResults
	all     []*SubjectResults
}

func (r *roundRunner) resultsOf(subject *Subject) *SubjectResults {
	if r.results[subject] == nil {
		r.results[subject] = &SubjectResults{Name: subject.Name, Description: subject.Description}
		r.all = append(r.all, r.results[subject])
	}
	return r.results[subject]
}

// measure runs the baselines of a subject and then the subject.
func (r *roundRunner) measure(ctx context.Context, subject *Subject) error {
	var seen map[string]float64
	for _, baseline := range subject.Baselines {
		result, err := r.run(ctx, baseline)
		if err != nil {
			return err
		}
		if seen == nil {
			seen = make(map[string]float64)
		}
		for _, metric := range result.Metrics {
			seen[metric.Name] = metric.Value
		}
	}
	if _, err := r.run(ctx, subject); err != nil {
		return err
	}
	m := r.resultsOf(subject)
	m.Baselines = append(m.Baselines, seen)
	return nil
}

func (r *roundRunner) run(ctx context.Context, subject *Subject) (*Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(r.plan.Dir, "tenuto-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	prefix := fmt.Sprintf("round %d of %d: %s", r.round, r.plan.Repeat, subject.Name)
	r.plan.Progress(prefix)
	runtime.GC()
	began := time.Now()
	result, err := subject.Run(ctx, dir, func(what string) { r.plan.Progress(prefix + ": " + what) })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", subject.Name, err)
	}
	result.Took = time.Since(began)
	m := r.resultsOf(subject)
	m.Results = append(m.Results, result)
	return result, nil
}
