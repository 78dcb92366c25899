// Package crosspartition does the work of a partition's leader that concerns the other partitions.
// It sends and receives cross-partition messages, checks shared operations after another partition
// has a new leader, and applies the first partition's decisions about members.
//
// # Guarantees
//
//  1. A message is sent once per request to send it, and each request is answered.
//  2. After another partition has a new leader, the operations shared with it are reviewed.
//
// # What may not be assumed
//
//   - That a message arrives: package actors repeats it until it is acknowledged.
package crosspartition
