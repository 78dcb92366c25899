package vet

import (
	"go/token"
	"go/types"
	"strings"
)

// A reach is what a function comes to when it is called: of each rule the first
// way. It is a fact about functions, and about variables that hold one. A
// function that takes a *replay.Context has one even if it is empty: that says
// that it was looked at.
type reach struct{ Effects []effect }

type effect struct {
	Rule string
	Path string // "calls price (total.go:3), which calls time.Now (price.go:12)"
}

func (*reach) AFact() {}

func (r *reach) String() string {
	texts := make([]string, len(r.Effects))
	for i, e := range r.Effects {
		texts[i] = e.Rule + ": " + e.Path
	}
	return strings.Join(texts, "; ")
}

func (r *reach) has(rule *rule) bool {
	for _, e := range r.Effects {
		if e.Rule == rule.name {
			return true
		}
	}
	return false
}

// changed is the fact that a package variable is written to after the program
// was initialised.
type changed struct{ Where string }

func (*changed) AFact() {}

func (c *changed) String() string { return "changed at " + c.Where }

// findReaches finds out what each function of the package reaches, until there
// is no more to find, and exports it.
func (p *inspection) findReaches() {
	for again := true; again; {
		again = false
		for _, c := range p.codes {
			if c.object != nil && p.extend(c) {
				again = true
			}
		}
	}
	for object, found := range p.reaches {
		fn, isFunction := object.(*types.Func)
		if len(found.Effects) > 0 || isFunction && takes(fn.Signature(), isContext) {
			p.ExportObjectFact(object, found)
		}
	}
}

// extend adds to the reach of a function what its body shows by now. What
// orchestration code does is reported in its own place, so that its callers
// need to know only whether the order of calling it matters.
func (p *inspection) extend(c *code) bool {
	reached := p.reaches[c.object]
	before := len(reached.Effects)
	add := func(f finding) {
		isOffence := f.rule.cure != ""
		if !f.rule.carried || isOffence && c.orchestration || reached.has(f.rule) || p.allowed.at(p.Fset, f.pos) {
			return
		}
		path := f.does + " (" + p.place(f.pos) + ")"
		if f.via != "" {
			path += ", which " + f.via
		}
		reached.Effects = append(reached.Effects, effect{f.rule.name, path})
	}
	p.examine(c, c.cursor, add)
	p.trackOrder(c, func(use orderUse) {
		if use.returned {
			add(finding{unordered, use.pos, use.does, ""})
		}
	})
	return len(reached.Effects) > before
}

// reachOf returns what is known of a function or variable of this package or of
// another; nil if nothing is.
func (p *inspection) reachOf(object types.Object) *reach {
	if object == nil || object.Pkg() == nil {
		return nil
	}
	if object.Pkg() == p.Pkg {
		return p.reaches[object]
	}
	found := new(reach)
	if p.ImportObjectFact(object, found) {
		return found
	}
	return nil
}

// nameOf returns a function's name as a reader of this package knows it:
// "price", "Cart.Total", "time.Now", "os.File.Read".
func (p *inspection) nameOf(object types.Object) string {
	name := object.Name()
	if fn, ok := object.(*types.Func); ok {
		if receiver := receiverName(fn); receiver != "" {
			name = receiver + "." + name
		}
	}
	if object.Pkg() != nil && object.Pkg() != p.Pkg {
		name = object.Pkg().Name() + "." + name
	}
	return name
}

// findingsOf yields what a use of an object comes to.
func (p *inspection) findingsOf(object types.Object, pos token.Pos, verb string, yield func(finding)) {
	does := verb + " " + p.nameOf(object)
	if r := judge(object); r != nil {
		yield(finding{r, pos, does, ""})
		return
	}
	if found := p.reachOf(object); found != nil {
		for _, e := range found.Effects {
			// What is returned in the order of a map is for checkOrder to judge.
			if r := byName[e.Rule]; r != nil && r != unordered {
				yield(finding{r, pos, does, e.Path})
			}
		}
	}
}
