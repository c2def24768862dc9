package handlers

import (
	"bytes"
	"encoding/binary"
	"math"
)

// What a file is by its first bytes, and how many pixels an image says it has. Formats: PNG (W3C, 11.2.2), JPEG (ITU
// T.81, B.2.2), GIF (89a, 18-20), WebP (RFC 9649), ISO media (ISO 14496-12, 4.3), WebM (RFC 8794, 11.2.1).

const sniffBytes = 64

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

var noVideo = map[string]bool{
	"heic": true, "heix": true, "hevc": true, "mif1": true, "msf1": true, "avif": true, "avis": true, "crx ": true,
	"M4A ": true, "M4B ": true,
}

// sniffVideo is the media type by the first bytes: MP4, QuickTime or WebM, else empty.
func sniffVideo(content []byte) string {
	content = content[:min(len(content), sniffBytes)]
	if bytes.HasPrefix(content, []byte("\x1a\x45\xdf\xa3")) && bytes.Contains(content, []byte("\x42\x82\x84webm")) {
		return "video/webm"
	}
	if len(content) < 8 {
		return ""
	}
	switch kind := string(content[4:8]); {
	case kind == "moov" || kind == "mdat" || kind == "wide": // QuickTime before it had ftyp
		return "video/quicktime"
	case kind != "ftyp" || len(content) < 12 || noVideo[string(content[8:12])]:
		return ""
	case string(content[8:12]) == "qt  ":
		return "video/quicktime"
	}
	return "video/mp4"
}

// imageSize is the width and height that an image's headers name; false where they cannot be read.
func imageSize(content []byte, kind string) (width, height int, ok bool) {
	switch kind {
	case "image/png":
		if len(content) >= 24 && string(content[12:16]) == "IHDR" {
			w, h := binary.BigEndian.Uint32(content[16:]), binary.BigEndian.Uint32(content[20:])
			width, height = int(min(w, math.MaxInt32)), int(min(h, math.MaxInt32))
		}
	case "image/jpeg":
		width, height = jpegSize(content)
	case "image/gif":
		width, height = gifSize(content)
	case "image/webp":
		width, height = webpSize(content)
	}
	return width, height, width > 0 && height > 0
}

func jpegSize(content []byte) (int, int) {
	for at := 2; at+1 < len(content) && content[at] == 0xff; {
		switch marker := content[at+1]; {
		case marker == 0xff: // a fill byte
			at++
		case marker == 0x01 || marker >= 0xd0 && marker <= 0xd8:
			at += 2
		case marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc:
			if len(content) < at+9 {
				return 0, 0
			}
			return int(binary.BigEndian.Uint16(content[at+7:])), int(binary.BigEndian.Uint16(content[at+5:]))
		case marker == 0xd9 || marker == 0xda: // the end or a scan before any frame
			return 0, 0
		default:
			if len(content) < at+4 {
				return 0, 0
			}
			at += 2 + max(2, int(binary.BigEndian.Uint16(content[at+2:])))
		}
	}
	return 0, 0
}

// gifSize is the largest of the screen and its frames: a frame may be larger than the screen.
func gifSize(content []byte) (width, height int) {
	if len(content) < 11 {
		return 0, 0
	}
	short := func(at int) int { return int(binary.LittleEndian.Uint16(content[at:])) }
	width, height = short(6), short(8)
	at := 13 + colorTable(content[10])
	for at < len(content) && (content[at] == 0x21 || content[at] == 0x2c) {
		if content[at] == 0x2c {
			if at+10 > len(content) {
				break
			}
			if w, h := short(at+5), short(at+7); w*h > width*height {
				width, height = w, h
			}
			at += 11 + colorTable(content[at+9])
		} else {
			at += 2
		}
		for at < len(content) && content[at] != 0 {
			at += 1 + int(content[at])
		}
		at++
	}
	return width, height
}

func colorTable(flags byte) int {
	if flags&0x80 == 0 {
		return 0
	}
	return 3 << (flags&7 + 1)
}

func webpSize(content []byte) (int, int) {
	if len(content) < 30 && !(len(content) >= 25 && string(content[12:16]) == "VP8L") {
		return 0, 0
	}
	switch string(content[12:16]) {
	case "VP8X":
		three := func(at int) int { return int(content[at]) | int(content[at+1])<<8 | int(content[at+2])<<16 }
		return three(24) + 1, three(27) + 1
	case "VP8L":
		if content[20] == 0x2f {
			bits := int(binary.LittleEndian.Uint32(content[21:]))
			return bits&0x3fff + 1, bits>>14&0x3fff + 1
		}
	case "VP8 ":
		if string(content[23:26]) == "\x9d\x01\x2a" {
			return int(binary.LittleEndian.Uint16(content[26:])) & 0x3fff, int(binary.LittleEndian.Uint16(content[28:])) & 0x3fff
		}
	}
	return 0, 0
}
