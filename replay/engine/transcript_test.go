package engine_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tenuto-dev/tenuto/proto/journalpb"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/engine"
)

var update = flag.Bool("update", false, "rewrite the expected output in testdata/*.txt")

// TestTranscripts runs the transcripts in testdata. A transcript consists of steps. A step is a
// list of commands, one a line, then "----", then the outcome up to an empty line. The commands:
//
//	start NAME [JSON]         start an instance of that orchestration (programs_test.go)
//	start-again NAME [JSON]   the same message for an existing instance
//	after DURATION            advance the clock
//	done ID [JSON]            the activity of that event_id has completed
//	failed ID [CODE:] TEXT    ... has failed
//	fired ID                  the timer has fired
//	event NAME [JSON]         an external event
//	events NAME FIRST LAST    numbered events, each with its number as data
//	child-done ID [JSON]      the child has completed
//	child-failed ID TEXT      ... has failed
//	delivered ID              the message has been recorded by its receiver
//	rejected ID TEXT          ... has not
//	cancel [REASON]           request to cancel the instance
//	terminate [REASON]        terminate the instance
//	suspend [REASON]          suspend the instance
//	resume [REASON]           resume the instance
//	next                      begin the next execution with the postponed messages
//	copy ID                   begin a run with a copy of the events up to that one; later events are kept
//	brief                     show runs of equal events as one line
//
// The messages of a step are delivered as one batch. "request=ID" before a command sets the request
// ID of its message, "execution=N" its execution, "version=V" the version of a start, "attempts=N"
// the number of attempts that the start's retry policy permits.
//
// The outcome lists the events (event_id, time since the start, and the result of Describe), log
// messages of the code, the disposition of messages that were not recorded, and whether the
// instance waits, has ended or continues as new.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			resident := play(t, string(content), false)
			if *update {
				if err := os.WriteFile(file, []byte(resident), 0o644); err != nil {
					t.Fatal(err)
				}
				content = []byte(resident)
			}
			if diff := cmp.Diff(string(content), resident); diff != "" {
				t.Errorf("resident (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(resident, play(t, string(content), true)); diff != "" {
				t.Errorf("loaded for every turn (-resident +cold):\n%s", diff)
			}
			encrypted := &player{t: t, registry: withEncryption(t, programRegistry(t)), cold: true, now: begin}
			if diff := cmp.Diff(resident, encrypted.play(string(content))); diff != "" {
				t.Errorf("with encrypted payloads (-resident +encrypted):\n%s", diff)
			}
		})
	}
}

// A player runs the steps of one transcript.
type player struct {
	t        *testing.T
	registry *engine.Registry
	cold     bool

	now            time.Time
	log            *logRecorder
	in             *instance
	postponed      []engine.Message // postponed to the next execution
	postponedLines []string         // the command of each
	onDone         func(*instance)  // called with each finished execution
}

// play returns the transcript with the actual outcome of each step.
func play(t *testing.T, transcript string, cold bool) string {
	p := &player{t: t, registry: registryOf(t, programs()...), cold: cold, now: begin}
	return p.play(transcript)
}

func (p *player) play(transcript string) string {
	defer p.finish()
	paragraphs := strings.Split(strings.TrimSpace(transcript), "\n\n")
	for i, paragraph := range paragraphs {
		commands, _, isStep := strings.Cut(paragraph+"\n", "----\n")
		if !isStep {
			continue
		}
		paragraphs[i] = commands + "----\n" + strings.Join(p.step(commands), "\n")
	}
	return strings.Join(paragraphs, "\n\n") + "\n"
}

// finish ends the current instance and replays its history.
func (p *player) finish() {
	if p.in == nil {
		return
	}
	p.in.evict()
	checkReplays(p.t, p.in)
	if p.onDone != nil {
		p.onDone(p.in)
	}
	p.in, p.postponed, p.postponedLines = nil, nil, nil
}

// next begins the next execution.
func (p *player) next(s *step) error {
	if p.in.successor == nil {
		return errors.New("it does not continue as new")
	}
	next := p.in.next()
	s.messages, s.lines = append(s.messages, p.postponed...), append(s.lines, p.postponedLines...)
	p.finish()
	p.in = next
	s.prelude = describeAll(next.history, false)
	return nil
}

