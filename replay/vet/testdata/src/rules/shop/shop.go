// Package shop has the handles that the other packages use.
package shop

import "github.com/tenuto-dev/tenuto/replay"

type Order struct {
	ID    string
	Items []string
}

var (
	Charge   = replay.Activity[string, int]("charge")
	Ship     = replay.Activity[[]string, int]("ship")
	Place    = replay.Activity[Order, int]("place")
	Buy      = replay.Orchestration[string, int]("buy")
	List     = replay.Orchestration[map[string]int, []string]("list")
	Approved = replay.Event[bool]("approved")
	State    = replay.Query[string, int]("state")
	Change   = replay.Update[int, int]("change")
)
