package main

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// cutPower takes the power from the disks of nodes, and then from the nodes: what was
// not synced is gone. In the end they have power again, and are started.
func cutPower(s *scene, ids ...string) error {
	disks := s.fleet.disks
	if disks == nil {
		return &skipError{"the nodes have no disks of their own"}
	}
	s.hits(ids...)
	s.later(s.fleet.start)
	for _, id := range ids {
		s.later(func(context.Context) error { return disks.powerOn(id) })
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

// The ioctl that stops a file system at once, and its argument by which what is not
// on disk yet stays where it is.
const (
	extShutdown = 0x8004587d
	noLogFlush  = 2
)

// powerOff stops a node's file system: from now on everything on it fails.
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

// powerOn has the file system recover, as after a power cut.
func (d *disks) powerOn(id string) error {
	if err := run("umount", d.mount(id)); err != nil {
		return err
	}
	return d.attach(id)
}
