// Package slots maps instances to partitions. An instance ID hashes to one of 256 hash slots, and
// each partition owns a contiguous range of them. The mapping must never change, because each
// instance is stored in the partition that it gives.
package slots
