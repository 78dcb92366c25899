// Package slots maps instances to partitions. An instance ID hashes to one of a fixed number of
// slots, and each partition owns a contiguous range of slots. The mapping must never change,
// because instances are stored where it says.
package slots
