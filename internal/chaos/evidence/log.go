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
	Node       string
	Generation int
	// The harness sent the signal that ended it.
	Expected bool
	// The process did not stop when asked and was killed.
	Killed bool `json:",omitempty"`
	Status string
	At     time.Duration
}

// A Fault is a fault that was injected or skipped.
type Fault struct {
	Name       string
	Nodes      []string
	Begin, End time.Duration // End: when it was healed
	// Why it was not injected; "" if it was.
	Skipped string `json:",omitempty"`
	// Violations that the fault itself observed, for example that a wiped node leads.
	Violations []string `json:",omitempty"`
	// What the leaders reported as members, after each step that changed them.
	Members []Members `json:",omitempty"`
	// Acknowledged calls a second before the fault.
	Rate float64
	// The number of calls in flight at Begin.
	InFlight int
	// The partition whose leader was the target, and its leaders before and after; "" if the fault
	// did not target a leader.
	Partition    int    `json:",omitempty"`
	LeaderBefore string `json:",omitempty"`
	LeaderAfter  string `json:",omitempty"`
	// The longest time, from Begin until all nodes had recovered, without an acknowledged write to
	// one partition on a node that was not hit.
	Gap time.Duration
	// From Begin to the start of the gap. It distinguishes a gap that the fault caused from one
	// that the healing caused.
	GapAfter time.Duration
	// From End until every node had a write to every partition acknowledged, or until the harness
	// stopped waiting for that.
	Recovery     time.Duration
	NotRecovered bool `json:",omitempty"`
}

// Members are the members of the cluster after a step of a fault, when the right ones voted or the
// harness had waited long enough.
type Members struct {
	Step   string
	At     time.Duration
	Wanted int // how many members must vote
	Voters []Member
	// Members that must vote, and members that must not. A member matches if it has all of the
	// fields that are not "".
	Required []Member `json:",omitempty"`
	Excluded []Member `json:",omitempty"`
}

// A Member is a member with its address and the identity of its directory.
type Member struct {
	Node              string
	Address, Identity string `json:",omitempty"`
}

// matches reports whether a member has the fields of another that are not "".
func (m Member) matches(other Member) bool {
	return m.Node == other.Node && (other.Address == "" || m.Address == other.Address) && (other.Identity == "" || m.Identity == other.Identity)
}

// AsWanted reports whether as many members vote as must, all that are required, and none that is
// excluded.
func (m Members) AsWanted() bool {
	votes := func(member Member) bool {
		return slices.ContainsFunc(m.Voters, func(v Member) bool { return v.matches(member) })
	}
	missing := slices.ContainsFunc(m.Required, func(member Member) bool { return !votes(member) })
	return len(m.Voters) == m.Wanted && !missing && !slices.ContainsFunc(m.Excluded, votes)
}

// A Leadership is a leadership of a partition, as the node's log reports it.
type Leadership struct {
	Node        string
	Partition   int `json:",omitempty"`
	Epoch, Term uint64
}

// An Install is a snapshot of a partition that a node received, as its log reports it.
type Install struct {
	Node      string
	Partition int `json:",omitempty"`
	Index     uint64
}

// A Log collects the evidence of a run. Its methods may be called concurrently.
type Log struct {
	partitions      int
	mu              sync.Mutex
	began           time.Time
	calls           []Call
	effects         []Effect
	exits           []Exit
	faults          []Fault
	replicas        []Replica
	histories       map[string][][]byte // by digest
	leaderships     []Leadership
	installs        []Install
	faultFreePhases []FaultFreePhase
	leaderChanges   int
}

// NewLog starts a run with the given number of partitions. Its clock starts at 0.
func NewLog(partitions int) *Log {
	return &Log{partitions: partitions, began: time.Now(), histories: make(map[string][][]byte)}
}

// Now returns the time since the run began. Steps of the system's clock do not affect it.
func (l *Log) Now() time.Duration { return time.Since(l.began) }

// Call adds a call that has ended.
func (l *Log) Call(c Call) { add(l, &l.calls, c) }

// Effect adds what an activity reported.
func (l *Log) Effect(e Effect) { add(l, &l.effects, e) }

// Exit adds the end of a process.
func (l *Log) Exit(e Exit) { add(l, &l.exits, e) }

// Fault adds a fault that is over.
func (l *Log) Fault(f Fault) { add(l, &l.faults, f) }

// Leadership adds a leadership.
func (l *Log) Leadership(r Leadership) { add(l, &l.leaderships, r) }

// LeaderChanges sets how often leaders changed until all instances had ended.
func (l *Log) LeaderChanges(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaderChanges = n
}

// Install adds a received snapshot.
func (l *Log) Install(i Install) { add(l, &l.installs, i) }

// Replica adds the report of a node. Replicas with the same histories share them in memory.
func (l *Log) Replica(r Replica) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range r.Instances {
		for j := range r.Instances[i].Executions {
			execution := &r.Instances[i].Executions[j]
			if known := l.histories[execution.Digest]; len(known) == len(execution.Events) && known != nil {
				execution.Events = known
			} else if len(execution.Events) > 0 {
				l.histories[execution.Digest] = execution.Events
			}
		}
	}
	l.replicas = append(l.replicas, r)
}

func add[T any](l *Log, to *[]T, item T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*to = append(*to, item)
}

// AckedSince counts the calls acknowledged at or after a time.
func (l *Log) AckedSince(from time.Duration) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, call := range slices.Backward(l.calls) {
		if call.End < from-time.Second { // calls are logged almost in the order of their ends
			break
		}
		if call.End >= from && call.Outcome == Acked {
			n++
		}
	}
	return n
}

