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

// presses has the values of data-action of the buttons that tests have pressed.
var presses struct {
	names map[string]bool
	all   bool // TestActions has run as a whole
}

// principal is the one that histories show for what the user of the page does.
const principal = "local for ada"

// A user operates a page in a tab as a person does, and checks what the buttons have done.
type user struct {
	*tab
	action string // the data-action of the button that the test is about
	id     string // of the instance, job or schedule that it is for
}

// An actionTest presses the button of one action.
type actionTest struct {
	action string
	run    func(u *user)
}

// TestActions presses each button that changes something. Each is named by its attribute
// data-action. What it does is looked up through the client, and the page must show it without
// being loaded again.
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
			test.run(&user{openTabOf(t, l), test.action, test.action + "-1"})
			if !presses.names[test.action] {
				t.Errorf("the test has not pressed %s", test.action)
			}
		})
	}
	presses.all = done == len(tests)
}

// TestActions_AreAllPressed follows TestActions. It fails for an action in the assets whose button
// was never pressed.
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

// reason returns the reason that the test enters.
func (u *user) reason() string { return "because of " + u.action }

// context bounds the calls of a step.
func (u *user) context() context.Context {
	ctx, cancel := context.WithTimeout(u.t.Context(), actionTimeout)
	u.t.Cleanup(cancel)
	return ctx
}

func (u *user) check(err error) {
	u.t.Helper()
	if err != nil {
		u.t.Fatal(err)
	}
}

// show opens a page, which must not be loaded again afterwards: see kept.
func (u *user) show(path string) {
	u.t.Helper()
	u.open(path)
	evaluate[int](u.tab, `window.notReloaded = 1`)
}

// kept checks that the page is the one that show has opened.
func (u *user) kept() {
	u.t.Helper()
	if !evaluate[bool](u.tab, `window.notReloaded === 1`) {
		u.t.Error("the page was loaded again")
	}
}

// pressKey presses Enter on the only button of a selector that has a text, when it can be seen and
// nothing covers it. A key has no position, so that a page that moves meanwhile gets no other
// press.
func (u *user) pressKey(selector, text string) {
	u.t.Helper()
	u.await(fmt.Sprintf("the button %s %q", selector, text), fmt.Sprintf(`(() => {
		const all = [...document.querySelectorAll(%q)].filter((each) => !each.disabled && each.checkVisibility() && each.textContent.includes(%q));
		if (all.length !== 1) return false;
		all[0].scrollIntoView({block: 'nearest', inline: 'nearest'});
		const at = all[0].getBoundingClientRect();
		if (!all[0].contains(document.elementFromPoint(at.x + at.width / 2, at.y + at.height / 2))) return false;
		all[0].focus();
		all[0].addEventListener('click', () => { window.pressed = %q; }, {once: true});
		return document.activeElement === all[0];
	})()`, selector, text, selector))
	u.run(chromedp.KeyEvent(kb.Enter))
}

// press presses the button of the action within an element.
func (u *user) press(within string) {
	u.t.Helper()
	u.pressText(within, "")
}

// pressText presses the button of the action that has a text.
func (u *user) pressText(within, text string) {
	u.t.Helper()
	selector := fmt.Sprintf("%s [data-action=%s]", within, u.action)
	u.pressKey(selector, text)
	u.await("the press of "+selector, fmt.Sprintf("window.pressed === %q", selector))
	presses.names[u.action] = true
}

// pressInMenu presses the button of the action in the menu of an element; the texts tell apart
// menus, and their buttons.
func (u *user) pressInMenu(within, menu, text string) {
	u.t.Helper()
	u.pressKey(within+" .menu > button", menu)
	u.await("the focus in the menu", `document.activeElement.closest('.menu-items') !== null`) // which moves it
	u.pressText(within+" .menu-items", text)
}

// enter types a text into a field, instead of what it has.
func (u *user) enter(selector, text string) {
	u.t.Helper()
	u.await("the field "+selector, fmt.Sprintf(`(() => {
		const field = document.querySelector(%q);
		field?.focus();
		field?.select();
		return field && document.activeElement === field;
	})()`, selector))
	u.run(command(input.InsertText, input.InsertTextParams{Text: text}))
}

// choose sets the value of a field into which nothing is typed.
func (u *user) choose(selector, value string) {
	u.t.Helper()
	u.await("the field "+selector, fmt.Sprintf(`(() => {
		const field = document.querySelector(%q);
		if (!field) return false;
		field.value = %q;
		['input', 'change'].forEach((type) => field.dispatchEvent(new Event(type, {bubbles: true})));
		return field.value !== '';
	})()`, selector, value))
}

