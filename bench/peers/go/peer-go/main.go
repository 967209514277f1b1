// A server on net/http in the style of its documentation, for measurements.
//
//	peer-go PORT           serves /, /json and POST /echo
//	peer-go PORT FOLDER    serves the files of FOLDER, stores those of PUT, and responds to
//	                       GET /stream with a body that never ends
//	peer-go --tls-cert FILE --tls-key FILE PORT [FOLDER]    speaks HTTPS
//	peer-go --version
//
// Clients may speak HTTP/2, without TLS by prior knowledge.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
)

const echoBytesMax = 1 << 20

var hello = []byte("Hello, World!")

type message struct {
	Message string `json:"message"`
}

// bodies is a pool of memory for echoed bodies.
var bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

func serveHello(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Write(hello)
}

func serveJSON(w http.ResponseWriter, _ *http.Request) {
	text, err := json.Marshal(message{Message: "Hello, World!"})
	if err != nil {
		http.Error(w, "cannot serialise", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(text)
}

// serveEcho responds with the body of the request. It first reads the whole body, because net/http
// discards unread data when the response begins.
func serveEcho(w http.ResponseWriter, r *http.Request) {
	body := bodies.Get().(*bytes.Buffer)
	defer bodies.Put(body)
	body.Reset()
	if _, err := io.Copy(body, http.MaxBytesReader(w, r.Body, echoBytesMax)); err != nil {
		http.Error(w, "cannot read the body", http.StatusRequestEntityTooLarge)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.Write(body.Bytes())
}

// serveStream responds with a body that never ends and whose next piece is always ready.
func serveStream(w http.ResponseWriter, _ *http.Request) {
	piece := bytes.Repeat([]byte("x"), 64<<10)
	w.Header().Set("Content-Type", "application/octet-stream")
	for {
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

// servePut stores the body in a temporary file of the folder, and renames the file when it is
// complete.
func servePut(folder string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		file, err := os.CreateTemp(folder, ".put-*")
		if err != nil {
			http.Error(w, "cannot create a file", http.StatusInternalServerError)
			return
		}
		defer os.Remove(file.Name())
		_, err = io.Copy(file, r.Body)
		if closing := file.Close(); err == nil {
			err = closing
		}
		if err == nil {
			err = os.Rename(file.Name(), filepath.Join(folder, r.PathValue("name")))
		}
		if err != nil {
			http.Error(w, "cannot store the body", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
}

// listen listens on a port. The kernel offers a connection after its first bytes or after one
// second (TCP_DEFER_ACCEPT), which halves the cost of a connection with one request.
func listen(port string) (net.Listener, error) {
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

func main() {
	version := flag.Bool("version", false, "print the version of Go")
	chain := flag.String("tls-cert", "", "the file of the certificate chain, for HTTPS")
	key := flag.String("tls-key", "", "the file of its key")
	flag.Parse()
	if *version {
		fmt.Println(runtime.Version())
		return
	}
	if flag.NArg() < 1 || flag.NArg() > 2 {
		log.Fatal("usage: peer-go [--tls-cert FILE --tls-key FILE] PORT [FOLDER]")
	}
	mux := http.NewServeMux()
	if folder := flag.Arg(1); folder != "" {
		mux.Handle("GET /", http.FileServer(http.Dir(folder)))
		mux.HandleFunc("GET /stream", serveStream)
		mux.HandleFunc("PUT /{name}", servePut(folder))
	} else {
		mux.HandleFunc("GET /{$}", serveHello)
		mux.HandleFunc("GET /json", serveJSON)
		mux.HandleFunc("POST /echo", serveEcho)
	}
	socket, err := listen(flag.Arg(0))
	if err != nil {
		log.Fatal(err)
	}
	server := http.Server{Handler: mux, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	if *chain != "" {
		log.Fatal(server.ServeTLS(socket, *chain, *key))
	}
	log.Fatal(server.Serve(socket))
}
