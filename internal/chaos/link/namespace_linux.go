package link

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// A namespace is a network namespace without a name. The kernel removes it when no process has it
// open or runs in it.
type namespace struct{ file *os.File }

// currentNamespace opens the namespace of the calling thread.
func currentNamespace() (*os.File, error) { return os.Open("/proc/thread-self/ns/net") }

// newNamespace creates an empty namespace.
func newNamespace() (*namespace, error) {
	var file *os.File
	if err := onOwnThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace: %w", err)
		}
		file, err = currentNamespace()
		return err
	}); err != nil {
		return nil, err
	}
	return &namespace{file}, nil
}

// do calls a function on a thread in the namespace. Sockets that it opens and processes that it
// starts belong to the namespace.
func (n *namespace) do(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

// onOwnThread calls a function on its own thread and restores the thread's namespace afterwards. A
// thread that cannot be restored is discarded.
func onOwnThread(f func() error) error {
	done := make(chan error)
	go func() { done <- inCurrentNamespace(f) }()
	return <-done
}

// inCurrentNamespace calls a function on a thread that is in the current namespace afterwards, or
// ends with the goroutine.
func inCurrentNamespace(f func() error) error {
	runtime.LockOSThread()
	before, err := currentNamespace()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer before.Close()
	err = f()
	back := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET)
	if back == nil {
		runtime.UnlockOSThread()
	}
	return errors.Join(err, back)
}
