package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

var showCommands = []command{
	{"list", "", "list instances", 0, 0, noNames, false, list, ""},
	{"count", "", "count instances, in groups", 0, 0, noNames, false, count, ""},
	{"get", "ID...", "show the state of instances", 0, -1, instanceIDs, false, get, ""},
	{"pending", "ID...", "list what instances wait for, and buffered events", 0, -1, instanceIDs, false, pending, ""},
	{"stack", "ID", "show where coroutines of an instance wait", 1, 1, instanceIDs, false, stack, ""},
	{"history", "ID", "show a history; a pair is a scheduling event and its completion", 1, 1, instanceIDs, false, showHistory, ""},
	{"history export", "ID", "write a history as JSON, one event per line", 1, 1, instanceIDs, false, exportHistory, ""},
	{"history check", "FILE...", "check the consistency of histories in files", 1, -1, fileNames, false, checkHistories, ""},
	{"history prove", "ID FILE", "write a signed proof of a history to a new file", 2, 2, instanceIDs, false, proveHistory, ""},
	{"history check-proof", "FILE", "check a proof of a history, without a cluster", 1, 1, fileNames, false, checkProof, ""},
	{"history key", "", "show the public key with which leaders sign", 0, 0, noNames, false, showSigningKey, ""},
	{"watch", "ID", "write the events of an instance from now on, until the run ends", 1, 1, instanceIDs, false, watch, ""},
	{"audit", "", "list who has acted on instances, when and why", 0, 0, noNames, false, audit, `
It reads the histories of all instances that the flags select, so select few.`},
}

var clusterCommands = []command{
	{"members", "", "list the nodes of the cluster", 0, 0, noNames, false, members, ""},
	{"health", "", "show whether the cluster is healthy; status 1 if it has a problem", 0, 0, noNames, false, health, `
Problems are nodes that do not answer, have no vote yet or are far behind, and replicas that differ.
Without a leader the status is 3.`},
	{"remove", "NODE", "remove a node from the cluster for good", 1, 1, nodeIDs, true, remove, ""},
	{"transfer", "[NODE]", "make a node lead, by default the one that is least behind", 0, 1, nodeIDs, true, transfer, ""},
	{"drain", "NODE", "move everything that a node leads to nodes that have caught up", 1, 1, nodeIDs, true, drain, `
The node keeps its votes and may lead again later: to restart it, stop it right afterwards.`},
	{"role set", "NODE voter|standby|auto", "set the role of a member, or let the cluster decide", 2, 2, nodeIDs, true, setRole, `
Votes follow when that costs no redundancy, usually within seconds; "tenuto members" shows them.`},
	{"adopt", "NODE IDENTITY", "record the new directory of a node that lost its own", 2, 2, nodeIDs, true, adopt, ""},
	{"token", "", "issue, list or revoke join tokens", 0, 0, noNames, true, token, ""},
	{"backup", "FILE", "write a backup of the whole cluster to a new file", 1, 1, fileNames, false, writeBackup, `
With -base it has only what is not in that backup and those before it. With several partitions, the
points between two backups are those that a plan with points records in the cluster. A backup has
all payloads, and the key of signed tokens: keep it as secret as the directories of the nodes.`},
	{"verify", "[FILE...]", "compare all replicas now, or check backups; status 1 unless all agree", 0, -1, fileNames, false, verify, `
Without files it reads all histories on all replicas; the status is 1 also if a voter did not take part.
Leaders compare by themselves, too, once an hour if they can. With the files that restore takes, it
restores them into a scratch directory, and recomputes the hash chain of each history.`},
	{"accept", "ID NODE", "make a node's replica of an instance the right one", 2, 2, instanceIDs, true, acceptReplica, `
The instance must be stopped because no majority of its replicas agrees.`},
	{"cluster finalize", "", "end an upgrade: no node can return to the previous build afterwards", 0, 0, noNames, true, finalize, `
It makes the cluster use the newest protocol, which all members must speak. Without it the cluster does
so by itself after Settings.FinalizeProtocolAfter, a day by default. -dry-run shows what members speak.`},
	{"settings", "[NAME=VALUE...]", "show the settings of the cluster, or change some", 0, -1, noNames, true, settings, ""},
}

var toolCommands = []command{
	{"dev", "", "run a node with sample orchestrations, to try things out", 0, 0, noNames, false, dev, `
The node serves plaintext on loopback, so everyone on the machine may call it.`},
	{"ui", "", "show the cluster in a browser", 0, 0, noNames, false, ui, `
It serves the dashboard on loopback, to all who know the URL that it prints. Changes are recorded
with the name of the user of the machine, or that of -as.`},
	{"cert", "", "make an authority and certificates of nodes and clients, to try things out", 0, 0, noNames, false, cert, `
Existing files are never overwritten; an existing authority signs further certificates.`},
	{"restore", "FILE...", "make the directory of the first node of a cluster from backups", 1, -1, fileNames, false, restoreBackup, `
Name a full backup and the incremental ones after it, or a directory of backups. With -at or -index
it can go to a point between two backups if the second was made with points. Start the node with the
directory, then the other nodes with empty directories and Config.Join. End the old cluster first.`},
	{"recover", "DIR...", "make a cluster from what is left after a majority was lost", 1, -1, fileNames, false, recoverCluster, `
Name the directories of the nodes that are left, which must be stopped. Without -to it only says
where they end and what may be lost. With -to it writes the directory of the first node of a new
cluster from the best of them, and does not change them. Start the node with it, then the other
nodes with empty directories and Config.Join.`},
	{"profile list", "", "list the profiles", 0, 0, noNames, false, listProfiles, ""},
	{"profile show", "[NAME]", "show a profile, by default the current one", 0, 1, profileNames, false, showProfile, ""},
	{"profile set", "NAME", "set the fields of a profile that flags name; \"\" removes one", 1, 1, profileNames, false, setProfile, ""},
	{"profile use", "NAME", "make a profile the current one", 1, 1, profileNames, false, useProfile, ""},
	{"profile remove", "NAME", "remove a profile", 1, 1, profileNames, false, removeProfile, ""},
	{"version", "", "show the version of this command", 0, 0, noNames, false, version, ""},
}

// errNoAnswer reports that a health handler could not be asked.
var errNoAnswer = errors.New("no answer")

// buildVersion is the version of this command as -o json shows it.
type buildVersion struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"` // of the source
	Modified bool   `json:"modified,omitempty"` // since that revision
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func version(flags *flag.FlagSet) action {
	var format output.Format
	formatFlag(flags, &format, output.Table, output.JSON, output.YAML)
	return func(_ context.Context, s streams, _ []string) error {
		v := buildVersion{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
		if info, ok := debug.ReadBuildInfo(); ok {
			v.Version = info.Main.Version
			for _, setting := range info.Settings {
				switch setting.Key {
				case "vcs.revision":
					v.Revision = setting.Value
				case "vcs.modified":
					v.Modified = setting.Value == "true"
				}
			}
		}
		if format != output.Table {
			return s.documents(format).Write(v)
		}
		_, err := fmt.Fprintf(s.out, "tenuto %s %s %s\n", output.Cell(v.Version), v.Go, v.Platform)
		return err
	}
}
