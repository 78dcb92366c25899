package dynamic

import "testing"

func TestDesk(t *testing.T) {
	d := newDesk(fixed{})
	d.faked = live{}
}
