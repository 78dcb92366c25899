package main

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// cutPower cuts the power of the nodes' disks, and then kills the nodes: what was not synced is
// lost. Healing restores the power and restarts the nodes.
func cutPower(s *injection, ids ...string) error {
	disks := s.fleet.disks
	if disks == nil {
		return &skipError{"the nodes have no disks of their own"}
	}
	s.addNodes(ids...)
	s.onHeal(s.fleet.start)
	for _, id := range ids {
		s.onHeal(func(context.Context) error { return disks.powerOn(id) })
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, disks.powerOff(id))
	}
	for _, id := range ids {
		errs = append(errs, s.fleet.node(id).kill())
	}
	return errors.Join(errs...)
}

// The ioctl that shuts a file system down at once, and its argument for not flushing the log.
const (
	extShutdown = 0x8004587d
	noLogFlush  = 2
)

// powerOff shuts a node's file system down: every later access to it fails.
func (d *disks) powerOff(id string) error {
	mount, err := os.Open(d.mount(id))
	if err != nil {
		return err
	}
	defer mount.Close()
	if err := shutDown(mount); err != nil {
		return fmt.Errorf("cut the power of %s: %w", id, err)
	}
	return nil
}

// powerOn remounts the file system, which recovers as after a power cut.
func (d *disks) powerOn(id string) error {
	if err := runCommand("umount", d.mount(id)); err != nil {
		return err
	}
	return d.mountImage(id)
}
