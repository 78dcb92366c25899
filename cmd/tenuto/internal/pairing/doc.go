// Package pairing relates the events of a history: scheduling events with the events that close
// their operations. Check reports histories in which they do not fit.
package pairing
