// A server on fasthttp in the style of its documentation, for measurements.
//
//	peer-fasthttp PORT           serves /, /json and POST /echo
//	peer-fasthttp PORT FOLDER    serves the files of FOLDER
//	peer-fasthttp --version
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/valyala/fasthttp"
	"onrush.bench/peers/listener"
)

const echoBytesMax = 1 << 20

var hello = []byte("Hello, World!")

type message struct {
	Message string `json:"message"`
}

func route(ctx *fasthttp.RequestCtx) {
	switch string(ctx.Path()) {
	case "/":
		if allowed(ctx, fasthttp.MethodGet) {
			ctx.SetContentType("text/plain; charset=utf-8")
			ctx.SetBody(hello)
		}
	case "/json":
		if allowed(ctx, fasthttp.MethodGet) {
			serveJSON(ctx)
		}
	case "/echo":
		if allowed(ctx, fasthttp.MethodPost) {
			ctx.SetContentType("application/octet-stream")
			ctx.SetBody(ctx.PostBody())
		}
	default:
		ctx.Error("not found", fasthttp.StatusNotFound)
	}
}

// allowed responds with 405 unless the request has this method. GET includes HEAD.
func allowed(ctx *fasthttp.RequestCtx, method string) bool {
	if string(ctx.Method()) == method || method == fasthttp.MethodGet && ctx.IsHead() {
		return true
	}
	ctx.Error("method not allowed", fasthttp.StatusMethodNotAllowed)
	ctx.Response.Header.Set("Allow", method)
	return false
}

func serveJSON(ctx *fasthttp.RequestCtx) {
	text, err := json.Marshal(message{Message: "Hello, World!"})
	if err != nil {
		ctx.Error("cannot serialise", fasthttp.StatusInternalServerError)
		return
	}
	ctx.SetContentType("application/json")
	ctx.SetBody(text)
}

func files(folder string) fasthttp.RequestHandler {
	fs := &fasthttp.FS{Root: folder, AllowEmptyRoot: false, AcceptByteRange: true}
	return fs.NewRequestHandler()
}

func version() string {
	found := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, dependency := range info.Deps {
			if dependency.Path == "github.com/valyala/fasthttp" {
				found = dependency.Version
			}
		}
	}
	return found + ", " + runtime.Version()
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println(version())
		return
	}
	if len(os.Args) < 2 || len(os.Args) > 3 {
		log.Fatal("usage: peer-fasthttp PORT [FOLDER]")
	}
	handler := route
	if len(os.Args) == 3 {
		handler = files(os.Args[2])
	}
	socket, err := listener.Listen(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := &fasthttp.Server{Handler: handler, MaxRequestBodySize: echoBytesMax}
	log.Fatal(server.Serve(socket))
}
