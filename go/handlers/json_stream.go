package handlers

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"unicode/utf8"
)

// keeper takes a long string: its key and its content. What it answers stands in the string's place.
type keeper func(key string, content io.Reader) (string, error)

// readJSON reads JSON text whose strings may be whole videos in base64. A string of more than limit bytes does not
// become a part of the text: keep gets it as it arrives. What is left has at most `most` bytes, else errTooLarge. The
// syntax is not checked: the text's reader does.
func readJSON(from io.Reader, limit, most int, keep keeper) ([]byte, error) {
	in := bufio.NewReaderSize(from, 32<<10)
	var out bytes.Buffer
	for {
		char, err := in.ReadByte()
		if err == io.EOF {
			return out.Bytes(), nil
		}
		if err != nil {
			return nil, err
		}
		if out.WriteByte(char); char == '"' {
			if err := readString(in, &out, limit, keep); err != nil {
				return nil, err
			}
		}
		if out.Len() > most {
			return nil, errTooLarge
		}
	}
}

var errTooLarge = errors.New("the text is too large")

// readString copies one string, after its opening quote, or hands it over.
func readString(in *bufio.Reader, out *bytes.Buffer, limit int, keep keeper) error {
	begin, escaped := out.Len(), false
	for out.Len()-begin <= limit {
		char, err := in.ReadByte()
		if err != nil {
			return unexpected(err)
		}
		out.WriteByte(char)
		if char == '"' && !escaped {
			return nil
		}
		escaped = char == '\\' && !escaped
	}
	rest := &stringReader{head: bytes.Clone(out.Bytes()[begin:]), in: in}
	out.Truncate(begin)
	mark, err := keep(lastKey(out.Bytes()), rest)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, rest); err != nil { // keep need not have read to the end
		return err
	}
	out.Write(encode(mark)[1:])
	return nil
}

// lastKey is the key whose value begins where the text ends, behind `"key": "`.
func lastKey(text []byte) string {
	text = bytes.TrimRight(bytes.TrimSuffix(text, []byte{'"'}), " \t\r\n")
	text, isValue := bytes.CutSuffix(text, []byte{':'})
	text, isKey := bytes.CutSuffix(bytes.TrimRight(text, " \t\r\n"), []byte{'"'})
	if !isValue || !isKey {
		return ""
	}
	return string(text[bytes.LastIndexByte(text, '"')+1:])
}

// stringReader gives the content of a JSON string, without its escapes, up to the closing quote.
type stringReader struct {
	head    []byte // read already
	in      *bufio.Reader
	pending []byte // of an escape that is longer than one byte
	err     error
}

func (s *stringReader) Read(into []byte) (int, error) {
	count := 0
	for count < len(into) {
		if len(s.pending) > 0 {
			moved := copy(into[count:], s.pending)
			s.pending = s.pending[moved:]
			count += moved
			continue
		}
		if s.err != nil {
			break
		}
		char, err := s.next()
		switch {
		case err != nil:
			s.err = unexpected(err)
		case char == '"':
			s.err = io.EOF
		case char == '\\':
			s.pending, s.err = s.escape()
		default:
			into[count] = char
			count++
		}
	}
	if count > 0 || len(into) == 0 {
		return count, nil
	}
	return 0, s.err
}

func (s *stringReader) next() (byte, error) {
	if len(s.head) > 0 {
		char := s.head[0]
		s.head = s.head[1:]
		return char, nil
	}
	return s.in.ReadByte()
}

func (s *stringReader) escape() ([]byte, error) {
	char, err := s.next()
	if err != nil {
		return nil, unexpected(err)
	}
	if char != 'u' {
		if plain := bytes.IndexByte([]byte("bfnrt"), char); plain >= 0 {
			char = "\b\f\n\r\t"[plain]
		}
		return []byte{char}, nil
	}
	var digits [4]byte
	for i := range digits {
		if digits[i], err = s.next(); err != nil {
			return nil, unexpected(err)
		}
	}
	unit, err := strconv.ParseUint(string(digits[:]), 16, 16)
	if err != nil {
		return nil, errors.New("the JSON text has a wrong escape")
	}
	return utf8.AppendRune(nil, rune(unit)), nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
