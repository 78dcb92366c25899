//go:build !linux

package main

import "errors"

func newNamespaces() (network, error) {
	return nil, errors.New("network namespaces are a thing of Linux")
}
