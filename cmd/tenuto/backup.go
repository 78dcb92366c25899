package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/tenuto-dev/tenuto/cluster/backup"
	"github.com/tenuto-dev/tenuto/cluster/recovery"
)

func writeBackup(flags *flag.FlagSet) action {
	base := flags.String("base", "", "`file` of an earlier backup: write only what has changed")
	node := flags.String("node", "", "`ID` of the node to copy from; default: one that leads little")
	return withSession(flags, func(ctx context.Context, s *session, args []string) error {
		options := backup.Options{Node: *node}
		if *base != "" {
			info, err := readBackupInfo(*base)
			if err != nil {
				return err
			}
			options.Base = info
		}
		file, err := os.OpenFile(args[0], os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return &usageError{err.Error()}
		}
		info, err := backup.Write(ctx, s.Client, file, options)
		if err == nil {
			err = file.Sync()
		}
		if err = errors.Join(err, file.Close()); err != nil {
			return errors.Join(err, os.Remove(args[0]))
		}
		written, state := info.Bytes()
		printMessage(s.streams, fmt.Sprintf("backup %s from %s: %d bytes of %d, %d partitions", info.ID, info.Node, written, state, len(info.Partitions)))
		return nil
	})
}

func readBackupInfo(path string) (info *backup.Info, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, &usageError{err.Error()}
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return backup.ReadInfo(file)
}

func restoreBackup(flags *flag.FlagSet) action {
	to := backup.Target{}
	flags.StringVar(&to.Dir, "dir", "", "`directory` of the node, which must be new or empty")
	flags.StringVar(&to.NodeID, "id", "", "`ID` of the node")
	flags.StringVar(&to.Address, "advertise", "", "`address` at which other nodes reach the node; none: a single node")
	flags.StringVar(&to.ClusterID, "cluster", "", "`name` of the cluster; default: as before")
	return func(ctx context.Context, s streams, args []string) (err error) {
		if to.Dir == "" || to.NodeID == "" {
			return &usageError{"name the node and its directory: -id n1 -dir data"}
		}
		var files []io.Reader
		for _, path := range args {
			file, openErr := os.Open(path)
			if openErr != nil {
				return &usageError{openErr.Error()}
			}
			defer func() { err = errors.Join(err, file.Close()) }()
			files = append(files, file)
		}
		info, err := backup.Restore(ctx, to, files...)
		if err != nil {
			return err
		}
		printMessage(s, fmt.Sprintf("%s is restored to %s of %s", to.Dir, info.ID, info.Time.Local().Format("2006-01-02 15:04:05")))
		return nil
	}
}

func recoverCluster(flags *flag.FlagSet) action {
	to := recovery.Target{}
	flags.StringVar(&to.Dir, "to", "", "the new `directory`; none: only say what would be lost")
	flags.StringVar(&to.NodeID, "id", "", "`ID` of the node; default: that of the directory")
	flags.StringVar(&to.Address, "advertise", "", "`address` at which other nodes reach the node; none: a single node")
	yes := flags.Bool("yes", false, "do not ask; required with -to without a terminal")
	return func(ctx context.Context, s streams, args []string) error {
		report, err := recovery.Inspect(ctx, args...)
		if err != nil {
			return err
		}
		fmt.Fprint(s.out, report)
		if to.Dir == "" {
			return nil
		}
		if !*yes && !s.interactive {
			return &usageError{"recover with -to needs -yes; without -to it changes nothing"}
		}
		c := &change{verb: "recover", confirm: confirmAlways, yes: *yes}
		if err := c.ask(s, "cluster "+report.ClusterID); err != nil {
			return err
		}
		if report, err = recovery.Recover(ctx, to, args...); err != nil {
			return err
		}
		printMessage(s, fmt.Sprintf("%s is recovered as lineage %s", to.Dir, report.Lineage))
		return nil
	}
}
