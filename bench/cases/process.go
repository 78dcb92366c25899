package cases

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"

	"github.com/tenuto-dev/tenuto/bench/child"
	"github.com/tenuto-dev/tenuto/cluster"
)

// nodeVariable is the environment variable with the nodeConfig of a process that runs a node.
const nodeVariable = "TENUTO_BENCH_NODE"

const readyLine = "ready"

// nodeConfig is the part of a cluster.Config for another process.
type nodeConfig struct {
	NodeID      string
	Dir         string
	Listen      string
	Peers       []cluster.Peer
	ResidentMax int
}

// RunAsNode runs this process as a node until standard input ends, if it was started as one,
// and reports whether it was. Call it first in main and in TestMain.
func RunAsNode() (wasNode bool, err error) {
	encoded := os.Getenv(nodeVariable)
	if encoded == "" {
		return false, nil
	}
	return true, runNode(encoded, os.Stdin, os.Stdout)
}

func runNode(encoded string, in io.Reader, out io.Writer) error {
	var c nodeConfig
	if err := json.Unmarshal([]byte(encoded), &c); err != nil {
		return fmt.Errorf("read %s: %w", nodeVariable, err)
	}
	var node *cluster.Node
	own := &code{client: func() *cluster.Client { return node.Client() }}
	node, err := cluster.Start(context.Background(), cluster.Config{
		NodeID: c.NodeID, Dir: c.Dir, Listen: c.Listen, Peers: c.Peers, ResidentMax: c.ResidentMax,
		Definitions: own.definitions(),
		Logger:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(out, readyLine)
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, node.Stop(context.Background()))
}

// A process is this program, started as a node.
type process struct {
	command *exec.Cmd
	in      io.Closer
}

// startProcess starts a node and returns when it is ready.
func startProcess(config cluster.Config) (*process, error) {
	command, in, out, err := child.Start(nodeVariable, nodeConfig{config.NodeID, config.Dir, config.Listen, config.Peers, config.ResidentMax})
	if err != nil {
		return nil, err
	}
	p := &process{command, in}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != readyLine+"\n" {
		p.kill()
		return nil, fmt.Errorf("start node %s: got %q: %w", config.NodeID, line, err)
	}
	return p, nil
}

// stop stops the node and returns when its process has ended.
func (p *process) stop() error {
	return errors.Join(p.in.Close(), p.command.Wait())
}

// kill kills the process like kill -9 and returns when it has ended.
func (p *process) kill() {
	// The errors say only that the process was killed.
	_ = p.command.Process.Kill()
	_ = p.command.Wait()
}
