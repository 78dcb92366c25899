package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/internal/host"
)

// A codeView is an execution as its code sees it; see [host.Execution].
type codeView Execution

func (v *codeView) ID() *host.ID { return &v.id }

func (v *codeView) Version() string { return v.startInfo.version }

func (v *codeView) Tags() map[string]string { return v.startInfo.tags }

func (v *codeView) Now() time.Time { return v.now }

func (v *codeView) Replaying() bool { return v.replaying }

func (v *codeView) Evicting() bool { return v.evicting }

func (v *codeView) Logger() *slog.Logger {
	x := (*Execution)(v)
	return slog.New(&replayLogHandler{x.logger.Handler(), x}).
		With("instance", x.id.Instance, "execution", x.id.Number)
}

// replayLogHandler drops log records during replay and eviction.
type replayLogHandler struct {
	slog.Handler
	x *Execution
}

func (h *replayLogHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return !h.x.replaying && !h.x.evicting && !h.x.monitor.abandoned.Load() && h.Handler.Enabled(ctx, level)
}

func (h *replayLogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &replayLogHandler{h.Handler.WithAttrs(attrs), h.x}
}

func (h *replayLogHandler) WithGroup(name string) slog.Handler {
	return &replayLogHandler{h.Handler.WithGroup(name), h.x}
}

func (v *codeView) Random() *rand.Rand {
	x := (*Execution)(v)
	x.currentCoroutine("Random")
	if x.random == nil {
		hash := sha256.New()
		fmt.Fprintf(hash, "%s\x00%d\x00%d", x.id.Instance, x.id.Number, x.startedAt)
		if x.startInfo.incarnation != 0 {
			fmt.Fprintf(hash, "\x00%d", x.startInfo.incarnation)
		}
		seed := hash.Sum(nil)
		x.random = rand.New(rand.NewPCG(binary.LittleEndian.Uint64(seed), binary.LittleEndian.Uint64(seed[8:])))
	}
	return x.random
}

func (v *codeView) Check(what string) { (*Execution)(v).currentCoroutine(what) }

func (v *codeView) CheckOwner(what, kind string, owner *host.ID) {
	(*Execution)(v).checkOwner(what, kind, owner)
}

func (v *codeView) NewPromise() host.Promise { return new(promise) }

func (v *codeView) Resolve(p host.Promise, err error) {
	(*Execution)(v).resolveErr(p.(*promise), err)
}

func (v *codeView) SetStatus(status any) error {
	x := (*Execution)(v)
	x.currentCoroutine("SetStatus")
	payload, err := x.encode(replay.PayloadInfo{Kind: "orchestration", Name: x.startInfo.name, Part: "status"}, status)
	if err != nil {
		return err
	}
	if x.evicting {
		return replay.ErrEvicting
	}
	x.enqueue(&journalpb.Event{Body: &journalpb.Event_StatusSet{StatusSet: &journalpb.StatusSet{Value: payload}}}, nil)
	return nil
}

func (v *codeView) Patch(id string, marks bool) bool { return (*Execution)(v).patch(id, marks) }

func (v *codeView) HandleQuery(name string, handler host.Handler) error {
	return (*Execution)(v).handleQuery(name, handler)
}

func (v *codeView) OnClose(fn func(s host.Scope, failure error) error) {
	x := (*Execution)(v)
	x.currentCoroutine("OnClose")
	if x.evicting || x.progress >= codeDone {
		return
	}
	x.closers = append(x.closers, fn)
}

func (v *codeView) ShouldContinueAsNew() bool {
	return v.lastEventID >= continueAfterEvents || (*Execution)(v).continueAsNewBytes() >= continueAfterBytes
}

func (v *codeView) ContinueAsNew(orchestration string, input any, version string) error {
	x := (*Execution)(v)
	if orchestration != x.startInfo.name {
		return fmt.Errorf("tenuto: orchestration %q cannot continue as %q", x.startInfo.name, orchestration)
	}
	payload, err := x.encodeInput("orchestration", orchestration, input)
	if err != nil {
		return err
	}
	if version == "" {
		version = x.registry.Newest(orchestration)
	}
	if err := checkVersion(orchestration, version); err != nil {
		return err
	}
	return &continuation{input: payload, version: version}
}
