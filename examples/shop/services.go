package main

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// The types below simulate the services.

// A shelf is an in-memory stock.
type shelf struct {
	mu    sync.Mutex
	items map[string]int
}

func (s *shelf) Take(_ context.Context, _, item string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.items[item] == 0 {
		return ErrSoldOut
	}
	s.items[item]--
	return nil
}

func (s *shelf) PutBack(_ context.Context, _, item string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.items[item]++
	return nil
}

// A terminal prints charges.
type terminal struct{ out io.Writer }

func (t terminal) Charge(_ context.Context, key, customer string, amount int) (string, error) {
	fmt.Fprintf(t.out, "%s pays %d\n", customer, amount)
	return "payment of " + key, nil
}

// A printer prints mails.
type printer struct{ out io.Writer }

func (p printer) Send(_ context.Context, to, text string) error {
	_, err := fmt.Fprintf(p.out, "to %s: %s\n", to, text)
	return err
}
