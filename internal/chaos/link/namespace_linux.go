package link

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// A namespace is a network of its own, without a name: it is gone when nobody has
// it open and no process runs in it, however those have ended.
type namespace struct{ file *os.File }

// own opens the namespace of the calling thread.
func own() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// newNamespace makes a namespace with nothing in it.
func newNamespace() (*namespace, error) {
	var file *os.File
	if err := elsewhere(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		file, err = own()
		return err
	}); err != nil {
		return nil, err
	}
	return &namespace{file}, nil
}

// do calls a function on a thread that is in the namespace. What the function
// opens and starts belongs there.
func (n *namespace) do(f func() error) error {
	return elsewhere(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter a network namespace: %w", err)
		}
		return f()
	})
}

// elsewhere calls a function on a thread of its own, and brings the thread back to
// where it was. One that cannot be brought back ends.
func elsewhere(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		before, err := own()
		if err != nil {
			runtime.UnlockOSThread()
			done <- err
			return
		}
		defer before.Close()
		err = f()
		back := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, back)
	}()
	return <-done
}

// ip has the tool of iproute2 do something in the namespace, a command a line.
// /proc/self/fd/3 is another namespace for it, if there is one.
func (n *namespace) ip(other *os.File, commands ...string) error {
	return n.do(func() error {
		command := exec.Command("ip", "-batch", "-")
		command.Stdin = strings.NewReader(strings.Join(commands, "\n"))
		if other != nil {
			command.ExtraFiles = []*os.File{other}
		}
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("ip: %w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	})
}
