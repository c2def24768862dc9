package handlers

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

// Images for a provider: downloaded from public hosts only, checked, and made into data: URIs.
//
// The guard against requests to inner hosts: the name is resolved once, every address is checked, and the connection
// goes to a checked address (with the host's own name in Host and TLS); so again at every redirect.

const (
	maxRedirects  = 3
	mediaDeadline = 30 * time.Second
	mediaAgent    = "taskgate (image download)"
)

type downloader struct {
	allowed  allowList
	maxBytes int
	client   *http.Client
}

func newDownloader(allow string, maxBytes int) (*downloader, error) {
	allowed, err := parseAllowed(allow)
	if err != nil {
		return nil, err
	}
	d := &downloader{allowed: allowed, maxBytes: maxBytes}
	d.client = &http.Client{
		Transport: &http.Transport{
			// no proxy from the environment: it would resolve the name again, unchecked
			DialContext:         d.dial,
			TLSHandshakeTimeout: connectSeconds,
			DisableKeepAlives:   true,
			DisableCompression:  true,
			Protocols:           http1(),
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return d, nil
}

func mediaRefused(format string, args ...any) error {
	return worker.Permanent(format, args...).WithCode("media_refused")
}

func mediaRetry(format string, args ...any) error {
	return worker.Retry(format, args...).WithCode("media_unavailable")
}

// inline is the image as a data: URI. name is what errors call it, such as "image 2". A forbidden host, too many
// bytes or no image is permanent (media_refused), 4xx too (media_unavailable); the rest is tried again.
func (d *downloader) inline(ctx context.Context, address, name string) (string, error) {
	if len(address) >= 5 && strings.EqualFold(address[:5], "data:") {
		return d.checkData(address, name)
	}
	limited, cancel := context.WithTimeout(ctx, mediaDeadline)
	defer cancel()
	content, err := d.download(limited, address, name)
	if err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			return "", mediaRetry("%s: %s was not downloaded within %g s", name, shown(address), mediaDeadline.Seconds())
		}
		return "", err
	}
	kind := sniff(content)
	if kind == "" {
		return "", mediaRefused("%s: %s is no PNG, JPEG, GIF or WebP image", name, shown(address))
	}
	return "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(content), nil
}

func (d *downloader) checkData(uri, name string) (string, error) {
	heading, text, found := strings.Cut(uri, ",")
	if !found || !strings.HasSuffix(strings.ToLower(heading), ";base64") {
		return "", mediaRefused("%s: the data: URI must look like data:image/png;base64,…", name)
	}
	if len(text)/4*3 > d.maxBytes+2 {
		return "", d.tooLarge(name)
	}
	content, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") {
		return "", mediaRefused("%s: the data: URI holds no valid base64", name)
	}
	if len(content) > d.maxBytes {
		return "", d.tooLarge(name)
	}
	kind := sniff(content)
	if kind == "" {
		return "", mediaRefused("%s: the data: URI holds no PNG, JPEG, GIF or WebP image", name)
	}
	if declared, _, _ := strings.Cut(strings.ToLower(heading[5:]), ";"); declared == kind {
		return uri, nil
	}
	return "data:" + kind + ";base64," + text, nil
}

func (d *downloader) download(ctx context.Context, address, name string) ([]byte, error) {
	var base *url.URL
	next := address
	for range maxRedirects + 1 {
		target, err := parseTarget(base, next, name)
		if err != nil {
			return nil, err
		}
		response, err := d.request(ctx, target, name)
		if err != nil {
			return nil, err
		}
		next = response.Header.Get("location")
		if next == "" || !isRedirect(response.StatusCode) {
			content, err := d.read(response, target, name)
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
	}
	return target, nil
}

func (d *downloader) request(ctx context.Context, target *url.URL, name string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return nil, mediaRefused("%s: the URL is malformed", name)
	}
	request.Header.Set("User-Agent", mediaAgent)
	request.Header.Set("Accept", "image/*")
	request.Header.Set("Accept-Encoding", "identity")
	response, err := d.client.Do(request)
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
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
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
	} else if addresses, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
		return nil, fmt.Errorf("the host %s cannot be resolved: %w", host, err)
	}
	if !d.allowed.host(host) {
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
	dialer := net.Dialer{Timeout: connectSeconds}
	for _, address := range addresses {
		var conn net.Conn
		if conn, err = dialer.DialContext(ctx, network, net.JoinHostPort(address.String(), port)); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

func (d *downloader) read(response *http.Response, target *url.URL, name string) ([]byte, error) {
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
		return nil, d.tooLarge(name)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, int64(d.maxBytes)+1))
	if err != nil {
		return nil, mediaRetry("%s broke off: %v", where, err)
	}
	if len(content) > d.maxBytes {
		return nil, d.tooLarge(name)
	}
	return content, nil
}

func (d *downloader) tooLarge(name string) error {
	return mediaRefused("%s is larger than %d bytes (TASKGATE_MEDIA_MAX_BYTES)", name, d.maxBytes)
}

// sniff is the media type by the first bytes: PNG, JPEG, GIF or WebP, else empty.
func sniff(content []byte) string {
	switch {
	case bytes.HasPrefix(content, []byte("\x89PNG\r\n\x1a\n")):
		return "image/png"
	case bytes.HasPrefix(content, []byte("\xff\xd8\xff")):
		return "image/jpeg"
	case bytes.HasPrefix(content, []byte("GIF87a")), bytes.HasPrefix(content, []byte("GIF89a")):
		return "image/gif"
	case len(content) >= 12 && string(content[:4]) == "RIFF" && string(content[8:12]) == "WEBP":
		return "image/webp"
	}
	return ""
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
