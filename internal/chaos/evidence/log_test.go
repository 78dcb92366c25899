package evidence

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/internal/slots"
)

// acked returns an event that a node acknowledged at a second.
func acked(node string, second float64) Call {
	at := time.Duration(second * float64(time.Second))
	return Call{Request: Request{Kind: Send}, Answer: Answer{Outcome: Acked}, Node: node, Begin: at - time.Millisecond, End: at}
}

func TestGap_LongestTimeWithoutAck(t *testing.T) {
	hit := Fault{Nodes: []string{"n1"}, Begin: 10 * time.Second, End: 14 * time.Second, Recovery: time.Second}
	all := hit
	all.Nodes = []string{"n1", "n2"}
	for _, c := range []struct {
		name  string
		fault Fault
		calls []Call
		want  time.Duration
		after time.Duration
	}{
		{"from the beginning", hit, []Call{acked("n2", 9), acked("n2", 12), acked("n2", 13)}, 2 * time.Second, 0},
		{"later", hit, []Call{acked("n2", 11), acked("n2", 14), acked("n2", 15)}, 3 * time.Second, time.Second},
		{"logged in another order", hit, []Call{acked("n2", 15), acked("n2", 14), acked("n2", 11)}, 3 * time.Second, time.Second},
		{"answers of the node that was hit do not count", hit, []Call{acked("n1", 11), acked("n2", 12)}, 2 * time.Second, 0},
		{"unless all were hit", all, []Call{acked("n1", 11), acked("n2", 12)}, time.Second, 0},
		{"nothing after the recovery counts", hit, []Call{acked("n2", 11), acked("n2", 20)}, time.Second, 0},
		{"no event was acknowledged", hit, []Call{acked("n2", 9)}, 0, 0},
	} {
		log := NewLog(1)
		log.Call(acked("n1", 1))
		log.Call(acked("n2", 1))
		for _, call := range c.calls {
			log.Call(call)
		}
		if got, after := log.Gap(c.fault); got != c.want || after != c.after {
			t.Errorf("%s: %v after %v; want %v after %v", c.name, got, after, c.want, c.after)
		}
	}
}

// idInPartition returns an instance ID of one of two partitions.
func idInPartition(partition int) string {
	for i := 0; ; i++ {
		if id := fmt.Sprint(i); slots.Partition(id, 2) == partition {
			return id
		}
	}
}

func TestGap_PerPartition(t *testing.T) {
	log := NewLog(2)
	record := func(node string, partition int, second float64) {
		call := acked(node, second)
		call.Instance = idInPartition(partition)
		log.Call(call)
	}
	hit := Fault{Nodes: []string{"n1"}, Begin: 10 * time.Second, End: 12 * time.Second, Recovery: 3 * time.Second}
	record("n1", 0, 1)
	for at := 10.0; at < 15; at++ {
		record("n2", 0, at)
	}
	record("n2", 1, 13.5)
	if got, after := log.Gap(hit); got != 3500*time.Millisecond || after != 0 {
		t.Errorf("gap %v after %v; want that of the partition that was written to last", got, after)
	}
	record("n1", 0, 14)
	nodes := []string{"n1", "n2"}
	if _, missing := log.Recovered(hit.End, nodes); !slices.Equal(missing, []string{"n1 has acknowledged no write to partition 1"}) {
		t.Errorf("missing %q", missing)
	}
	record("n1", 1, 15)
	if took, missing := log.Recovered(hit.End, nodes); len(missing) > 0 || took != 3*time.Second {
		t.Errorf("recovered within %v, missing %q", took, missing)
	}
}

func TestAcked_LatestFirst(t *testing.T) {
	log := NewLog(1)
	for i, id := range []string{"cycle-1", "probe-1", "cycle-2", "cycle-3"} {
		call := acked("n1", float64(i))
		call.Instance = id
		log.Call(call)
	}
	rejected := acked("n1", 9)
	rejected.Instance, rejected.Outcome = "cycle-4", Rejected
	log.Call(rejected)
	got := log.Acked(Send, "cycle-", 0, 2)
	if len(got) != 2 || got[0].Instance != "cycle-3" || got[1].Instance != "cycle-2" {
		t.Errorf("%+v", got)
	}
	if none := log.Acked(Start, "cycle-", 0, 2); len(none) > 0 {
		t.Errorf("%+v", none)
	}
}

func TestMembers_AsWanted(t *testing.T) {
	voters := []Member{{"n1", "a", "x"}, {"n2", "b", "y"}}
	for _, c := range []struct {
		name  string
		shown Members
		want  bool
	}{
		{"as many as wanted", Members{Wanted: 2}, true},
		{"too many", Members{Wanted: 1}, false},
		{"a required one", Members{Wanted: 2, Required: []Member{{Node: "n1", Address: "a"}}}, true},
		{"not at the required address", Members{Wanted: 2, Required: []Member{{Node: "n1", Address: "b"}}}, false},
		{"an excluded one", Members{Wanted: 2, Excluded: []Member{{Node: "n2"}}}, false},
		{"not with the excluded directory", Members{Wanted: 2, Excluded: []Member{{Node: "n2", Identity: "x"}}}, true},
	} {
		c.shown.Voters = voters
		if got := c.shown.AsWanted(); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestHasBegun_SinceTime(t *testing.T) {
	log := NewLog(1)
	log.Effect(Effect{Node: "w1", At: time.Second})
	log.Effect(Effect{Node: "w2", At: 2 * time.Second, Finished: true})
	for _, c := range []struct {
		node  string
		since time.Duration
		want  bool
	}{{"w1", time.Second, true}, {"w1", 2 * time.Second, false}, {"w2", 0, false}} {
		if got := log.HasBegun(c.node, c.since); got != c.want {
			t.Errorf("%s since %v: %v", c.node, c.since, got)
		}
	}
}

func TestReplica_SharesEqualHistories(t *testing.T) {
	log := NewLog(1)
	for _, digest := range []string{"a", "a", "b"} {
		log.Replica(Replica{Instances: []Instance{{Executions: []Execution{{Events: [][]byte{{1}}, Length: 1, Digest: digest}}}}})
	}
	events := func(i int) *[]byte { return &log.Record().Replicas[i].Instances[0].Executions[0].Events[0] }
	if events(0) != events(1) || events(0) == events(2) {
		t.Error("histories are shared unless their digests differ")
	}
}
