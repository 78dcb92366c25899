package main

import "testing"

func TestMixFaults_CountsEachFault(t *testing.T) {
	for _, each := range []int{1, 3} {
		made := make(map[string]int)
		for _, leg := range mixFaults(faults, each, 7) {
			if len(leg.faults) == 0 {
				t.Errorf("no faults for %d nodes with %d partitions", leg.nodes, leg.partitions)
			}
			for _, f := range leg.faults {
				made[f.name]++
			}
		}
		for _, f := range faults {
			if made[f.name] != each {
				t.Errorf("%s is injected %d times; want %d", f.name, made[f.name], each)
			}
		}
	}
}
