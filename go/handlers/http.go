package handlers

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

const connectTimeout = 10 * time.Second

// providerTransport is one for a provider's API. perHost bounds the connections kept for the next call.
func providerTransport(perHost int) *http.Transport {
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment, // never for this machine itself
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout: connectTimeout,
		MaxIdleConnsPerHost: perHost,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true, // an inflater costs more memory than an answer
		// HTTP/1.1: a call that is stopped closes its connection, and the provider sees it
		Protocols: http1(),
	}
}

func http1() *http.Protocols {
	var only http.Protocols
	only.SetHTTP1(true)
	return &only
}

func noRedirects(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// sent is how far a request came.
type sent struct{ connected, answering atomic.Bool }

// watch gives the request with an eye on its connection.
func (s *sent) watch(request *http.Request) *http.Request {
	trace := &httptrace.ClientTrace{
		GotConn:              func(httptrace.GotConnInfo) { s.connected.Store(true) },
		GotFirstResponseByte: func() { s.answering.Store(true) },
	}
	return request.WithContext(httptrace.WithClientTrace(request.Context(), trace))
}

// undelivered says that the provider surely has not got the request: no connection ever stood. Once one did, nobody
// can tell.
func (s *sent) undelivered() bool { return !s.connected.Load() }

// failureKind tells why a call had no answer, as judgeFailure takes it.
func failureKind(err error) string {
	var dial *net.OpError
	var name *net.DNSError
	var slow net.Error
	switch {
	case errors.As(err, &dial) && (dial.Op == "dial" || dial.Op == "proxyconnect"), errors.As(err, &name), isTLS(err.Error()):
		return "connect"
	case errors.As(err, &slow) && slow.Timeout():
		return "timeout"
	}
	return "disconnect"
}

// isTLS knows the errors of a handshake by their words; the standard library gives them no common type.
func isTLS(words string) bool {
	return strings.HasPrefix(words, "tls: ") || strings.HasPrefix(words, "remote error: tls: ") || strings.HasPrefix(words, "x509: ") ||
		strings.Contains(words, "TLS handshake") || strings.Contains(words, "HTTP response to HTTPS client")
}

// withoutURL is the error behind a url.Error, whose words repeat the whole URL.
func withoutURL(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}

// drain reads a little of what is left, so that the connection can serve the next call.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}

// printable says whether a header can carry the text.
func printable(text string) bool {
	return strings.IndexFunc(text, func(char rune) bool { return char < ' ' || char > '~' }) < 0
}

// pause waits, or fails as the context does.
func pause(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
