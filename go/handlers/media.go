package handlers

import (
	"context"
	"encoding/base64"
	"strings"

	"github.com/taskgate/taskgate/go/worker"
)

// Images and videos that tasks name: downloaded under guard (guarded.go), checked, and made into data: URIs.

func mediaRefused(format string, args ...any) error {
	return worker.Permanent(format, args...).WithCode("media_refused")
}

func mediaRetry(format string, args ...any) error {
	return worker.Retry(format, args...).WithCode("media_unavailable")
}

// mediaKind is what is wanted: its type by the first bytes, and how errors call it.
type mediaKind struct {
	sniff            func([]byte) string
	words, example   string
	accept, maxBytes string
}

var (
	imageKind = mediaKind{sniff, "PNG, JPEG, GIF or WebP image", "image/png", "image/*", "TASKGATE_MEDIA_MAX_BYTES"}
	videoKind = mediaKind{sniffVideo, "MP4, WebM or QuickTime video", "video/mp4", "video/*", "TASKGATE_MEDIA_MAX_VIDEO_BYTES"}
)

// inline is the image as a data: URI. name is what errors call it, such as "image 2". A forbidden host, too many
// bytes or pixels, or no image is permanent (media_refused), 4xx too (media_unavailable); the rest is tried again.
func (d *downloader) inline(ctx context.Context, address, name string) (string, error) {
	return d.inlineKind(ctx, address, name, imageKind)
}

// inlineVideo is the same for a video.
func (d *downloader) inlineVideo(ctx context.Context, address, name string) (string, error) {
	return d.inlineKind(ctx, address, name, videoKind)
}

func (d *downloader) inlineKind(ctx context.Context, address, name string, want mediaKind) (string, error) {
	if len(address) >= 5 && strings.EqualFold(address[:5], "data:") {
		return d.checkData(address, name, want)
	}
	limited, cancel := context.WithTimeout(ctx, d.deadline)
	defer cancel()
	content, err := d.download(limited, address, name, want)
	if err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			return "", mediaRetry("%s: %s was not downloaded within %g s", name, shown(address), d.deadline.Seconds())
		}
		return "", err
	}
	kind := want.sniff(content)
	if kind == "" {
		return "", mediaRefused("%s: %s is no %s", name, shown(address), want.words)
	}
	if err := d.checkPixels(content, kind, name); err != nil {
		return "", err
	}
	return "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(content), nil
}

func (d *downloader) checkPixels(content []byte, kind, name string) error {
	if !strings.HasPrefix(kind, "image/") {
		return nil
	}
	width, height, ok := imageSize(content, kind)
	if !ok {
		return mediaRefused("%s: its width and height cannot be read, so it is damaged", name)
	}
	if width > d.maxPixels/height {
		return mediaRefused("%s has %d x %d pixels, more than %d (TASKGATE_MEDIA_MAX_PIXELS)", name, width, height, d.maxPixels)
	}
	return nil
}

func (d *downloader) checkData(uri, name string, want mediaKind) (string, error) {
	heading, text, found := strings.Cut(uri, ",")
	if !found || !strings.HasSuffix(strings.ToLower(heading), ";base64") {
		return "", mediaRefused("%s: the data: URI must look like data:%s;base64,…", name, want.example)
	}
	if len(text)/4*3 > d.maxBytes+2 {
		return "", d.tooLarge(name, want)
	}
	content, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || strings.ContainsAny(text, "\r\n") {
		return "", mediaRefused("%s: the data: URI holds no valid base64", name)
	}
	if len(content) > d.maxBytes {
		return "", d.tooLarge(name, want)
	}
	kind := want.sniff(content)
	if kind == "" {
		return "", mediaRefused("%s: the data: URI holds no %s", name, want.words)
	}
	if err := d.checkPixels(content, kind, name); err != nil {
		return "", err
	}
	if declared, _, _ := strings.Cut(heading[5:], ";"); declared == kind && strings.HasPrefix(heading, "data:") {
		return uri, nil
	}
	return "data:" + kind + ";base64," + text, nil
}

func (d *downloader) tooLarge(name string, want mediaKind) error {
	return mediaRefused("%s is larger than %d bytes (%s)", name, d.maxBytes, want.maxBytes)
}
