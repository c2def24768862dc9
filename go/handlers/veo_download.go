package handlers

import (
	"bufio"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/taskgate/taskgate/go/worker"
)

const (
	goneTimes  = 5 // a video that its provider does not give so often in a row is gone
	firstPause = time.Second
)

// guarded reaches public hosts only, and those that the settings allow: a provider may name any URL.
func (v *videoProvider) guarded() *http.Transport {
	return &http.Transport{
		// no proxy from the environment: it would resolve the name again, unchecked
		DialContext: v.videos.dial, TLSHandshakeTimeout: connectTimeout, ResponseHeaderTimeout: pollPatience,
		DisableKeepAlives: true, DisableCompression: true, Protocols: http1(),
	}
}

// keep stores a video that comes inside an answer, in base64. A long string that is something else is let go.
func (f *follower) keep(ctx context.Context, key string, from io.Reader) (string, error) {
	if key != "data" && key != "bytesBase64Encoded" && key != "encodedVideo" {
		return "", nil
	}
	content := bufio.NewReader(base64.NewDecoder(base64.StdEncoding, from))
	head, _ := content.Peek(sniffBytes)
	if sniff(head) != "" { // a picture of the request, repeated
		return "", nil
	}
	ref, err := f.store(ctx, content, cmp.Or(sniffVideo(head), defaultVideo))
	if err != nil {
		return "", err
	}
	f.stored[ref.URL] = ref
	return ref.URL, nil
}

const defaultVideo = "video/mp4"

func (f *follower) store(ctx context.Context, content io.Reader, kind string) (worker.MediaRef, error) {
	ref, err := f.task.StoreMedia(ctx, fmt.Sprintf("video-%d.mp4", f.number+1), content, kind)
	var broken base64.CorruptInputError
	if errors.As(err, &broken) {
		err = worker.Permanent("the provider's video is no base64").WithCode("no_video")
	}
	if err == nil {
		f.number++
	}
	return ref, err
}

// fetch is where a video is now: stored while it came, inside the answer yet (a small one), or at the provider.
func (f *follower) fetch(ctx context.Context, video videoOut) (worker.MediaRef, error) {
	ref, known := f.stored[video.mark]
	if known || video.mark == "" {
		if !known {
			return f.download(ctx, video.uri, video.mime)
		}
		return ref, nil
	}
	content := base64.NewDecoder(base64.StdEncoding, strings.NewReader(video.mark))
	return f.store(ctx, content, cmp.Or(video.mime, defaultVideo))
}

// statusError is an answer other than 200 to a download.
type statusError struct{ status int }

func (s statusError) Error() string { return fmt.Sprintf("it answered %d", s.status) }

func (s statusError) final() bool {
	return s.status >= 400 && s.status < 500 && s.status != 408 && s.status != 425 && s.status != 429
}

// download copies a video from the provider to the store. It is tried until the attempt's time is up, unless it is
// gone: the work is paid for.
func (f *follower) download(ctx context.Context, uri, mime string) (worker.MediaRef, error) {
	gone := 0
	for wait := firstPause; ; wait = min(2*wait, longestPause) {
		ref, err := f.try(ctx, uri, mime)
		if err == nil {
			return ref, nil
		}
		var steer *worker.TaskError
		var answered statusError
		switch {
		case ctx.Err() != nil:
			return ref, context.Cause(ctx)
		case errors.Is(err, worker.ErrLeaseLost), errors.As(err, &steer) && steer.Outcome() == "permanent":
			return ref, err
		case errors.As(err, &answered) && answered.final():
			if gone++; gone == goneTimes {
				return ref, worker.Permanent("the video cannot be had from the provider: %v", err).WithCode("video_gone")
			}
		default:
			gone = 0
		}
		if err := pause(ctx, spread(wait)); err != nil {
			return ref, err
		}
	}
}

func (f *follower) try(ctx context.Context, uri, mime string) (ref worker.MediaRef, err error) {
	select {
	case f.v.downloads <- struct{}{}:
		defer func() { <-f.v.downloads }()
	case <-ctx.Done():
		return ref, context.Cause(ctx)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(pollPatience, func() { cancel(errStalled) })
	defer stalled.Stop()
	response, err := f.open(ctx, f.addressOf(uri))
	if err != nil {
		return ref, err
	}
	defer response.Body.Close()
	stalled.Stop()
	content := bufio.NewReader(&patientReader{response.Body, stalled})
	head, err := content.Peek(sniffBytes)
	if err != nil && err != io.EOF {
		return ref, f.failure(ctx, err)
	}
	kind := sniffVideo(head)
	if kind == "" && !f.isOwn(response.Request.URL.String()) {
		return ref, mediaRefused("%s is no MP4, WebM or QuickTime video", shown(uri))
	}
	if ref, err = f.store(ctx, content, cmp.Or(kind, mime, defaultVideo)); err != nil {
		return ref, f.failure(ctx, err)
	}
	return ref, nil
}

// addressOf is where a result can be fetched: an object of Google's storage by its JSON API.
func (f *follower) addressOf(uri string) string {
	bucket, object, isObject := strings.Cut(strings.TrimPrefix(uri, "gs://"), "/")
	if !strings.HasPrefix(uri, "gs://") || !isObject {
		return uri
	}
	return f.v.storage() + "/storage/v1/b/" + percent(bucket) + "/o/" + percent(object) + "?alt=media"
}

// percent encodes a name as one segment of a path.
func percent(name string) string { return strings.ReplaceAll(url.QueryEscape(name), "+", "%20") }

// isOwn says whether the key or token may go to this address.
func (f *follower) isOwn(address string) bool {
	return sameOrigin(address, f.route.endpoint) || f.route.name() == "vertex" && sameOrigin(address, f.v.storage())
}

func (v *videoProvider) storage() string {
	base := strings.TrimRight(v.cfg.GoogleStorageURL, "/")
	if base == "" {
		return storageBaseURL
	}
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	return base
}

// open follows redirects by hand: the key goes to the provider alone, and every other host is checked.
func (f *follower) open(ctx context.Context, address string) (*http.Response, error) {
	next := address
	for range maxRedirects + 1 {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, next, nil)
		if err != nil || !isHTTP(next) || request.URL.User != nil {
			return nil, mediaRefused("%s: only http and https URLs are downloaded", shown(next))
		}
		request.Header.Set("User-Agent", userAgentFor+worker.Version)
		client := f.v.fetching
		if f.isOwn(next) {
			client = f.v.polling
			if _, err := f.route.authorize(ctx, request); err != nil {
				return nil, errors.New(err.Error())
			}
		}
		response, err := client.Do(request)
		if err != nil {
			return nil, f.unreachable(ctx, err)
		}
		if response.StatusCode == http.StatusOK {
			return response, nil
		}
		drain(response.Body)
		location := response.Header.Get("location")
		if location == "" || !isRedirect(response.StatusCode) {
			return nil, statusError{response.StatusCode}
		}
		target, err := request.URL.Parse(location)
		if err != nil {
			return nil, mediaRefused("%s redirects to what is no URL", shown(next))
		}
		next = target.String()
	}
	return nil, mediaRefused("%s redirects more than %d times", shown(address), maxRedirects)
}

func (f *follower) unreachable(ctx context.Context, err error) error {
	var forbidden *forbiddenHost
	if errors.As(err, &forbidden) {
		return mediaRefused("the video is at a place that may not be fetched: %s", forbidden.Error())
	}
	return f.failure(ctx, err)
}
