// Command tlsprovider is a chat provider over TLS whose answers have a given size: for measuring the memory that a
// worker needs for real calls. It prints its address when it is ready and writes its certificate to -certificate.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	file := flag.String("certificate", "", "where to write the certificate, PEM")
	size := flag.Int("bytes", 2048, "length of an answer's text")
	latency := flag.Duration("latency", 0, "until the answer, unless the prompt holds a duration such as wait:5s")
	flag.Parse()
	pair, text, err := selfSigned()
	if err == nil {
		err = os.WriteFile(*file, text, 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("https://%s\n", listener.Addr())
	answer, _ := json.Marshal(map[string]any{
		"id": "chatcmpl-1", "object": "chat.completion", "model": "tls",
		"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": strings.Repeat("x", *size)}}},
		"usage":   map[string]int{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
	})
	log.Fatal(http.Serve(listener, http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		pause := *latency
		if _, rest, found := strings.Cut(string(body), "wait:"); found {
			end := strings.IndexAny(rest, `" `)
			if given, err := time.ParseDuration(rest[:max(end, 0)]); err == nil {
				pause = given
			}
		}
		select {
		case <-time.After(pause):
		case <-request.Context().Done():
			return
		}
		out.Header().Set("content-type", "application/json")
		_, _ = out.Write(answer)
	})))
}

func selfSigned() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "taskgate test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return pair, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
