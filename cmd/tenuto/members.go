package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/operate"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

// A member is a node as -o json shows it.
type member struct {
	Node            string  `json:"node"`
	Address         string  `json:"address"`
	Leader          bool    `json:"leader"`
	Voter           bool    `json:"voter"`
	Role            string  `json:"role,omitempty"`       // what the cluster has decided: voter or standby
	PinnedRole      string  `json:"pinnedRole,omitempty"` // what an operator has set
	Zone            string  `json:"zone,omitempty"`
	Behind          *uint64 `json:"behind,omitempty"` // how many journal entries it lacks, if known
	LeadsPartitions []int   `json:"leads,omitempty"`  // with several partitions
	// Liveness says whether the node answers the leader. LastContact is the number of seconds since
	// its last answer.
	Liveness    cluster.Liveness `json:"liveness"`
	LastContact *float64         `json:"lastContactSeconds,omitempty"`
	// Identity is that of its directory, as the cluster has recorded it.
	Identity string `json:"identity,omitempty"`
}

// detailsTimeout bounds what members asks the leaders after it has shown the members: they may have
// been lost since.
const detailsTimeout = 5 * time.Second

func members(flags *flag.FlagSet) action {
	d := displayFlags(flags, output.Table, output.Wide, output.JSON, output.YAML, output.IDs)
	onlyWorkers := flags.Bool("workers", false, "list only the workers that are no nodes; otherwise tables show them below the nodes")
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, _ []string) error {
		if *onlyWorkers {
			workers, err := operate.Workers(ctx, client)
			if err != nil {
				return err
			}
			return printWorkers(s, d.format, workers)
		}
		members, err := client.Members(ctx)
		if err != nil {
			return err
		}
		printer := output.NewPrinter(s.out, d.format, memberColumns, func(m *member) string { return m.Node })
		for _, m := range members {
			if err := printer.Write(newMember(m)); err != nil {
				return err
			}
		}
		if err := printer.Flush(); err != nil {
			return err
		}
		if !slices.ContainsFunc(members, func(m cluster.Member) bool { return m.Leader }) {
			return errNoLeader
		}
		if d.format != output.Table && d.format != output.Wide {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, detailsTimeout)
		defer cancel()
		lineage, err := latestLineage(ctx, client)
		if err == nil && lineage != nil {
			_, err = fmt.Fprintf(s.out, "\nlineage %s\n", output.Line(lineage.String()))
		}
		if err != nil {
			return err
		}
		if protocols := upgradeOf(ctx, client); protocols != nil {
			printMessage(s, describeUpgrade(protocols, d.times()))
		}
		workers, err := operate.Workers(ctx, client)
		if err != nil || len(workers) == 0 {
			if errors.Is(err, cluster.ErrProtocol) { // an earlier build, which has no such workers
				err = nil
			}
			return err
		}
		if _, err := fmt.Fprintln(s.out); err != nil {
			return err
		}
		return printWorkers(s, d.format, workers)
	})
}

// A shownWorker is a worker that is no node as -o json shows it.
type shownWorker struct {
	Worker     string    `json:"worker"`
	Client     string    `json:"client"` // who connects
	Address    string    `json:"address"`
	Slots      int       `json:"slots"`
	Used       int       `json:"used"` // slots
	Draining   bool      `json:"draining,omitempty"`
	Tags       []string  `json:"tags,omitempty"`
	Activities []string  `json:"activities"`
	Since      time.Time `json:"since"`
	// LastContact is when it last sent a message.
	LastContact time.Time `json:"lastContact"`
}

// workerColumns are the columns of the table of workers.
var workerColumns = []output.Column[*shownWorker]{
	{Name: "WORKER", Cell: func(w *shownWorker) string { return output.Cell(w.Worker) }},
	{Name: "CLIENT", Cell: func(w *shownWorker) string { return output.Cell(w.Client) }},
	{Name: "ADDRESS", Cell: func(w *shownWorker) string { return output.Cell(w.Address) }},
	{Name: "SLOTS", Cell: func(w *shownWorker) string {
		return fmt.Sprintf("%d/%d%s", w.Used, w.Slots, map[bool]string{true: ",draining"}[w.Draining])
	}},
	{Name: "TAGS", Cell: func(w *shownWorker) string { return output.Cell(strings.Join(w.Tags, ",")) }},
	{Name: "SINCE", Cell: func(w *shownWorker) string { return w.Since.Format(time.DateTime) }},
	{Name: "CONTACT", Cell: func(w *shownWorker) string { return w.LastContact.Format(time.TimeOnly) }},
	{Name: "ACTIVITIES", Wide: true, Cell: func(w *shownWorker) string { return output.Cell(strings.Join(w.Activities, ",")) }},
}