// copy begins a run with a copied history.
func (p *player) copy(s *step, upTo string) error {
	n, err := strconv.Atoi(upTo)
	if err != nil || n < 1 || n > len(p.in.history) {
		return fmt.Errorf("no event %q to copy up to", upTo)
	}
	source := p.in
	var kept []*journalpb.ExternalEvent
	for _, event := range source.history[n:] {
		if external := event.GetExternalEvent(); external != nil {
			kept = append(kept, external)
		}
	}
	p.finish()
	copied := copyHistory(source.history, "i", source.execution(), n, p.now.UnixNano(), 2, kept...)
	p.in = &instance{registry: source.registry, logger: source.logger, cold: source.cold, number: source.execution() + 1, history: copied}
	s.prelude = describeAll(copied[n:], false)
	return nil
}

// A step is one batch of messages.
type step struct {
	lines    []string // the command of each message
	messages []engine.Message
	prelude  []string // printed before the outcome
	brief    bool
}

func (p *player) step(commands string) []string {
	s := new(step)
	for line := range strings.Lines(commands) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := p.command(s, line); err != nil {
			p.t.Fatalf("%q: %v", line, err)
		}
	}
	turn, err := p.in.turn(p.now, s.messages)
	if err != nil {
		return []string{"error: " + err.Error()}
	}
	output := append(s.prelude, describeAll(turn.Events, s.brief)...)
	for _, line := range p.log.messages {
		output = append(output, "says "+line)
	}
	p.log.messages = nil
	for i, disposition := range turn.Dispositions {
		switch disposition {
		case engine.Dropped:
			output = append(output, "dropped: "+s.lines[i])
		case engine.Refused:
			output = append(output, fmt.Sprintf("refused: %s: %v", s.lines[i], p.in.refusals[i]))
		case engine.RequestIDReused:
			output = append(output, "reused: "+s.lines[i])
		case engine.Ended:
			output = append(output, "too late: "+s.lines[i])
		case engine.Postponed:
			output = append(output, "postponed: "+s.lines[i])
			p.postponed, p.postponedLines = append(p.postponed, s.messages[i]), append(p.postponedLines, s.lines[i])
		}
	}
	switch {
	case p.in.successor != nil:
		return append(output, "continues as new")
	case p.in.ended:
		return append(output, "ended")
	}
	return append(output, "waits")
}

func describeAll(events []*journalpb.Event, brief bool) []string {
	var output []string
	for len(events) > 0 {
		first := events[0]
		since := time.Unix(0, first.Timestamp).Sub(begin)
		n := 1
		if brief {
			n = repeatLength(events)
		}
		if n == 1 {
			output = append(output, fmt.Sprintf("%d %v %s", first.EventId, since, engine.Describe(first)))
		} else {
			output = append(output, fmt.Sprintf("%d..%d %v %s, %s, ...", first.EventId, events[n-1].EventId, since, first.Type(), events[1].Type()))
		}
		events = events[n:]
	}
	return output
}

// repeatLength returns the period, 1 or 2, with which event types repeat, 1 if it is not worth
// showing.
func repeatLength(events []*journalpb.Event) int {
	n := min(2, len(events))
	for n < len(events) && events[n].TypeNumber() == events[n-2].TypeNumber() {
		n++
	}
	if n < 5 {
		return 1
	}
	return n
}

// command performs one line of a step.
func (p *player) command(s *step, line string) error {
	rest, requestID, execution, ofVersion, attempts := line, "", uint64(0), "", uint64(0)
	for {
		option, after, _ := strings.Cut(rest, " ")
		name, value, isOption := strings.Cut(option, "=")
		if !isOption {
			break
		}
		switch name {
		case "request":
			requestID = value
		case "execution":
			execution, _ = strconv.ParseUint(value, 10, 64)
		case "version":
			ofVersion = value
		case "attempts":
			attempts, _ = strconv.ParseUint(value, 10, 32)
		default:
			return fmt.Errorf("unknown option %q", name)
		}
		rest = after
	}
	word, rest, _ := strings.Cut(rest, " ")
	switch word {
	case "after":
		d, err := time.ParseDuration(rest)
		p.now = p.now.Add(d)
		return err
	case "brief":
		s.brief = true
		return nil
	case "next":
		return p.next(s)
	case "copy":
		return p.copy(s, rest)
	case "start":
		p.finish()
		p.now, p.log = begin, new(logRecorder)
		p.in = &instance{registry: p.registry, logger: slog.New(p.log), cold: p.cold}
	}
	events, err := p.message(word, rest, requestID)
	for _, event := range events {
		event = withVersion(event, ofVersion)
		if attempts > 0 {
			event.GetOrchestrationStarted().Retry = &journalpb.RetryPolicy{MaxAttempts: uint32(attempts)}
		}
		s.lines = append(s.lines, line)
		s.messages = append(s.messages, engine.Message{Execution: execution, Event: event})
	}
	return err
}

