package evidence

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenuto-dev/tenuto/internal/slots"
)

// An Exit is the end of a node's process.
type Exit struct {
	Node string
	Life int
	// The harness asked for it, by a signal.
	Wanted bool
	// It was asked to stop, did not, and had to be killed.
	Forced bool `json:",omitempty"`
	Status string
	At     time.Duration
}

// A Fault is one that was injected, or was to be.
type Fault struct {
	Name       string
	Nodes      []string
	Begin, End time.Duration // End: healed
	// Why it was not injected; "" if it was.
	Skipped string `json:",omitempty"`
	// What those who made it have seen and must not be, e.g. that a node that was wiped leads.
	Broken []string `json:",omitempty"`
	// The rate before it, in acknowledged calls a second.
	Rate float64
	// Calls that had begun and not ended at Begin.
	InFlight int
	// The group whose leader it was to hit, if any, and the leader of that before; and
	// the one after, "" where the fault did not aim at it.
	Group        int    `json:",omitempty"`
	LeaderBefore string `json:",omitempty"`
	LeaderAfter  string `json:",omitempty"`
	// The longest time in which no write in one of the groups was acknowledged on a
	// node that was not hit, from Begin until all had recovered.
	Gap time.Duration
	// From Begin until that began: by it a gap of the fault is told from one of the
	// healing.
	GapAfter time.Duration
	// From End until every node had a write in every group acknowledged.
	Recovery time.Duration
}

// A Reign is a time in which a node led a group, as its log tells.
type Reign struct {
	Node        string
	Group       int `json:",omitempty"`
	Epoch, Term uint64
}

// An Install is a snapshot of a group that a node was sent, as its log tells.
type Install struct {
	Node  string
	Group int `json:",omitempty"`
	Index uint64
}

// A Log collects the evidence of a run. Its methods may be called concurrently.
type Log struct {
	groups   int
	mu       sync.Mutex
	began    time.Time
	calls    []Call
	effects  []Effect
	exits    []Exit
	faults   []Fault
	replicas []Replica
	reigns   []Reign
	installs []Install
	quiets   []Quiet
}

// NewLog begins a run with so many Raft groups: its clock stands at 0.
func NewLog(groups int) *Log { return &Log{groups: groups, began: time.Now()} }

// Now returns the time since the run began. It does not follow steps of the
// system's clock.
func (l *Log) Now() time.Duration { return time.Since(l.began) }

// Call adds a call that has ended.
func (l *Log) Call(c Call) { add(l, &l.calls, c) }

// Effect adds what an activity said.
func (l *Log) Effect(e Effect) { add(l, &l.effects, e) }

// Exit adds the end of a process.
func (l *Log) Exit(e Exit) { add(l, &l.exits, e) }

// Fault adds a fault that is over.
func (l *Log) Fault(f Fault) { add(l, &l.faults, f) }

// Reign adds one that a node has begun.
func (l *Log) Reign(r Reign) { add(l, &l.reigns, r) }

// Install adds one that a node was sent.
func (l *Log) Install(i Install) { add(l, &l.installs, i) }

// Replica adds what a node told.
func (l *Log) Replica(r Replica) { add(l, &l.replicas, r) }

func add[T any](l *Log, to *[]T, item T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*to = append(*to, item)
}

// AckedSince counts the calls that were acknowledged at or after a time.
func (l *Log) AckedSince(from time.Duration) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, call := range slices.Backward(l.calls) {
		if call.End < from-time.Second { // ends are logged almost in order
			break
		}
		if call.End >= from && call.Outcome == Acked {
			n++
		}
	}
	return n
}

// A Record is the evidence of a run that is over.
type Record struct {
	// How many Raft groups there were; 0 in the evidence of builds that knew of one
	// only.
	Groups   int
	Calls    []Call
	Effects  []Effect
	Exits    []Exit
	Faults   []Fault
	Replicas []Replica
	Reigns   []Reign
	Installs []Install
	Quiets   []Quiet
}

// Record returns what there is so far.
func (l *Log) Record() *Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Record{
		Groups:   l.groups,
		Calls:    slices.Clone(l.calls),
		Effects:  slices.Clone(l.effects),
		Exits:    slices.Clone(l.exits),
		Faults:   slices.Clone(l.faults),
		Replicas: slices.Clone(l.replicas),
		Reigns:   slices.Clone(l.reigns),
		Installs: slices.Clone(l.installs),
		Quiets:   slices.Clone(l.quiets),
	}
}

// A setup is what a run was like from the beginning.
type setup struct{ Groups int }

// Files that the evidence of earlier builds lacks.
const (
	setupFile = "setup"
	quietFile = "quiets"
)

// Save writes the record into a directory, a file for each kind of evidence, an
// item a line.
func (r *Record) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, save := range []func() error{
		func() error { return saveLines(dir, setupFile, []setup{{Groups: r.Groups}}) },
		func() error { return saveLines(dir, "calls", r.Calls) },
		func() error { return saveLines(dir, "effects", r.Effects) },
		func() error { return saveLines(dir, "exits", r.Exits) },
		func() error { return saveLines(dir, "faults", r.Faults) },
		func() error { return saveLines(dir, "replicas", r.Replicas) },
		func() error { return saveLines(dir, "reigns", r.Reigns) },
		func() error { return saveLines(dir, "installs", r.Installs) },
		func() error { return saveLines(dir, quietFile, r.Quiets) },
	} {
		if err := save(); err != nil {
			return fmt.Errorf("save evidence: %w", err)
		}
	}
	return nil
}

