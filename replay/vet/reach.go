package vet

import (
	"go/token"
	"go/types"
	"strings"
)

// effects holds the rules that a call of a function breaks, each with the first path found. It is
// the fact about a function, or about a variable that holds one. A function with a *replay.Context
// always has effects, even empty ones, to show that it was analyzed.
type effects struct{ Effects []effect }

type effect struct {
	Rule string
	Path string // "calls price (sum.go:3), which calls time.Now (price.go:12)"
}

func (*effects) AFact() {}

func (ef *effects) String() string {
	texts := make([]string, len(ef.Effects))
	for i, e := range ef.Effects {
		texts[i] = e.Rule + ": " + e.Path
	}
	return strings.Join(texts, "; ")
}

func (ef *effects) has(rule *rule) bool {
	for _, e := range ef.Effects {
		if e.Rule == rule.name {
			return true
		}
	}
	return false
}

// changedFact is the fact that a package variable is written after initialization.
type changedFact struct{ Where string }

func (*changedFact) AFact() {}

func (c *changedFact) String() string { return "changed at " + c.Where }

// findEffects computes the effects of all functions of the package, up to a fixed point, and
// exports them.
func (in *inspection) findEffects() {
	for again := true; again; {
		again = false
		for _, c := range in.functions {
			if c.object != nil && in.addEffects(c) {
				again = true
			}
		}
	}
	for object, found := range in.effects {
		fn, isFunction := object.(*types.Func)
		if !isFunction && object.Parent() == nil {
			continue // a literal
		}
		if len(found.Effects) > 0 || isFunction && hasParameter(fn.Signature(), isContext) {
			in.ExportObjectFact(object, found)
		}
	}
}

// addEffects adds the effects that the body of a function shows so far. Violations in
// orchestration code are reported where they are, so callers need only know whether the order
// of the call matters.
func (in *inspection) addEffects(c *function) bool {
	known := in.effects[c.object]
	before := len(known.Effects)
	add := func(f finding) {
		isViolation := f.rule.advice != ""
		if !f.rule.transitive || isViolation && c.orchestration || known.has(f.rule) || in.allowed.covers(in.Fset, f.pos) {
			return
		}
		path := f.action + " (" + in.position(f.pos) + ")"
		if f.via != "" {
			path += ", which " + f.via
		}
		known.Effects = append(known.Effects, effect{f.rule.name, path})
	}
	in.examine(c, c.cursor, add)
	in.findContinuing(c, add)
	in.trackOrder(c, func(use orderUse) {
		if use.returned {
			add(finding{unordered, use.pos, use.action, ""})
		}
	})
	return len(known.Effects) > before
}

// effectsOf returns the known effects of a function or variable of any package; nil if nothing
// is known.
func (in *inspection) effectsOf(object types.Object) *effects {
	if object == nil || object.Pkg() == nil {
		return nil
	}
	if object.Pkg() == in.Pkg {
		return in.effects[object]
	}
	found := new(effects)
	if in.ImportObjectFact(object, found) {
		return found
	}
	return nil
}

// nameOf returns a function's name relative to this package: "price", "Cart.Total",
// "time.Now", "os.File.Read".
func (in *inspection) nameOf(object types.Object) string {
	name := object.Name()
	if fn, ok := object.(*types.Func); ok {
		if receiver := receiverName(fn); receiver != "" {
			name = receiver + "." + name
		}
	}
	if object.Pkg() != nil && object.Pkg() != in.Pkg {
		name = object.Pkg().Name() + "." + name
	}
	return name
}

// findingsOf yields the findings of a use of an object.
func (in *inspection) findingsOf(object types.Object, pos token.Pos, verb string, yield func(finding)) {
	action := verb + " " + in.nameOf(object)
	if r := ruleFor(object); r != nil {
		yield(finding{r, pos, action, ""})
		return
	}
	if found := in.effectsOf(object); found != nil {
		for _, e := range found.Effects {
			// checkOrder handles results in map order, checkErrors those of ContinueAsNew.
			if r := rulesByName[e.Rule]; r != nil && r != unordered && r != continuing {
				yield(finding{r, pos, action, e.Path})
			}
		}
	}
}
