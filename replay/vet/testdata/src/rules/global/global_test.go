package global

import "testing"

func TestBuy(t *testing.T) {
	faked = 4
}
