package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/internal/chaos/evidence"
	"github.com/tenuto-dev/tenuto/journal"
	"github.com/tenuto-dev/tenuto/journal/state"
	"github.com/tenuto-dev/tenuto/journal/state/pebblestore"
	"github.com/tenuto-dev/tenuto/proto/journalpb"
)

// A BackupRequest names the file of a new backup and, for an incremental one, that of its base.
type BackupRequest struct {
	File, Base string
	Points     bool // backup.Options.Points
}

// handleBackups makes backups with the client of a node. Backups that fail leave no file.
func handleBackups(mux *http.ServeMux, client *cluster.Client) {
	mux.HandleFunc("POST "+BackupPath, func(w http.ResponseWriter, r *http.Request) {
		var request BackupRequest
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var answer struct{ Err string }
		if err := request.write(r.Context(), client); err != nil {
			answer.Err = err.Error()
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
}

func (r *BackupRequest) write(ctx context.Context, client *cluster.Client) (err error) {
	options := backup.Options{Points: r.Points}
	if r.Base != "" {
		base, err := os.Open(r.Base)
		if err != nil {
			return err
		}
		defer base.Close()
		if options.Base, err = backup.ReadInfo(base); err != nil {
			return err
		}
	}
	file, err := os.Create(r.File)
	if err != nil {
		return err
	}
	_, err = backup.Write(ctx, client, file, options)
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(r.File))
	}
	return nil
}

// ReadRestored returns all instances in a restored directory, which no node has opened.
func ReadRestored(dir string, partitions int) (evidence.Replica, error) {
	restored := evidence.Replica{Stale: true, Restored: true}
	for partition := range partitions {
		index, instances, err := readPartition(filepath.Join(journal.PartitionDir(dir, partition), "state"))
		if err != nil {
			return restored, fmt.Errorf("read restored partition %d: %w", partition, err)
		}
		restored.Applied = append(restored.Applied, index)
		restored.Instances = append(restored.Instances, instances...)
	}
	return restored, nil
}

// readPartition returns the applied index and the instances in a partition's state store.
func readPartition(dir string) (index uint64, instances []evidence.Instance, err error) {
	store, err := pebblestore.Open(pebblestore.Options{Dir: dir})
	if err != nil {
		return 0, nil, err
	}
	machine, err := state.Open(store, state.Options{})
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, machine.Close()) }()
	index, _ = machine.Applied()
	for known := range machine.Instances() {
		if known.Name == Open {
			continue // only load
		}
		instance, err := storedInstance(machine, known)
		if err != nil {
			return 0, nil, fmt.Errorf("%s: %w", known.Instance, err)
		}
		instances = append(instances, instance)
	}
	return index, instances, nil
}

// storedInstance reads the executions of an instance, of which the first may be retained no more.
func storedInstance(machine *state.Machine, known *journalpb.Instance) (evidence.Instance, error) {
	status := state.RunState(known.Status, known.Condition.GetKind(), known.Suspended).String()
	instance := evidence.Instance{ID: known.Instance, State: recordedState(cluster.State(status))}
	for number := known.Execution; number > 0; number-- {
		execution := evidence.Execution{Number: number}
		for event, err := range machine.Events(known.Instance, number, 1) {
			if err != nil {
				return instance, err
			}
			encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(event)
			if err != nil {
				return instance, err
			}
			execution.Events = append(execution.Events, encoded)
		}
		if len(execution.Events) == 0 {
			break
		}
		execution.Length, execution.Digest = len(execution.Events), Digest(execution.Events...)
		instance.Executions = append(instance.Executions, execution)
	}
	slices.Reverse(instance.Executions)
	return instance, nil
}
