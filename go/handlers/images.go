package handlers

import (
	"context"
	"encoding/json"
	"strconv"
	"sync"
)

// imagesAtOnce bounds the downloads of one task that run side by side.
const imagesAtOnce = 4

// inlineImages gives messages in which each image_url part holds a data: URI. An image that occurs twice is
// downloaded once. All together have at most maxTotal characters. Errors name an image by its position, from 1.
func inlineImages(ctx context.Context, messages []json.RawMessage, from *downloader, maxTotal int) ([]json.RawMessage, error) {
	found := []string{}
	position := map[string]int{}
	for _, message := range messages {
		eachImage(message, func(address string) string {
			if _, known := position[address]; !known {
				position[address] = len(found) + 1
			}
			found = append(found, address)
			return address
		})
	}
	if len(found) == 0 {
		return messages, nil
	}
	if len(found) > maxImages {
		return nil, mediaRefused("image %d: a task has at most %d images", maxImages+1, maxImages)
	}
	done, err := downloadAll(ctx, position, from, maxTotal)
	if err != nil {
		return nil, err
	}
	out := make([]json.RawMessage, len(messages))
	for i, message := range messages {
		out[i] = eachImage(message, func(address string) string { return done[address] })
	}
	return out, nil
}

func downloadAll(ctx context.Context, position map[string]int, from *downloader, maxTotal int) (map[string]string, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	var group sync.WaitGroup
	var first error
	total := 0
	done := make(map[string]string, len(position))
	turns := make(chan struct{}, imagesAtOnce)
	for address, number := range position {
		group.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			name := "image " + strconv.Itoa(number)
			uri, err := from.inline(ctx, address, name)
			mu.Lock()
			defer mu.Unlock()
			if total += len(uri); err == nil && total > maxTotal {
				err = mediaRefused("%s: the images of this task have more than %d bytes in all", name, maxTotal)
			}
			if err != nil && first == nil {
				first = err
				stop()
			}
			done[address] = uri
		})
	}
	group.Wait()
	return done, first
}

// eachImage calls replace with the URL of every image_url part, {"image_url": {"url": …}} or the short form
// {"image_url": …}, and gives the message with what it answers. Everything else keeps its bytes.
func eachImage(message json.RawMessage, replace func(string) string) json.RawMessage {
	fields, err := parseObject(message)
	if err != nil {
		return message
	}
	parts, isList := asList(fields.get("content"))
	if !isList {
		return message
	}
	for i, each := range parts {
		part, err := parseObject(each)
		if kind, _ := asString(part.get("type")); err != nil || kind != "image_url" {
			continue
		}
		if address, ok := asString(part.get("image_url")); ok {
			part.set("image_url", encode(replace(address)))
		} else if image, err := parseObject(part.get("image_url")); err == nil {
			address, ok := asString(image.get("url"))
			if !ok {
				continue
			}
			image.set("url", encode(replace(address)))
			part.set("image_url", image.raw())
		}
		parts[i] = part.raw()
	}
	fields.set("content", rawList(parts))
	return fields.raw()
}
