package handlers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

// Downloads of what tasks name, from public hosts only.
//
// The guard against requests to inner hosts: the name is resolved once, every address is checked, and the connection
// goes to a checked address (with the host's own name in Host and TLS); so again at every redirect.

const (
	maxRedirects  = 3
	mediaDeadline = 30 * time.Second
	mediaAgent    = "taskgate (media download)"
)

type downloader struct {
	allowed  allowList
	own      string // host:port of the provider itself, if it may be asked
	maxBytes int
	// pixels of an image
	maxPixels int
	deadline  time.Duration
	lookup    func(ctx context.Context, network, host string) ([]netip.Addr, error)
	transport *http.Transport
}

func newDownloader(allow string, maxBytes, maxPixels int) (*downloader, error) {
	allowed, err := parseAllowed(allow)
	if err != nil {
		return nil, err
	}
	d := &downloader{allowed: allowed, maxBytes: maxBytes, maxPixels: maxPixels, deadline: mediaDeadline}
	d.lookup = net.DefaultResolver.LookupNetIP
	return d.with(""), nil
}

// with is a downloader that may reach the host of a provider's base URL as well.
func (d *downloader) with(base string) *downloader {
	copied := *d
	d = &copied
	d.own = ""
	if parsed, err := url.Parse(base); err == nil && parsed.Hostname() != "" {
		d.own = net.JoinHostPort(strings.ToLower(parsed.Hostname()), port(parsed))
	}
	d.transport = &http.Transport{
		// no proxy from the environment: it would resolve the name again, unchecked
		DialContext:         d.dial,
		TLSHandshakeTimeout: connectTimeout,
		DisableKeepAlives:   true,
		DisableCompression:  true,
		Protocols:           http1(),
	}
	return d
}

func (d *downloader) download(ctx context.Context, address, name string, want mediaKind) ([]byte, error) {
	var base *url.URL
	next := address
	for range maxRedirects + 1 {
		target, err := parseTarget(base, next, name)
		if err != nil {
			return nil, err
		}
		response, err := d.request(ctx, target, name, want)
		if err != nil {
			return nil, err
		}
		next = response.Header.Get("location")
		if next == "" || !isRedirect(response.StatusCode) {
			content, err := d.read(response, target, name, want)
			response.Body.Close()
			return content, err
		}
		response.Body.Close()
		base = target
	}
	return nil, mediaRefused("%s: %s redirects more than %d times", name, shown(address), maxRedirects)
}

func isRedirect(status int) bool {
	return status == 301 || status == 302 || status == 303 || status == 307 || status == 308
}

func parseTarget(base *url.URL, address, name string) (*url.URL, error) {
	target, err := url.Parse(address)
	if err != nil {
		return nil, mediaRefused("%s: the URL is malformed", name)
	}
	if base != nil {
		target = base.ResolveReference(target)
	}
	switch {
	case target.Scheme != "http" && target.Scheme != "https" || target.Hostname() == "":
		return nil, mediaRefused("%s: only http and https URLs are downloaded", name)
	case target.User != nil:
		return nil, mediaRefused("%s: a URL with a user name or password is not downloaded", name)
	case target.Port() != "" && !isPort(target.Port()):
		return nil, mediaRefused("%s: the URL is malformed", name)
	case isNumber(target.Hostname()):
		// some resolvers read 127.1, 2130706433 or 0x7f000001 as an address, others ask for that name
		return nil, mediaRefused("%s: the host %s is no IP address in its usual form", name, target.Hostname())
	}
	return target, nil
}

func isPort(text string) bool {
	number, err := strconv.ParseUint(text, 10, 16)
	return err == nil && number > 0
}

// isNumber says whether a host ends in a number and is no IP address all the same.
func isNumber(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return false
	}
	host = strings.ToLower(strings.TrimRight(host, "."))
	last := host[strings.LastIndexByte(host, '.')+1:]
	digits, hex := strings.CutPrefix(last, "0x")
	if hex {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

func (d *downloader) request(ctx context.Context, target *url.URL, name string, want mediaKind) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, mediaRefused("%s: the URL is malformed", name)
	}
	request.Header.Set("User-Agent", mediaAgent)
	request.Header.Set("Accept", want.accept)
	request.Header.Set("Accept-Encoding", "identity")
	response, err := d.transport.RoundTrip(request) // a client would look at Location itself
	if err == nil {
		return response, nil
	}
	var forbidden *forbiddenHost
	if errors.As(err, &forbidden) {
		return nil, mediaRefused("%s: %s", name, forbidden.Error())
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, mediaRetry("%s: %s cannot be downloaded: %v", name, shown(target.String()), err)
}

type forbiddenHost struct {
	host    string
	address netip.Addr
	why     string
}

func (f *forbiddenHost) Error() string {
	return fmt.Sprintf("the host %s is not a public one (%s: %s). If it is meant, add it to TASKGATE_MEDIA_ALLOW", f.host, f.address, f.why)
}

// dial resolves the host once, checks every address, and connects to one that was checked.
func (d *downloader) dial(ctx context.Context, network, hostPort string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return nil, err
	}
	var addresses []netip.Addr
	if literal, err := netip.ParseAddr(host); err == nil {
		addresses = []netip.Addr{literal}
	} else if addresses, err = d.lookup(ctx, "ip", host); err != nil {
		return nil, fmt.Errorf("the host %s cannot be resolved: %w", host, err)
	}
	if !d.allowed.host(host) && !(d.own != "" && strings.EqualFold(hostPort, d.own)) {
		for _, address := range addresses {
			if !address.IsValid() {
				return nil, fmt.Errorf("the host %s has an address that is none", host)
			}
			if _, err := netip.ParseAddr(host); err != nil {
				address = address.Unmap() // the resolver may give an A record in the long form
			}
			if why := refused(address); why != "" && !d.allowed.address(address) {
				return nil, &forbiddenHost{host, address, why}
			}
		}
	}
	dialer := net.Dialer{Timeout: connectTimeout}
	for _, address := range addresses {
		var conn net.Conn
		if conn, err = dialer.DialContext(ctx, network, net.JoinHostPort(address.String(), port)); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func (d *downloader) read(response *http.Response, target *url.URL, name string, want mediaKind) ([]byte, error) {
	where := name + ": " + shown(target.String())
	status := response.StatusCode
	switch {
	case status == 408 || status == 425 || status == 429 || status >= 500:
		return nil, mediaRetry("%s answered %d", where, status)
	case status != 200:
		return nil, worker.Permanent("%s answered %d", where, status).WithCode("media_unavailable")
	case response.Header.Get("content-encoding") != "" && response.Header.Get("content-encoding") != "identity":
		return nil, mediaRefused("%s is sent compressed, though that was not asked for", where)
	case response.ContentLength > int64(d.maxBytes):
		return nil, d.tooLarge(name, want)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, int64(d.maxBytes)+1))
	if err != nil {
		return nil, mediaRetry("%s broke off: %v", where, err)
	}
	if len(content) > d.maxBytes {
		return nil, d.tooLarge(name, want)
	}
	return content, nil
}

// shown is a URL as errors show it: without its query, which may be a signature.
func shown(address string) string {
	address, _, _ = strings.Cut(address, "?")
	address, _, _ = strings.Cut(address, "#")
	if runes := []rune(address); len(runes) > 200 {
		return string(runes[:199]) + "…"
	}
	return address
}