// fill types into fields of the dialog: names and texts.
func (u *user) fill(fields ...string) {
	u.t.Helper()
	for i := 0; i < len(fields); i += 2 {
		u.enter("dialog[open] #field-"+fields[i], fields[i+1])
	}
}

// retype types the text that the dialog asks for.
func (u *user) retype(text string) {
	u.t.Helper()
	u.enter("dialog[open] label.field input", text)
}

// preview lets the dialog show what would happen, which must come before the confirmation.
func (u *user) preview(shows string) {
	u.t.Helper()
	if evaluate[bool](u.tab, `document.querySelector('dialog[open] [data-action=confirm]') !== null`) {
		u.t.Error("the dialog can be confirmed before it shows what would happen")
	}
	u.pressKey("dialog[open] button[type=submit]", "Show what would happen")
	u.await("a preview with "+shows, fmt.Sprintf(`document.querySelector('dialog[open] .preview')?.textContent.includes(%q)`, shows))
}

// confirm confirms the dialog, which must close.
func (u *user) confirm() {
	u.t.Helper()
	u.pressKey("dialog[open] [data-action=confirm]", "")
	presses.names["confirm"] = true
	u.await("no dialog", `!document.querySelector('dialog[open]')`)
}

// confirmReason gives the reason and confirms.
func (u *user) confirmReason() {
	u.t.Helper()
	u.fill("reason", u.reason())
	u.confirm()
}

// startOwn starts the instance of the test, with a tag that names the action, and waits until it
// has recorded a number of events.
func startOwn[I, O any](u *user, orchestration replay.OrchestrationHandle[I, O], in I, events uint64) {
	u.t.Helper()
	u.check(start(u.context(), u.lab, orchestration, u.id, in, cluster.Tags(map[string]string{"action": u.action})))
	u.check(u.lab.awaitEvents(u.context(), u.id, events))
}

// until waits until a condition holds, which asks the client.
func (u *user) until(what string, condition func(ctx context.Context) (bool, error)) {
	u.t.Helper()
	ctx := u.context()
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
			u.t.Fatalf("%s: not after %v (%v)", what, actionTimeout, last)
		}
	}
}

// records waits until the latest execution of an instance has an event of a type by the user with
// the reason of the test.
func (u *user) records(id string, eventType history.EventType) {
	u.t.Helper()
	u.until(fmt.Sprintf("%s of %s by %s %s", eventType, id, principal, u.reason()), func(ctx context.Context) (bool, error) {
		recorded, err := u.lab.client.History(ctx, id)
		if err != nil {
			return false, err
		}
		return slices.ContainsFunc(recorded.Events, func(e history.Event) bool {
			return e.Type == eventType && e.Principal == principal && e.Reason == u.reason()
		}), fmt.Errorf("history:\n%v", recorded)
	})
}

// logs waits until the log of the dashboard has a change by the user with the reason of the test.
func (u *user) logs(action cluster.Action, reason string) {
	u.t.Helper()
	line := fmt.Sprintf("action=%s principal=ada reason=%s", quoteIfNeeded(string(action)), quoteIfNeeded(reason))
	u.until("a log line with "+line, func(context.Context) (bool, error) { return u.lab.log.has(line), nil })
}

// quoteIfNeeded quotes a text as slog does.
func quoteIfNeeded(text string) string {
	if text == "" || strings.Contains(text, " ") {
		return fmt.Sprintf("%q", text)
	}
	return text
}

// becomes waits until the instance of the test is in a state, and the page shows it.
func (u *user) becomes(state cluster.State) {
	u.t.Helper()
	u.check(u.lab.await(u.context(), u.id, state))
	u.badge("main", string(state))
	u.kept()
}

// badge waits until a badge within an element has a text.
func (u *user) badge(within, text string) {
	u.t.Helper()
	u.await(fmt.Sprintf("the badge %q in %s", text, within),
		fmt.Sprintf(`[...document.querySelectorAll(%q)].some((each) => each.textContent.trim().toLowerCase() === %q)`, within+" .badge", text))
}

// shows waits until an element has a text.
func (u *user) shows(selector, text string) {
	u.t.Helper()
	u.await(fmt.Sprintf("%q in %s", text, selector),
		fmt.Sprintf(`[...document.querySelectorAll(%q)].some((each) => each.textContent.includes(%q))`, selector, text))
}
