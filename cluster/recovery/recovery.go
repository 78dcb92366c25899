package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster/internal/backup"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
)

// sampleMax bounds Partition.Instances.
const sampleMax = 20

// A Report says what the directories of the survivors have, and what may be lost.
type Report struct {
	ClusterID  string
	Partitions []Partition // by number
	// Lineage identifies the recovered cluster, 32 hexadecimal digits; "" from Inspect.
	Lineage string
}

// A Partition is what the survivors have of a partition.
type Partition struct {
	// Survivors are in the order of the directories. Best is the index of the one that is used.
	Survivors []Survivor
	Best      int
	// Members are the nodes of the old cluster, according to the best survivor, by ID.
	Members []string
	// Index and Term are those of the last entry of the best survivor. The entry after it is the
	// first that may be lost.
	Index, Term uint64
	// Committed is the last entry that is known to be committed, and Time its cluster time. The
	// entries after it may have been acknowledged or not; Recover keeps them.
	Committed uint64
	Time      time.Time
	// Affected counts the instances that may lack something that was acknowledged: those that had
	// not ended, and those that the entries after Committed change. Others can only lack a purge,
	// or a start after it. Instances that were started later are unknown. Instances are the first
	// 20, by ID.
	Affected  int
	Instances []string
	// Unconfirmed counts the instances that the entries after Committed change, which are among
	// Affected. What these entries say of them may never have been acknowledged, but is kept.
	// UnconfirmedInstances are the first 20, by ID.
	Unconfirmed          int
	UnconfirmedInstances []string
	// Quarantined are the instances of which the best survivor has a replica that is known to
	// differ from those of a majority, or on which no majority agreed, by ID. Recover keeps the
	// replica. Of survivors that end at the same entry, the one with the fewest is the best.
	Quarantined []string
}

// A Survivor is a directory of a stopped node.
type Survivor struct {
	Dir, NodeID string
	Index, Term uint64 // of its last entry
}

// Inspect reads the directories of survivors. Of a single one, it says where it ends; of several,
// which is the best for each partition.
//
// Errors: a [*replay.InvalidError] if there is no directory, or if the directories are of different
// clusters, of different lineages of one, or of the same node; a *journal.LockedError if a node
// runs with one of them; *journal.IdentityError if one is not a node's; *journal.DamagedError;
// cluster.ErrRemoved if the node was removed; a system error.
func Inspect(ctx context.Context, dirs ...string) (*Report, error) {
	report, err := withSurvivors(ctx, slog.Default(), dirs, func([]*journal.Survivor, *Report) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	return report, nil
}

// A Target is the first node of the recovered cluster.
type Target struct {
	// Dir becomes the directory of the node. It must not exist, or be empty. Required.
	Dir string
	// NodeID is that of the node's Config, and not that of a node that was removed from the
	// cluster. Defaults to that of the survivor of the first partition.
	NodeID string
	// Address is where other nodes reach the node: Config.Advertise, or Config.Listen. "" for a
	// node without either.
	Address string
	// Logger gets what the state store reports. Defaults to slog.Default().
	Logger *slog.Logger
}

// Recover makes the directory of the first node of a new cluster from the directories of the
// survivors. Start that node, and then the others with empty directories and Config.Join. Recover
// needs room for a copy of the state; on one file system, the copy is made of hard links.
//
// Errors are those of [Inspect]; a [*replay.InvalidError] for an invalid Target, or if the survivor
// is the only member of its cluster, which needs no recovery; cluster.ErrRemoved for the ID of a
// removed node. After an error the new directory does not exist.
func Recover(ctx context.Context, to Target, dirs ...string) (*Report, error) {
	logger := cmp.Or(to.Logger, slog.Default())
	report, err := withSurvivors(ctx, logger, dirs, func(best []*journal.Survivor, report *Report) error {
		return to.write(ctx, best, report, logger)
	})
	if err != nil {
		return nil, fmt.Errorf("recover: %w", err)
	}
	return report, nil
}

// withSurvivors opens the directories and calls use with the best survivor of each partition.
func withSurvivors(ctx context.Context, logger *slog.Logger, dirs []string, use func([]*journal.Survivor, *Report) error) (report *Report, err error) {
	if len(dirs) == 0 {
		return nil, invalid("directories", "are missing")
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			return nil, err
		}
	}
	report = &Report{Partitions: make([]Partition, 1)}
	var best []*journal.Survivor
	for number := 0; number < len(report.Partitions); number++ {
		p := &report.Partitions[number]
		var survivors []*journal.Survivor
		for _, dir := range dirs {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			s, openErr := journal.OpenSurvivor(journal.PartitionDir(dir, number), number, logger)
			if openErr != nil {
				return nil, openErr
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			if number == 0 && len(survivors) == 0 {
				report.ClusterID, report.Partitions = s.Cluster, make([]Partition, s.Partitions)
				p = &report.Partitions[0]
			}
			if err := checkAmong(s, survivors, report); err != nil {
				return nil, err
			}
			survivors = append(survivors, s)
			p.Survivors = append(p.Survivors, Survivor{dir, s.Node, s.Index, s.Term})
		}
		if err := p.choose(survivors); err != nil {
			return nil, fmt.Errorf("partition %d: %w", number, err)
		}
		best = append(best, survivors[p.Best])
	}
	return report, use(best, report)
}

// checkAmong returns an error if a directory does not belong with the others.
func checkAmong(s *journal.Survivor, others []*journal.Survivor, report *Report) error {
	if s.Cluster != report.ClusterID || s.Partitions != len(report.Partitions) {
		return invalid("directories", fmt.Sprintf("are of different clusters: %s with %d partitions, and %s with %d",
			report.ClusterID, len(report.Partitions), s.Cluster, s.Partitions))
	}
	if slices.ContainsFunc(others, func(o *journal.Survivor) bool { return o.Node == s.Node }) {
		return invalid("directories", fmt.Sprintf("include two of node %s", s.Node))
	}
	if len(others) > 0 && s.Lineage != others[0].Lineage {
		return invalid("directories", fmt.Sprintf("of nodes %s and %s are of different lineages, %q and %q: the cluster was restored or recovered between them",
			others[0].Node, s.Node, others[0].Lineage, s.Lineage))
	}
	return nil
}

// choose finds the best survivor and describes it.
func (p *Partition) choose(survivors []*journal.Survivor) error {
	order := func(a, b *journal.Survivor) int {
		return cmp.Or(cmp.Compare(a.Term, b.Term), cmp.Compare(a.Index, b.Index))
	}
	last := slices.MaxFunc(survivors, order)
	p.Best = -1
	for i, s := range survivors {
		if order(s, last) < 0 {
			continue
		}
		quarantined, err := s.Quarantined()
		if err != nil {
			return err
		}
		if p.Best < 0 || len(quarantined) < len(p.Quarantined) {
			p.Best, p.Quarantined = i, quarantined
		}
	}
	s := survivors[p.Best]
	p.Index, p.Term, p.Committed, p.Time = s.Index, s.Term, s.Applied, s.Clock
	for _, m := range s.Members {
		p.Members = append(p.Members, m.Node)
	}
	slices.Sort(p.Members)
	affected, unconfirmed := make(map[string]bool), make(map[string]bool)
	for id := range s.Open() {
		affected[id] = true
	}
	for id, err := range s.Tail() {
		if err != nil {
			return err
		}
		affected[id], unconfirmed[id] = true, true
	}
	p.Affected, p.Instances = len(affected), sample(affected)
	p.Unconfirmed, p.UnconfirmedInstances = len(unconfirmed), sample(unconfirmed)
	return nil
}

// sample returns the first IDs of a set, in order.
func sample(all map[string]bool) []string {
	ids := slices.Sorted(maps.Keys(all))
	return slices.Clip(ids[:min(len(ids), sampleMax)])
}

// recoveringSuffix ends the name of a directory that is being written.
const recoveringSuffix = ".recovering"

// write writes the new directory beside its place, and then publishes it.
func (t *Target) write(ctx context.Context, best []*journal.Survivor, report *Report, logger *slog.Logger) (err error) {
	target := &backup.Target{Dir: t.Dir, NodeID: t.NodeID, Address: t.Address}
	if err := target.Check(); err != nil {
		return err
	}
	if only := report.Partitions[0].Members; len(only) == 1 && only[0] == best[0].Node {
		return invalid("directories", fmt.Sprintf("are of node %s, the only member of its cluster: start it", only[0]))
	}
	stage, err := target.OpenStage(recoveringSuffix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stage.Close()) }()
	lineage := &journalpb.Lineage{Id: backup.NewID(), Time: time.Now().UnixNano()}
	identity, node := "", stage.Path("node")
	for number, s := range best {
		if err := ctx.Err(); err != nil {
			return err
		}
		identity, err = s.Recover(journal.Config{
			Node: cmp.Or(t.NodeID, best[0].Node), Address: t.Address, Cluster: s.Cluster, Identity: identity,
			Dir: journal.PartitionDir(node, number), Logger: logger,
		}, lineage)
		if err != nil {
			return err
		}
	}
	report.Lineage = lineage.Id
	return stage.Publish("node")
}

