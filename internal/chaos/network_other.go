//go:build !linux

package main

import "errors"

func newNamespaces() (network, error) {
	return nil, errors.New("network namespaces need Linux")
}
