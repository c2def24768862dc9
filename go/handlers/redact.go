package handlers

import (
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

const maxWords = 2000

// compiled at the first error: an idle worker need not hold them
var patterns = sync.OnceValue(func() (p struct{ key, data, base64, tag *regexp.Regexp }) {
	p.key = regexp.MustCompile(`\b(?:sk|pk|rk|gsk|xai|key)-[A-Za-z0-9_*-]{8,}|\bAIza[A-Za-z0-9_-]{20,}|(?i:\bbearer\s+)\S{8,}`)
	p.data = regexp.MustCompile(`data:[\w.+-]+/[\w.+-]+(?:;[\w=.+-]+)*;base64,[A-Za-z0-9+/=_-]*`)
	p.base64 = regexp.MustCompile(`[A-Za-z0-9+/_-]{200,}={0,2}`)
	p.tag = regexp.MustCompile(`(?is)<script\b.*?</script\s*>|<style\b.*?</style\s*>|<[^<>]*>`)
	return p
})

// redact makes a provider's words fit to be stored: without keys and embedded files, on one line, and of at most
// limit characters.
func redact(words string, secrets []string, limit int) string {
	words = words[:min(len(words), 64*limit)] // so that a huge answer costs little
	for _, secret := range secrets {
		if len(secret) >= 4 {
			words = strings.ReplaceAll(words, secret, "[key]")
		}
	}
	p := patterns()
	words = p.data.ReplaceAllString(words, "[data]")
	words = p.base64.ReplaceAllString(words, "[data]")
	words = strings.Join(strings.Fields(p.key.ReplaceAllString(words, "[key]")), " ")
	words = strings.ReplaceAll(strings.ToValidUTF8(words, "?"), "\x00", "")
	if len(words) <= limit || utf8.RuneCountInString(words) <= limit {
		return words
	}
	return string([]rune(words)[:limit-1]) + "…"
}

// withoutTags is the text of an HTML page, such as a proxy's error; anything else as it is.
func withoutTags(text string) string {
	if !strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "<") {
		return text
	}
	return patterns().tag.ReplaceAllString(text[:min(len(text), 100_000)], " ")
}
