package handlers

import (
	"context"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// inputs fetches what the request names, unless the provider has it already.
func (v *videoProvider) inputs(ctx context.Context, route *videoRoute, request videoRequest) (out videoInputs, err error) {
	images, videos := v.images.with(route.endpoint), v.videos.with(route.endpoint)
	if out.image, err = picture(ctx, images, request.image, "image"); err != nil {
		return out, err
	}
	if out.last, err = picture(ctx, images, request.last, "last_frame"); err != nil {
		return out, err
	}
	for i, each := range request.references {
		found, err := picture(ctx, images, each.address, "reference image "+strconv.Itoa(i+1))
		if err != nil {
			return out, err
		}
		out.references = append(out.references, referenceInput{*found, each.style})
	}
	switch address := request.video; {
	case address == "":
	case strings.HasPrefix(address, "gs://"):
		out.video = &mediaInput{uri: address, mime: mimeByName(address, "video/mp4")}
	case sameOrigin(address, route.endpoint) && route.name() != "vertex":
		out.video = &mediaInput{uri: address, mime: mimeByName(address, "video/mp4")}
	default:
		uri, err := videos.inlineVideo(ctx, address, "video")
		if err != nil {
			return out, err
		}
		out.video = splitData(uri)
	}
	return out, nil
}

func picture(ctx context.Context, images *downloader, address, name string) (*mediaInput, error) {
	switch {
	case address == "":
		return nil, nil
	case strings.HasPrefix(address, "gs://"):
		return &mediaInput{uri: address, mime: mimeByName(address, "image/png")}, nil
	}
	uri, err := images.inline(ctx, address, name)
	if err != nil {
		return nil, err
	}
	return splitData(uri), nil
}

// splitData takes a data: URI that was checked.
func splitData(uri string) *mediaInput {
	heading, data, _ := strings.Cut(strings.TrimPrefix(uri, "data:"), ",")
	kind, _, _ := strings.Cut(heading, ";")
	return &mediaInput{mime: kind, data: data}
}

var mimes = map[string]string{
	".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp",
	".mp4": "video/mp4", ".webm": "video/webm", ".mov": "video/quicktime",
}

// mimeByName is the type of what only the provider can read.
func mimeByName(address, fallback string) string {
	address, _, _ = strings.Cut(address, "?")
	if found := mimes[strings.ToLower(path.Ext(address))]; found != "" {
		return found
	}
	return fallback
}

// sameOrigin compares scheme, host and port.
func sameOrigin(one, other string) bool {
	a, err := url.Parse(one)
	if err != nil {
		return false
	}
	b, err := url.Parse(other)
	return err == nil && origin(a) == origin(b) && a.Hostname() != "" && a.User == nil
}

func origin(address *url.URL) string {
	return strings.ToLower(address.Scheme+"://"+address.Hostname()) + ":" + port(address)
}

func port(address *url.URL) string {
	switch {
	case address.Port() != "":
		return address.Port()
	case strings.EqualFold(address.Scheme, "https"):
		return "443"
	}
	return "80"
}
