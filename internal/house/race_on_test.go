//go:build race

package house

const raceEnabled = true
