// Package output writes the results of commands: as a table, as one JSON document per line, as YAML
// documents or as a list of IDs.
//
// Text from a cluster may hold anything. In tables and messages, characters that are not printable
// are escaped, so that they cannot control a terminal. In JSON and YAML they are escaped as these
// formats require.
package output
