//go:build !linux

package main

func (u *use) addResident() error { return nil }

func (u *use) addTraffic() error { return nil }
