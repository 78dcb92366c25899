package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

// clusterHealth is the health of a cluster as -o json shows it.
type clusterHealth struct {
	OK     bool   `json:"ok"`
	Leader string `json:"leader,omitempty"` // of the first partition
	Voters int    `json:"voters"`
	Alive  int    `json:"alive"` // voters that answer
	// Tolerates is how many more voters may fail before the cluster stops.
	Tolerates int      `json:"tolerates"`
	Problems  []string `json:"problems,omitempty"`
	// Lineage is the latest one, of a cluster that was restored or recovered.
	Lineage *shownLineage `json:"lineage,omitempty"`
	// Upgrade is set while the cluster waits before it uses a protocol that all members speak.
	Upgrade *upgrade `json:"upgrade,omitempty"`
}

// A shownLineage is a lineage of the cluster as -o json shows it.
type shownLineage struct {
	ID     string    `json:"id"`
	How    string    `json:"how"`    // restored or recovered
	Source string    `json:"source"` // the backup, or the node whose directory was used
	Since  time.Time `json:"since"`
}

// latestLineage returns the latest lineage of a cluster, nil if there is none.
func latestLineage(ctx context.Context, client *cluster.Client) (*shownLineage, error) {
	all, err := operate.Lineages(ctx, client)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	latest := all[len(all)-1]
	return &shownLineage{latest.ID, latest.How, latest.Source, latest.Since}, nil
}

func (l *shownLineage) String() string {
	return fmt.Sprintf("%s, %s from %s at %s", l.ID, l.How, l.Source, l.Since.Format(time.DateTime))
}

// upgrade is an upgrade as -o json shows it.
type upgrade struct {
	Protocol       uint32    `json:"protocol"`       // that the cluster uses
	NextProtocol   uint32    `json:"nextProtocol"`   // that it uses from NextProtocolAt on
	NextProtocolAt time.Time `json:"nextProtocolAt"` // cluster time
}

// behindMax is how many journal entries a healthy member may lack.
const behindMax = 10_000

func health(flags *flag.FlagSet) action {
	url := flags.String("url", "", "`URL` of the health handler of one node, such as http://10.0.0.1:8080/readyz, instead of the cluster")
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	ofCluster := withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, _ []string) error {
		members, err := client.Members(ctx)
		if err != nil {
			return err
		}
		h := healthOf(members)
		if h.Lineage, err = latestLineage(ctx, client); err != nil {
			return err
		}
		protocols := upgradeOf(ctx, client)
		if protocols != nil {
			h.Upgrade = &upgrade{protocols.Used, protocols.Next, protocols.NextAt}
		}
		if !d.isTable() {
			err = s.documents(d.format).Write(h)
		} else {
			err = h.print(s.out)
			if err == nil && protocols != nil {
				_, err = fmt.Fprintln(s.out, describeUpgrade(protocols, d.times()))
			}
		}
		switch {
		case err != nil:
			return err
		case h.Leader == "":
			return errNoLeader
		case !h.OK:
			return &reportedError{statusRejected}
		}
		return nil
	})
	return func(ctx context.Context, s streams, args []string) error {
		if *url == "" {
			return ofCluster(ctx, s, args)
		}
		return nodeHealth(ctx, s, d, *url)
	}
}

func healthOf(members []cluster.Member) *clusterHealth {
	h := new(clusterHealth)
	problem := func(format string, args ...any) { h.Problems = append(h.Problems, fmt.Sprintf(format, args...)) }
	for _, m := range members {
		if m.Leader {
			h.Leader = m.NodeID
		}
		switch {
		case m.Voter:
			h.Voters++
		case m.Role != operate.RoleStandby:
			problem("%s has no vote yet", m.NodeID)
		}
		switch {
		case m.Liveness != cluster.MemberAlive:
			problem("%s is %s", m.NodeID, m.Liveness)
		case !m.BehindKnown: // a new leader takes it for alive for about a second
			problem("%s has not answered the leader yet", m.NodeID)
		case m.Behind > behindMax:
			problem("%s is %d entries behind", m.NodeID, m.Behind)
		}
		if m.Quarantined > 0 {
			problem("%s has %d replicas of instances that differ from the majority; they are quarantined and repaired", m.NodeID, m.Quarantined)
		}
		if m.Stopped > 0 {
			problem("%d instances are stopped, because no majority of their replicas agrees: tenuto list -state stalled, tenuto accept", m.Stopped)
		}
		if m.Voter && m.Liveness == cluster.MemberAlive && m.BehindKnown {
			h.Alive++
		}
	}
	if h.Leader == "" {
		problem("no node leads")
	}
	h.Tolerates = max(0, h.Alive-(h.Voters/2+1))
	h.OK = len(h.Problems) == 0
	return h
}

func (h *clusterHealth) print(w io.Writer) error {
	table := output.NewRows(w)
	verdict := "ok"
	if !h.OK {
		verdict = "not ok"
	}
	table.Add("health", verdict)
	table.Add("leader", output.Cell(h.Leader))
	table.Add("voters", fmt.Sprintf("%d, alive: %d", h.Voters, h.Alive))
	table.Add("tolerates", fmt.Sprintf("%d more failures", h.Tolerates))
	if h.Lineage != nil {
		table.Add("lineage", output.Line(h.Lineage.String()))
	}
	for _, p := range h.Problems {
		table.Add("problem", output.Line(p))
	}
	return table.Flush()
}

// nodeHealth shows what the health handler of a node answers.
func nodeHealth(ctx context.Context, s streams, d *display, url string) error {
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return &usageError{err.Error()}
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	var answer json.RawMessage
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%s answers %s, which is not the health of a node", url, response.Status)
	}
	format := d.format
	if d.isTable() {
		format = output.YAML
	}
	if err := s.documents(format).Write(answer); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, cmp.Or(response.Status, "nothing"))
	}
	return nil
}
