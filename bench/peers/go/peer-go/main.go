// A server on net/http as its documentation shows it, for measuring.
//
//	peer-go PORT           answers /, /json and POST /echo
//	peer-go PORT FOLDER    serves the files of FOLDER
//	peer-go --version
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"

	"onrush.bench/peers/listener"
)

const echoBytesMax = 1 << 20

var hello = []byte("Hello, World!")

type message struct {
	Message string `json:"message"`
}

// bodies keeps the memory of echoed bodies from one request to the next.
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

// serveEcho answers with the request's body. It is read to its end first, for net/http drops what
// has not been read when the answer begins.
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

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(runtime.Version())
		return
	}
	if len(os.Args) < 2 || len(os.Args) > 3 {
		log.Fatal("usage: peer-go PORT [FOLDER]")
	}
	mux := http.NewServeMux()
	if len(os.Args) == 3 {
		mux.Handle("GET /", http.FileServer(http.Dir(os.Args[2])))
	} else {
		mux.HandleFunc("GET /{$}", serveHello)
		mux.HandleFunc("GET /json", serveJSON)
		mux.HandleFunc("POST /echo", serveEcho)
	}
	socket, err := listener.Listen(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(socket, mux))
}