// Load reads what Save has written.
func Load(dir string) (*Record, error) {
	r := new(Record)
	var setups []setup
	if err := loadLines(dir, setupFile, &setups); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load evidence: %w", err)
	}
	for _, s := range setups {
		r.Groups = s.Groups
	}
	if err := loadLines(dir, quietFile, &r.Quiets); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load evidence: %w", err)
	}
	for _, load := range []func() error{
		func() error { return loadLines(dir, "calls", &r.Calls) },
		func() error { return loadLines(dir, "effects", &r.Effects) },
		func() error { return loadLines(dir, "exits", &r.Exits) },
		func() error { return loadLines(dir, "faults", &r.Faults) },
		func() error { return loadLines(dir, "replicas", &r.Replicas) },
		func() error { return loadLines(dir, "reigns", &r.Reigns) },
		func() error { return loadLines(dir, "installs", &r.Installs) },
	} {
		if err := load(); err != nil {
			return nil, fmt.Errorf("load evidence: %w", err)
		}
	}
	return r, nil
}

func saveLines[T any](dir, name string, items []T) (err error) {
	file, err := os.Create(filepath.Join(dir, name+".jsonl"))
	if err != nil {
		return err
	}
	defer func() {
		if closing := file.Close(); err == nil {
			err = closing
		}
	}()
	out := bufio.NewWriter(file)
	encoder := json.NewEncoder(out)
	for _, item := range items {
		if err := encoder.Encode(item); err != nil {
			return err
		}
	}
	return out.Flush()
}

func loadLines[T any](dir, name string, items *[]T) error {
	file, err := os.Open(filepath.Join(dir, name+".jsonl"))
	if err != nil {
		return err
	}
	defer file.Close()
	for decoder := json.NewDecoder(bufio.NewReader(file)); decoder.More(); {
		var item T
		if err := decoder.Decode(&item); err != nil {
			return err
		}
		*items = append(*items, item)
	}
	return nil
}

// Latest returns the latest linearizable calls of a kind, at most n, each of
// another instance.
func (l *Log) Latest(kind Kind, n int) []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	var latest []Call
	seen := make(map[string]bool)
	for _, call := range slices.Backward(l.calls) {
		if len(latest) == n {
			break
		}
		if call.Kind == kind && !call.Stale && !seen[call.Instance] {
			seen[call.Instance] = true
			latest = append(latest, call)
		}
	}
	return latest
}

// Acked returns the latest acknowledged calls of a kind on instances of a group whose
// IDs begin so, at most n.
func (l *Log) Acked(kind Kind, prefix string, group, n int) []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	var latest []Call
	for _, call := range slices.Backward(l.calls) {
		if len(latest) == n {
			break
		}
		if call.Kind == kind && call.Outcome == Acked && strings.HasPrefix(call.Instance, prefix) && slots.Group(call.Instance, l.groups) == group {
			latest = append(latest, call)
		}
	}
	return latest
}

// InFlight counts the calls that had begun and not ended at a time, of those
// that have ended since.
func (l *Log) InFlight(at time.Duration) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, call := range l.calls {
		if call.Begin < at && call.End > at {
			n++
		}
	}
	return n
}

// Gap returns the longest time in which no event of one group was acknowledged, from
// the beginning of a fault until the nodes had recovered from it: on a node that was not
// hit, or on any if all were; 0 if none was at all. It also returns how long after the
// beginning of the fault that began.
func (l *Log) Gap(f Fault) (gap, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]bool)
	for _, call := range l.calls {
		if !call.Remote {
			all[call.Node] = true
		}
	}
	acked := make([][]time.Duration, l.groups)
	for _, call := range l.calls {
		if call.Kind != Send || call.Remote || call.Outcome != Acked || call.End < f.Begin || call.End > f.End+f.Recovery {
			continue
		}
		if len(f.Nodes) >= len(all) || !slices.Contains(f.Nodes, call.Node) {
			group := slots.Group(call.Instance, l.groups)
			acked[group] = append(acked[group], call.End)
		}
	}
	for _, ends := range acked {
		slices.Sort(ends)
		last := f.Begin
		for _, end := range ends {
			if end-last > gap {
				gap, after = end-last, last-f.Begin
			}
			last = end
		}
	}
	return gap, after
}

// Recovered tells how long after a time it was that each of so many nodes had
// acknowledged an event in each group that was sent since; false if that has not
// happened.
func (l *Log) Recovered(since time.Duration, nodes int) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	type place struct {
		node  string
		group int
	}
	first := make(map[place]time.Duration)
	for _, call := range l.calls {
		if call.Kind != Send || call.Remote || call.Outcome != Acked || call.Begin < since {
			continue
		}
		at := place{call.Node, slots.Group(call.Instance, l.groups)}
		if took := call.End - since; first[at] == 0 || took < first[at] {
			first[at] = took
		}
	}
	longest := time.Duration(0)
	for _, took := range first {
		longest = max(longest, took)
	}
	return longest, len(first) == nodes*l.groups
}