// message returns the events that a command sends.
func (p *player) message(word, rest, requestID string) ([]*journalpb.Event, error) {
	first, data, _ := strings.Cut(rest, " ")
	id, _ := strconv.ParseUint(first, 10, 64)
	one := func(event *journalpb.Event) ([]*journalpb.Event, error) { return []*journalpb.Event{event}, nil }
	switch word {
	case "start", "start-again":
		return one(started(first, value(data)))
	case "done":
		return one(activityCompleted(id, value(data)))
	case "failed":
		return one(activityFailed(id, failure(data)))
	case "fired":
		return one(timerFired(id, p.fireAt(id)))
	case "event":
		return one(external(first, value(data), requestID))
	case "events":
		return manyEvents(first, data)
	case "child-done":
		return one(childCompleted(id, value(data)))
	case "child-failed":
		return one(childFailed(id, failure(data)))
	case "delivered":
		return one(messageDelivered(id))
	case "rejected":
		return one(messageRejected(id, failure(data)))
	case "hold", "release", "retry-now", "adjust":
		return one(operationControlled(word, id, requestID))
	case "operator":
		events, err := p.message(first, data, "")
		if err == nil {
			events[0].Origin = &journalpb.Origin{Principal: "client gw for alice", Reason: "by hand", RequestId: requestID}
		}
		return events, err
	case "cancel":
		return one(cancelRequested(rest, requestID))
	case "terminate":
		return one(terminated(rest))
	case "suspend":
		return one(suspended(rest, requestID))
	case "resume":
		return one(resumed(rest, requestID))
	}
	return nil, errors.New("unknown command")
}

// operationControlled returns an action of an operator. An adjustment names no earlier one.
func operationControlled(action string, id uint64, requestID string) *journalpb.Event {
	controlled := &journalpb.OperationControlled{EventId: id, RequestId: requestID}
	switch action {
	case "hold":
		controlled.Kind = journalpb.OperationControlled_KIND_HOLD
	case "release":
		controlled.Kind = journalpb.OperationControlled_KIND_RELEASE
	case "retry-now":
		controlled.Kind, controlled.Attempt = journalpb.OperationControlled_KIND_RETRY_NOW, 2
	case "adjust":
		controlled.Kind, controlled.Options = journalpb.OperationControlled_KIND_ADJUST, &journalpb.ActivityOptions{StartToClose: int64(time.Minute)}
	}
	return &journalpb.Event{
		Origin: &journalpb.Origin{Principal: "client gw for alice", Reason: "incident"},
		Body:   &journalpb.Event_OperationControlled{OperationControlled: controlled},
	}
}

// fireAt returns the due time of the timer of that event_id.
func (p *player) fireAt(id uint64) time.Time {
	if id == 0 || id > uint64(len(p.in.history)) {
		return begin
	}
	return time.Unix(0, p.in.history[id-1].GetTimerCreated().GetFireAt())
}

func manyEvents(name, data string) (events []*journalpb.Event, err error) {
	var first, last int
	if _, err := fmt.Sscan(data, &first, &last); err != nil {
		return nil, err
	}
	for n := first; n <= last; n++ {
		events = append(events, external(name, n, ""))
	}
	return events, nil
}

func value(data string) any {
	if data == "" {
		return nil
	}
	return json.RawMessage(data)
}

func failure(text string) error {
	if code, message, coded := strings.Cut(text, ": "); coded {
		return replay.WithCode(code, errors.New(message))
	}
	return errors.New(text)
}
