package exit

import (
	"log"
	"os"
	"runtime"

	"github.com/tenuto-dev/tenuto/replay"
)

func buy(ctx *replay.Context, in string) (string, error) {
	must(nil)        // want `calls must, which calls log\.Fatal`
	runtime.Goexit() // want `calls runtime\.Goexit`
	os.Exit(1)       // want `^calls os\.Exit: return an error, which fails this instance alone$`
	return "", nil
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
