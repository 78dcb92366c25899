// Package s3 stores backups in a bucket of S3, or of a server with its interface.
//
//	client, err := minio.New("s3.example", &minio.Options{Creds: …, Secure: true})
//	…
//	cluster.Config{Backups: backup.Plan{To: s3.Sink{Client: client, Bucket: "backups", Prefix: "shop/"}, Every: time.Hour}}
//
// It is a module of its own, beside that of Tenuto.
//
// # Guarantees
//
//  1. A backup appears in the bucket as a whole or not at all: larger ones are uploaded in parts,
//     which the server joins at the end. Each part is sent with a checksum that the server
//     verifies.
//  2. The parts of an upload that failed are removed at once; those that a crash left, with the
//     next upload a day later.
//
// # What may not be assumed
//
// That the bucket keeps what is removed, or removes what is kept: versions, locks and lifecycle
// rules of the bucket are the operator's. A rule that removes objects by age breaks chains of
// incremental backups.
package s3
