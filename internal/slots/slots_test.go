package slots

import (
	"fmt"
	"slices"
	"testing"
)

// The mapping of IDs to slots must never change, because instances are stored by it.
func TestOf_Stable(t *testing.T) {
	for id, want := range map[string]int{
		"": 248, "a": 96, "b": 201, "order-17": 84, "order-18": 166, "kid::1.2": 53,
	} {
		if got := Of(id); got != want {
			t.Errorf("%q: slot %d, want %d", id, got, want)
		}
	}
}

// IDs that differ only at their end spread evenly over slots and partitions.
func TestOf_Uniform(t *testing.T) {
	const total = 256 * 100
	counts := make([]int, Count)
	partitions := make([]int, 5)
	for i := range total {
		id := fmt.Sprintf("order-%d", i)
		counts[Of(id)]++
		partitions[Partition(id, len(partitions))]++
	}
	if least, most := slices.Min(counts), slices.Max(counts); least < 50 || most > 150 {
		t.Errorf("slots hold %d to %d IDs, want about 100", least, most)
	}
	for partition, count := range partitions {
		if mean := total / len(partitions); count < mean*9/10 || count > mean*11/10 {
			t.Errorf("partition %d of %d holds %d of %d IDs", partition, len(partitions), count, total)
		}
	}
}

func TestPartition_AllHaveSlots(t *testing.T) {
	for partitions := 1; partitions <= 64; partitions++ {
		perPartition := make([]int, partitions)
		for slot := range Count {
			perPartition[slot*partitions/Count]++
		}
		if least, most := slices.Min(perPartition), slices.Max(perPartition); least == 0 || most-least > 1 {
			t.Errorf("of %d partitions one has %d slots, another %d", partitions, least, most)
		}
	}
}
