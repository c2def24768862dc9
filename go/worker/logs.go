package worker

import (
	"io"
	"log/slog"
	"os"
	"strings"
	"time"
)

// NewLogger writes one line an event, in the form of docs/reference/log-events.md: format "json", "console" (for
// people), or "auto", which is "console" on a terminal; from level on: debug, info, warning or error.
func NewLogger(out io.Writer, format, level string) *slog.Logger {
	var least slog.Level
	if level == "warning" {
		level = "warn" // as slog calls it
	}
	_ = least.UnmarshalText([]byte(level)) // an unknown word leaves info

	if format == "console" || format == "auto" && isTerminal(out) {
		return slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{ReplaceAttr: consoleNames, Level: least}))
	}
	handler := slog.NewJSONHandler(out, &slog.HandlerOptions{ReplaceAttr: jsonNames, Level: least})
	return slog.New(handler).With("component", "worker")
}

func jsonNames(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return attr
	}
	switch attr.Key {
	case slog.TimeKey:
		return slog.String("timestamp", attr.Value.Time().UTC().Format("2006-01-02T15:04:05.000000Z"))
	case slog.LevelKey:
		return slog.String("level", levelName(attr.Value))
	case slog.MessageKey:
		attr.Key = "event"
	}
	return attr
}

func consoleNames(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) == 0 && attr.Key == slog.TimeKey {
		return slog.String("time", attr.Value.Time().Format(time.TimeOnly))
	}
	if attr.Key == slog.MessageKey {
		attr.Key = "event"
	}
	return attr
}

func levelName(value slog.Value) string {
	if level, ok := value.Any().(slog.Level); ok && level == slog.LevelWarn {
		return "warning" // as the Python programs call it
	}
	return strings.ToLower(value.String())
}

func isTerminal(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
