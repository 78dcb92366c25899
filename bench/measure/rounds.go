package measure

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"
)

// A Subject is something to be measured.
type Subject struct {
	Name        string
	Description string
	// The subjects with whose figures those of this one are compared: they run
	// right before it.
	Yardsticks []*Subject
	// Run measures once. dir is new, empty and removed afterwards. progress is
	// to be called now and then with what is being done.
	Run func(ctx context.Context, dir string, progress func(string)) (*Result, error)
}

// A Measured is a subject with the results of all its repetitions.
type Measured struct {
	Name        string    `json:"name"`
	Description string    `json:"description"`
	Results     []*Result `json:"results"`
	// With each result: what its yardsticks have come to right before, under
	// the names of their figures. None for a yardstick.
	Yardsticks []map[string]float64 `json:"yardsticks,omitempty"`
}

// A Plan says how subjects are to be measured.
type Plan struct {
	Subjects []*Subject
	// How many times each is run; at least 1.
	Repeat int
	// Directories for data are made here, and removed. Defaults to
	// os.TempDir().
	Dir string
	// Is told what is being done. Defaults to nothing.
	Progress func(string)
}

// Rounds measures every subject once, and begins again, so that what changes
// with time (a disk that others use, a processor that is throttled) befalls all
// alike. What was measured is returned also with an error: that of the first
// run that failed, or ctx's. The yardsticks come first.
func (p Plan) Rounds(ctx context.Context) ([]*Measured, error) {
	if p.Progress == nil {
		p.Progress = func(string) {}
	}
	r := &rounds{plan: p, known: make(map[*Subject]*Measured)}
	for _, subject := range p.Subjects {
		for _, yardstick := range subject.Yardsticks {
			r.measured(yardstick)
		}
	}
	for _, subject := range p.Subjects {
		r.measured(subject)
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

type rounds struct {
	plan  Plan
	round int
	known map[*Subject]*Measured
	all   []*Measured
}

func (r *rounds) measured(subject *Subject) *Measured {
	if r.known[subject] == nil {
		r.known[subject] = &Measured{Name: subject.Name, Description: subject.Description}
		r.all = append(r.all, r.known[subject])
	}
	return r.known[subject]
}

// measure runs the yardsticks of a subject and then the subject.
func (r *rounds) measure(ctx context.Context, subject *Subject) error {
	var seen map[string]float64
	for _, yardstick := range subject.Yardsticks {
		result, err := r.run(ctx, yardstick)
		if err != nil {
			return err
		}
		if seen == nil {
			seen = make(map[string]float64)
		}
		for _, figure := range result.Figures {
			seen[figure.Name] = figure.Value
		}
	}
	if _, err := r.run(ctx, subject); err != nil {
		return err
	}
	m := r.measured(subject)
	m.Yardsticks = append(m.Yardsticks, seen)
	return nil
}

func (r *rounds) run(ctx context.Context, subject *Subject) (*Result, error) {
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
	m := r.measured(subject)
	m.Results = append(m.Results, result)
	return result, nil
}
