//go:build !linux

package worker

import "syscall"

func boundUnacknowledged(string, string, syscall.RawConn) error { return nil }