func invalid(field, reason string) error { return &replay.InvalidError{Field: field, Reason: reason} }

// String returns the report as text of several lines.
func (r *Report) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "cluster %s\n", r.ClusterID)
	for number, p := range r.Partitions {
		fmt.Fprintf(&text, "partition %d, members %s\n", number, strings.Join(p.Members, ", "))
		for i, s := range p.Survivors {
			mark := ""
			if i == p.Best && len(p.Survivors) > 1 {
				mark = ", the best"
			}
			fmt.Fprintf(&text, "  %s of node %s ends at entry %d of term %d%s\n", s.Dir, s.NodeID, s.Index, s.Term, mark)
		}
		fmt.Fprintf(&text, "  committed for certain: up to entry %d, of %s; kept: up to entry %d; may be lost: from entry %d on\n",
			p.Committed, p.Time.Local().Format(time.DateTime), p.Index, p.Index+1)
		fmt.Fprintf(&text, "  instances that may lack something: %d, and those that were started later\n", p.Affected)
		writeInstances(&text, p.Instances, p.Affected)
		if p.Unconfirmed > 0 {
			fmt.Fprintf(&text, "  of these, instances that the entries from %d to %d change, which may never have been acknowledged: %d\n",
				p.Committed+1, p.Index, p.Unconfirmed)
			writeInstances(&text, p.UnconfirmedInstances, p.Unconfirmed)
		}
		if n := len(p.Quarantined); n > 0 {
			fmt.Fprintf(&text, "  instances whose replica is kept although it differs from those of a majority, or no majority agreed: %d\n", n)
			writeInstances(&text, p.Quarantined[:min(n, sampleMax)], n)
		}
	}
	return text.String()
}

func writeInstances(text *strings.Builder, ids []string, count int) {
	for _, id := range ids {
		fmt.Fprintf(text, "    %s\n", id)
	}
	if more := count - len(ids); more > 0 {
		fmt.Fprintf(text, "    and %d more\n", more)
	}
}
