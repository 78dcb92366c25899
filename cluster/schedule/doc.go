// Package schedule starts runs of an orchestration at times: by cron expressions, at intervals and
// by calendars.
//
//	err := schedule.Create(ctx, client, "nightly-report", schedule.Spec{
//		Cron:     []string{"30 2 * * *"},
//		TimeZone: "Europe/Berlin",
//		Overlap:  schedule.BufferOne,
//	}, Report, Input{Region: "north"})
//
// A schedule is an instance of the orchestration "tenuto.schedule", which every node registers. The
// instance has the ID of the schedule, and its history records what the schedule did. Package
// cluster lists, suspends and terminates it like any other instance.
//
// # Due times
//
// A Spec selects due times. They are compared with the cluster time (see cluster/docs/time.md). The
// schedule decides each due time once, in order. A due time that is later than Spec.CatchUp allows,
// for example after an outage, is missed. Any other starts a run, is buffered or is skipped, as the
// [Overlap] policy says. Due times that pass while the schedule is paused, and those before its
// creation or the latest [Update], are not decided.
//
// The instance ID of a run is derived from its due time. So a due time starts no second run until
// the first is purged, not even by [Backfill]. A run that cannot start because an instance has its
// ID gets the outcome [Exists]. No policy stops an instance that the schedule has not started.
//
// Starts that would record more than about 1 MiB at once, by large inputs, are decided a moment
// later, in order. Until then their outcome is [Buffered].
//
// # Daylight saving time
//
// Cron expressions and calendars select times of the wall clock of Spec.TimeZone:
//
//   - When the clock is set forward, a selected time that is skipped is due at the end of the
//     skipped time. Several such times are one due time.
//   - When the clock is set back, a selected time that is shown twice is due the first time.
//   - If every hour is selected ("*/15 * * * *", "@hourly"), a time is due whenever the clock shows
//     it: not if it is skipped, and twice if it is shown twice.
//
// Spec.Every does not depend on the wall clock. The leader's machine needs the time zone database
// of its operating system, or a program that imports time/tzdata; without the zone, the schedule
// shows it as Description.Problem and tries again. The timer for the next due time is set by the
// database at that time. When the timer fires, the database of the leader decides what is due.
//
// # What may not be assumed
//
//   - That a run starts exactly at its due time: jitter and times without a leader delay it.
//   - That Create checks that some node has the code of the orchestration: a run without code waits
//     for it.
//   - That [Cancel] and [Terminate] stop a run at once: they use an activity, which waits for a
//     slot of its node like any other.
//   - That a schedule with many runs in progress works if Settings.PayloadMax is below its default.
//   - That Config.Authorize is called for the runs: anyone who may start or update a schedule
//     decides what it starts.
//
// All functions may be called concurrently. They take a client of a node or of cluster.Dial and
// return its errors: cluster.ErrNotFound, cluster.ErrEnded, *cluster.UnavailableError and so on.
// For an instance that is no schedule they return a *replay.NotRegisteredError. The history of a
// schedule shows who called [Trigger], [Backfill] and the others, and why if the context is one of
// operate.WithReason.
package schedule
