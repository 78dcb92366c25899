// Package bulk has the orchestration of a bulk job, which every node registers, its activities, and
// the table of actions. Package cluster/bulk is its API.
//
// A job is an instance of tenuto.bulk. It repeats: the activity tenuto.bulk.list reads a page of
// IDs from the index, in order and after the last visited one, and tenuto.bulk.page acts on them.
// The IDs are recorded before anything is done to them: an instance that was acted on may match the
// filter no longer, so a repeated page could not read them again. Each request has an ID derived
// from the job's run and the instance, so a repeated page acts once for each instance.
//
// Refusals stay in the histories, as results of pages. The state, which continue-as-new carries,
// has only their number and the executions to read.
package bulk
