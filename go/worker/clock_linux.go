package worker

import (
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7 // linux/time.h

// now is a clock that runs on through suspend (CLOCK_BOOTTIME): a lease does not wait for a sleeping machine.
func now() time.Duration {
	var at syscall.Timespec
	if _, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&at)), 0); failed != 0 {
		return time.Since(started)
	}
	return time.Duration(at.Nano())
}

var started = time.Now()
