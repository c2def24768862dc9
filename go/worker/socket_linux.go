package worker

import "syscall"

const (
	tcpUserTimeout   = 18 // netinet/tcp.h
	unacknowledgedMs = 30_000
)

// boundUnacknowledged ends a connection whose data nobody acknowledges: the peer vanished without a reset.
func boundUnacknowledged(network, _ string, raw syscall.RawConn) error {
	if network == "unix" {
		return nil
	}
	// a kernel that lacks the option still has keepalive
	return raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, unacknowledgedMs)
	})
}
