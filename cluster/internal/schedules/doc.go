// Package schedules has the orchestration of a schedule, which every node registers, and the rules
// for due times. Package cluster/schedule is its API; see cluster/docs/schedules.md.
//
// A schedule is an instance of tenuto.schedule. It records plans: which due times start runs now,
// and when the next one is due. So a newer time zone database or parser changes only later plans
// and never contradicts a history. After 200 plans and starts it continues as new.
//
// A run is a child of an instance of tenuto.schedule.run, which the schedule starts by a chained
// start. That instance waits for the end of the run and sends it to the schedule. A schedule itself
// cannot wait for a child across continue-as-new. The ID of the run is derived from its due time,
// so a due time is started at most once, also by a backfill.
package schedules
