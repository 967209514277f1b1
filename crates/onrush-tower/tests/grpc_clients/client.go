// A client of grpc-go. Argument: the address of the service. Prints `done`.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// Messages are bytes.
type raw struct{}

func (raw) Name() string { return "raw" }
func (raw) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*message.(*[]byte))}, nil
}
func (raw) Unmarshal(data mem.BufferSlice, message any) error {
	*message.(*[]byte) = data.Materialize()
	return nil
}

const wait = time.Minute

// The shortest that grpc-go permits. A ping that is not answered within the second time ends the
// connection, before the quiet time is over.
const (
	pings    = 10 * time.Second
	answered = 10 * time.Second
	quiet    = 25 * time.Second
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(what string, holds bool, seen any) {
	if !holds {
		panic(fmt.Sprintf("%s: %v", what, seen))
	}
}

func call(connection *grpc.ClientConn, method string, message []byte) ([]byte, error) {
	limited, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	var answer []byte
	err := connection.Invoke(limited, "/test.Echo/"+method, &message, &answer)
	return answer, err
}

func each(limited context.Context, connection *grpc.ClientConn) grpc.ClientStream {
	both := &grpc.StreamDesc{StreamName: "Each", ServerStreams: true, ClientStreams: true}
	stream, err := connection.NewStream(limited, both, "/test.Echo/Each")
	check(err)
	return stream
}

// Waits until the server has this number of calls of Each that it has not dropped.
func becomes(connection *grpc.ClientConn, number int) {
	for end := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		answer, err := call(connection, "Open", []byte("?"))
		check(err)
		open, err := strconv.Atoi(string(answer))
		check(err)
		if open == number {
			return
		}
		expect("open calls", time.Now().Before(end), open)
	}
}

func answers(stream grpc.ClientStream, message string) {
	text := []byte(message)
	check(stream.SendMsg(&text))
	var answer []byte
	check(stream.RecvMsg(&answer))
	expect("an answer", string(answer) == message, string(answer))
}

func main() {
	connection, err := grpc.NewClient("passthrough:///"+os.Args[1],
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: pings, Timeout: answered, PermitWithoutStream: true}))
	check(err)

	// One message, also of many frames; a status without a message.
	for _, message := range [][]byte{[]byte("one"), bytes.Repeat([]byte("x"), 1<<20)} {
		answer, err := call(connection, "One", message)
		check(err)
		expect("an answer", bytes.Equal(answer, message), len(answer))
	}
	_, err = call(connection, "One", nil)
	expect("the code", status.Code(err) == codes.InvalidArgument, err)
	_, err = call(connection, "Other", []byte("x"))
	expect("the code", status.Code(err) == codes.Unimplemented, err)
	// More at once than the server permits on a connection: they wait for their turn.
	var all sync.WaitGroup
	failures := make(chan error, 300)
	for number := range 300 {
		all.Add(1)
		go func() {
			defer all.Done()
			message := []byte(strconv.Itoa(number))
			answer, err := call(connection, "One", message)
			if err == nil && !bytes.Equal(answer, message) {
				err = fmt.Errorf("another answer: %s", answer)
			}
			if err != nil {
				failures <- err
			}
		}()
	}
	all.Wait()
	expect("failures", len(failures) == 0, len(failures))

	// Both directions at once: each message is answered before the next one is sent.
	limited, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	stream := each(limited, connection)
	for number := range 100 {
		answers(stream, fmt.Sprintf("message %d", number))
	}
	// Nothing but pings for a while. Then the call continues, on the same connection.
	ready := connectivity.Ready
	expect("the connection", connection.GetState() == ready, connection.GetState())
	silence, stop := context.WithTimeout(context.Background(), quiet)
	changed := connection.WaitForStateChange(silence, ready)
	stop()
	expect("the connection", !changed, connection.GetState())
	answers(stream, "later")
	check(stream.CloseSend())
	var rest []byte
	err = stream.RecvMsg(&rest)
	expect("the end", err == io.EOF, err)

	// A deadline, and a cancelled call: the server drops both, and others continue.
	soon, release := context.WithTimeout(context.Background(), time.Second)
	late := each(soon, connection)
	becomes(connection, 1)
	err = late.RecvMsg(&rest)
	release()
	expect("the code", status.Code(err) == codes.DeadlineExceeded, err)
	becomes(connection, 0)
	cancellable, give_up := context.WithCancel(context.Background())
	cancelled := each(cancellable, connection)
	becomes(connection, 1)
	give_up()
	err = cancelled.RecvMsg(&rest)
	expect("the code", status.Code(err) == codes.Canceled, err)
	becomes(connection, 0)
	answer, err := call(connection, "One", []byte("last"))
	check(err)
	expect("an answer", string(answer) == "last", string(answer))
	fmt.Println("done")
}
