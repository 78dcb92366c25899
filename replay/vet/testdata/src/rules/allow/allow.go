package allow

import (
	"time"

	"github.com/tenuto-dev/tenuto/replay"
)

func buy(ctx *replay.Context, in string) (int, error) {
	_ = time.Now() //tenuto:allow only shown to people
	//tenuto:allow only shown to people
	_ = time.Now()
	// Two lines of comment, and the last of them counts
	//tenuto:allow only shown to people
	_ = time.Now()
	_ = time.Now() //tenuto:allow this line and not the next
	_ = time.Now() // want `calls time\.Now`

	//tenuto:allow not across an empty line

	_ = time.Now() // want `calls time\.Now`
	/* want `tenuto:allow gives no reason: say why: //tenuto:allow reason` `calls time\.Now` */ _ = time.Now() //tenuto:allow
	//tenuto:allowed is another word
	_ = time.Now() // want `calls time\.Now`
	_ = shown()
	return 0, nil
}

// An allowance in a function covers its callers, too.
func shown() int {
	//tenuto:allow only shown to people
	return time.Now().Second()
}
