// Package child starts this program again as another process, with settings of its own.
package child
