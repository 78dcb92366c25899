package replaytest

import (
	"regexp"
	"strconv"

	"github.com/tenuto-dev/tenuto/replay"
)

// boundTwice is how a registry words that an activity is bound twice: the one
// place where it tells what a definition binds.
var boundTwice = regexp.MustCompile(`^tenuto: activity ("(?:[^"\\]|\\.)*") is bound twice$`)

// activityName returns the name of the activity that a definition binds; false
// if it binds an orchestration.
func activityName(d replay.Definition) (string, bool) {
	_, err := replay.NewRegistry(d, d)
	if err == nil {
		return "", false
	}
	match := boundTwice.FindStringSubmatch(err.Error())
	if match == nil {
		return "", false
	}
	name, err := strconv.Unquote(match[1])
	return name, err == nil
}

// bindsOrchestration tells whether a definition binds an orchestration of that
// name, in whichever version.
func bindsOrchestration(d replay.Definition, name string) bool {
	registry, err := replay.NewRegistry(d)
	return err == nil && registry.HasOrchestration(name, registry.Newest(name))
}
