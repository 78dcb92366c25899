package check

import (
	"slices"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/internal/chaos/host"
)

// recoveryInvariants hold for each instance of a recovered cluster. Its partitions may be of
// different moments, and it works while it reports its state, so an effect may be there without its
// cause.
var recoveryInvariants = []func(c *checker){
	(*checker).checkGapless,
	(*checker).checkAcknowledged,
	(*checker).checkRecordedOnce,
	(*checker).checkOneCompletion,
	(*checker).checkTimers,
	(*checker).checkReplay,
}

// checkRecoveries checks the recovered clusters.
func (c *checker) checkRecoveries() {
	for i := range c.record.Replicas {
		r := &c.record.Replicas[i]
		if r.Recovery == nil {
			continue
		}
		at, err := c.atBackup(r)
		if err != nil {
			c.addViolation("%s: %v", r.Node, err)
			continue
		}
		certain := at.checkKept(r.Recovery)
		// What was acknowledged until the majority was lost can be missing only where the recovery
		// says so.
		for _, call := range c.record.Calls {
			if call.Kind != evidence.Purge && call.End > r.Begin && call.End <= r.Recovery.Lost && certain[call.Instance] {
				at.record.Calls = append(at.record.Calls, call)
			}
		}
		at.record.Calls = append(at.record.Calls, r.Recovery.Calls...)
		at.checkWorked(r.Recovery)
		for _, check := range recoveryInvariants {
			check(at)
		}
		for _, violation := range at.violations {
			c.addViolation("%s, of the majority lost at %v: %s", r.Node, r.Recovery.Lost, violation.Detail)
		}
	}
}

// checkKept checks that a recovered cluster has what the survivor had, and that the recovery
// counted all instances that may lack something. It returns those that may not: they had ended and
// are unchanged.
func (c *checker) checkKept(r *evidence.Recovery) map[string]bool {
	certain, uncertain := make(map[string]bool), 0
	ends := []string{string(cluster.Completed), string(cluster.Failed), string(cluster.Canceled), string(cluster.Terminated)}
	events := c.encodedEvents()
	for _, had := range r.Survivor {
		of := c.instances[had.ID]
		if of.mayBePurged() {
			continue
		}
		unchanged := slices.Contains(ends, had.State)
		for _, execution := range had.Executions {
			has := events[had.ID][execution.Number]
			if len(has) < execution.Length || host.Digest(has[:execution.Length]...) != execution.Digest {
				c.addViolation("%s/%d: the survivor had %d events, which the recovered cluster does not begin with", had.ID, execution.Number, execution.Length)
				continue
			}
			unchanged = unchanged && len(has) == execution.Length
		}
		if certain[had.ID] = unchanged; !unchanged {
			uncertain++
		}
	}
	if r.Affected < uncertain {
		c.addViolation("%d instances may lack something, but the recovery reports %d", uncertain, r.Affected)
	}
	return certain
}

// encodedEvents returns the final histories as they were reported, by instance and execution.
func (c *checker) encodedEvents() map[string]map[uint64][][]byte {
	all := make(map[string]map[uint64][][]byte)
	for _, of := range c.final.Instances {
		all[of.ID] = make(map[uint64][][]byte)
		for _, execution := range of.Executions {
			all[of.ID][execution.Number] = execution.Events
		}
	}
	return all
}

// checkWorked checks that an instance has completed through each node of a recovered cluster.
func (c *checker) checkWorked(r *evidence.Recovery) {
	worked := make(map[string]bool)
	for _, call := range r.Calls {
		if call.Kind == evidence.Wait && call.Outcome == evidence.Acked && call.State == string(cluster.Completed) {
			worked[call.Node] = true
		}
	}
	if len(worked) < r.Nodes {
		c.addViolation("instances completed through %d of %d nodes", len(worked), r.Nodes)
	}
}
