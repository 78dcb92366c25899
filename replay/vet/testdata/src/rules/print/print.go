package print

import (
	"fmt"
	"log"
	"log/slog"
	"os"

	"github.com/tenuto-dev/tenuto/replay"
)

func buy(ctx *replay.Context, in string) (string, error) {
	fmt.Println(in)          // want `^calls fmt\.Println: use ctx\.Log\(\), which is silent on replay$`
	log.Printf("buy %s", in) // want `calls log\.Printf`
	slog.Info("buy")         // want `calls slog\.Info`
	fmt.Fprintln(os.Stderr)  // want `uses os\.Stderr`
	show(in)

	ctx.Log().Info("buy", slog.String("in", in))
	return fmt.Sprintf("buy %s", in), fmt.Errorf("buy %s", in)
}

// A repeated line is harmless. So printing is reported only if orchestration
// code itself does it.
func show(in string) { fmt.Println(in) }
