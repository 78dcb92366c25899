package membership

import (
	"slices"
	"strings"
	"sync"
)

// bookMax bounds the nodes in a Book. A further one takes the place of the one that was learned
// first.
const bookMax = 256

// A Found is a node that was found at an address, as it has introduced itself.
type Found struct {
	Node     string
	Identity string // of its directory
	Address  string // at which it says that others reach it
	// Answered is the address at which it has answered; "" if it has called this node instead.
	Answered string
}

// A Book holds where nodes can be reached, as they have introduced themselves since this node
// started. It is a [journal.AddressBook]. What it holds may be outdated or wrong: connections
// verify who is at the other end.
type Book struct {
	mu      sync.Mutex
	entries []*bookEntry // the latest last
}

type bookEntry struct {
	Found
	// failures counts reports of an address that did not work. It selects the address to try next.
	failures int
	// recorded is the address in the configuration when Resolve was first called. When another one
	// is recorded, the entry is outdated.
	recorded string
}

// Learn records where a node is.
func (b *Book) Learn(found Found) {
	b.mu.Lock()
	defer b.mu.Unlock()
	entry := &bookEntry{Found: found}
	b.entries = slices.DeleteFunc(b.entries, func(e *bookEntry) bool {
		switch {
		case e.Node == found.Node:
			if found.Answered == "" && e.Address == found.Address {
				entry.Answered = e.Answered
			}
			return true
		case e.Address == found.Address:
			return true // the other node has another address now
		case e.Answered == found.Answered:
			e.Answered = ""
		}
		return false
	})
	if len(b.entries) >= bookMax {
		b.entries = slices.Delete(b.entries, 0, 1)
	}
	b.entries = append(b.entries, entry)
}

// Resolve implements journal.AddressBook. After a failure it returns the next of: the address that
// the node has stated, the one at which it has answered, the recorded one.
func (b *Book) Resolve(identity, recorded string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	entry := b.find(func(e *bookEntry) bool { return e.Identity == identity })
	if entry == nil {
		return recorded
	}
	if entry.recorded != "" && entry.recorded != recorded {
		b.entries = slices.DeleteFunc(b.entries, func(e *bookEntry) bool { return e == entry })
		return recorded
	}
	entry.recorded = recorded
	addresses := entry.addresses(recorded)
	return addresses[entry.failures%len(addresses)]
}

// ReportFailure implements journal.AddressBook.
func (b *Book) ReportFailure(identity, _ string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if entry := b.find(func(e *bookEntry) bool { return e.Identity == identity }); entry != nil {
		entry.failures++
	}
}

// Address returns the address that a node has stated, "" if it has not introduced itself.
func (b *Book) Address(node string) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if entry := b.find(func(e *bookEntry) bool { return e.Node == node }); entry != nil {
		return entry.Address
	}
	return ""
}

// Addresses returns the addresses of all nodes but one, in order of node IDs.
func (b *Book) Addresses(except string) (addresses []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	sorted := slices.SortedFunc(slices.Values(b.entries), func(x, y *bookEntry) int { return strings.Compare(x.Node, y.Node) })
	for _, e := range sorted {
		if e.Node != except {
			addresses = append(addresses, e.addresses("")...)
		}
	}
	return addresses
}

// NodeAt returns the node at an address, "" if no node there has introduced itself. moved reports
// whether the node that is recorded at that address is known to be at another one.
func (b *Book) NodeAt(address, recorded string) (node string, moved bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if entry := b.find(func(e *bookEntry) bool { return e.Address == address || e.Answered == address }); entry != nil {
		return entry.Node, false
	}
	return "", b.find(func(e *bookEntry) bool { return e.Node == recorded }) != nil
}

func (b *Book) find(matches func(*bookEntry) bool) *bookEntry {
	if i := slices.IndexFunc(b.entries, matches); i >= 0 {
		return b.entries[i]
	}
	return nil
}

// addresses returns the different addresses at which the node may be, "" excepted.
func (e *bookEntry) addresses(recorded string) (addresses []string) {
	for _, address := range []string{e.Address, e.Answered, recorded} {
		if address != "" && !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	return addresses
}
