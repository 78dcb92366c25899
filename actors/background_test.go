package actors_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tenuto-dev/tenuto/actors"
	"github.com/tenuto-dev/tenuto/replay"
)

// dayOrWord waits for a day or a word, and gives the other up.
func dayOrWord() replay.Definition {
	return program("day or word", func(ctx *replay.Context, _ string) (string, error) {
		winner, err := replay.Race(ctx, ctx.Timer(24*time.Hour), word.Subscribe(ctx))
		return fmt.Sprint(winner), err
	})
}

// To read what is open takes a hundred seconds.
func TestCallsAreAnsweredWhileMuchIsTakenUp(t *testing.T) {
	virtually(t, func(t *testing.T) {
		const many = 100
		id := func(i int) string { return fmt.Sprintf("p-%03d", i) }
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, dayOrWord())
		for i := range many {
			first.start(id(i), "day or word", "").want(nil)
		}
		first.close()
		j.readPace = time.Second
		second := lead(t, j, actors.Config{}, dayOrWord())
		begin := time.Now()
		for _, i := range []int{many - 1, 0, many / 2} {
			second.send(id(i), "word", "").want(nil)
			second.wantOutput(id(i), "1")
			if fired := second.count(id(i), "TimerFired"); fired != 0 {
				t.Errorf("%s: its timer has fired", id(i))
			}
		}
		second.start("new", "day or word", "").want(nil)
		second.send("new", "word", "").want(nil)
		second.wantOutput("new", "1")
		if passed := time.Since(begin); passed > many*time.Second/5 {
			t.Errorf("four calls took %v", passed)
		}
		for i := range many {
			second.wantOutput(id(i), map[bool]string{true: "1", false: "0"}[i == 0 || i == many/2 || i == many-1])
		}
		if second.log.warns() {
			t.Errorf("logged: %s", &second.log.text)
		}
	})
}

func TestAPartitionIsClosedWhileMuchIsTakenUp(t *testing.T) {
	virtually(t, func(t *testing.T) {
		j := newTestJournal()
		first := lead(t, j, actors.Config{}, dayOrWord())
		for i := range 10 {
			first.start(fmt.Sprintf("p-%d", i), "day or word", "").want(nil)
		}
		first.close()
		j.readPace = time.Hour
		second := lead(t, j, actors.Config{}, dayOrWord())
		idle() // it has begun, and p-9 is not next
		waiting := second.send("p-9", "word", "")
		second.close()
		waiting.want(actors.ErrStopped)
		j.readPace = 0
		third := lead(t, j, actors.Config{}, dayOrWord())
		third.send("p-9", "word", "").want(nil)
		third.wantOutput("p-9", "1")
	})
}