func printWorkers(s streams, format output.Format, workers []operate.Worker) error {
	printer := output.NewPrinter(s.out, format, workerColumns, func(w *shownWorker) string { return w.Worker })
	for _, w := range workers {
		shown := shownWorker{w.ID, w.Client, w.Address, w.Slots, w.Used, w.Draining, w.Tags, w.Activities, w.Since, w.LastContact}
		if err := printer.Write(&shown); err != nil {
			return err
		}
	}
	return printer.Flush()
}

// errNoLeader says why the list of members may be incomplete.
var errNoLeader = errors.New("no node leads: this is only what the answering node knows; check that a majority of the voters runs")

// memberColumns are the columns of the table of members.
var memberColumns = []output.Column[*member]{
	{Name: "NODE", Cell: func(m *member) string { return output.Cell(m.Node) }},
	{Name: "ADDRESS", Cell: func(m *member) string { return output.Cell(m.Address) }},
	{Name: "ROLE", Cell: roleOf},
	{Name: "LEADS", Cell: func(m *member) string {
		return output.Cell(strings.ReplaceAll(strings.Trim(fmt.Sprint(m.LeadsPartitions), "[]"), " ", ","))
	}},
	{Name: "LIVENESS", Cell: func(m *member) string { return string(m.Liveness) }},
	{Name: "CONTACT", Cell: func(m *member) string {
		if m.LastContact == nil {
			return "-"
		}
		return time.Duration(*m.LastContact * float64(time.Second)).Round(time.Millisecond).String()
	}},
	{Name: "BEHIND", Cell: func(m *member) string {
		if m.Behind == nil {
			return "-"
		}
		return fmt.Sprint(*m.Behind)
	}},
	{Name: "ZONE", Cell: func(m *member) string { return cmp.Or(output.Cell(m.Zone), "-") }},
	{Name: "PINNED", Cell: func(m *member) string { return cmp.Or(m.PinnedRole, "-") }},
	{Name: "IDENTITY", Wide: true, Cell: func(m *member) string { return output.Cell(m.Identity) }},
}

func newMember(m cluster.Member) *member {
	shown := &member{Node: m.NodeID, Address: m.Address, Leader: m.Leader, Voter: m.Voter, LeadsPartitions: m.LeadsPartitions, Liveness: m.Liveness, Identity: m.Identity,
		Role: m.Role, PinnedRole: m.PinnedRole, Zone: m.Zone}
	if m.BehindKnown {
		shown.Behind = &m.Behind
	}
	if m.Liveness != cluster.MemberUnknown {
		seconds := m.LastContact.Seconds()
		shown.LastContact = &seconds
	}
	return shown
}

func roleOf(m *member) string {
	switch {
	case m.Leader || len(m.LeadsPartitions) > 0:
		return "leader"
	case m.Voter:
		return "follower"
	case m.Role == operate.RoleStandby:
		return m.Role
	}
	return "learner" // is to have a vote, and has none yet
}

// findMember returns the member with that ID.
func findMember(ctx context.Context, client *cluster.Client, id string) (*member, error) {
	members, err := client.Members(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		if m.NodeID == id {
			return newMember(m), nil
		}
	}
	return nil, fmt.Errorf("%w: %s", cluster.ErrNotMember, id)
}

// requireVoter returns an error if a node is not a member, or has no vote.
func requireVoter(ctx context.Context, client *cluster.Client, verb, id string) error {
	m, err := findMember(ctx, client, id)
	if err == nil && !m.Voter {
		err = fmt.Errorf("%s: %s has no vote", verb, id)
	}
	return err
}

func remove(flags *flag.FlagSet) action {
	c := changeFlags(flags, confirmAlways)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		detail := ""
		if c.dryRun {
			m, err := findMember(ctx, client, args[0])
			if err != nil {
				return err
			}
			detail = roleOf(m) + ", " + string(m.Liveness)
		}
		return c.one(s, args[0], detail, func() error { return client.RemoveNode(ctx, args[0]) })
	})
}

