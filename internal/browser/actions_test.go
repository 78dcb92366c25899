package browser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/tenuto-dev/tenuto/cluster"
	"github.com/tenuto-dev/tenuto/replay"
	"github.com/tenuto-dev/tenuto/replay/history"
)

// presses are the values of data-action of the buttons that tests have pressed.
var presses struct {
	names map[string]bool
	all   bool // TestActions has run as a whole
}

// principal is whom histories show for what the user of the page does.
const principal = "local for ada"

// An actor uses the buttons of a page as a user does, and looks at what they have done.
type actor struct {
	*tab
	action string // the data-action of the button that the test is about
	id     string // of the instance, job or schedule that it is for
}

// An actionTest presses the button of one action.
type actionTest struct {
	action string
	run    func(a *actor)
}

// TestActions presses each button that changes something. Each is named by its attribute data-action.
// What it does is looked up through the client, and the page must show it without being loaded again.
func TestActions(t *testing.T) {
	if shared.browser == nil {
		t.Skip(`run with "make browser"`)
	}
	l, stop, err := startLab(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	presses.names = map[string]bool{}
	tests := slices.Concat(instanceActions(), operationActions(), listActions(), bulkActions(), scheduleActions(), clusterActions())
	done := 0
	for _, test := range tests {
		t.Run(test.action, func(t *testing.T) {
			done++
			test.run(&actor{openTabOf(t, l), test.action, test.action + "-1"})
			if !presses.names[test.action] {
				t.Errorf("the test has not pressed %s", test.action)
			}
		})
	}
	presses.all = done == len(tests)
}

// TestActions_AreAllPressed follows TestActions. It fails for an action in the assets whose button was
// never pressed.
func TestActions_AreAllPressed(t *testing.T) {
	if !presses.all {
		t.Skip("TestActions has not run as a whole")
	}
	for name, where := range actionsInAssets(t) {
		if !presses.names[name] {
			t.Errorf("no test presses %s, which is in %s", name, where)
		}
	}
}

// TestActions_AreInTheAssets checks that the scan of the assets finds what the tests press.
func TestActions_AreInTheAssets(t *testing.T) {
	found := actionsInAssets(t)
	tests := slices.Concat(instanceActions(), operationActions(), listActions(), bulkActions(), scheduleActions(), clusterActions())
	for _, test := range tests {
		if found[test.action] == "" {
			t.Errorf("%s is not in the assets", test.action)
		}
	}
	if len(found) != len(tests)+1 { // "confirm" belongs to the dialogs of the others
		t.Errorf("%d actions in the assets, %d tests", len(found), len(tests))
	}
}

// The values of data-action in a module: a text, the texts in an expression, or the property
// dataAction of what the expression refers to.
var (
	actionAttribute = regexp.MustCompile(`data-action=(?:"([^"]*)"|\$\{([^}]*)\})`)
	actionProperty  = regexp.MustCompile(`\bdataAction: ('[^']*'|\{[^}]*\})`)
	quotedText      = regexp.MustCompile(`'([^']*)'`)
)

// actionsInAssets returns the values of data-action in the assets, each with a module that has it.
func actionsInAssets(t *testing.T) map[string]string {
	t.Helper()
	modules, err := filepath.Glob("../../cluster/dashboard/internal/web/assets/*.js")
	if err != nil || len(modules) == 0 {
		t.Fatalf("no assets: %v", err)
	}
	found := map[string]string{}
	for _, module := range modules {
		text, err := os.ReadFile(module)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range actionAttribute.FindAllStringSubmatch(string(text), -1) {
			names := quotedText.FindAllStringSubmatch(match[2], -1)
			if match[1] != "" {
				found[match[1]] = module
			} else if len(names) == 0 && !strings.Contains(match[2], "dataAction") {
				t.Errorf("%s: %s has neither a text nor a property dataAction", module, match[0])
			}
			for _, name := range names {
				found[name[1]] = module
			}
		}
		for _, match := range actionProperty.FindAllStringSubmatch(string(text), -1) {
			for _, name := range quotedText.FindAllStringSubmatch(match[1], -1) {
				found[name[1]] = module
			}
		}
	}
	return found
}

// reason is the one that the test gives.
func (a *actor) reason() string { return "because of " + a.action }

// context bounds the calls of a step.
func (a *actor) context() context.Context {
	ctx, cancel := context.WithTimeout(a.t.Context(), actionTimeout)
	a.t.Cleanup(cancel)
	return ctx
}

func (a *actor) check(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

// show opens a page, which must not be loaded again afterwards: see kept.
func (a *actor) show(path string) {
	a.t.Helper()
	a.open(path)
	evaluate[int](a.tab, `window.notReloaded = 1`)
}

// kept checks that the page is the one that show has opened.
func (a *actor) kept() {
	a.t.Helper()
	if !evaluate[bool](a.tab, `window.notReloaded === 1`) {
		a.t.Error("the page was loaded again")
	}
}

// pressKey presses Enter on the only button of a selector that has a text, when it can be seen and
// nothing covers it. A key has no position, so that a page that moves meanwhile gets no other press.
func (a *actor) pressKey(selector, text string) {
	a.t.Helper()
	a.await(fmt.Sprintf("the button %s %q", selector, text), fmt.Sprintf(`(() => {
		const all = [...document.querySelectorAll(%q)].filter((each) => !each.disabled && each.checkVisibility() && each.textContent.includes(%q));
		if (all.length !== 1) return false;
		all[0].scrollIntoView({block: 'nearest', inline: 'nearest'});
		const at = all[0].getBoundingClientRect();
		if (!all[0].contains(document.elementFromPoint(at.x + at.width / 2, at.y + at.height / 2))) return false;
		all[0].focus();
		all[0].addEventListener('click', () => { window.pressed = %q; }, {once: true});
		return document.activeElement === all[0];
	})()`, selector, text, selector))
	a.run(chromedp.KeyEvent(kb.Enter))
}

// press presses the button of the action within an element.
func (a *actor) press(within string) {
	a.t.Helper()
	a.pressText(within, "")
}

// pressText presses the button of the action that has a text.
func (a *actor) pressText(within, text string) {
	a.t.Helper()
	selector := fmt.Sprintf("%s [data-action=%s]", within, a.action)
	a.pressKey(selector, text)
	a.await("the press of "+selector, fmt.Sprintf("window.pressed === %q", selector))
	presses.names[a.action] = true
}

// pressInMenu presses the button of the action in the menu of an element; the texts tell apart menus,
// and their buttons.
func (a *actor) pressInMenu(within, menu, text string) {
	a.t.Helper()
	a.pressKey(within+" .menu > button", menu)
	a.await("the focus in the menu", `document.activeElement.closest('.menu-items') !== null`) // which moves it
	a.pressText(within+" .menu-items", text)
}

// enter types a text into a field, instead of what it has.
func (a *actor) enter(selector, text string) {
	a.t.Helper()
	a.await("the field "+selector, fmt.Sprintf(`(() => {
		const field = document.querySelector(%q);
		field?.focus();
		field?.select();
		return field && document.activeElement === field;
	})()`, selector))
	a.run(command(input.InsertText, input.InsertTextParams{Text: text}))
}

// choose sets the value of a field in which one does not type.
func (a *actor) choose(selector, value string) {
	a.t.Helper()
	a.await("the field "+selector, fmt.Sprintf(`(() => {
		const field = document.querySelector(%q);
		if (!field) return false;
		field.value = %q;
		['input', 'change'].forEach((type) => field.dispatchEvent(new Event(type, {bubbles: true})));
		return field.value !== '';
	})()`, selector, value))
}

// fill types into fields of the dialog: names and texts.
func (a *actor) fill(fields ...string) {
	a.t.Helper()
	for i := 0; i < len(fields); i += 2 {
		a.enter("dialog[open] #field-"+fields[i], fields[i+1])
	}
}

// retype types the text that the dialog asks for.
func (a *actor) retype(text string) {
	a.t.Helper()
	a.enter("dialog[open] label.field input", text)
}

// preview lets the dialog show what would happen, which must come before the confirmation.
func (a *actor) preview(shows string) {
	a.t.Helper()
	if evaluate[bool](a.tab, `document.querySelector('dialog[open] [data-action=confirm]') !== null`) {
		a.t.Error("the dialog does not ask twice")
	}
	a.pressKey("dialog[open] button[type=submit]", "Show what would happen")
	a.await("a preview with "+shows, fmt.Sprintf(`document.querySelector('dialog[open] .preview')?.textContent.includes(%q)`, shows))
}

// confirm confirms the dialog, which must close.
func (a *actor) confirm() {
	a.t.Helper()
	a.pressKey("dialog[open] [data-action=confirm]", "")
	presses.names["confirm"] = true
	a.await("no dialog", `!document.querySelector('dialog[open]')`)
}

// confirmReason gives the reason and confirms.
func (a *actor) confirmReason() {
	a.t.Helper()
	a.fill("reason", a.reason())
	a.confirm()
}

// start1 starts the instance of the test, with a tag that names the action, and waits until it has
// recorded a number of events.
func start1[I, O any](a *actor, orchestration replay.OrchestrationHandle[I, O], in I, events uint64) {
	a.t.Helper()
	a.check(start(a.context(), a.lab, orchestration, a.id, in, cluster.Tags(map[string]string{"action": a.action})))
	a.check(a.lab.awaitEvents(a.context(), a.id, events))
}

// until waits until a condition holds of what the client answers.
func (a *actor) until(what string, condition func(ctx context.Context) (bool, error)) {
	a.t.Helper()
	ctx := a.context()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		holds, err := condition(ctx)
		if holds {
			return
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			a.t.Fatalf("%s: not after %v (%v)", what, actionTimeout, last)
		}
	}
}

// records waits until the latest execution of an instance has an event of a type by the user with the
// reason of the test.
func (a *actor) records(id string, eventType history.EventType) {
	a.t.Helper()
	a.until(fmt.Sprintf("%s of %s by %s %s", eventType, id, principal, a.reason()), func(ctx context.Context) (bool, error) {
		recorded, err := a.lab.client.History(ctx, id)
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(recorded.Events, func(e history.Event) bool {
			return e.Type == eventType && e.Principal == principal && e.Reason == a.reason()
		}), fmt.Errorf("history:\n%v", recorded)
	})
}

// logs waits until the log of the dashboard has a change by the user with the reason of the test.
func (a *actor) logs(action cluster.Action, reason string) {
	a.t.Helper()
	line := fmt.Sprintf("action=%s principal=ada reason=%s", quoteIfNeeded(string(action)), quoteIfNeeded(reason))
	a.until("a log line with "+line, func(context.Context) (bool, error) { return a.lab.log.has(line), nil })
}

// quoteIfNeeded quotes a text as slog does.
func quoteIfNeeded(text string) string {
	if text == "" || strings.Contains(text, " ") {
		return fmt.Sprintf("%q", text)
	}
	return text
}

// becomes waits until the instance of the test is in a state, and the page shows it.
func (a *actor) becomes(state cluster.State) {
	a.t.Helper()
	a.check(a.lab.await(a.context(), a.id, state))
	a.badge("main", string(state))
	a.kept()
}

// badge waits until a badge within an element has a text.
func (a *actor) badge(within, text string) {
	a.t.Helper()
	a.await(fmt.Sprintf("the badge %q in %s", text, within),
		fmt.Sprintf(`[...document.querySelectorAll(%q)].some((each) => each.textContent.trim().toLowerCase() === %q)`, within+" .badge", text))
}

// shows waits until an element has a text.
func (a *actor) shows(selector, text string) {
	a.t.Helper()
	a.await(fmt.Sprintf("%q in %s", text, selector),
		fmt.Sprintf(`[...document.querySelectorAll(%q)].some((each) => each.textContent.includes(%q))`, selector, text))
}
