// Package s3test tests scheduled backups of a cluster in a bucket of a server with the interface of
// S3 ("make s3").
package s3test
