package replay

import "github.com/tenuto-dev/tenuto/replay/internal/host"

// An Option changes one call or binding. Each call states which options it takes. With any other
// it fails with an [*InvalidError] and does nothing; a node with an invalid binding does not start.
// If an option is given twice, the last one applies. Of several that allow an existing instance ID,
// the one that allows most applies.
type Option struct{ option host.Option }

// Host returns what the option does, for package engine.
func (o *Option) Host() *host.Option { return &o.option }

// applyOptions applies options to the struct that to points to. call names the kind of call for
// errors. The result describes the first option that does not apply; nil if all do.
func applyOptions(options []Option, to any, call string) *host.InvalidOption {
	for i, o := range options {
		if invalid := o.option.ApplyTo(to, call, i); invalid != nil {
			return invalid
		}
	}
	return nil
}

// Version selects a version of an orchestration. Versions are compared part by part at their dots.
// Parts of digits compare as numbers and sort before other parts: "1.9" < "1.10" < "1.x". "" sorts
// first. An instance keeps the version that it was started with. The option applies to:
//
//   - [OrchestrationHandle.Bind]: the version of the body. Defaults to "".
//   - a child or chained instance: the version that it runs. Defaults to the newest on the node
//     that starts it. If that node has no code of that name, the default is the newest on the first
//     node that leads the instance's partition and has code.
//   - [OrchestrationHandle.ContinueAsNew]: the version that the next execution runs. Defaults to
//     the newest on the node.
//   - the start of an instance from outside, in packages cluster and replaytest. Defaults to the
//     newest on the leader.
//
// The newest version is the pinned one (see [Pinned]), or else the highest.
func Version(version string) Option {
	return Option{host.NewOption("Version", func(o host.Versioned) { o.SetVersion(version) })}
}

// Summary says what a run is about, for people who look at lists of instances: at most 200 bytes of
// UTF-8 without control characters. It applies to the start of a child, of a chained instance, and
// of an instance from outside; an invalid one makes the call fail with an [*InvalidError]. Retries
// and continue-as-new keep it. No codec encodes it, so it must not hold secrets.
//
// While a member does not speak protocol 4, it is rejected as [Retry] is.
func Summary(text string) Option {
	return Option{host.NewOption("Summary", func(o interface{ SetSummary(text string) }) { o.SetSummary(text) })}
}

// Pinned makes new instances use the bound version even if there are newer ones. It applies to
// [OrchestrationHandle.Bind].
func Pinned() Option {
	return Option{host.NewOption("Pinned", func(o *host.Orchestration) { o.Pinned = true })}
}
