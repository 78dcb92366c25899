package actors_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/replay"
)

// raceTimerWithWord waits for a day or a word, and cancels the other.
func raceTimerWithWord() replay.Definition {
	return program("day or word", func(ctx *replay.Context, _ string) (string, error) {
		winner, err := replay.Race(ctx, ctx.Timer(24*time.Hour), word.Subscribe(ctx))
		return fmt.Sprint(winner), err
	})
}

// Reading the open operations takes a hundred seconds.
func TestRecovery_AnswersCallsMeanwhile(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		const count = 100
		id := func(i int) string { return fmt.Sprintf("p-%03d", i) }
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, raceTimerWithWord())
		for i := range count {
			first.start(id(i), "day or word", "").want(nil)
		}
		first.close()
		j.readDelay = time.Second
		second := lead(t, j, actors.Config{}, raceTimerWithWord())
		start := time.Now()
		for _, i := range []int{count - 1, 0, count / 2} {
			second.send(id(i), "word", "").want(nil)
			second.wantOutput(id(i), "1")
			if fired := second.count(id(i), "TimerFired"); fired != 0 {
				t.Errorf("%s: its timer has fired", id(i))
			}
		}
		second.start("new", "day or word", "").want(nil)
		second.send("new", "word", "").want(nil)
		second.wantOutput("new", "1")
		if elapsed := time.Since(start); elapsed > count*time.Second/5 {
			t.Errorf("four calls took %v", elapsed)
		}
		for i := range count {
			second.wantOutput(id(i), map[bool]string{true: "1", false: "0"}[i == 0 || i == count/2 || i == count-1])
		}
		if second.log.hasWarnings() {
			t.Errorf("logged: %s", &second.log.text)
		}
	})
}

func TestRecovery_ClosePartitionMeanwhile(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, raceTimerWithWord())
		for i := range 10 {
			first.start(fmt.Sprintf("p-%d", i), "day or word", "").want(nil)
		}
		first.close()
		j.readDelay = time.Hour
		second := lead(t, j, actors.Config{}, raceTimerWithWord())
		waitIdle() // recovery has begun, and p-9 is not next
		waiting := second.send("p-9", "word", "")
		second.close()
		waiting.want(actors.ErrStopped)
		j.readDelay = 0
		third := lead(t, j, actors.Config{}, raceTimerWithWord())
		third.send("p-9", "word", "").want(nil)
		third.wantOutput("p-9", "1")
	})
}