func transfer(flags *flag.FlagSet) action {
	from := flags.String("from", "", "only the partitions that the `node` leads (default all)")
	c := changeFlags(flags, confirmNever)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		to := ""
		if len(args) > 0 {
			to = args[0]
		}
		if c.dryRun {
			return describeTransfer(ctx, client, s, c, *from, to)
		}
		n, err := operate.TransferLeadership(ctx, client, *from, to)
		if err == nil {
			printMessage(s, fmt.Sprintf("partitions handed over: %d", n))
			err = c.report(s, changed{ID: to})
		}
		return err
	})
}

// describeTransfer writes which nodes would hand over what they lead.
func describeTransfer(ctx context.Context, client *cluster.Client, s streams, c *change, from, to string) error {
	if from != "" {
		if _, err := findMember(ctx, client, from); err != nil {
			return err
		}
	}
	if to != "" {
		if err := requireVoter(ctx, client, c.verb, to); err != nil {
			return err
		}
	}
	members, err := client.Members(ctx)
	if err != nil {
		return err
	}
	for _, m := range members {
		if (m.Leader || len(m.LeadsPartitions) > 0) && (from == "" || m.NodeID == from) && m.NodeID != to {
			err = c.report(s, changed{ID: cmp.Or(to, "to the node that is least behind"), detail: "from " + m.NodeID})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// drain moves everything that a node leads to other nodes.
func drain(flags *flag.FlagSet) action {
	c := changeFlags(flags, confirmNever)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		do := operate.Drain
		if c.dryRun {
			do = operate.PlanDrain
		}
		moved, err := do(ctx, client, args[0])
		for _, m := range moved {
			result := changed{ID: args[0], detail: fmt.Sprintf("partition %d to %s", m.Partition, m.To)}
			err = errors.Join(err, c.report(s, result))
		}
		if err == nil && !c.dryRun {
			printMessage(s, fmt.Sprintf("partitions handed over: %d", len(moved)))
		}
		return err
	})
}

// upgradeOf returns the protocols of a cluster that waits before it uses the next one, nil
// otherwise. It does without them if they cannot be had.
func upgradeOf(ctx context.Context, client *cluster.Client) *operate.Protocols {
	if protocols, err := operate.GetProtocols(ctx, client); err == nil && protocols.Next > 0 {
		return &protocols
	}
	return nil
}

// describeUpgrade says which protocol comes next, and when.
func describeUpgrade(p *operate.Protocols, times output.Times) string {
	return fmt.Sprintf("protocol %d; all members speak %d, which the cluster uses from %s on, or after \"tenuto cluster finalize\"", p.Used, p.Next, times.Cell(p.NextAt))
}

// finalize ends an upgrade.
func finalize(flags *flag.FlagSet) action {
	reason, c := reasonFlag(flags), changeFlags(flags, confirmAlways)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, _ []string) error {
		protocols, err := operate.GetProtocols(ctx, client)
		if err != nil {
			return err
		}
		newest, lacking := uint32(0), error(nil) // lacking names the first member that does not speak newest
		for _, of := range protocols.Newest {
			newest = max(newest, of)
		}
		detail := fmt.Sprintf("%d is used; members speak", protocols.Used)
		for _, node := range slices.Sorted(maps.Keys(protocols.Newest)) {
			spoken := protocols.Newest[node]
			detail += fmt.Sprintf(" %s: %d", node, spoken)
			if spoken == 0 {
				detail += " (no answer)"
			}
			if spoken < newest && lacking == nil {
				lacking = &cluster.VersionError{Node: node, Oldest: min(spoken, max(spoken, 2)-1), Newest: spoken, Required: newest}
			}
		}
		if c.dryRun && lacking != nil {
			printMessage(s, detail)
			return lacking
		}
		target := fmt.Sprintf("protocol %d", newest)
		return c.one(s, target, detail, func() error {
			used, err := operate.Finalize(ctx, client, *reason)
			if err == nil && used < newest {
				err = lacking // a leader of the earlier build does not know the newest protocol
			}
			if err == nil {
				printMessage(s, fmt.Sprintf("the cluster uses protocol %d", used))
			}
			return err
		})
	})
}

// automaticRole is the argument that lets the cluster decide.
const automaticRole = "auto"