// A Record is the evidence of a finished run.
type Record struct {
	// The number of partitions; 0 in evidence of builds that had only one.
	Partitions      int
	Calls           []Call
	Effects         []Effect
	Exits           []Exit
	Faults          []Fault
	Replicas        []Replica
	Leaderships     []Leadership
	Installs        []Install
	FaultFreePhases []FaultFreePhase
	// How often leaders changed from the start of the load until all instances had ended, because
	// of faults or because the machine was busy.
	LeaderChanges int
}

// Record returns the evidence so far.
func (l *Log) Record() *Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &Record{
		Partitions:      l.partitions,
		Calls:           slices.Clone(l.calls),
		Effects:         slices.Clone(l.effects),
		Exits:           slices.Clone(l.exits),
		Faults:          slices.Clone(l.faults),
		Replicas:        slices.Clone(l.replicas),
		Leaderships:     slices.Clone(l.leaderships),
		Installs:        slices.Clone(l.installs),
		FaultFreePhases: slices.Clone(l.faultFreePhases),
		LeaderChanges:   l.leaderChanges,
	}
}

// A setup is what the record has once for a run.
type setup struct {
	Partitions    int
	LeaderChanges int `json:",omitempty"`
}

// Files that the evidence of earlier builds lacks.
const (
	setupFile     = "setup"
	faultFreeFile = "faultfree"
)

// Save writes the record to a directory: one file for each kind of evidence, one item a line.
func (r *Record) Save(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, save := range []func() error{
		func() error { return saveLines(dir, setupFile, []setup{{r.Partitions, r.LeaderChanges}}) },
		func() error { return saveLines(dir, "calls", r.Calls) },
		func() error { return saveLines(dir, "effects", r.Effects) },
		func() error { return saveLines(dir, "exits", r.Exits) },
		func() error { return saveLines(dir, "faults", r.Faults) },
		func() error { return saveLines(dir, "replicas", r.Replicas) },
		func() error { return saveLines(dir, "leaderships", r.Leaderships) },
		func() error { return saveLines(dir, "installs", r.Installs) },
		func() error { return saveLines(dir, faultFreeFile, r.FaultFreePhases) },
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
		r.Partitions, r.LeaderChanges = s.Partitions, s.LeaderChanges
	}
	if err := loadLines(dir, faultFreeFile, &r.FaultFreePhases); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load evidence: %w", err)
	}
	for _, load := range []func() error{
		func() error { return loadLines(dir, "calls", &r.Calls) },
		func() error { return loadLines(dir, "effects", &r.Effects) },
		func() error { return loadLines(dir, "exits", &r.Exits) },
		func() error { return loadLines(dir, "faults", &r.Faults) },
		func() error { return loadLines(dir, "replicas", &r.Replicas) },
		func() error { return loadLines(dir, "leaderships", &r.Leaderships) },
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

// Latest returns the latest linearizable calls of a kind, at most n, each of another instance.
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

// Acked returns the latest acknowledged calls of a kind on instances of a partition whose IDs begin
// with prefix, at most n.
func (l *Log) Acked(kind Kind, prefix string, partition, n int) []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	var latest []Call
	for _, call := range slices.Backward(l.calls) {
		if len(latest) == n {
			break
		}
		if call.Kind == kind && call.Outcome == Acked && strings.HasPrefix(call.Instance, prefix) && slots.Partition(call.Instance, l.partitions) == partition {
			latest = append(latest, call)
		}
	}
	return latest
}

// InFlight counts the calls that were in flight at a time and have ended since.
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

// Gap returns the longest time without an acknowledged event in one partition, from the start of a
// fault until the nodes had recovered. It counts nodes that were not hit, or all nodes if all were
// hit, and returns 0 if no event was acknowledged. after is the time from the start of the fault to
// the start of the gap.
func (l *Log) Gap(f Fault) (gap, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]bool)
	for _, call := range l.calls {
		if !call.Remote {
			all[call.Node] = true
		}
	}
	acked := make([][]time.Duration, l.partitions)
	for _, call := range l.calls {
		if call.Kind != Send || call.Remote || call.Outcome != Acked || call.End < f.Begin || call.End > f.End+f.Recovery {
			continue
		}
		if len(f.Nodes) >= len(all) || !slices.Contains(f.Nodes, call.Node) {
			partition := slots.Partition(call.Instance, l.partitions)
			acked[partition] = append(acked[partition], call.End)
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

// Recovered returns how long after since every node had acknowledged, in each partition, an event
// sent after since, and a line for each node and partition that has not.
func (l *Log) Recovered(since time.Duration, nodes []string) (longest time.Duration, missing []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	type place struct {
		node      string
		partition int
	}
	first := make(map[place]time.Duration)
	for _, call := range l.calls {
		if call.Kind != Send || call.Remote || call.Outcome != Acked || call.Begin < since {
			continue
		}
		at := place{call.Node, slots.Partition(call.Instance, l.partitions)}
		if took := call.End - since; first[at] == 0 || took < first[at] {
			first[at] = took
		}
	}
	for _, node := range nodes {
		for partition := range l.partitions {
			took := first[place{node, partition}]
			if took == 0 {
				missing = append(missing, fmt.Sprintf("%s has acknowledged no write to partition %d", node, partition))
			}
			longest = max(longest, took)
		}
	}
	return longest, missing
}

// HasBegun reports whether an activity has begun in a process since a time.
func (l *Log) HasBegun(node string, since time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, effect := range slices.Backward(l.effects) {
		if effect.At < since {
			return false
		}
		if effect.Node == node && !effect.Finished {
			return true
		}
	}
	return false
}
