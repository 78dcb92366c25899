package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/certificate"
	"github.com/tenuto-dev/tenuto/cmd/tenuto/internal/output"
)

func cert(flags *flag.FlagSet) action {
	dir := flags.String("dir", "certs", "`directory` for the files")
	cluster := flags.String("cluster", "tenuto", "`name` of the cluster")
	nodes := flags.String("nodes", "", "`names` of nodes, separated by commas")
	clients := flags.String("clients", "", "`names` of clients, separated by commas")
	days := flags.Int("days", 30, "`number` of days for which the certificates are valid")
	commands := flags.Bool("commands", false, "write the openssl commands for production instead of making files")
	d := displayFlags(flags, output.Table, output.JSON, output.YAML)
	return func(_ context.Context, s streams, _ []string) error {
		r := certificate.Request{
			Dir: *dir, Cluster: *cluster, Nodes: splitNames(*nodes), Clients: splitNames(*clients),
			ValidFor: time.Duration(*days) * 24 * time.Hour,
		}
		if len(r.Nodes)+len(r.Clients) == 0 {
			return &usageError{"name nodes or clients: -nodes n1,n2,n3 -clients operator"}
		}
		if err := r.Validate(); err != nil {
			return &usageError{err.Error()}
		}
		if *commands {
			script, err := certificate.Commands(r)
			if err == nil {
				_, err = io.WriteString(s.out, script)
			}
			return err
		}
		files, err := certificate.Make(r)
		if len(files) > 0 { // some may have been written before an error
			err = errors.Join(err, writeFiles(s, d, files))
		}
		if err == nil {
			printCertificateUse(s, r)
		}
		return err
	}
}

func splitNames(text string) (names []string) {
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return unique(names)
}

func writeFiles(s streams, d *display, files []certificate.File) error {
	times := d.times()
	printer := output.NewPrinter(s.out, d.format, []output.Column[certificate.File]{
		{Name: "FILE", Cell: func(f certificate.File) string { return output.Cell(f.Path) }},
		{Name: "KIND", Cell: func(f certificate.File) string { return f.Kind }},
		{Name: "NAME", Cell: func(f certificate.File) string { return output.Cell(f.Name) }},
		{Name: "SECRET", Cell: func(f certificate.File) string {
			if f.Secret {
				return "yes"
			}
			return "no"
		}},
		{Name: "EXPIRES", Cell: func(f certificate.File) string { return times.Cell(f.Expires) }},
	}, nil)
	for _, f := range files {
		if err := printer.Write(f); err != nil {
			return err
		}
	}
	return printer.Flush()
}

// printCertificateUse says how to use the certificates.
func printCertificateUse(s streams, r certificate.Request) {
	for _, name := range r.Nodes {
		fmt.Fprintf(s.err, "node %[1]s: cluster.Config{ClusterID: %[2]q, NodeID: %[1]q, TLS: cluster.KeyFiles(%[3]q, %[4]q, %[5]q), ...}\n", name,
			r.Cluster, filepath.Join(r.Dir, "node-"+name+".crt"), filepath.Join(r.Dir, "node-"+name+".key"), filepath.Join(r.Dir, "ca.crt"))
	}
	for _, name := range r.Clients {
		path := filepath.Join(r.Dir, "client-"+name)
		fmt.Fprintf(s.err, "client %[1]s: tenuto profile set %[1]s -addr HOST:PORT -cluster %[2]s -ca %[3]s -cert %[4]s.crt -key %[4]s.key\n", name,
			r.Cluster, filepath.Join(r.Dir, "ca.crt"), path)
	}
	fmt.Fprintln(s.err, "These are for trying things out: ca.key is not encrypted. For production: tenuto cert -commands")
}
