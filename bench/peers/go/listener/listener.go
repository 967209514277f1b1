// Package listener creates the listening socket of these servers.
package listener

import (
	"context"
	"net"
	"syscall"
)

// Listen listens on a port. The kernel offers a connection after its first bytes or after one
// second (TCP_DEFER_ACCEPT), which halves the cost of a connection with one request.
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
