package handlers

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestLongStringsAreHandedOver(t *testing.T) {
	video := strings.Repeat("QUJD", 50_000)
	text := `{"a":"short \" \\","steps":[{"data" : "` + strings.ReplaceAll(video, "JD", `\u004a\u0044`) + `=\u003d\/","mime":"m"},{"other":"` + strings.Repeat("x", 40) + `"}],"done":true}`
	kept := map[string]string{}
	for name, source := range map[string]io.Reader{"whole": strings.NewReader(text), "byte by byte": iotest.OneByteReader(strings.NewReader(text))} {
		clear(kept)
		found, err := readJSON(source, 30, 1000, func(key string, content io.Reader) (string, error) {
			all, err := io.ReadAll(content)
			kept[key] = string(all)
			return "<" + key + ">", err
		})
		if err != nil {
			t.Fatal(name, err)
		}
		if want := `{"a":"short \" \\","steps":[{"data" : "<data>","mime":"m"},{"other":"<other>"}],"done":true}`; string(found) != want || !json.Valid(found) {
			t.Errorf("%s: %s", name, found)
		}
		if kept["data"] != video+"==/" || kept["other"] != strings.Repeat("x", 40) {
			t.Errorf("%s: %.80q", name, kept)
		}
	}
}

func TestAStringThatIsNotReadIsSkipped(t *testing.T) {
	found, err := readJSON(strings.NewReader(`["`+strings.Repeat("z", 100)+`",2]`), 10, 1000, func(string, io.Reader) (string, error) { return "", nil })
	if err != nil || string(found) != `["",2]` {
		t.Errorf("%s %v", found, err)
	}
}

func TestBrokenAndEndlessAnswers(t *testing.T) {
	read := func(_ string, content io.Reader) (string, error) {
		_, err := io.Copy(io.Discard, content)
		return "", err
	}
	for text, want := range map[string]error{
		`{"a":"` + strings.Repeat("z", 100): io.ErrUnexpectedEOF, `{"a":"b`: io.ErrUnexpectedEOF, strings.Repeat("[", 2000): errTooLarge,
	} {
		if _, err := readJSON(strings.NewReader(text), 20, 1000, read); !errors.Is(err, want) {
			t.Errorf("%.20s: %v", text, err)
		}
	}
	if _, err := readJSON(io.MultiReader(bytes.NewReader([]byte(`{"a":"`)), iotest.ErrReader(io.ErrClosedPipe)), 20, 1000, read); !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}
