package env

import (
	"os"
	"runtime"

	"github.com/tenuto-dev/tenuto/replay"
)

func buy(ctx *replay.Context, in string) (string, error) {
	_ = os.Getenv("SHOP") // want `^calls os\.Getenv: pass it in the input, or record it with replay\.SideEffect$`
	_, _ = os.Hostname()  // want `calls os\.Hostname`
	_ = os.Args[1]        // want `uses os\.Args`
	_ = runtime.NumCPU()  // want `calls runtime\.NumCPU`
	return replay.SideEffect(ctx, "shop", func() (string, error) { return os.Getenv("SHOP"), nil })
}
