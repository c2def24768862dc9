//go:build !linux

package worker

import "time"

// now is Go's monotonic clock. It stands still while some systems are suspended; there a call that outlived its
// lease in its sleep is found by the renewal, which answers `stale`.
func now() time.Duration { return time.Since(started) }

var started = time.Now()
