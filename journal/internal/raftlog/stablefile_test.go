package raftlog

import (
	"os"
	"testing"
)

// While a vote is synced, the partition has no leader.
func TestStableFile_SyncsVoteOnce(t *testing.T) {
	s, err := createStableFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	syncs := 0
	var synced []byte
	s.sync = func(file *os.File) error {
		syncs++
		synced, err = os.ReadFile(file.Name())
		return err
	}
	// As the Raft library does.
	if err := s.SetUint64([]byte(KeyTerm), 7); err != nil || syncs != 1 {
		t.Errorf("the term: %d syncs, %v", syncs, err)
	}
	if err := s.SetUint64([]byte(keyVoteTerm), 7); err != nil {
		t.Error(err)
	}
	if err := s.Set([]byte(keyCandidate), []byte("n2")); err != nil || syncs != 2 {
		t.Errorf("the vote: %d syncs in total, %v", syncs, err)
	}
	var found StableFile
	if err := found.decode(synced); err != nil {
		t.Fatal(err)
	}
	if found.term != 7 || found.voteTerm != 7 || string(found.candidate) != "n2" {
		t.Errorf("after the sync: term %d, vote for %q in %d", found.term, found.candidate, found.voteTerm)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