// setRole sets the role of a member.
func setRole(flags *flag.FlagSet) action {
	reason, c := reasonFlag(flags), changeFlags(flags, confirmNever)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		role := args[1]
		switch role {
		case operate.RoleVoter, operate.RoleStandby:
		case automaticRole:
			role = operate.RoleAuto
		default:
			return &usageError{fmt.Sprintf("role %q: %s, %s or %s", role, operate.RoleVoter, operate.RoleStandby, automaticRole)}
		}
		detail := args[1]
		if c.dryRun {
			m, err := findMember(ctx, client, args[0])
			if err != nil {
				return err
			}
			detail = fmt.Sprintf("%s, it is %s, pinned: %s", args[1], roleOf(m), cmp.Or(m.PinnedRole, automaticRole))
		}
		return c.one(s, args[0], detail, func() error { return operate.SetRole(ctx, client, args[0], role, *reason) })
	})
}

// adopt records the directory that a node has now.
func adopt(flags *flag.FlagSet) action {
	c := changeFlags(flags, confirmAlways)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, args []string) error {
		detail := ""
		if c.dryRun {
			m, err := findMember(ctx, client, args[0])
			if err != nil {
				return err
			}
			detail = fmt.Sprintf("the recorded directory is %s, the node is %s", cmp.Or(m.Identity, "unknown"), m.Liveness)
		}
		return c.one(s, args[0], detail, func() error {
			err := client.AdoptNode(ctx, args[0], args[1])
			if err == nil {
				printMessage(s, fmt.Sprintf("node %s now has directory %s; it gets its vote back when it has caught up", args[0], args[1]))
			}
			return err
		})
	})
}

// joinToken is the record of a token as -o json shows it.
type joinToken struct {
	ID      string    `json:"id"`
	Expires time.Time `json:"expires"` // in cluster time
	UsedBy  string    `json:"usedBy,omitempty"`
}

// issuedToken is a new token as -o json shows it.
type issuedToken struct {
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"` // in cluster time
}

// token issues, lists or revokes tokens. The output of a new token is only the token, so that it
// can be put into a file.
func token(flags *flag.FlagSet) action {
	lifetime := flags.Duration("lifetime", time.Hour, "`duration` for which the token is valid")
	list := flags.Bool("list", false, "list the tokens that the cluster knows, instead of issuing one")
	revoke := flags.String("revoke", "", "revoke the token with this `ID`, or this token, instead of issuing one")
	dryRun := flags.Bool("dry-run", false, "say what would be done, and do nothing")
	d := displayFlags(flags, output.Table, output.JSON, output.YAML, output.IDs)
	return withClient(flags, func(ctx context.Context, client *cluster.Client, s streams, _ []string) error {
		switch {
		case *list && *revoke != "":
			return &usageError{"-list and -revoke exclude each other"}
		case *list:
			return listTokens(ctx, client, s, d)
		case *dryRun:
			return describeTokenChange(s, *revoke, *lifetime)
		case *revoke != "":
			return client.RevokeJoinToken(ctx, *revoke)
		}
		token, expires, err := client.IssueJoinToken(ctx, *lifetime)
		if err != nil {
			return err
		}
		if !d.isTable() && d.format != output.IDs {
			return s.documents(d.format).Write(issuedToken{token, expires.UTC()})
		}
		fmt.Fprintf(s.err, "valid for one node until %s in cluster time\n", d.times().Cell(expires))
		_, err = fmt.Fprintln(s.out, token)
		return err
	})
}

func describeTokenChange(s streams, revoke string, lifetime time.Duration) (err error) {
	if revoke != "" {
		_, err = fmt.Fprintln(s.out, "would revoke one token")
	} else {
		_, err = fmt.Fprintf(s.out, "would issue a token for one node, valid for %s\n", lifetime)
	}
	return err
}

func listTokens(ctx context.Context, client *cluster.Client, s streams, d *display) error {
	tokens, err := client.JoinTokens(ctx)
	if err != nil {
		return &readError{err}
	}
	times := d.times()
	printer := output.NewPrinter(s.out, d.format, []output.Column[joinToken]{
		{Name: "ID", Cell: func(t joinToken) string { return output.Cell(t.ID) }},
		{Name: "EXPIRES", Cell: func(t joinToken) string { return times.Cell(t.Expires) }},
		{Name: "USED-BY", Cell: func(t joinToken) string { return output.Cell(t.UsedBy) }},
	}, func(t joinToken) string { return t.ID })
	for _, t := range tokens {
		if err := printer.Write(joinToken{t.ID, t.Expires.UTC(), t.UsedBy}); err != nil {
			return err
		}
	}
	return printer.Flush()
}
