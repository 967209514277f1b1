// A client of net/http. Arguments: the URL of the server, and the file of its authority.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func expect(what string, found, expected any) {
	if found != expected {
		check(fmt.Errorf("%s: %v instead of %v", what, found, expected))
	}
}

func main() {
	base := os.Args[1]
	authority, err := os.ReadFile(os.Args[2])
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs:            roots,
			MinVersion:         version,
			MaxVersion:         version,
			ClientSessionCache: tls.NewLRUClientSessionCache(4),
		}}
		client := &http.Client{Transport: transport}
		exchange := func(method, path, field, value string, body []byte) (*http.Response, []byte) {
			request, err := http.NewRequest(method, base+path, bytes.NewReader(body))
			check(err)
			if field != "" {
				request.Header.Set(field, value)
			}
			response, err := client.Do(request)
			check(err)
			content, err := io.ReadAll(response.Body)
			check(err)
			response.Body.Close()
			expect("version", response.TLS.Version, version)
			return response, content
		}
		large := bytes.Repeat([]byte("0123456789"), 300_000)
		response, _ := exchange("PUT", "/from-go", "", "", large)
		expect("PUT", response.StatusCode/100, 2)
		response, content := exchange("GET", "/from-go", "", "", nil)
		expect("GET", bytes.Equal(content, large), true)
		expect("the first session", response.TLS.DidResume, false)
		response, _ = exchange("HEAD", "/from-go", "", "", nil)
		expect("HEAD", response.ContentLength, int64(len(large)))
		response, content = exchange("GET", "/from-go", "Range", "bytes=3-6", nil)
		expect("status of a range", response.StatusCode, 206)
		expect("range", string(content), "3456")
		// Another connection resumes the session.
		transport.CloseIdleConnections()
		response, _ = exchange("GET", "/from-go", "", "", nil)
		expect("the second session", response.TLS.DidResume, true)
		transport.CloseIdleConnections()
		// An object that does not exist.
		response, err := client.Get(base + "/missing")
		if err == nil {
			_, err = io.ReadAll(response.Body)
		}
		expect("a missing object", err == nil && response.StatusCode == 404, true)
	}
	fmt.Println("done")
}
