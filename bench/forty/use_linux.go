package main

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// addResident adds the resident memory of this process.
func (u *use) addResident() error {
	content, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	var size, resident uint64
	if _, err := fmt.Sscan(string(content), &size, &resident); err != nil {
		return err
	}
	u.RSS = resident * uint64(os.Getpagesize())
	return nil
}

// addTraffic adds what the open TCP connections of this process have sent and received, as the
// kernel counts it: bytes without headers, and packets with those that carry no data.
func (u *use) addTraffic() error {
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, d := range descriptors {
		fd, err := strconv.Atoi(d.Name())
		if err != nil {
			return err
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			continue // no TCP connection
		}
		u.BytesIn += info.Bytes_received
		u.BytesOut += info.Bytes_acked
		u.PacketsIn += uint64(info.Segs_in)
		u.PacketsOut += uint64(info.Segs_out)
	}
	return nil
}
