package worker

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const maxErrorRunes = 2000

// storable replaces what PostgreSQL's jsonb refuses in JSON text: \u0000, and halves of surrogate pairs.
func storable(text []byte) []byte {
	if !bytes.Contains(text, []byte(`\u`)) {
		return text
	}
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); {
		if text[i] != '\\' || i+1 >= len(text) {
			out = append(out, text[i])
			i++
			continue
		}
		unit, ok := escapedUnit(text[i:])
		switch {
		case !ok: // another escape, such as \\ or \n
			out = append(out, text[i], text[i+1])
			i += 2
		case unit == 0 || 0xdc00 <= unit && unit < 0xe000:
			out = append(out, `\ufffd`...)
			i += 6
		case 0xd800 <= unit && unit < 0xdc00:
			if low, ok := escapedUnit(text[i+6:]); ok && 0xdc00 <= low && low < 0xe000 {
				out = append(out, text[i:i+12]...)
				i += 12
			} else {
				out = append(out, `\ufffd`...)
				i += 6
			}
		default:
			out = append(out, text[i:i+6]...)
			i += 6
		}
	}
	return out
}

func escapedUnit(text []byte) (uint64, bool) {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0, false
	}
	unit, err := strconv.ParseUint(string(text[2:6]), 16, 32)
	return unit, err == nil
}

// plain makes a message storable as text: valid UTF-8, no NUL, and not endless.
func plain(message string) string {
	message = strings.ReplaceAll(strings.ToValidUTF8(message, "\ufffd"), "\x00", "\ufffd")
	if len(message) <= maxErrorRunes || utf8.RuneCountInString(message) <= maxErrorRunes {
		return message
	}
	return string([]rune(message)[:maxErrorRunes-1]) + "…"
}

func jitter(base time.Duration, from, to float64) time.Duration {
	return time.Duration(float64(base) * (from + rand.Float64()*(to-from)))
}

// round is a duration in seconds, to the millisecond, for the log.
func round(d time.Duration) float64 {
	return float64(d.Round(time.Millisecond)) / float64(time.Second)
}
